"""One reading of what is staged: the server's list, and what the branches serve at changed paths where it isn't enough.

The server's list can lack what is staged, and it can be empty though objects are staged (formats §2). So each list is
compared with the first changes of every branch, and with earlier readings. A doubtful one is read again; where doubts
remain, the uncommitted diffs are paged to their ends instead. What any of them shows is live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.marking.path_probes import WINDOW, at_inexact_paths, inside, is_branch, serve
from lakegc_assets.marking.run import MarkRun, StepNotes
from spark_resources.datasets import (
    Batches,
    Counts,
    Dataset,
    all_batches,
    read_datasets,
    write_produced,
    write_rows,
)
from spark_resources.entries import inside_addresses
from spark_resources.errors import DamagedData, Interrupted, NotThere
from spark_resources.gc_lists import read_uncommitted_file
from spark_resources.lakefs import LakeFS, UncommittedLists
from spark_resources.lakefs.asking import LARGEST_PAGE
from spark_resources.lakefs.diffs import whole_diff
from spark_resources.model import ADDRESSES, AddressType
from spark_resources.tasks import id_tasks

TRIES = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """The datasets (ADDRESSES) of one reading by part, all of them live, and what is recorded about each."""

    datasets: dict[str, Dataset] = field(default_factory=dict)
    facts: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, part: str, dataset: Dataset, **facts: int) -> None:
        self.datasets[part] = dataset
        self.facts[part] = {**facts, "addresses": dataset.rows}

    def record(self, notes: StepNotes) -> None:
        for part, dataset in self.datasets.items():
            notes.wrote(dataset, part)


def read_staged(run: MarkRun, asset: str, part: str, diff_part: str, earlier: Sequence[Dataset]) -> Reading:
    """Read what is staged now. `earlier` readings make this one doubtful where it lacks an address of theirs.

    Raises `Unavailable` where it can't be told, as for a staging record that the server can't read.
    """
    reading, doubt = Reading(), ""
    for number in range(TRIES):
        name = f"{part}_again_{number}" if number else part
        lists = list_staged(run)
        dataset, counts = read_lists(run, lists, run.mark.folder(asset, name))
        reading.add(name, dataset, pages=lists.pages, files=lists.files, **counts)
        doubt = "" if run.target.pages_diffs else doubt_about(run, lists, dataset)
        if not doubt:
            break
        run.say(f"{doubt}: reading once more what is staged")
    known = [*earlier, *list(reading.datasets.values())[:-1]]
    if run.target.pages_diffs or doubt or lacks(run, dataset, known):
        run.say("asking for what is staged path by path")
        dataset, counts = changed_paths(run, run.mark.folder(asset, diff_part))
        reading.add(diff_part, dataset, **counts)
    return reading


# --- the server's list ----------------------------------------------------------------------------------------------


NO_LIST = UncommittedLists("", {}, 0)


def list_staged(run: MarkRun) -> UncommittedLists:
    """The server's list, NO_LIST where it gave up because a branch was deleted meanwhile."""
    try:
        return run.lakefs.prepare_uncommitted(run.partition.repository)
    except Interrupted:
        return NO_LIST


def read_lists(run: MarkRun, lists: UncommittedLists, folder: str) -> tuple[Dataset, Counts]:
    """All files of one list. Raises `DamagedData` where they are fewer than the pages that announced one."""
    keys = [key for location, files in lists.files_by_location.items() for key in files_of(run, location, files)]
    place = run.place
    if not keys:
        return write_rows(place, folder, [], ADDRESSES), {}

    def produce(batches: Batches, counts: Counts) -> Batches:
        for key in (key for batch in batches for key in batch.column(0).to_pylist()):
            listed = read_uncommitted_file(place.store().read(key), where=f"{place.store().where}/{key}")
            addresses = listed.column("physical_address").combine_chunks()
            kinds = pa.repeat(pa.scalar(int(AddressType.BY_PREFIX), pa.int8()), len(addresses))
            inside, outside = inside_addresses(addresses, kinds, place.namespace)
            counts["outside"] = counts.get("outside", 0) + outside
            yield pa.RecordBatch.from_arrays([inside], schema=ADDRESSES)

    return write_produced(id_tasks(run.spark(), "key", keys, batch=1), produce, place, folder, ADDRESSES)


def files_of(run: MarkRun, location: str, announced: int) -> list[str]:
    """The keys of the files at an announced location, at least as many as were announced (invariant 3)."""
    folder = run.place.namespace.key(location).rstrip("/") + "/"
    found = [one.key for page in run.store.pages(folder) for one in page.objects]
    if len(found) < announced:
        raise DamagedData(
            f"the server announced {announced} files with staged addresses at {location}, and {len(found)} are there. "
            "What is staged can't be told, so nothing can be collected. Run it again; if it stays so, check that "
            "lakegc and the server see the same store.",
            invariant=3,
        )
    return found


# --- whether it can be believed -------------------------------------------------------------------------------------


def doubt_about(run: MarkRun, lists: UncommittedLists, dataset: Dataset) -> str:
    """Why a list can't be believed; "" where the first changes of every branch speak for it."""
    if not lists.pages:
        return "a branch was deleted while the server listed what is staged"
    if lists.empty_pages and lists.pages > 1:
        return "the server's list of what is staged has a page without a file"
    first = first_changes(run)
    if lists.empty_pages and (dirty := next((each for each in first if each.is_dirty), None)):
        return f"the server's list of what is staged is empty, and branch {dirty.branch} has changes"
    wanted = {address: each.branch for each in first for address in each.addresses}
    lacking = sorted(absent(run, wanted.keys(), dataset))
    if lacking:
        return f"the server's list of what is staged lacks {lacking[0]}, which branch {wanted[lacking[0]]} serves"
    return ""


def lacks(run: MarkRun, now: Dataset, earlier: Sequence[Dataset]) -> bool:
    """Whether an earlier reading has an address that this one hasn't."""
    same = {file.sha256 for file in now.files}
    others = [replace(one, files=tuple(file for file in one.files if file.sha256 not in same)) for one in earlier]
    if not any(one.files for one in others):
        return False
    before = read_datasets(run.spark(), run.place, others, ADDRESSES)
    return bool(before.join(run.read_dataset(now, ADDRESSES), "address", "left_anti").take(1))


def absent(run: MarkRun, wanted: Iterable[str], dataset: Dataset) -> set[str]:
    """Those of the addresses that a dataset hasn't."""
    left = set(wanted)
    for table in all_batches(run.place, dataset, ADDRESSES) if left else ():
        found = table["address"]
        left.difference_update(found.filter(pc.is_in(found, value_set=pa.array(left, pa.string()))).to_pylist())
        if not left:
            break
    return left


@dataclass(frozen=True, slots=True)
class FirstChanges:
    """What the first page of a branch's diff tells: whether anything may be staged there, and the addresses inside the
    namespace at its first and last path."""

    branch: str
    is_dirty: bool = False
    addresses: tuple[str, ...] = ()


def first_changes(run: MarkRun) -> list[FirstChanges]:
    """Of every branch. One that is gone by now has none. Raises `Unavailable` where a diff ends at a broken record."""
    lakefs, repository, namespace = run.lakefs, run.partition.repository, run.place.namespace

    def first(branch: str) -> FirstChanges:
        changes = list(islice(whole_diff(lakefs, repository, branch), LARGEST_PAGE))
        paths = [change.path for change in changes if change.type != "removed"]
        served = [lakefs.stat(repository, branch, path) for path in dict.fromkeys(paths[:1] + paths[-1:])]
        keys = (inside(one.physical_address, namespace) for one in served if one is not None)
        is_dirty = bool(paths) or len(changes) == LARGEST_PAGE
        return FirstChanges(branch, is_dirty, tuple(key for key in keys if key is not None))

    def first_or_none(branch: str) -> FirstChanges:
        for _ in range(TRIES):
            try:
                return first(branch)
            except NotThere:
                if not is_branch(lakefs, repository, branch):
                    return FirstChanges(branch)
        return FirstChanges(branch, is_dirty=True)  # deleted and made anew, again and again

    with ThreadPoolExecutor(max_workers=lakefs.settings.asking_requests) as pool:
        return list(pool.map(first_or_none, sorted(lakefs.branches(repository))))


# --- path by path ---------------------------------------------------------------------------------------------------


def changed_paths(run: MarkRun, folder: str) -> tuple[Dataset, Counts]:
    """The addresses inside the namespace that branches serve at every path of their uncommitted diffs."""
    branches = sorted(run.lakefs.branches(run.partition.repository))
    namespace, lakefs, repository = run.place.namespace, run.lakefs, run.partition.repository

    def produce(batches: Batches, counts: Counts) -> Batches:
        for branch in (branch for batch in batches for branch in batch.column(0).to_pylist()):
            found = staged_addresses(lakefs, repository, branch)
            while addresses := list(islice(found, WINDOW)):
                counts["asked"] = counts.get("asked", 0) + len(addresses)
                keys = [key for key in (inside(address, namespace) for address in addresses) if key is not None]
                yield pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], schema=ADDRESSES)

    return write_produced(id_tasks(run.spark(), "branch", branches, batch=1), produce, run.place, folder, ADDRESSES)


def staged_addresses(lakefs: LakeFS, repository: str, branch: str) -> Iterator[str]:
    """The physical addresses at the added and changed paths of a branch; none where it is gone by now.

    The server's list leaves out full addresses that it holds to be outside the namespace (formats §2).
    """
    for tries_left in reversed(range(TRIES)):
        try:
            paths = (change.path for change in whole_diff(lakefs, repository, branch) if change.type != "removed")
            while window := list(islice(paths, WINDOW)):
                yield from (one for one in serve(lakefs, repository, branch, window).values() if one is not None)
                yield from at_inexact_paths(lakefs, repository, branch, window)
        except NotThere:
            if not is_branch(lakefs, repository, branch):
                return
            if not tries_left:  # deleted and made anew, again and again
                raise
        else:
            return
