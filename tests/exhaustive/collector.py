"""The steps of a mark and of a sweep: what lakegc requests, in which order, and what it concludes from each response.

Each step sends one request, so that writers can act between any two; conclusions are drawn by lakegc's own rules
(`decisions`). The order of a mark's reading is that of `CHAIN`. Where a real run has several concurrent tasks, the
model runs them one after the other: for each order of two requests there is a world in which they come in this order.

In the order of reading: `program`, `staged_readings`, `commit_readings`, `reasons_to_keep`, `marking`, this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_resources.mark_store.record import CHAIN
from tests.exhaustive import decisions
from tests.exhaustive.decisions import Watch
from tests.exhaustive.marking import Marking
from tests.exhaustive.memory import Memory, Since, begun
from tests.exhaustive.program import DONE, NEXT, NOTHING, STOPPED, Ask, Take, Wrong
from tests.exhaustive.server import NO_ANSWER, Answer, Question, Server
from tests.exhaustive.world import (
    NEW,
    OLD,
    OURS,
    bit,
)

LOST = "lost"
EXPIRED, MINUTE, OLD_VERIFICATION, KILLED = "expired", "a minute later", "old", "killed"


class Collector(Marking):
    """The whole program: a mark, its approval, and its sweep, which begins with a re-verification."""

    def __init__(self, server: Server, *, mark: str, sweep: bool, **options: Any) -> None:
        """`mark` is "full", "incremental", or empty for a sweep of what a quiet mark expired."""
        super().__init__(server, incremental=mark == "incremental", **options)
        if mark:
            self.mark()
        if sweep:
            self.sweep()
        self.label(DONE)

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
            Wrong("altered mark", f"object {address} is added to the files of the approved mark", bit(address))
            for address in range(len(self.universe.contents)) if not memory.candidates & bit(address)
        ]  # fmt: skip

    def begin_verification(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        rules, on_hold, now = answer
        absence = begun(memory.absence, now, Since.VERIFICATION, Since.STAGED)
        return Memory(absence=absence, earlier=memory.earlier, candidates=memory.candidates, young=memory.young,
                      rules=rules, held=on_hold, proven=memory.proven, sweeping=1), NEXT  # fmt: skip

    def read_commits_only(self) -> None:
        """Without a re-verification, a watch still needs to know which commits were retained."""
        with self.within("sweep, without re-verification"):
            self.read_commits()
            self.local("believes the mark", lambda memory: (memory._replace(live=0), NEXT))

    def watch_round(self) -> None:
        """The lookups before the first permit of a round: other repositories, commits on no branch, heads."""
        self.local("a round begins", self.begin_watch)
        self.label("sweep: watch")
        if self.has_others and self.has("other repositories are watched"):
            self.step("the watch of other repositories begins", ("absence",), self.since(Since.ELSEWHERE))
            self.step("the watch lists the other repository's tables",
                      self.unless_unread(("tables",)), self.find_live_elsewhere,
                      self.no_answer)  # fmt: skip
        elif self.has_others:
            self.step("no watch of other repositories", ("absence",), self.since(Since.ELSEWHERE))
        self.step("the watch's dump begins", ("absence",), self.since(Since.DUMP))
        if self.dump and self.has("commits on no branch are watched"):
            self.step("the watch dumps all commits", ("dump",), self.find_live_in_dump)
        self.label("sweep: permit")
        self.step("a permit begins", ("absence",), self.since(Since.HEADS, Since.BEHIND, Since.HELD))
        if self.has("heads are watched"):
            self.step("the watch lists heads", ("branches", OURS), self.keep_number("before"))
            self.step("the watch reads rules", ("rules",), self.refuse_changed("rules"))
            self.step("the watch reads holds", ("holds",), self.refuse_changed("held"))
            self.step("the watch reads tags", ("tags",), self.refuse_tags)
            self.local("the permit is given", self.find_newly_retained)

    def begin_watch(self, memory: Memory) -> tuple[Memory, str]:
        decided, read = self.value(memory.decided)
        watch = Watch(read.after, decided.retained, decided.known, read.tags, read.rule)
        return memory._replace(watch=self.number(watch), decided=0, live=0), NEXT

    def since(self, *parts: Since) -> Take:
        return lambda memory, now: (memory._replace(absence=begun(memory.absence, now, *parts)), NEXT)

    def find_live_elsewhere(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        if answer == NO_ANSWER:
            return (memory, STOPPED) if self.has("an unread repository counts") else (memory, NEXT)
        return memory._replace(candidates=memory.candidates & ~answer), NEXT

    def find_live_in_dump(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        commits, watch = self.retention.by_dump(self.value(memory.watch), answer)
        remaining = memory.candidates & ~self.reached(commits)
        return memory._replace(candidates=remaining, watch=self.number(watch)), NEXT

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

    def find_newly_retained(self, memory: Memory) -> tuple[Memory, str]:
        watch, heads = self.value(memory.watch), self.value(memory.before)
        if heads == watch.branches:
            return memory._replace(before=0), NEXT
        commits, after = self.retention.by_branches(watch, heads)
        if not self.has("the rule behind new heads"):
            commits = frozenset(head for head in heads if head >= 0)
        remaining = memory.candidates & ~self.reached(commits)
        return memory._replace(candidates=remaining, watch=self.number(after), before=0), NEXT

    # --- a delete ---------------------------------------------------------------------------------------------------

    def delete(self, address: int) -> None:
        """Look up the object, wait, and delete it. Renew the permit before the next object."""
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
        """A delay moves the times in `Since`, after which something may have become live unseen, up to now."""

        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if isinstance(answer, int):
                return memory, NEXT
            what, now = answer
            parts = [Since.HEADS, Since.BEHIND, Since.HELD]
            if what != EXPIRED:
                parts += [Since.DUMP, Since.ELSEWHERE]
            if what in (OLD_VERIFICATION, KILLED):
                parts += [Since.VERIFICATION, Since.STAGED]
            after = memory._replace(absence=begun(memory.absence, now, *parts), late=1)
            if what == EXPIRED:
                return (after, "sweep: permit") if self.has("a permit expires") else (after, NEXT)
            if what == MINUTE:
                return (after, "sweep: watch") if self.has("the watch is repeated") else (after, "sweep: permit")
            if what == KILLED:
                return after, "sweep: re-verification" if self.has("a resumed sweep re-verifies") else this
            return (after, "sweep: re-verification") if self.has("a re-verification expires") else (after, NEXT)

        return take

    def ask_again(self, address: int) -> Ask:
        return lambda memory: ("stored", address) if memory.late and memory.candidates & bit(address) else None

    def look_up_again(self, address: int, following: str) -> Take:
        """A lookup that is more than three seconds old isn't relied on."""

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
        killed = "it is deleted, but the task is killed before it notes so; the sweep is resumed"
        return (
            Wrong("lost answer", "it is deleted, but the answer is lost", (LOST, answer)),
            Wrong("killed task", killed, (KILLED, answer)),
        )

    def deleted(self, address: int, following: str, this: str) -> Take:
        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer[0] == LOST:
                return memory, f"{this} may be gone"
            if answer[0] == KILLED:
                after = memory._replace(late=1)
                return after, "sweep: re-verification" if self.has("a resumed sweep re-verifies") else this
            remaining = memory._replace(candidates=memory.candidates & ~bit(address), kind_then=0, late=0)
            return remaining, "sweep: permit" if remaining.candidates else DONE

        return take
