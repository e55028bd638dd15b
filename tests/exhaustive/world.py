"""The small world: a store, the branches and commits of one or two repositories, rules and holds.

Everything is a tuple of small numbers, so that a world can be compared, hashed and shared. Objects of our namespace are
numbered from 0; a set of them is an int with one bit each. Commits are numbered in a table of the universe, by content:
as on a real server, equal commits are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support import oracle

ABSENT, OLD, NEW, DELETED = 0, 1, 2, 3
"""What the store has at an address: nothing yet; an object from before the cutoff of a mark; a younger one; nothing any
more."""
STORED = (OLD, NEW)

OURS, OTHER = 0, 1
ELSEWHERE = -1  # the address of an object that no sweep can reach: too young, or of another namespace
RELATIVE, FULL = 0, 1  # the form of an entry's address; the server's list leaves out FULL ones
PATHS = ("p", "q")
BRANCHES = (("main", "dev"), ("other/main", "other/dev"))
SIZES = (1, 1, 2)  # in bytes, by content: two are equal
BITS = 8  # the maximum number of objects
DAY = oracle.DAY
NOW = 100 * DAY
LONG_AGO, LATELY = NOW - 30 * DAY - 1, NOW - 1  # the two dates of commits
RULES: tuple[tuple[int, dict[str, int]], ...] = ((7, {}), (60, {}), (7, {"dev": 60}))
"""Default days, and days by branch."""


class Entry(NamedTuple):
    """The entry of a branch or commit at a path."""

    address: int
    content: int
    spelling: int = RELATIVE


TOMBSTONE = Entry(-2, -1)
Tree = tuple[Entry | None, ...]  # one entry per path


class Branch(NamedTuple):
    """A head and what is staged on it: None where nothing is."""

    head: int
    staged: Tree


class Commit(NamedTuple):
    parents: tuple[int, ...]
    tree: Tree
    date: int


class Repository(NamedTuple):
    branches: tuple[Branch | None, ...]
    commits: frozenset[int]


class World(NamedTuple):
    """`stored` says what the store has by address, `rules` is an index of RULES, `held` has the addresses with a prefix
    on hold, and `tag` is the commit of a tag that is on hold, or -1."""

    stored: tuple[int, ...]
    repositories: tuple[Repository, ...]
    rules: int = 0
    held: int = 0
    tag: int = -1


def bit(address: int) -> int:
    return 1 << address if address >= 0 else 0


def addresses(mask: int) -> Iterator[int]:
    return (address for address in range(mask.bit_length()) if mask >> address & 1)


def mask_of(entries: Iterable[Entry | None]) -> int:
    mask = 0
    for entry in entries:
        if entry is not None:
            mask |= bit(entry.address)
    return mask


class Reasons(NamedTuple):
    """The addresses that are live, by reason: staged on any branch, in a head, in commits behind heads that rules
    retain, in retained commits on no branch, in commits of another repository, or on hold."""

    staged: int
    heads: int
    behind: int
    dangling: int
    other_repositories: int
    held: int

    @property
    def committed(self) -> int:
        return self.heads | self.behind | self.dangling

    @property
    def staged_only(self) -> int:
        return self.staged & ~(self.committed | self.other_repositories | self.held)

    @property
    def live(self) -> int:
        return self.staged | self.committed | self.other_repositories | self.held


@dataclass
class Universe:
    """All worlds and commits encountered so far, numbered. `contents` is the content of each object."""

    contents: tuple[int, ...]
    commits: list[Commit] = field(default_factory=list)
    worlds: list[World] = field(default_factory=list)
    _commit_ids: dict[Commit, int] = field(default_factory=dict)
    _world_ids: dict[World, int] = field(default_factory=dict)
    _reasons: dict[int, Reasons] = field(default_factory=dict)
    _absence: dict[int, int] = field(default_factory=dict)
    _places: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def commit(self, commit: Commit) -> int:
        known = self._commit_ids.get(commit)
        if known is None:
            known = self._commit_ids[commit] = len(self.commits)
            self.commits.append(commit)
        return known

    def world(self, world: World) -> int:
        known = self._world_ids.get(world)
        if known is None:
            known = self._world_ids[world] = len(self.worlds)
            self.worlds.append(world)
        return known

    # --- what readers see -------------------------------------------------------------------------------------------

    def served(self, branch: Branch, path: int) -> Entry | None:
        """The entry that a reader of a branch gets at a path."""
        staged = branch.staged[path]
        if staged is None:
            return self.commits[branch.head].tree[path]
        return None if staged == TOMBSTONE else staged

    def is_changed(self, branch: Branch, path: int) -> bool:
        """Whether the server considers a path changed: it compares contents, never addresses (formats §2)."""
        staged = branch.staged[path]
        if staged is None:
            return False
        committed = self.commits[branch.head].tree[path]
        if staged == TOMBSTONE or committed is None:
            return (staged == TOMBSTONE) != (committed is None)
        return staged.content != committed.content

    def places(self, number: int) -> tuple[int, ...]:
        """The address that is served at each place of a world: path by path of all branches; ELSEWHERE at others."""
        known = self._places.get(number)
        if known is None:
            known = self._places[number] = tuple(
                ELSEWHERE if branch is None or (entry := self.served(branch, path)) is None else entry.address
                for repository in self.worlds[number].repositories
                for branch in repository.branches
                for path in range(len(PATHS))
            )
        return known

    # --- what is live -----------------------------------------------------------------------------------------------

    def reasons(self, number: int) -> Reasons:
        """Why which addresses are live in a world: the truth, by rules that aren't lakegc's."""
        known = self._reasons.get(number)
        if known is None:
            known = self._reasons[number] = self._why_live(self.worlds[number])
        return known

    def absence(self, number: int) -> int:
        """The objects that aren't live in a world, in the form of `Memory.absence`."""
        known = self._absence.get(number)
        if known is None:
            why, dead = self.reasons(number), self.dead(number)
            everything = (1 << len(self.contents)) - 1
            lacking = [everything & ~reason for reason in why]
            known = 0
            for place, mask in enumerate((dead, dead, *lacking)):
                known |= mask << BITS * place
            self._absence[number] = known
        return known

    def dead(self, number: int) -> int:
        """The stored addresses that nothing refers to."""
        stored = sum(bit(address) for address, kind in enumerate(self.worlds[number].stored) if kind in STORED)
        return stored & ~self.reasons(number).live

    def _why_live(self, world: World) -> Reasons:
        own, *others = world.repositories
        heads = {
            BRANCHES[OURS][number]: branch.head for number, branch in enumerate(own.branches) if branch is not None
        }
        graph = {str(commit): oracle.C(tuple(map(str, self.commits[commit].parents)), self.commits[commit].date)
                 for commit in own.commits}  # fmt: skip
        default_days, branch_days = RULES[world.rules]
        claims = oracle.claims(graph, {name: str(head) for name, head in heads.items()}, default_days, branch_days)
        retained = {int(commit) for commit in oracle.retained(claims, NOW)}
        by_branch = {
            name: [claim for claim in claims_of_commit if claim.branch is not None]
            for name, claims_of_commit in claims.items()
        }
        behind_heads = {int(commit) for commit in oracle.retained(by_branch, NOW)}
        staged = mask_of(entry for repository in world.repositories for entry in self._staged(repository))
        tagged = mask_of(self.commits[world.tag].tree) if world.tag >= 0 else 0
        return Reasons(
            staged=staged,
            heads=self.reached(branch.head for branch in own.branches if branch is not None),
            behind=self.reached(behind_heads - {int(commit) for commit in heads.values()}),
            dangling=self.reached(retained - behind_heads),
            other_repositories=self.reached(commit for repository in others for commit in repository.commits),
            held=world.held | tagged,
        )

    def _staged(self, repository: Repository) -> Iterator[Entry | None]:
        for branch in repository.branches:
            if branch is not None:
                yield from (entry for entry in branch.staged if entry != TOMBSTONE)

    def reached(self, commits: Iterable[int]) -> int:
        """The addresses in the trees of commits."""
        objects = 0
        for commit in commits:
            objects |= mask_of(self.commits[commit].tree)
        return objects
