"""The steps of a mark and of a sweep: what lakegc requests, in which order, and what it makes of each answer.

A step asks one question, so that writers can come between any two; what it computes from answers is done by lakegc's
own rules (`decisions`). The order of a mark's reading is that of `CHAIN`. Where a real run has several tasks at once,
the model has them one after the other: for each order of two requests there is a world in which it is this one.

A program is a list of steps. `without` names the safeguards (`safeguards.py`) that it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

from spark_resources.mark_store.record import CHAIN
from tests.exhaustive import decisions
from tests.exhaustive.decisions import Decided, Read, Retention, Watch, inside
from tests.exhaustive.memory import LATE_PERMIT, LATE_VERIFICATION, LISTS, Memory, Since, begun
from tests.exhaustive.server import ENDS, NO_ANSWER, NOT_FOUND, Answer, Question, Server
from tests.exhaustive.world import (
    BITS,
    BRANCHES,
    LONG_AGO,
    NEW,
    OLD,
    OTHER,
    OURS,
    PATHS,
    STORED,
    Entry,
    Tree,
    addresses,
    bit,
)

NEXT, STOPPED, DONE = "", "stopped", "done"
"""Where a program goes on: at the next step, at a label, or nowhere: it refused to go on, or it is done."""
NOTHING: Question = ("nothing",)
EMPTY, NO_LIST = "empty", "none"
LOST = "lost"
EXPIRED, MINUTE, OLD_VERIFICATION, KILLED = "expired", "a minute later", "old", "killed"
TRIES = 3


class Wrong(NamedTuple):
    """A wrong answer, by the name of its fault, with what happened for people."""

    fault: str
    sentence: str
    answer: Answer


Ask = Callable[[Memory], Question | None]
Take = Callable[[Memory, Answer], tuple[Memory, str]]
GoWrong = Callable[[Memory, Answer], Sequence[Wrong]]


class Step(NamedTuple):
    """One request or effect. `ask` is None where the step has nothing to ask: it is then passed over.

    `take` returns the memory after the answer, and where to go on. `deletes` is the object that the step deletes, and
    `ends` says whether a mark is finished here: at these, the search measures what is lost.
    """

    name: str
    ask: Ask
    take: Take
    wrong: GoWrong
    deletes: int = -1
    ends: bool = False


def _right(memory: Memory, answer: Answer) -> Sequence[Wrong]:
    return ()


class Collector:
    """Builds the program of a mark and its sweep over the repositories of a server."""

    def __init__(
        self, server: Server, *, mark: str, sweep: bool, without: Collection[str] = (), dump: bool = True,
        recorded: int = 0,
    ) -> None:  # fmt: skip
        """`mark` is "full", "incremental", or empty for a sweep of what a quiet mark expired. `dump`: whether commits
        may be dumped. `recorded`: what an earlier mark found in the other repository."""
        self.server, self.universe, self.without, self.dump = server, server.universe, frozenset(without), dump
        self.recorded, self.incremental = recorded, mark == "incremental"
        self.retention = Retention(server.names)
        self.branches = [len(each.branches) for each in self.universe.worlds[0].repositories]
        self.steps: list[Step] = []
        self.labels: dict[str, int] = {}
        self.part = ""
        self._values: list[Hashable] = []
        self._numbers: dict[Hashable, int] = {}
        self.none = self.number(frozenset())
        self.in_sweep = False
        self.first_commits = len(self.universe.commits)
        if mark:
            self.mark()
        if sweep:
            self.in_sweep = True
            self.sweep()
        self.label(DONE)

    # --- building ---------------------------------------------------------------------------------------------------

    def number(self, value: Hashable) -> int:
        """A value as a number, for memory."""
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self._values)
            self._values.append(value)
        return found

    def value(self, number: int) -> Any:
        return self._values[number]

    def has(self, safeguard: str) -> bool:
        return safeguard not in self.without

    def label(self, name: str) -> None:
        assert name not in self.labels, name
        self.labels[name] = len(self.steps)

    def step(
        self, name: str, ask: Ask | Question, take: Take, wrong: GoWrong = _right, *, deletes: int = -1,
        ends: bool = False,
    ) -> None:  # fmt: skip
        asking = ask if callable(ask) else lambda memory: ask
        self.steps.append(Step(f"{self.part}{name}", asking, take, wrong, deletes, ends))

    def local(self, name: str, compute: Callable[[Memory], tuple[Memory, str]]) -> None:
        """A step that only computes."""
        self.step(name, NOTHING, lambda memory, _: compute(memory))

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        before, self.part = self.part, f"{part}: "
        yield
        self.part = before

    def slots(self, repository: int) -> Iterator[tuple[int, int]]:
        return ((branch, path) for branch in range(self.branches[repository]) for path in range(len(PATHS)))

    @property
    def has_others(self) -> bool:
        return len(self.branches) > 1

    # --- a mark -----------------------------------------------------------------------------------------------------

    def mark(self) -> None:
        """Listing, staged, commits, other repositories' tables, and the reasons to keep what is left."""
        with self.within("mark"):
            self.step("begins", ("begin",), self.begin_mark)
            parts = {
                "namespace_slices": self.list_store,
                "uncommitted_addresses": self.read_uncommitted,
                "retained_commits": self.read_commits,
                "committed_addresses": self.read_ranges,
                "expired_set": self.keep,
            }
            order = list(CHAIN)
            if not self.has("staged before commits"):
                order[1], order[2] = order[2], order[1]
            if not self.has("the listing first"):
                order.insert(order.index("expired_set") - 1, order.pop(0))
            for asset in order:
                parts[asset]()
            self.step("is finished", ("truth",), lambda memory, _: (memory, NEXT), ends=True)
            self.step("is approved", ("begin",), self.approve)

    def begin_mark(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        rules, held, absence = answer
        return Memory(absence=begun(0, absence, Since.MARK), earlier=memory.earlier, rules=rules, held=held), NEXT

    def list_store(self) -> None:
        if self.incremental:
            self.find_no_longer_retained()
        for folder in range(int(self.incremental), decisions.SLICES):

            def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
                old, young = answer & (1 << BITS) - 1, answer >> BITS
                found = memory.candidates | old | young
                return memory._replace(candidates=found, young=memory.young | young), NEXT

            def wrong(memory: Memory, answer: Answer) -> Sequence[Wrong]:
                return [Wrong("truncated list", "the store's listing ends early", 0)] if answer else ()

            self.step(f"lists slice {folder} of the store", ("listing", folder), take, wrong)

    # --- an incremental mark ----------------------------------------------------------------------------------------

    @cached_property
    def base_trees(self) -> frozenset[Tree]:
        """The ranges that the base mark read. It was made long ago, when all commits of that time were retained."""
        return frozenset(one.tree for one in self.universe.commits[: self.first_commits] if one.date == LONG_AGO)

    def in_trees(self, trees: Iterable[Tree]) -> int:
        found = 0
        for tree in trees:
            for entry in tree:
                found |= self.inside(entry)
        return found

    def find_no_longer_retained(self) -> None:
        """What counted at the base mark and no longer does is looked up, like what no commit had then."""
        self.step("reads the base mark", NOTHING, self.read_base, self.forge_base)
        self.step("heads, before the listing", ("branches", OURS), self.keep_number("before"))
        self.step("dump of all commits, before the listing", ("dump",), self.choose_lookups)
        for address in range(len(self.universe.contents)):
            self.step(f"looks up object {address}", self.ask_compared(address), self.find(address))

    def read_base(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        return memory._replace(forged=answer), NEXT

    def forge_base(self, memory: Memory, answer: Answer) -> Sequence[Wrong]:
        """Whoever may write to the namespace can take an address out of the base mark's files."""
        return [
            Wrong("forged base", f"the base mark's record of a range was altered: object {one} is missing", bit(one))
            for one in addresses(self.in_trees(self.base_trees))
        ]

    def choose_lookups(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        heads = self.value(memory.before)
        read = Read(heads, answer, frozenset(), heads, frozenset(), memory.rules)
        trees = {self.universe.commits[one].tree for one in self.retention.decide(read).retained}
        never = (1 << len(self.universe.contents)) - 1 & ~self.in_trees(self.base_trees)
        return memory._replace(compared=never | self.in_trees(self.base_trees - trees) & ~memory.forged, before=0), NEXT

    def ask_compared(self, address: int) -> Ask:
        is_listed = decisions.slice_of(address) > 0
        return lambda memory: None if is_listed or not memory.compared & bit(address) else ("stored", address)

    def find(self, address: int) -> Take:
        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            here, young = (bit(address) if answer in kinds else 0 for kinds in (STORED, (NEW,)))
            return memory._replace(candidates=memory.candidates | here, young=memory.young | young), NEXT

        return take

    # --- staged objects ---------------------------------------------------------------------------------------------

    def read_uncommitted(self) -> None:
        for part in ("first", "second") if self.has("the second reading") else ("first",):
            self.read_staged(OURS, f"staged objects, {part} reading")
        if self.has_others and self.has("other repositories"):
            for part in ("first", "second") if self.has("the second reading") else ("first",):
                self.read_staged(OTHER, f"the other repository's staged objects, {part} reading")

    def read_staged(self, repository: int, name: str) -> None:
        """One reading: the server's list (of our repository), then the branches' diffs, path by path."""
        label = f"{self.part}{name}"
        with self.within(label):
            if repository == OURS:
                self.label(f"{label}: list")
                self.read_list(label)
            if repository == OTHER or self.has("the diffs of branches"):
                self.read_diffs(repository, label)
            self.label(f"{label}: end of diffs")
            self.local("is complete", lambda memory: self.end_reading(memory, repository, label))

    def read_list(self, label: str) -> None:
        self.local("the list is requested", lambda memory: (memory._replace(page=0, kind=0), NEXT))
        for branch in range(self.branches[OURS]):
            self.label(f"{label}: list of {branch}")
            following = f"{label}: list of {branch + 1}"
            for path in range(len(PATHS)):
                self.step(
                    f"the server's list, {BRANCHES[OURS][branch]} `{PATHS[path]}`",
                    ("listed", branch, path),
                    self.take_listed(following),
                    lambda memory, answer: [
                        Wrong("swallowed error", "the server's scan of a branch ends early, without an error", ENDS)
                    ],
                )
        self.label(f"{label}: list of {self.branches[OURS]}")
        self.step("the server answers with its list", NOTHING, self.end_list(label), self.lost_list)

    def take_listed(self, following: str) -> Take:
        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer == ENDS:
                return memory, following
            return memory._replace(page=memory.page | answer), NEXT

        return take

    def lost_list(self, memory: Memory, answer: Answer) -> Sequence[Wrong]:
        """A branch that is deleted while the server scans makes it forget what it wrote (formats §2)."""
        why = "a branch was deleted while the server scanned: its list is"
        return (
            Wrong("empty list", f"{why} empty", EMPTY),
            Wrong("404", f"{why} 404, branch not found", NO_LIST),
        )

    def end_list(self, label: str) -> Take:
        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            page = 0 if answer in (EMPTY, NO_LIST) else memory.page
            kind = LISTS.index("none") if answer == NO_LIST else LISTS.index("whole" if page else "empty")
            after = memory._replace(live=memory.live | page, page=0, kind=kind)
            return after, f"{label}: end of diffs" if memory.repeats else NEXT

        return take

    def end_reading(self, memory: Memory, repository: int, label: str) -> tuple[Memory, str]:
        """Repeat a list that can't be right."""
        may_repeat = repository == OURS and self.has("the list is repeated") and memory.repeats < TRIES - 1
        if may_repeat and decisions.must_repeat(LISTS[memory.kind], memory.found.bit_count()):
            return memory._replace(repeats=memory.repeats + 1), f"{label}: list"
        return memory._replace(kind=0, repeats=0, todo=0, changed=0, found=0, tries=0), NEXT

    def read_diffs(self, repository: int, label: str) -> None:
        def list_branches(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer == NO_ANSWER:
                return self.unreadable(memory, f"{label}: end of diffs")
            return memory._replace(todo=sum(1 << number for number, one in enumerate(answer) if one >= 0)), NEXT

        self.step("branches", self.unless_unread(("branches", repository)), list_branches,
                  self.wrong_branches(repository))  # fmt: skip
        for branch in range(self.branches[repository]):
            self.label(f"{label}: {branch}")
            for path in range(len(PATHS)):
                self.read_change(repository, branch, path, label)
            for path in range(len(PATHS)):
                self.read_changed_path(repository, branch, path, label)
            self.local(
                "ends a branch",
                lambda memory, branch=branch: (
                    memory._replace(todo=memory.todo & ~(1 << branch), changed=0, tries=0),
                    f"{label}: {branch + 1}",
                ),
            )
            self.confirm_deletion(repository, branch, label)
        self.label(f"{label}: {self.branches[repository]}")

    def read_change(self, repository: int, branch: int, path: int, label: str) -> None:
        def ask(memory: Memory) -> Question | None:
            return ("change", repository, branch, path) if memory.todo >> branch & 1 else None

        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer == NOT_FOUND:
                return memory, f"{label}: is {branch} gone"
            if answer == ENDS:
                if self.has("diffs that fail"):
                    return self.unreadable(memory, f"{label}: {branch + 1}", repository)
                return memory, f"{label}: paths of {branch}"
            return memory._replace(changed=memory.changed | 1 << path) if answer else memory, NEXT

        def wrong(memory: Memory, answer: Answer) -> Sequence[Wrong]:
            if answer == NOT_FOUND:
                return ()
            return (
                Wrong("404", "a 404 for the branch, though it exists", NOT_FOUND),
                Wrong("swallowed error", "the server can't read a staging record, and its diff ends there", ENDS),
            )

        self.step(f"diff of {BRANCHES[repository][branch]}, `{PATHS[path]}`", ask, take, wrong)

    def read_changed_path(self, repository: int, branch: int, path: int, label: str) -> None:
        if path == 0:
            self.label(f"{label}: paths of {branch}")

        def ask(memory: Memory) -> Question | None:
            return ("stat", repository, branch, path) if memory.changed >> path & 1 else None

        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer == NOT_FOUND:
                return memory, f"{label}: is {branch} gone"
            here = self.inside(answer)
            return memory._replace(live=memory.live | here, found=memory.found | here), NEXT

        self.step(
            f"stat of {BRANCHES[repository][branch]} `{PATHS[path]}`", ask, take,
            lambda memory, answer: [Wrong("404", "a 404 for the branch, though it exists", NOT_FOUND)]
            if answer != NOT_FOUND else (),
        )  # fmt: skip

    def confirm_deletion(self, repository: int, branch: int, label: str) -> None:
        """A branch that isn't found is listed again; one that is there after all is read again from its beginning."""
        self.label(f"{label}: is {branch} gone")

        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            after = memory._replace(changed=0)
            if self.has("a deletion is confirmed") and answer[branch] >= 0:
                if memory.tries >= TRIES - 1:
                    return self.unreadable(after, f"{label}: {branch + 1}", repository)
                return after._replace(tries=memory.tries + 1), f"{label}: {branch}"
            return after._replace(tries=0), f"{label}: {branch + 1}"

        self.step(f"lists branches again, to see whether {BRANCHES[repository][branch]} is gone",
                  ("branches", repository), take)  # fmt: skip

    def unreadable(self, memory: Memory, following: str, repository: int = OURS) -> tuple[Memory, str]:
        """Our repository that can't be read stops everything; another one a sweep, unless that safeguard is off."""
        if repository == OURS:
            return memory, STOPPED
        if self.has("an unread repository counts") and memory.sweeping:
            return memory, STOPPED
        carried = self.recorded if self.has("an unread repository counts") else 0
        return memory._replace(unread=1, live=memory.live | carried, changed=0, tries=0), following

    def wrong_branches(self, repository: int) -> GoWrong:
        """Stale branches, or none: another repository that can't be read."""

        def wrong(memory: Memory, answer: Answer) -> Sequence[Wrong]:
            found = []
            if memory.earlier >= 0:
                before = self.server.answer(("branches", repository), memory.earlier)
                if before != answer:
                    found.append(Wrong("stale listing", "branches are listed as they were before", before))
            if repository == OTHER:
                found.append(Wrong("unreadable", "the other repository can't be read", NO_ANSWER))
            return found

        return wrong

    def inside(self, entry: Entry | None) -> int:
        return 0 if entry is None else inside(entry, all_spellings=self.has("every spelling of an address"))

    # --- commits ----------------------------------------------------------------------------------------------------

    def read_commits(self) -> None:
        """Rules, heads, dump, the server's list, heads again, rules again."""
        with self.within(f"{self.part}commits"):
            self.check_rules("before")
            self.step("heads", ("branches", OURS), self.keep_number("before"), self.wrong_branches(OURS))
            self.step("tags", ("tags",), lambda memory, answer: (memory._replace(tags=self.tagged(answer)), NEXT))
            if self.dump:
                self.step("dump of all commits", ("dump",), self.keep_number("dumped"))
            self.step("the server's list of retained commits", ("server_list",), self.keep_number("listed"))
            self.step("heads again", ("branches", OURS), self.decide_commits, self.wrong_branches(OURS))
            self.check_rules("after")

    def keep_number(self, field: str) -> Take:
        return lambda memory, answer: (memory._replace(**{field: self.number(answer)}), NEXT)

    def tagged(self, answer: int) -> int:
        return self.number(frozenset() if answer < 0 else frozenset([answer]))

    def check_rules(self, when: str) -> None:
        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer == memory.rules or not self.has("rules and holds stay the same"):
                return memory, NEXT
            return (memory, "sweep: re-verification") if memory.sweeping else (memory, STOPPED)

        self.step(f"the rules, {when}", ("rules",), take)

    def decide_commits(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        dumped: frozenset[int] | None = self.value(memory.dumped) if self.dump else None
        before = self.value(memory.before)
        if dumped is not None and not self.has("commits on no branch"):
            heads = [one for one in (*before, *answer) if one >= 0]
            dumped = dumped & self.server.names.with_ancestors(heads)
        listed = self.value(memory.listed) if self.has("the server's list of commits") else frozenset()
        read = Read(before, dumped, listed, answer, self.value(memory.tags), memory.rules)
        decided = self.retention.decide(
            read, the_rule=self.has("the rule, not only the server's list"), heads_before=self.has("heads twice")
        )
        trees = frozenset(self.universe.commits[one].tree for one in decided.retained)
        memory = memory._replace(decided=self.number((decided, read)), before=0, dumped=0, listed=0, tags=0)
        if memory.sweeping:
            return memory._replace(live=memory.live | self.in_trees(trees - self.value(memory.proven))), NEXT
        known = self.base_trees if self.incremental else frozenset()
        trusted = known if self.has("earlier marks' ranges are read again") else frozenset()
        return memory._replace(
            live=memory.live | self.in_trees(trees - known),
            known_live=self.in_trees(trees & known) & ~memory.forged,
            proven=self.number(trees - trusted),
        ), NEXT

    def reached(self, commits: Collection[int]) -> int:
        found = 0
        for one in commits:
            for entry in self.universe.commits[one].tree:
                found |= self.inside(entry)
        return found

    def read_ranges(self) -> None:
        """Tables never change, so reading those of our repository asks nothing."""
        if self.has_others and self.has("other repositories"):
            self.step("lists and reads the tables of the other repository", self.unless_unread(("tables",)),
                      self.read_tables, self.no_answer)  # fmt: skip

    def read_tables(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        if answer == NO_ANSWER:
            return self.unreadable(memory, NEXT, OTHER)
        return memory._replace(live=memory.live | answer), NEXT

    def unless_unread(self, question: Question) -> Ask:
        """A repository that could not be read once can't be read later in the same mark either."""
        return lambda memory: None if memory.unread and question[1:] != (OURS,) else question

    def no_answer(self, memory: Memory, answer: Answer) -> Sequence[Wrong]:
        return [Wrong("unreadable", "the other repository can't be read", NO_ANSWER)]

    # --- reasons to keep --------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Compare, probe paths twice, and read the lists once more."""
        decides = f"{self.part}decides"
        self.local("compares what is stored with what is live", lambda memory: self.compare(memory, decides))
        if self.has("path probes"):
            for number in (1, 2) if self.has("probes twice") else (1,):
                self.probe_paths(number)
        if self.has("the closing reading"):
            self.read_at_the_end()
        if not self.in_sweep:
            self.step("holds, at the end", ("holds",), self.check_holds)
        self.label(decides)
        self.local("decides", self.decide)

    def compare(self, memory: Memory, decides: str) -> tuple[Memory, str]:
        kept = self.has("young is kept")
        if self.incremental and not memory.sweeping:
            left = decisions.unreferenced_since(
                memory.candidates, memory.young, memory.live, known=self.in_trees(self.base_trees) & ~memory.forged,
                known_live=memory.known_live, compared=memory.compared, young_is_kept=kept,
            )  # fmt: skip
        else:
            left = decisions.unreferenced(memory.candidates, memory.young, memory.live, young_is_kept=kept)
        return memory._replace(candidates=left, compared=0, known_live=0), NEXT if left else decides

    def check_holds(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        if answer == memory.held or not self.has("rules and holds stay the same"):
            return memory, NEXT
        return memory, STOPPED

    def decide(self, memory: Memory) -> tuple[Memory, str]:
        """What nothing keeps. Everything else that was read is forgotten, except what the watch of a round needs."""
        held = memory.held if self.has("holds") else 0
        left = memory.candidates & ~memory.live & ~held
        kept = Memory(memory.absence, memory.moved, memory.earlier, candidates=left, young=memory.young & left,
                      rules=memory.rules, held=memory.held, unread=memory.unread, proven=memory.proven,
                      forged=memory.forged)  # fmt: skip
        if not left:
            return kept, DONE
        return kept._replace(decided=memory.decided, sweeping=1) if memory.sweeping else kept, NEXT

    def probe_paths(self, number: int) -> None:
        with self.within(f"{self.part}path probes, pass {number}"):
            label = self.part
            self.step("heads", ("branches", OURS), self.see_heads(OURS), self.wrong_branches(OURS))
            if self.has_others and self.has("other repositories"):
                self.step(
                    "heads of the other repository",
                    self.unless_unread(("branches", OTHER)),
                    self.see_heads(OTHER),
                    self.no_answer,
                )
            self.local("choose paths", self.choose_paths)
            for repository in range(len(self.branches)):
                for branch in range(self.branches[repository]):
                    self.probe_branch(repository, branch, label)

    def see_heads(self, repository: int) -> Take:
        """Heads add up: those that the mark recorded, and those of both passes."""

        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer == NO_ANSWER:
                return self.unreadable(memory, NEXT, repository)
            seen = set(self.value(memory.heads)) if memory.heads else set()
            if repository == OURS:
                read = self.value(memory.decided)[1]
                answers = (read.before, read.after, answer)
            else:
                answers = (answer,)
            for heads in answers:
                seen |= {(repository, branch, one) for branch, one in enumerate(heads) if one >= 0}
            return memory._replace(heads=self.number(frozenset(seen))), NEXT

        return take

    def choose_paths(self, memory: Memory) -> tuple[Memory, str]:
        sizes = decisions.sizes_of(self.universe, memory.candidates & ~memory.live)
        wanted = {(repository, branch, path) for repository, branch, one in self.value(memory.heads)
                  for path in decisions.paths_to_probe(self.universe, one, sizes)}  # fmt: skip
        return memory._replace(probes=self.number(frozenset(wanted)), tries=0), NEXT

    def probe_branch(self, repository: int, branch: int, label: str) -> None:
        name = BRANCHES[repository][branch]
        this, after = f"{label}{name}", f"{label}{name} is probed"
        self.label(this)
        for path in range(len(PATHS)):
            self.probe(repository, branch, path, this)
        self.local(f"has probed {name}", lambda memory: (memory._replace(tries=0), after))
        self.label(f"{this} gone")

        def is_gone(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if not self.has("a deletion is confirmed") or answer[branch] < 0:
                return memory._replace(tries=0), after
            if memory.tries:  # the server contradicts itself: nothing is clear at this branch
                return self.keep_unclear(memory._replace(tries=0), repository, branch), after
            return memory._replace(tries=1), this

        self.step(f"lists branches again, to see whether {name} is gone", ("branches", repository), is_gone)
        self.label(after)

    def probe(self, repository: int, branch: int, path: int, label: str) -> None:
        def ask(memory: Memory) -> Question | None:
            return ("stat", repository, branch, path) if self.is_probed(memory, repository, branch, path) else None

        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer == NOT_FOUND:
                return memory, f"{label} gone"
            if answer == NO_ANSWER:
                return self.keep_unclear(memory, repository, branch), NEXT
            return memory._replace(live=memory.live | self.inside(answer)), NEXT

        def wrong(memory: Memory, answer: Answer) -> Sequence[Wrong]:
            if answer == NOT_FOUND:
                return ()
            return (
                Wrong("404", "a 404 for the branch, though it exists", NOT_FOUND),
                Wrong("503", "no answer, after all retries", NO_ANSWER),
            )

        self.step(f"probe of {BRANCHES[repository][branch]} `{PATHS[path]}`", ask, take, wrong)

    def is_probed(self, memory: Memory, repository: int, branch: int, path: int) -> bool:
        return (repository, branch, path) in self.value(memory.probes)

    def keep_unclear(self, memory: Memory, repository: int, branch: int) -> Memory:
        """Without a clear result, every candidate of the sizes probed at a branch is kept."""
        if not self.has("a doubt keeps"):
            return memory
        sizes = decisions.sizes_of(self.universe, memory.candidates & ~memory.live)
        return memory._replace(live=memory.live | decisions.of_sizes(self.universe, memory.candidates, sizes))

    def read_at_the_end(self) -> None:
        """Staged objects, heads, and commits made since, once more."""

        label = f"{self.part}decides"
        self.local("reads once more", lambda memory: (memory, NEXT if memory.candidates & ~memory.live else label))
        self.read_staged(OURS, "staged objects, at the end")
        if self.has_others and self.has("other repositories"):
            self.read_staged(OTHER, "the other repository's staged objects, at the end")
            if self.has("other repositories' tables at the end"):
                self.step("the other repository's tables, at the end", self.unless_unread(("tables",)),
                          self.read_tables, self.no_answer)  # fmt: skip
        self.step("heads, at the end", ("branches", OURS), self.new_heads, self.wrong_branches(OURS))
        self.step("tags, at the end", ("tags",), self.new_tags)
        if self.dump:
            self.step("dump of all commits, at the end", ("dump",), self.new_commits)

    def new_heads(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        decided: Decided = self.value(memory.decided)[0]
        new = {one for one in answer if one >= 0} - decided.retained
        return memory._replace(live=memory.live | self.reached(new)), NEXT

    def new_tags(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        return memory._replace(live=memory.live | self.reached([answer] if answer >= 0 else [])), NEXT

    def new_commits(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        decided: Decided = self.value(memory.decided)[0]
        return memory._replace(live=memory.live | self.reached(answer - decided.known)), NEXT

    # --- approval ---------------------------------------------------------------------------------------------------

    def approve(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        """By the rules and holds that the mark was made with; nobody releases an unread repository here."""
        rules, held, _ = answer
        same = (rules, held) == (memory.rules, memory.held) or not self.has("rules and holds stay the same")
        if not same or (memory.unread and self.has("an unread repository counts")):
            return memory, STOPPED
        return memory, NEXT

    # --- a sweep ----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """A re-verification, then a round: the watch of heads, and each object that is still garbage."""
        with self.within("sweep"):
            self.step("verifies the mark's files", NOTHING, self.verify_files, self.alter_files)
            self.label("sweep: re-verification")
            self.step("re-verification begins", ("begin",), self.begin_verification)
            if self.has("the re-verification"):
                with self.within("sweep, re-verification"):
                    parts = {
                        "uncommitted_addresses": self.read_uncommitted,
                        "retained_commits": self.read_commits,
                        "committed_addresses": self.read_ranges,
                    }
                    order = list(CHAIN[1:-1])
                    if not self.has("staged before commits"):
                        order[0], order[1] = order[1], order[0]
                    for asset in order:
                        parts[asset]()
                    self.keep()
            else:
                self.read_commits_only()
            self.watch_round()
            for address in range(len(self.universe.contents)):
                self.delete(address)

    def verify_files(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        """The approval names a digest of everything that it covers."""
        if answer and self.has("the approval names this very set"):
            return memory, STOPPED
        return memory._replace(candidates=memory.candidates | answer, forged=0), NEXT

    def alter_files(self, memory: Memory, answer: Answer) -> Sequence[Wrong]:
        return [
            Wrong("altered mark", f"object {one} is added to the files of the approved mark", bit(one))
            for one in range(len(self.universe.contents)) if not memory.candidates & bit(one)
        ]  # fmt: skip

    def begin_verification(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        rules, held, now = answer
        absence = begun(memory.absence, now, Since.VERIFICATION, Since.STAGED)
        return Memory(absence=absence, earlier=memory.earlier, candidates=memory.candidates, young=memory.young,
                      rules=rules, held=held, proven=memory.proven, sweeping=1), NEXT  # fmt: skip

    def read_commits_only(self) -> None:
        """Without a re-verification, a watch still needs to know which commits were retained."""
        with self.within("sweep, without re-verification"):
            self.read_commits()
            self.local("believes the mark", lambda memory: (memory._replace(live=0), NEXT))

    def watch_round(self) -> None:
        """What is looked at before the first permit of a round: other repositories, commits on no branch, heads."""
        self.local("a round begins", self.begin_watch)
        self.label("sweep: watch")
        if self.has_others and self.has("other repositories are watched"):
            self.step("the watch of other repositories begins", ("absence",), self.since(Since.ELSEWHERE))
            self.step("the watch lists the other repository's tables",
                      self.unless_unread(("tables",)), self.revive_elsewhere,
                      self.no_answer)  # fmt: skip
        elif self.has_others:
            self.step("no watch of other repositories", ("absence",), self.since(Since.ELSEWHERE))
        self.step("the watch's dump begins", ("absence",), self.since(Since.DUMP))
        if self.dump and self.has("commits on no branch are watched"):
            self.step("the watch dumps all commits", ("dump",), self.revive_dumped)
        self.label("sweep: permit")
        self.step("a permit begins", ("absence",), self.since(Since.HEADS, Since.HELD))
        if self.has("heads are watched"):
            self.step("the watch lists heads", ("branches", OURS), self.keep_number("before"))
            self.step("the watch reads rules", ("rules",), self.refuse_changed("rules"))
            self.step("the watch reads holds", ("holds",), self.refuse_changed("held"))
            self.step("the watch reads tags", ("tags",), self.refuse_tags)
            self.local("the permit is given", self.revive_retained)

    def begin_watch(self, memory: Memory) -> tuple[Memory, str]:
        decided, read = self.value(memory.decided)
        watch = Watch(read.after, decided.retained, decided.known, read.tags, read.rule)
        return memory._replace(watch=self.number(watch), decided=0, live=0), NEXT

    def since(self, *parts: Since) -> Take:
        return lambda memory, now: (memory._replace(absence=begun(memory.absence, now, *parts)), NEXT)

    def revive_elsewhere(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        if answer == NO_ANSWER:
            return (memory, STOPPED) if self.has("an unread repository counts") else (memory, NEXT)
        return memory._replace(candidates=memory.candidates & ~answer), NEXT

    def revive_dumped(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        commits, watch = self.retention.by_dump(self.value(memory.watch), answer)
        left = memory.candidates & ~self.reached(commits)
        return memory._replace(candidates=left, watch=self.number(watch)), NEXT

    def refuse_changed(self, field: str) -> Take:
        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer == getattr(memory, field) or not self.has("changed rules end a round"):
                return memory, NEXT
            return memory, "sweep: re-verification"

        return take

    def refuse_tags(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        known = self.value(memory.watch).tags
        if answer < 0 or answer in known or not self.has("changed rules end a round"):
            return memory, NEXT
        return memory, "sweep: re-verification"

    def revive_retained(self, memory: Memory) -> tuple[Memory, str]:
        watch, heads = self.value(memory.watch), self.value(memory.before)
        if heads == watch.branches:
            return memory._replace(before=0), NEXT
        commits, after = self.retention.by_branches(watch, heads)
        if not self.has("the rule behind new heads"):
            commits = frozenset(one for one in heads if one >= 0)
        left = memory.candidates & ~self.reached(commits)
        return memory._replace(candidates=left, watch=self.number(after), before=0), NEXT

    # --- a delete ---------------------------------------------------------------------------------------------------

    def delete(self, address: int) -> None:
        """Look the object up, wait, and delete it; renew the permit before the next one."""
        following, this = f"sweep: object {address + 1}", f"sweep: object {address}"
        self.label(this)

        def pending(question: Question) -> Ask:
            return lambda memory: question if memory.candidates & bit(address) else None

        with self.within(f"sweep, object {address}"):
            self.label(f"{this} is looked up")
            self.step("is looked up", pending(("stored", address)), self.look_up(address, following))
            self.step("its delete waits", pending(("absence",)), self.wait(this), self.delays)
            self.step("is looked up again", self.ask_again(address), self.look_up_again(address, following))
            self.step("is deleted", pending(("truth_about", address)), self.deleted(address, following, this),
                      self.lose_answer, deletes=address)  # fmt: skip
            self.label(f"{this} may be gone")
            self.step(
                "is looked up before the retry",
                pending(("stored", address)),
                self.look_up_for_retry(address, following),
            )
            self.step("is deleted by a retry", pending(("truth_about", address)),
                      self.deleted(address, following, this), deletes=address)  # fmt: skip
        if address + 1 == len(self.universe.contents):
            self.label(following)

    def look_up(self, address: int, following: str) -> Take:
        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if self.has("the object is looked up") and not self.is_still_marked(memory, address, answer):
                return memory, following
            return memory._replace(kind_then=answer), NEXT

        return take

    def is_still_marked(self, memory: Memory, address: int, found: int) -> bool:
        return decisions.may_be_deleted(NEW if memory.young & bit(address) else OLD, found)

    def delays(self, memory: Memory, answer: Answer) -> Sequence[Wrong]:
        return (
            Wrong("delay", "the task waits until its permit has expired", (EXPIRED, answer)),
            Wrong("delay", "the task waits for a minute", (MINUTE, answer)),
            Wrong("delay", "the task waits for half an hour", (OLD_VERIFICATION, answer)),
            Wrong("killed task", "the task is killed; the sweep is resumed half an hour later", (KILLED, answer)),
        )

    def wait(self, this: str) -> Take:
        """A delay moves the times since which something may have come to life unseen (`Since`) up to now."""

        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if isinstance(answer, int):
                return memory, NEXT
            what, now = answer
            parts = [Since.HEADS, Since.HELD]
            if what != EXPIRED:
                parts += [Since.DUMP, Since.ELSEWHERE]
            if what in (OLD_VERIFICATION, KILLED):
                parts += [Since.VERIFICATION, Since.STAGED]
            after = memory._replace(absence=begun(memory.absence, now, *parts), late=LATE_PERMIT)
            if what == EXPIRED:
                return (after, "sweep: permit") if self.has("a permit expires") else (after, NEXT)
            if what == MINUTE:
                return (after, "sweep: watch") if self.has("the watch is repeated") else (after, "sweep: permit")
            if what == KILLED:
                return after, "sweep: re-verification" if self.has("a resumed sweep re-verifies") else this
            after = after._replace(late=LATE_VERIFICATION)
            return (after, "sweep: re-verification") if self.has("a re-verification expires") else (after, NEXT)

        return take

    def ask_again(self, address: int) -> Ask:
        return lambda memory: ("stored", address) if memory.late and memory.candidates & bit(address) else None

    def look_up_again(self, address: int, following: str) -> Take:
        """A lookup of more than three seconds ago isn't relied on."""

        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            after = memory._replace(kind_then=answer, late=0)
            if self.has("the object is looked up") and not self.is_still_marked(memory, address, answer):
                return after, following
            return after, NEXT

        return take

    def look_up_for_retry(self, address: int, following: str) -> Take:
        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            after = memory._replace(kind_then=answer)
            if self.has("a retry looks again") and not self.is_still_marked(memory, address, answer):
                return after, following
            return after, NEXT

        return take

    def lose_answer(self, memory: Memory, answer: Answer) -> Sequence[Wrong]:
        return [Wrong("lost answer", "it is deleted, but the answer is lost", (LOST, answer))]

    def deleted(self, address: int, following: str, this: str) -> Take:
        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer[0] == LOST:
                return memory, f"{this} may be gone"
            left = memory._replace(candidates=memory.candidates & ~bit(address), kind_then=0, late=0)
            return left, "sweep: permit" if left.candidates else DONE

        return take
