"""A program: the steps of a mark or sweep as a list, each a request or an effect, and how to build one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

from tests.exhaustive.decisions import Retention, inside
from tests.exhaustive.memory import Memory
from tests.exhaustive.server import NO_ANSWER, Answer, Question, Server
from tests.exhaustive.world import (
    LONG_AGO,
    OTHER,
    OURS,
    Entry,
    Tree,
)

NEXT, STOPPED, DONE = "", "stopped", "done"
"""Where a program goes on: at the next step, at a label, or nowhere: it refused to go on, or it is done."""
NOTHING: Question = ("nothing",)
TRIES = 3


class Wrong(NamedTuple):
    """A wrong response, by the name of its fault, with a description for people."""

    fault: str
    sentence: str
    answer: Answer


Ask = Callable[[Memory], Question | None]
Take = Callable[[Memory, Answer], tuple[Memory, str]]
GoWrong = Callable[[Memory, Answer], Sequence[Wrong]]


class Step(NamedTuple):
    """One request or effect. `ask` returns None if the step has nothing to request and is skipped.

    `take` returns the memory after the response, and where to continue. `deletes` is the object that the step deletes.
    `ends` says whether a mark is finished here; at such steps, the search measures losses.
    """

    name: str
    ask: Ask
    take: Take
    wrong: GoWrong
    deletes: int = -1
    ends: bool = False


def _right(memory: Memory, answer: Answer) -> Sequence[Wrong]:
    return ()


class Program:
    """The steps, and what all of them use: the server, the rules, and a table of values that memory has as numbers."""

    def __init__(
        self, server: Server, *, without: Collection[str] = (), dump: bool = True, recorded: int = 0,
        incremental: bool = False,
    ) -> None:  # fmt: skip
        """`without`: the safeguards that are left out. `dump`: whether commits may be dumped. `recorded`: what an
        earlier mark found in the other repository. `incremental`: whether the mark is."""
        self.server, self.universe, self.without, self.dump = server, server.universe, frozenset(without), dump
        self.recorded, self.incremental = recorded, incremental
        self.retention = Retention(server.names)
        self.branches = [len(repository.branches) for repository in self.universe.worlds[0].repositories]
        self.steps: list[Step] = []
        self.labels: dict[str, int] = {}
        self.part = ""
        self._values: list[Hashable] = []
        self._numbers: dict[Hashable, int] = {}
        self.number(frozenset())  # gets number 0, the initial value of memory

    # --- building ---------------------------------------------------------------------------------------------------

    def number(self, value: Hashable) -> int:
        """A value as a number, for memory."""
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self._values)
            self._values.append(value)
        return known

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

    @property
    def has_others(self) -> bool:
        return len(self.branches) > 1

    # --- what several steps use -------------------------------------------------------------------------------------

    def keep_number(self, field: str) -> Take:
        return lambda memory, answer: (memory._replace(**{field: self.number(answer)}), NEXT)

    def inside(self, entry: Entry | None) -> int:
        return 0 if entry is None else inside(entry, all_spellings=self.has("every spelling of an address"))

    def reached(self, commits: Collection[int]) -> int:
        objects = 0
        for commit in commits:
            for entry in self.universe.commits[commit].tree:
                objects |= self.inside(entry)
        return objects

    def in_trees(self, trees: Iterable[Tree]) -> int:
        objects = 0
        for tree in trees:
            for entry in tree:
                objects |= self.inside(entry)
        return objects

    @cached_property
    def base_trees(self) -> frozenset[Tree]:
        """The ranges that the base mark read. It was made long ago, when all commits of that time were retained."""
        known = [self.universe.commits[commit] for commit in self.universe.worlds[0].repositories[OURS].commits]
        return frozenset(commit.tree for commit in known if commit.date == LONG_AGO)

    def unreadable(self, memory: Memory, following: str, repository: int = OURS) -> tuple[Memory, str]:
        """Our repository that can't be read stops everything; another one a sweep, unless that safeguard is off."""
        if repository == OURS:
            return memory, STOPPED
        if self.has("an unread repository counts") and memory.sweeping:
            return memory, STOPPED
        carried = self.recorded if self.has("an unread repository counts") else 0
        return memory._replace(unread=1, live=memory.live | carried, changed=0, tries=0), following

    def unless_unread(self, question: Question) -> Ask:
        """A repository that could not be read once isn't read again later in the same mark."""
        return lambda memory: None if memory.unread and question[1:] != (OURS,) else question

    def no_answer(self, memory: Memory, answer: Answer) -> Sequence[Wrong]:
        return [Wrong("unreadable", "the other repository can't be read", NO_ANSWER)]

    def wrong_branches(self, repository: int) -> GoWrong:
        """Stale branches, or none: another repository that can't be read."""

        def wrong(memory: Memory, answer: Answer) -> Sequence[Wrong]:
            wrong_ones = []
            if memory.earlier >= 0:
                before = self.server.answer(("branches", repository), memory.earlier)
                if before != answer:
                    wrong_ones.append(Wrong("stale listing", "branches are listed as they were before", before))
            if repository == OTHER:
                wrong_ones.append(Wrong("unreadable", "the other repository can't be read", NO_ANSWER))
            return wrong_ones

        return wrong
