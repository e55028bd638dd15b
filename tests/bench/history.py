"""The plan of a synthetic repository: which objects there are, which commits contain them, and which of them expire.

Objects are numbered: first those that the trunks start with, then their replacements in later commits, those of the
small ranges, the staged ones, and the garbage. The expired objects are computed here from the plan alone, commit by
commit as the documented rule says, and never with lakegc's own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spark_resources.model import Rules
from tests.bench import names
from tests.bench.names import Bytes, Numbers
from tests.bench.sizes import Size

DAY = 86_400
TRUNK_DAYS, FORK_DAYS = 100, 20
_SEED = 7


@dataclass(frozen=True, slots=True)
class Version:
    """The object numbers in a range of a trunk, from one of its commits until the next version."""

    since: int
    until: int
    objects: Numbers


@dataclass(frozen=True)
class History:
    """A repository of a size as of `now` (in seconds). Commits are dated so that the verdicts of the rules don't change
    for weeks."""

    size: Size
    now: int

    # --- commits ----------------------------------------------------------------------------------------------------

    @cached_property
    def trunk_dates(self) -> Numbers:
        """The dates of a trunk's commits, first those older than the rule's days, then those within them."""
        count, old = self.size.commits, self.size.expired + 1
        before = np.linspace(self.now - 300 * DAY, self.now - 130 * DAY, old).astype(np.int64)
        return np.concatenate(
            [before, np.linspace(self.now - 70 * DAY, self.now - 3 * DAY, count - old).astype(np.int64)]
        )

    @cached_property
    def fork_dates(self) -> Numbers:
        count = self.size.fork_commits
        before = np.linspace(self.now - 60 * DAY, self.now - 50 * DAY, count // 2).astype(np.int64)
        after = np.linspace(self.now - 6 * DAY, self.now - 3 * DAY, count - count // 2).astype(np.int64)
        return np.concatenate([before, after])

    def branch(self, trunk: int) -> str:
        return f"trunk-{trunk:05}" if trunk else "main"

    def fork(self, fork: int) -> str:
        return f"fork-{fork:05}"

    def forked_at(self, fork: int) -> int:
        """The commit of the first trunk at which a fork begins."""
        first = self.size.expired + 1
        return first + fork * (self.size.commits - first) // self.size.forks

    @property
    def rules(self) -> Rules:
        return Rules(FORK_DAYS, {self.branch(trunk): TRUNK_DAYS for trunk in range(self.size.trunks)})

    @cached_property
    def trunk_retained(self) -> npt.NDArray[np.bool_]:
        """The retained commits of a trunk: its head, and each former head that was replaced within the rule's days.

        The parent of a fork's first commit is retained in the same way, but the trunk already retains it.
        """
        return _retained(self.trunk_dates, self.now - TRUNK_DAYS * DAY)

    @cached_property
    def fork_retained(self) -> npt.NDArray[np.bool_]:
        return _retained(self.fork_dates, self.now - FORK_DAYS * DAY)

    # --- objects ----------------------------------------------------------------------------------------------------

    @cached_property
    def firsts(self) -> dict[str, int]:
        """The first number of each kind of object, in the order of numbers. `end` is the total number."""
        size, numbers, at = self.size, {}, 0
        for kind in ("base", "replaced", "tails", "staged", "garbage"):
            numbers[kind] = at
            at += getattr(size, kind)
        return {**numbers, "end": at}

    def versions(self, trunk: int, place: int) -> Iterator[Version]:
        """The versions of a trunk's range over time; each replaces some objects with new ones."""
        size, draw = self.size, np.random.default_rng([_SEED, trunk, place])
        begins = (trunk * size.ranges + place) * size.entries
        objects, since = np.arange(begins, begins + size.entries, dtype=np.int64), 0
        for number in range(place, size.rewritten, size.ranges):
            commit = size.rewriting()[number // size.rewrites]
            yield Version(since, commit, objects)
            objects, since = objects.copy(), commit
            begins = self.firsts["replaced"] + (trunk * size.rewritten + number) * size.changed
            places = draw.choice(size.entries, size.changed, replace=False)
            objects[places] = np.arange(begins, begins + size.changed)
        yield Version(since, size.commits, objects)

    def live_in(self, version: Version) -> bool:
        """Whether a retained commit has the object."""
        return bool(self.trunk_retained[version.since : version.until].any())

    def tail(self, commit: int) -> Numbers:
        """The objects of the small range of a commit. The commits of trunks come first, then those of forks."""
        begins = self.firsts["tails"] + commit * self.size.tail
        return np.arange(begins, begins + self.size.tail, dtype=np.int64)

    def expired(self) -> npt.NDArray[np.bool_]:
        """For each object, whether no retained commit and no staged entry refers to it."""
        size, unreferenced = self.size, np.ones(self.firsts["end"], dtype=np.bool_)
        for trunk in range(size.trunks):
            for place in range(size.ranges):
                for version in self.versions(trunk, place):
                    if self.live_in(version):
                        unreferenced[version.objects] = False
        retained = [*np.tile(self.trunk_retained, size.trunks), *np.tile(self.fork_retained, size.forks)]
        for commit in np.flatnonzero(retained).tolist() if size.tail else ():
            unreferenced[self.tail(commit)] = False
        unreferenced[self.firsts["staged"] : self.firsts["garbage"]] = False
        return unreferenced

    @cached_property
    def made(self) -> Numbers:
        """The time at which each object was stored, in seconds."""
        size, now = self.size, self.now
        rewritten = np.repeat(self.trunk_dates[list(size.rewriting())], size.rewrites * size.changed)
        commits = [np.tile(self.trunk_dates, size.trunks), np.tile(self.fork_dates, size.forks)]
        parts = [
            np.linspace(now - 400 * DAY, now - 301 * DAY, size.base).astype(np.int64),
            np.tile(rewritten, size.trunks),
            np.repeat(np.concatenate(commits), size.tail),
            np.linspace(now - 30 * DAY, now - 3 * DAY, size.staged).astype(np.int64),
            np.linspace(now - 300 * DAY, now - 3 * DAY, size.garbage).astype(np.int64),
        ]
        return np.concatenate(parts)

    @cached_property
    def _slices(self) -> tuple[Numbers, Bytes]:
        """The slice of each object, with equal numbers of objects in each, and the names of the slices."""
        count, slices = self.firsts["end"], self.size.slices
        order = np.argsort(self.made, kind="stable")
        indexes = np.empty(count, dtype=np.int32)
        indexes[order] = np.arange(count) * slices // count
        opened = self.made[order[np.arange(slices) * count // slices]]
        return indexes, names.slice_names(opened)

    @property
    def folders(self) -> list[str]:
        return [f"data/{name.decode()}/" for name in names.texts(self._slices[1])]

    def addresses(self, objects: Numbers) -> Bytes:
        """The addresses of objects, as rows of characters."""
        of_object, slices = self._slices
        return names.addresses(objects, self.made[objects], slices[of_object[objects]])

    def is_marker(self, objects: Numbers) -> npt.NDArray[np.bool_]:
        """Which objects are empty markers, like all garbage: the first ones of each trunk."""
        size = self.size
        return (objects < size.base) & (objects % (size.ranges * size.entries) < size.markers)

    def sizes(self, objects: Numbers) -> Numbers:
        """Sizes in bytes: 0 for markers and garbage, and a different size for each other object."""
        empty = self.is_marker(objects) | (objects >= self.firsts["garbage"])
        return np.where(empty, 0, names.sizes(objects))


def _retained(dates: Numbers, cutoff: int) -> npt.NDArray[np.bool_]:
    """In a line of commits, the head and each commit whose child is younger than the cutoff."""
    retained = np.ones(len(dates), dtype=np.bool_)
    retained[:-1] = dates[1:] > cutoff
    return retained
