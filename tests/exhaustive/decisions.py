"""lakegc's own rules, applied to the values of the model. Each case is computed once, by the code that marks and sweeps
run.

Two rules on tables are set algebra and stated here again: which paths are probed (`path_probes.paths_to_probe`) and
which objects the results keep (`keep_reasons.served`). A test compares them with the originals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.retained_commits import with_earlier_heads
from lakegc_assets.mark.uncommitted_readings import why_list_again
from lakegc_assets.rules import garbage
from lakegc_assets.rules.delete_check import check_before_delete
from lakegc_assets.rules.holds import References, commits_on_hold, with_holds
from lakegc_assets.rules.retention import commit_verdicts, with_server_list
from lakegc_assets.sweep.newly_retained import NewlyRetained
from spark_resources.deleting.lookup import FOUND
from spark_resources.lakefs.responses import UncommittedLists
from spark_resources.lakefs_sandbox.xids import Xids
from spark_resources.mark_store.hold_file import parse_hold
from spark_resources.model import ADDRESSES, PENDING, STORED_OBJECTS, AddressType, Commit, Location, Namespace, Rules
from spark_resources.sstable import commit_id as content_id
from tests.exhaustive.world import (
    BRANCHES,
    FULL,
    NEW,
    NOW,
    OLD,
    OURS,
    RULES,
    SIZES,
    Entry,
    Universe,
    addresses,
    bit,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SERVER_NOW = EPOCH + timedelta(microseconds=NOW)
CUTOFF = SERVER_NOW - timedelta(days=1)
MODIFIED = {OLD: CUTOFF - timedelta(days=9), NEW: CUTOFF + timedelta(hours=1)}
HOLD_OF_TAGS = parse_hold({"id": "tagged", "tags": "*", "owner": "a", "reason": "b"})
SLICES = 2  # the first is closed, so an incremental mark doesn't list it; the second still receives objects
CLOSED = Xids(0, lambda: EPOCH).descending_id()
NAMESPACE = Namespace.parse("local://lake", aliases=("local:///srv/lake",))
ONE_SPELLING = Namespace.parse("local://lake")


# --- addresses ------------------------------------------------------------------------------------------------------


def slice_of(address: int) -> int:
    return address % SLICES


def folder(number: int) -> str:
    return f"data/{'slice-1' if number else CLOSED}/"


def key(address: int) -> str:
    return f"{folder(slice_of(address))}object-{address}"


@cache
def inside(entry: Entry, *, all_spellings: bool = True) -> int:
    """The object of our namespace that an entry names, as a bit; 0 for one in a different namespace.

    Without the namespace's other spellings, an address that begins differently is taken to be elsewhere, and no
    conflict is noticed.
    """
    if entry.address < 0:
        return 0
    spelled = f"local:///srv/lake/{key(entry.address)}" if entry.spelling == FULL else key(entry.address)
    kind = AddressType.FULL if entry.spelling == FULL else AddressType.RELATIVE
    where, location = (NAMESPACE if all_spellings else ONE_SPELLING).locate(spelled, kind)
    return bit(entry.address) if where is Location.INSIDE and location == key(entry.address) else 0


# --- commits --------------------------------------------------------------------------------------------------------


@cache
def rules(number: int) -> Rules:
    default_days, by_branch = RULES[number]
    return Rules(default_days, by_branch)


class CommitNames:
    """The commits of a universe as lakegc reads them, each with the id that its content has on a real server."""

    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self._commits: dict[int, Commit] = {}
        self._numbers: dict[str, int] = {}

    def commit(self, number: int) -> Commit:
        known = self._commits.get(number)
        if known is None:
            parents, _, date = self.universe.commits[number]
            created = EPOCH + timedelta(microseconds=date)
            known = Commit("", tuple(map(self.name, parents)), created, f"metarange-{number}")
            known = self._commits[number] = replace(known, id=content_id(known))
            self._numbers[known.id] = number
        return known

    def name(self, number: int) -> str:
        return self.commit(number).id

    def numbers(self, names: Iterable[str]) -> frozenset[int]:
        return frozenset(self._numbers[name] for name in names)

    def graph(self, numbers: Iterable[int]) -> dict[str, Commit]:
        return {self.name(number): self.commit(number) for number in numbers}

    def heads(self, answer: Sequence[int]) -> dict[str, str]:
        """The branches of our repository with their heads, from a response of the server."""
        return {BRANCHES[OURS][number]: self.name(head) for number, head in enumerate(answer) if head >= 0}

    def with_ancestors(self, numbers: Iterable[int]) -> frozenset[int]:
        ancestors, waiting = set[int](), list(numbers)
        while waiting:
            commit = waiting.pop()
            if commit not in ancestors:
                ancestors.add(commit)
                waiting.extend(self.universe.commits[commit].parents)
        return frozenset(ancestors)


class Read(NamedTuple):
    """What `retained_commits` reads before it decides: heads twice, the dump (None where it isn't permitted), the
    server's list, and the commits of tags."""

    before: tuple[int, ...]
    dumped: frozenset[int] | None
    listed: frozenset[int]
    after: tuple[int, ...]
    tags: frozenset[int]
    rule: int


class Decided(NamedTuple):
    """The commits that are retained, and all that are known."""

    retained: frozenset[int]
    known: frozenset[int]


class Watch(NamedTuple):
    """The state of the watch of a round: see `NewlyRetained`."""

    branches: tuple[int, ...]
    retained: frozenset[int]
    known: frozenset[int]
    tags: frozenset[int]
    rule: int
    since: frozenset[int] = frozenset()
    decided: frozenset[int] = frozenset()


class Retention:
    """Which commits are retained, in a mark and while a round deletes."""

    def __init__(self, names: CommitNames) -> None:
        self.names = names
        self.decide = cache(self._decide)
        self.by_branches = cache(self._by_branches)
        self.by_dump = cache(self._by_dump)

    def _decide(self, read: Read, *, the_rule: bool = True, heads_before: bool = True) -> Decided:
        """Decide as `decide_commits` does. Without the rule, only the server's list and the heads count."""
        names, before = self.names, read.before if heads_before else ()
        heads = {head for head in (*before, *read.after, *read.tags) if head >= 0}
        known = names.with_ancestors(heads | read.listed | (read.dumped or set()))
        commits, now_heads = names.graph(known), names.heads(read.after)
        if not the_rule:
            return Decided(frozenset(heads | read.listed), known)
        verdicts = commit_verdicts(commits.values(), now_heads, rules(read.rule), now=SERVER_NOW)
        listed = [(commit_name, names.commit(number).metarange_id) for number in sorted(read.listed)
                  for commit_name in [names.name(number)]]  # fmt: skip
        verdicts = with_server_list(verdicts, listed)
        verdicts = with_earlier_heads(verdicts, names.heads(before), commits)
        references = References((names.heads(before), now_heads), self.tagged(read.tags))
        on_hold = commits_on_hold([HOLD_OF_TAGS], commits, references, rules(read.rule), now=SERVER_NOW)
        verdicts = with_holds(verdicts, on_hold)
        retained = names.numbers(verdict.commit_id for verdict in verdicts if verdict.retained)
        return Decided(retained, known)

    def tagged(self, commits: Iterable[int]) -> set[tuple[str, str]]:
        return {("tag", self.names.name(commit)) for commit in commits}

    def _by_branches(self, watch: Watch, branches: tuple[int, ...]) -> tuple[frozenset[int], Watch]:
        """The newly retained commits, by a new listing of heads, and the state of the watch afterwards."""
        newly = self._newly(watch)
        commits = newly.commits(self.names.heads(branches))
        newly.add(self.names.heads(branches), commits)
        return self.names.numbers(commits), self._watch(watch._replace(branches=branches), newly)

    def _by_dump(self, watch: Watch, dumped: frozenset[int]) -> tuple[frozenset[int], Watch]:
        """The newly retained commits, by a new dump of all commits, and the state of the watch afterwards."""
        newly = self._newly(watch)
        commits = newly.commits_of(self.names.graph(dumped))
        newly.add(newly.branches, commits)
        return self.names.numbers(commits), self._watch(watch, newly)

    def _watch(self, before: Watch, newly: NewlyRetained) -> Watch:
        known = (newly.retained, newly.graph, newly._new_commits, newly._decided)
        retained, graph, since, decided = map(self.names.numbers, known)
        return before._replace(retained=retained, known=graph, since=since, decided=decided)

    def _newly(self, watch: Watch) -> NewlyRetained:
        """The code of a watch, on a run that has only what the watch needs: the record, and a server for commits."""
        names = self.names
        run: Any = SimpleNamespace(
            partition=SimpleNamespace(repository="lake"),
            mark=SimpleNamespace(record=SimpleNamespace(rules=rules(watch.rule), server_now=SERVER_NOW)),
            decided=SimpleNamespace(holds=(HOLD_OF_TAGS,), tags=self.tagged(watch.tags)),
            lakefs=SimpleNamespace(commit=lambda _, name: names.commit(*names.numbers([name]))),
        )
        retained = {names.name(name) for name in watch.retained}
        newly = NewlyRetained(run, retained, names.graph(watch.known), names.heads(watch.branches))
        newly._new_commits, newly._decided = (
            {names.name(name) for name in some} for some in (watch.since, watch.decided)
        )
        return newly


# --- staged addresses -----------------------------------------------------------------------------------------------


@cache
def must_repeat(kind: str, changed: int) -> bool:
    """Whether a list of staged addresses of this kind has to be requested again, given what the diffs found."""
    pages, files, empty = {"whole": (1, 1, 0), "empty": (1, 0, 1), "none": (0, 0, 0)}[kind]
    lists = UncommittedLists("run", {"location": files} if files else {}, pages)
    assert lists.empty_pages == empty
    return bool(why_list_again(lists, cast(Any, SimpleNamespace(rows=changed))))


# --- objects --------------------------------------------------------------------------------------------------------


@cache
def unreferenced(candidates: int, young: int, live: int, *, young_is_kept: bool = True) -> int:
    """The listed candidates that nothing refers to, by the definition of garbage."""
    inputs = {**_listed(candidates, young), garbage.COMMITTED: _rows(live), garbage.UNCOMMITTED: _rows(0)}
    status, _ = garbage.reference_status(inputs, _cutoff(young_is_kept), timedelta(seconds=1))
    return _unreferenced(status)


@cache
def unreferenced_since(
    candidates: int, young: int, live: int, *, known: int, known_live: int, compared: int, young_is_kept: bool = True
) -> int:
    """The unreferenced candidates of an incremental mark. `known` objects counted as committed at its base mark."""
    inputs = {
        **_listed(candidates, young),
        garbage.COMMITTED: _rows(live),
        garbage.UNCOMMITTED: _rows(0),
        garbage.LOOKED_UP: _rows(compared),
        garbage.KNOWN: pa.Table.from_pylist(
            [{"address": key(address), "before": bool(known & bit(address)), "live": bool(known_live & bit(address)),
              "again": False} for address in addresses(known | known_live)], schema=garbage.KNOWN_ADDRESSES,
        ),
    }  # fmt: skip
    folders = pa.array([folder(number) for number in range(1, SLICES)])
    status, _ = garbage.incremental_reference_status(inputs, _cutoff(young_is_kept), timedelta(seconds=1), folders)
    return _unreferenced(status)


def _cutoff(young_is_kept: bool) -> datetime:
    return CUTOFF if young_is_kept else SERVER_NOW


def _rows(mask: int) -> pa.Table:
    return pa.table([pa.array([key(address) for address in addresses(mask)], pa.string())], schema=ADDRESSES)


def _listed(candidates: int, young: int) -> dict[str, pa.Table]:
    rows = [{"address": key(address), "size": 1, "modified": MODIFIED[NEW if young >> address & 1 else OLD],
             "checksum": "", "slice": folder(slice_of(address))} for address in addresses(candidates)]  # fmt: skip
    return {garbage.STORED: pa.Table.from_pylist(rows, schema=STORED_OBJECTS), garbage.MAYBE_GONE: _rows(0)}


def _unreferenced(found: pa.Table) -> int:
    unreferenced_rows = found.filter(pc.equal(found["status"], garbage.Status.UNREFERENCED.value))
    return sum(bit(int(key.rpartition("-")[2])) for key in unreferenced_rows["address"].to_pylist())


@cache
def may_be_deleted(marked: int, found: int) -> bool:
    """Whether the object at a key, looked up right before its delete, is still the object that was marked."""
    sides = {OLD: [(1, MODIFIED[OLD], "old")], NEW: [(1, MODIFIED[NEW], "new")]}
    before, now = (
        [{"address": key(0), "size": size, "modified": modified, "checksum": checksum, "slice": "", "intended": False}
         for size, modified, checksum in sides.get(kind, [])] for kind in (marked, found)
    )  # fmt: skip
    check = check_before_delete(
        pa.Table.from_pylist(before, schema=PENDING), pa.Table.from_pylist(now, schema=FOUND), cutoff=CUTOFF
    )
    return bool(len(check.unchanged))


# --- path probes ----------------------------------------------------------------------------------------------------


def sizes_of(universe: Universe, objects: int) -> frozenset[int]:
    return frozenset(SIZES[universe.contents[address]] for address in addresses(objects))


def of_sizes(universe: Universe, objects: int, sizes: frozenset[int]) -> int:
    return sum(bit(address) for address in addresses(objects) if SIZES[universe.contents[address]] in sizes)


def paths_to_probe(universe: Universe, commit: int, sizes: frozenset[int]) -> frozenset[int]:
    """The paths of a head at which an entry has one of these sizes: `path_probes.paths_to_probe`."""
    tree = universe.commits[commit].tree
    return frozenset(path for path, entry in enumerate(tree) if entry is not None and SIZES[entry.content] in sizes)


def probed_sizes(universe: Universe, commits: Iterable[int], sizes: frozenset[int]) -> frozenset[int]:
    """The given sizes that occur in an entry of these heads, and are therefore probed on their branch."""
    entries = [entry for commit in commits for entry in universe.commits[commit].tree if entry is not None]
    return sizes & {SIZES[entry.content] for entry in entries}
