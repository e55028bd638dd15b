"""One reading of the staged addresses: those that branches serve at every changed path, and the server's list.

The server's list can miss staged objects, and can be empty although objects are staged (formats §2): because a branch
is deleted while the server scans, because the server can't read a staging record, or because it doesn't list an address
that it still resolves into the namespace. The list alone is therefore never trusted. The uncommitted diff of each
branch is also paged to its end, in a way that fails if a record can't be read, and each added or changed path is looked
up. Every address from the list or a branch is live. A list that is empty although objects are staged is requested
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.path_probes import (
    PATHS_PER_BATCH,
    addresses_at_inexact_paths,
    is_branch,
    key_inside,
    served_addresses,
)
from spark_resources.errors import DamagedData, Interrupted, NotFound
from spark_resources.lakefs import LakeFS, UncommittedLists
from spark_resources.lakefs.branch_diff import whole_diff
from spark_resources.lakefs.connection import CONCURRENT_TASKS
from spark_resources.lakefs.gc_lists import read_uncommitted_file
from spark_resources.lakefs.ranges import addresses_inside
from spark_resources.model import ADDRESSES, AddressType
from spark_resources.spark.datasets import Dataset, write_produced, write_rows
from spark_resources.spark.partitioning import tasks_from_ids
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches

MAX_TRIES = 3
BRANCHES_ON_DRIVER = CONCURRENT_TASKS  # read on the driver concurrently, because the server does the work


@dataclass(frozen=True, slots=True)
class Reading:
    """The datasets (ADDRESSES) of one reading by part, and the facts recorded about each. All their addresses are
    live."""

    datasets: dict[str, Dataset] = field(default_factory=dict)
    facts: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, part: str, dataset: Dataset, **facts: int) -> None:
        self.datasets[part] = dataset
        self.facts[part] = {**facts, "addresses": dataset.rows}

    def record(self, notes: StepNotes) -> None:
        for part, dataset in self.datasets.items():
            notes.add_dataset(dataset, part)


def read_staged(run: MarkRun, asset: str, part: str, diff_part: str) -> Reading:
    """Read the addresses that are staged now: path by path, and from the server's list.

    Raises `Unavailable` if a diff can't be read to its end, for example because the server can't read a staging record.
    """
    reading = Reading()

    def read_list(name: str) -> UncommittedLists:
        lists = list_staged(run)
        dataset, report = read_lists(run, lists, run.mark.folder(asset, name))
        reading.add(name, dataset, pages=lists.pages, files=lists.files, **report.counters)
        return lists

    lists = read_list(part)
    changed, report = addresses_at_changed_paths(run, run.mark.folder(asset, diff_part))
    reading.add(diff_part, changed, **report.counters)
    for number in range(1, MAX_TRIES):
        if not (why := why_list_again(lists, changed)):
            break
        run.log_message(f"{why}: requesting the list again")
        lists = read_list(f"{part}_again_{number}")
    return reading


# --- the server's list ----------------------------------------------------------------------------------------------


NO_LIST = UncommittedLists("", {}, 0)


def list_staged(run: MarkRun) -> UncommittedLists:
    """The server's list, or NO_LIST if the server gave up because a branch was deleted during its scan."""
    try:
        return run.lakefs.prepare_uncommitted(run.partition.repository)
    except Interrupted:
        return NO_LIST


def read_lists(run: MarkRun, lists: UncommittedLists, folder: str) -> tuple[Dataset, TaskReport]:
    """Write the addresses inside the namespace that the files of these lists contain. Raises `DamagedData` if a
    location has fewer files than its pages reported."""
    keys = [key for location, files in lists.files_by_location.items() for key in reported_files(run, location, files)]
    place = run.place
    if not keys:
        return write_rows(place, folder, [], ADDRESSES), TaskReport()

    def produce(batches: Batches, report: TaskReport) -> Batches:
        for key in (key for batch in batches for key in batch.column(0).to_pylist()):
            listed = read_uncommitted_file(place.store().read(key), where=f"{place.store().where}/{key}")
            addresses = listed.column("physical_address").combine_chunks()
            kinds = pa.repeat(pa.scalar(int(AddressType.BY_PREFIX), pa.int8()), len(addresses))
            inside, outside = addresses_inside(addresses, kinds, place.namespace)
            report.count(outside=outside)
            yield pa.RecordBatch.from_arrays([inside], schema=ADDRESSES)

    return write_produced(tasks_from_ids(run.spark, "key", keys, batch_size=1), produce, place, folder, ADDRESSES)


def why_list_again(lists: UncommittedLists, changed: Dataset) -> str:
    """Why the server's list must be requested again; "" if it needn't be."""
    if not lists.pages:
        return "a branch was deleted while the server listed staged addresses"
    if lists.empty_pages and (lists.pages > 1 or changed.rows):
        return "the server's list of staged addresses has a page without a file, although objects are staged"
    return ""


def reported_files(run: MarkRun, location: str, announced: int) -> list[str]:
    """The keys of the files at a reported location. Raises `DamagedData` if there are fewer than announced (invariant
    3)."""
    folder = run.place.namespace.key(location).rstrip("/") + "/"
    keys = [file.key for page in run.store.pages(folder) for file in page.objects]
    if len(keys) < announced:
        raise DamagedData(
            f"the server reported {plural(announced, 'file')} with staged addresses at {location}, but the store has "
            f"only {len(keys):,} there. Staged addresses can't be determined, so nothing can be collected. Run the "
            "same command again. If the error persists, check that lakegc and the server use the same store.",
            invariant=3,
        )
    return keys


# --- path by path ---------------------------------------------------------------------------------------------------


def addresses_at_changed_paths(run: MarkRun, folder: str) -> tuple[Dataset, TaskReport]:
    """Write the addresses inside the namespace that branches serve at the paths of their uncommitted diffs."""
    branches = sorted(run.lakefs.branches(run.partition.repository))
    namespace, lakefs, repository = run.place.namespace, run.lakefs, run.partition.repository

    def produce(batches: Batches, report: TaskReport) -> Batches:
        for branch in (branch for batch in batches for branch in batch.column(0).to_pylist()):
            staged = staged_addresses(lakefs, repository, branch)
            while addresses := list(islice(staged, PATHS_PER_BATCH)):
                report.count(asked=len(addresses))
                keys = [key for key in (key_inside(address, namespace) for address in addresses) if key is not None]
                yield pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], schema=ADDRESSES)

    return write_produced(
        tasks_from_ids(run.spark, "branch", branches, batch_size=1, max_on_driver=BRANCHES_ON_DRIVER),
        produce,
        run.place,
        folder,
        ADDRESSES,
    )


def staged_addresses(lakefs: LakeFS, repository: str, branch: str) -> Iterator[str]:
    """Yield the physical addresses at the added and changed paths of a branch. Stops if the branch was deleted. If it
    was created again, starts over, and raises `NotFound` after MAX_TRIES tries.

    Raises `Unavailable` if the diff can't be read to its end.
    """
    for tries_left in reversed(range(MAX_TRIES)):
        try:
            paths = (change.path for change in whole_diff(lakefs, repository, branch) if change.type != "removed")
            while window := list(islice(paths, PATHS_PER_BATCH)):
                yield from (
                    address
                    for address in served_addresses(lakefs, repository, branch, window).values()
                    if address is not None
                )
                yield from addresses_at_inexact_paths(lakefs, repository, branch, window)
        except NotFound:
            if not is_branch(lakefs, repository, branch):
                return
            if not tries_left:  # deleted and re-created repeatedly
                raise
        else:
            return
