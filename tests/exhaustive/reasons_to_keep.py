"""What keeps objects that are on no list: path probes in two passes, and all lists once more."""

from __future__ import annotations

from collections.abc import Sequence

from tests.exhaustive import decisions
from tests.exhaustive.commit_readings import CommitReadings
from tests.exhaustive.decisions import Decided
from tests.exhaustive.memory import Memory
from tests.exhaustive.program import DONE, NEXT, Take, Wrong
from tests.exhaustive.server import NO_ANSWER, NOT_FOUND, Answer, Question
from tests.exhaustive.world import (
    BRANCHES,
    OTHER,
    OURS,
    PATHS,
)


class ReasonsToKeep(CommitReadings):
    """The comparison of what is stored with what is live, and the requests about the remaining objects."""

    def keep(self) -> None:
        """Compare, probe paths twice, and read the lists once more."""
        decides = f"{self.part}decides"
        self.local("compares what is stored with what is live", lambda memory: self.compare(memory, decides))
        if self.has("path probes"):
            for number in (1, 2) if self.has("probes twice") else (1,):
                self.probe_paths(number)
        if self.has("the closing reading"):
            self.read_at_the_end()
        self.label(decides)
        if not self.part.startswith("sweep"):  # a re-verification has no such step: the watch compares holds
            self.step("holds, at the end", ("holds",), self.same_as("held"))
        self.local("decides", self.decide)

    def compare(self, memory: Memory, decides: str) -> tuple[Memory, str]:
        young_is_kept = self.has("young is kept")
        if self.incremental and not memory.sweeping:
            unreferenced = decisions.unreferenced_since(
                memory.candidates, memory.young, memory.live, known=self.in_trees(self.base_trees) & ~memory.forged,
                known_live=memory.known_live, compared=memory.compared, young_is_kept=young_is_kept,
            )  # fmt: skip
        else:
            unreferenced = decisions.unreferenced(
                memory.candidates, memory.young, memory.live, young_is_kept=young_is_kept
            )
        return memory._replace(candidates=unreferenced, compared=0, known_live=0), NEXT if unreferenced else decides

    def decide(self, memory: Memory) -> tuple[Memory, str]:
        """Expire the objects that nothing keeps. Everything else that was read is forgotten, except what the watch of a
        round needs."""
        on_hold = memory.held if self.has("holds") else 0
        expiring = memory.candidates & ~memory.live & ~on_hold
        kept = Memory(memory.absence, memory.moved, memory.earlier, candidates=expiring, young=memory.young & expiring,
                      rules=memory.rules, held=memory.held, unread=memory.unread, proven=memory.proven,
                      forged=memory.forged)  # fmt: skip
        if not expiring:
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
            seen_heads = set(self.value(memory.heads)) if memory.heads else set()
            if repository == OURS:
                read = self.value(memory.decided)[1]
                answers = (read.before, read.after, answer)
            else:
                answers = (answer,)
            for heads in answers:
                seen_heads |= {(repository, branch, head) for branch, head in enumerate(heads) if head >= 0}
            return memory._replace(heads=self.number(frozenset(seen_heads))), NEXT

        return take

    def choose_paths(self, memory: Memory) -> tuple[Memory, str]:
        sizes = decisions.sizes_of(self.universe, memory.candidates & ~memory.live)
        wanted = {(repository, branch, path) for repository, branch, head in self.value(memory.heads)
                  for path in decisions.paths_to_probe(self.universe, head, sizes)}  # fmt: skip
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
            if memory.tries:  # the server contradicts itself: all results for this branch are unclear
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
        if not self.has("unclear probes keep objects"):
            return memory
        wanted = decisions.sizes_of(self.universe, memory.candidates & ~memory.live)
        heads = [head for at, number, head in self.value(memory.heads) if (at, number) == (repository, branch)]
        sizes = decisions.probed_sizes(self.universe, heads, wanted)
        return memory._replace(live=memory.live | decisions.of_sizes(self.universe, memory.candidates, sizes))

    def read_at_the_end(self) -> None:
        """Read once more the staged objects, the heads, and the commits made in the meantime."""

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
        new = {head for head in answer if head >= 0} - decided.retained
        return memory._replace(live=memory.live | self.reached(new)), NEXT

    def new_tags(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        return memory._replace(live=memory.live | self.reached([answer] if answer >= 0 else [])), NEXT

    def new_commits(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        decided: Decided = self.value(memory.decided)[0]
        return memory._replace(live=memory.live | self.reached(answer - decided.known)), NEXT
