"""The readings of what is staged: the server's list, and the diffs of branches path by path."""

from __future__ import annotations

from collections.abc import Sequence

from tests.exhaustive import decisions
from tests.exhaustive.memory import LISTS, Memory
from tests.exhaustive.program import NEXT, NOTHING, TRIES, Program, Take, Wrong
from tests.exhaustive.server import ENDS, NO_ANSWER, NOT_FOUND, Answer, Question
from tests.exhaustive.world import (
    BRANCHES,
    OTHER,
    OURS,
    PATHS,
)

EMPTY, NO_LIST = "empty", "none"


class StagedReadings(Program):
    """Readings of staged objects, of our repository and of the other one."""

    def read_uncommitted(self) -> None:
        for part in ("first", "second") if self.has("the second reading") else ("first",):
            self.read_staged(OURS, f"staged objects, {part} reading")
        if self.has_others and self.has("other repositories"):
            for part in ("first", "second") if self.has("the second reading") else ("first",):
                self.read_staged(OTHER, f"the other repository's staged objects, {part} reading")

    def read_staged(self, repository: int, name: str) -> None:
        """Read the staged objects once: the server's list (of our repository), then the branches' diffs, path by
        path."""
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
        """Request a list that can't be right again."""
        may_repeat = repository == OURS and self.has("the list is repeated") and memory.repeats < TRIES - 1
        if may_repeat and decisions.must_repeat(LISTS[memory.kind], memory.found.bit_count()):
            return memory._replace(repeats=memory.repeats + 1), f"{label}: list"
        return memory._replace(kind=0, repeats=0, todo=0, changed=0, found=0, tries=0), NEXT

    def read_diffs(self, repository: int, label: str) -> None:
        def list_branches(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer == NO_ANSWER:
                return self.unreadable(memory, f"{label}: end of diffs", repository)
            return memory._replace(todo=sum(1 << number for number, address in enumerate(answer) if address >= 0)), NEXT

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
