"""The records of a chain of marks, for an incremental mark (see `lakegc_assets.rules.incremental`).

Every mark records, as far as known: the objects that no retained commit refers to, the ranges of each metarange, the
addresses of the ranges that it read, and the ranges of expired commits to which it attributed objects. If a mark of a
chain didn't read something itself, an earlier mark of the chain did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.rules.garbage import KNOWN, KNOWN_ADDRESSES
from lakegc_assets.rules.incremental import CLOCK_MARGIN
from spark_resources.deleting.receipts import NUMBERED, Receipts
from spark_resources.errors import DamagedData, NotFound, Refused
from spark_resources.lakefs.ranges import range_number
from spark_resources.mark_store.files import RESTORE_FOLDERS
from spark_resources.mark_store.mark import MARKS_ROOT, Mark, mark_folder, own_mark_ids
from spark_resources.mark_store.record import MarkRecord, digest_of
from spark_resources.model import ADDRESSES as ADDRESS_ROWS
from spark_resources.model import (
    COMMIT_VERDICTS,
    EXPIRED_OBJECTS,
    NOT_RETAINED,
    RANGE_ADDRESSES,
    RANGE_IDS,
    RANGE_REFS,
    RANGES_OF_METARANGES,
    Outcome,
    Scope,
)
from spark_resources.spark.arrow_shuffle import GroupedRows, Input, co_group
from spark_resources.spark.datasets import Dataset, all_batches, all_rows, read_dataset, read_datasets
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import as_frame
from spark_resources.stores.base import folders_in
from spark_resources.stores.parallel_listing import CONCURRENT_LISTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_resources.stores.base import Store
    from spark_resources.stores.place import Place

# (asset, part) of the datasets that a mark writes for later ones
ADDRESSES = ("committed_addresses", "addresses")
RANGES = ("committed_addresses", "ranges")
METARANGES = ("committed_addresses", "metaranges")
SIZES = ("committed_addresses", "sizes")
DROPPED_SINCE_LISTING = ("committed_addresses", "left_between")
COMPARED = ("namespace_slices", "compared")
NOT_RETAINED_OBJECTS = ("expired_set", "not_retained")
EXPLAINED = ("expired_set", "explained")
FILES_OF_EACH_MARK = (ADDRESSES, RANGES, METARANGES, EXPLAINED)  # of each mark of a chain; SIZES are optional
FILES_OF_NEWEST_MARK = (DROPPED_SINCE_LISTING, NOT_RETAINED_OBJECTS)  # of the newest one only

REMOVED = (Outcome.DELETED, Outcome.ALREADY_GONE, Outcome.QUARANTINED, Outcome.PURGED)


def can_be_base(run: MarkRun) -> bool:
    """Whether this mark can record everything that an incremental mark needs. It must know every commit, and only
    commits may define what counts as committed."""
    facts = run.mark.record.step("retained_commits").facts
    return run.mark.record.scope is Scope.UNIFIED and bool(facts["graph"]) and not facts["all_ranges"]


def refuse_mixed_modes(run: MarkRun) -> None:
    """Raise `Refused` if the listing was incremental but a later step would treat it as full, or vice versa
    (invariant 3)."""
    record = run.mark.record
    if record.is_incremental != (COMPARED[1] in record.step(COMPARED[0]).datasets):
        raise Refused(
            f"namespace_slices of mark {record.mark_id} of {record.repository} recorded a listing in a different mode "
            "(full or incremental) from the mark itself. Make a new mark.",
            invariant=3,
        )


@dataclass(frozen=True)
class MarkChain:
    """The chain of an incremental mark: its base mark, the base of that, and so on back to a full mark. See `of_full`
    for other marks."""

    run: MarkRun
    marks: tuple[Mark, ...]

    @classmethod
    def recorded(cls, run: MarkRun) -> MarkChain:
        """The chain that a mark recorded. Raises `DamagedData` or `NotFound` if one of its marks can no longer be
        read."""
        return cls(run, open_chain(run.place, run.mark.record.basis))

    @classmethod
    def of_full(cls, run: MarkRun) -> MarkChain:
        """The chain of a full mark (empty), or of a re-verification: just the approved mark if its record of tables is
        trusted, otherwise empty."""
        return cls(run, () if run.trusted_record is None else (run.trusted_record,))

    @property
    def base(self) -> MarkRecord:
        return self.marks[0].record

    @property
    def spark(self) -> SparkSession:
        return self.run.spark()

    # --- ranges -----------------------------------------------------------------------------------------------------

    @cached_property
    def refs(self) -> dict[str, dict[str, Any]]:
        """Every range whose addresses were read, as rows of RANGE_REFS by range id."""
        return {row["range_id"]: row for mark in self.marks for row in rows_of(mark, RANGES, RANGE_REFS)}

    @cached_property
    def committed_at_base(self) -> frozenset[str]:
        """The ids of the ranges that counted as committed when the base mark listed the store or read ranges."""
        return frozenset(
            row["range_id"]
            for base in self.marks[:1]
            for row in [*rows_of(base, RANGES, RANGE_REFS), *rows_of(base, DROPPED_SINCE_LISTING, RANGE_IDS)]
        )

    @cached_property
    def attributed_ranges(self) -> frozenset[str]:
        """The ids of the ranges of expired commits that were read in order to attribute objects to these commits."""
        return frozenset(row["range_id"] for mark in self.marks for row in rows_of(mark, EXPLAINED, RANGE_IDS))

    @property
    def metarange_datasets(self) -> list[Dataset]:
        """The datasets with the ranges of every metarange that was read (RANGES_OF_METARANGES)."""
        return [mark.dataset(*METARANGES) for mark in self.marks]

    @cached_property
    def known_metaranges(self) -> frozenset[str]:
        return metaranges_in(self.run.place, self.metarange_datasets)

    def ranges_of(self, metaranges: Iterable[str]) -> frozenset[str]:
        """The ids of the ranges in any of these metaranges, all of which must be known."""
        wanted = set(metaranges)
        if unknown := wanted - self.known_metaranges:
            raise AssertionError(f"no earlier mark read the metaranges {sorted(unknown)[:3]}")
        return ranges_within(self.run.place, self.metarange_datasets, wanted)

    # --- addresses --------------------------------------------------------------------------------------------------

    def addresses(self, ranges: Collection[str]) -> DataFrame:
        """The addresses in these ranges, as earlier marks read them (column address, with duplicates)."""
        range_numbers = pa.array(sorted(map(range_number, ranges)), pa.int64())

        def select(table: pa.Table) -> pa.Table:
            return table.filter(pc.is_in(table["range"], value_set=range_numbers))

        datasets = [mark.dataset(*ADDRESSES) for mark in self.marks] if ranges else []
        rows = read_datasets(self.spark, self.run.place, datasets, RANGE_ADDRESSES, select=select)
        return rows.select("address")

    def known_addresses(self, live: Set[str], only: pa.Array | None) -> Input:
        """The addresses in ranges that counted as committed at the base mark, or that were read and are `live`
        (KNOWN_ADDRESSES). If `only` is given, just the addresses in it; every task must be able to hold it in memory.
        """
        flagged_ranges = {"before": self.committed_at_base, "live": live, "again": live - self.committed_at_base}
        range_numbers = {
            name: pa.array(sorted(map(range_number, ids)), pa.int64()) for name, ids in flagged_ranges.items()
        }

        def select(table: pa.Table) -> pa.Table:
            if only is not None:
                table = table.filter(pc.is_in(table["address"], value_set=only))
            flags = [pc.is_in(table["range"], value_set=range_numbers[name]) for name in KNOWN_ADDRESSES.names[1:]]
            flagged = pa.table([table["address"], *flags], schema=KNOWN_ADDRESSES)
            relevant = flagged.filter(pc.or_(flagged["before"], flagged["live"]))
            return relevant.group_by(KNOWN_ADDRESSES.names, use_threads=False).aggregate([])

        datasets = [mark.dataset(*ADDRESSES) for mark in self.marks]
        rows = [file.rows for dataset in datasets for file in dataset.files]
        # an address is in a file at most three times: flagged `before`, flagged `live`, and flagged both
        max_rows = None if only is None else sum(min(count, 3 * len(only)) for count in rows)
        return Input.selected(
            KNOWN, self.run.place, datasets, RANGE_ADDRESSES, KNOWN_ADDRESSES, select, max_rows=max_rows
        )

    @property
    def size_datasets(self) -> list[Dataset]:
        """The datasets with the object sizes in each range that was read for a branch head (RANGE_SIZES), as far as
        recorded."""
        return [mark.dataset(*SIZES) for mark in self.marks if SIZES[1] in mark.record.step(SIZES[0]).datasets]

    def reason_datasets(self) -> list[tuple[Dataset, pa.Schema]]:
        """The datasets with the expiry reasons that earlier marks recorded, each with its schema: for the objects that
        no retained commit referred to at the base mark, and for those that have been restored since (columns address,
        commit_id and path, among others)."""
        restored = [(self._expired_set(mark_id), EXPIRED_OBJECTS) for mark_id in self.restored_marks]
        return [(self.marks[0].dataset(*NOT_RETAINED_OBJECTS), NOT_RETAINED), *restored]

    def not_retained(self) -> DataFrame:
        """The objects that were stored but referenced by no retained commit at the base mark (NOT_RETAINED)."""
        return self._read(self.marks[0], NOT_RETAINED_OBJECTS, NOT_RETAINED)

    def removed_by_sweep(self) -> DataFrame:
        """The addresses whose objects a sweep of the base mark deleted or quarantined, or found already gone (column
        address)."""
        return addresses_with_outcome(self.run, self.base.mark_id, "receipts/", REMOVED)

    def expired_in_restored_marks(self) -> DataFrame:
        """The expired sets of all marks from which objects were (or may have been) restored since the base mark, by
        undo or from a backup, with the recorded reasons (columns address, commit_id, path)."""
        datasets = [self._expired_set(mark_id) for mark_id in self.restored_marks]
        return read_datasets(self.spark, self.run.place, datasets, EXPIRED_OBJECTS).select(
            "address", "commit_id", "path"
        )

    @cached_property
    def restored_marks(self) -> tuple[str, ...]:
        """The ids of the marks that `expired_in_restored_marks` covers. Raises `DamagedData` for a foreign mark, whose
        contents aren't known."""
        mark_ids = tuple(restored_marks(self.run.store, self.base.start - CLOCK_MARGIN))
        if mark_ids and (others := set(mark_ids) - own_mark_ids(self.run.place)):
            raise DamagedData(
                f"objects of foreign marks ({', '.join(sorted(others))}) may have been restored, and it is unknown "
                "which ones"
            )
        for mark_id in mark_ids:
            check_files(Mark.open(self.run.place, mark_id), ("expired_set", ""))
        return mark_ids

    def _expired_set(self, mark_id: str) -> Dataset:
        return Mark.open(self.run.place, mark_id).dataset("expired_set")

    def base_verdicts(self) -> list[dict[str, Any]]:
        """The rows of COMMIT_VERDICTS of the base mark; empty if it had no objects to explain, because it then read no
        ranges of expired commits."""
        bases = [mark for mark in self.marks[:1] if mark.record.step("expired_set").facts["not_retained"]]
        return [row for mark in bases for row in rows_of(mark, ("retained_commits", ""), COMMIT_VERDICTS)]

    def _read(self, mark: Mark, asset_and_part: tuple[str, str], schema: pa.Schema) -> DataFrame:
        return read_dataset(self.spark, self.run.place, mark.dataset(*asset_and_part), schema)


def metaranges_in(place: Place, datasets: Iterable[Dataset]) -> frozenset[str]:
    """The ids of all metaranges in these datasets of RANGES_OF_METARANGES."""
    ids: set[str] = set()
    for dataset in datasets:
        for table in all_batches(place, dataset, RANGES_OF_METARANGES):
            ids.update(pc.unique(table["metarange_id"]).to_pylist())
    return frozenset(ids)


def ranges_within(place: Place, datasets: Iterable[Dataset], metaranges: Collection[str]) -> frozenset[str]:
    """The ids of the ranges in any of these metaranges."""
    ids: set[str] = set()
    for table in pairs_of(place, datasets, metaranges):
        ids.update(pc.unique(table["range_id"]).to_pylist())
    return frozenset(ids)


def pairs_of(place: Place, datasets: Iterable[Dataset], metaranges: Collection[str]) -> Iterator[pa.Table]:
    """Yield the rows of these metaranges in datasets of RANGES_OF_METARANGES, in batches, possibly with duplicates."""
    wanted = pa.array(sorted(metaranges), pa.string())
    for dataset in datasets if len(wanted) else ():
        for table in all_batches(place, dataset, RANGES_OF_METARANGES):
            yield table.filter(pc.is_in(table["metarange_id"], value_set=wanted))


def open_chain(place: Place, basis: Mapping[str, Any]) -> tuple[Mark, ...]:
    """Open the marks of a chain. Raises `DamagedData` or `NotFound` if a mark or one of its files is missing or has
    changed since the mark was finished."""
    chain = tuple(Mark.open(place, mark_id) for mark_id in basis["chain"])
    for number, (mark, digest) in enumerate(zip(chain, basis["digests"], strict=True)):
        check_chain_mark(mark.record, digest, [base.record for base in chain[number + 1 :]])
        check_files(mark, *FILES_OF_EACH_MARK, *(() if number else FILES_OF_NEWEST_MARK))
    return chain


def check_chain_mark(record: MarkRecord, digest: str, bases: Sequence[MarkRecord]) -> None:
    """Raise `DamagedData` if a mark of the chain, or the chain in its own record, isn't as expected."""
    if not record.digest == digest_of(record) == digest:
        raise DamagedData(f"mark {record.mark_id} was replaced, or its record was altered")
    expected = [base.mark_id for base in bases]
    if record.is_incremental != bool(expected) or (record.is_incremental and list(record.basis["chain"]) != expected):
        kind = f"an incremental mark based on {', '.join(expected)}" if expected else "a full mark"
        raise DamagedData(f"mark {record.mark_id} should be {kind}, but its record says otherwise")


def check_files(mark: Mark, *asset_parts: tuple[str, str]) -> None:
    """Raise `DamagedData` if a file of these datasets is missing or differs in size; its content is verified when read.

    The files of one asset are listed together.
    """
    store, folders = mark.place.store(), {mark.folder(asset) for asset, _ in asset_parts}
    sizes = {
        listed.key: listed.size for folder in sorted(folders) for page in store.pages(folder) for listed in page.objects
    }
    for dataset in (mark.dataset(*asset_and_part) for asset_and_part in asset_parts):
        for file in dataset.files:
            if sizes.get(dataset.folder + file.name) != file.size:
                raise DamagedData(f"{dataset.folder}{file.name} in {store.where} is missing or was changed")


def rows_of(mark: Mark, asset_and_part: tuple[str, str], schema: pa.Schema) -> list[dict[str, Any]]:
    return all_rows(mark.place, mark.dataset(*asset_and_part), schema)


def addresses_with_outcome(run: MarkRun, mark_id: str, subfolder: str, wanted: Collection[Outcome]) -> DataFrame:
    """The addresses whose last outcome, according to the receipts in this subfolder of a mark's folder, is one of
    these (column address)."""
    files = Receipts(run.place, mark_folder(mark_id) + subfolder).files("receipt")
    values = pa.array([outcome.value for outcome in wanted])

    def combine(rows: GroupedRows, report: TaskReport) -> pa.Table:
        last = sweep_outcomes.latest(rows["receipts"])
        return last.filter(pc.is_in(last["outcome"], value_set=values)).select(ADDRESS_ROWS.names)

    inputs = [Input.of_files("receipts", files, NUMBERED, reduce=sweep_outcomes.latest)]
    return as_frame(co_group(run.spark, inputs, combine, ADDRESS_ROWS, run.persist).rows)


def restored_marks(store: Store, since: datetime) -> Iterator[str]:
    """The ids of the marks from which objects were, or may have been, restored at or after `since` (store's clock)."""
    folders = folders_in(store, MARKS_ROOT)

    def has_restored_since(folder: str) -> bool:
        restore_folders = {folder + subfolder for subfolder in RESTORE_FOLDERS}.intersection(folders_in(store, folder))
        return any(
            listed.modified >= since
            for restore_folder in restore_folders
            for page in store.pages(restore_folder)
            for listed in page.objects
        )

    with ThreadPoolExecutor(CONCURRENT_LISTINGS) as pool:  # one request per existing mark
        flags = list(pool.map(has_restored_since, folders))
    yield from (
        folder.removeprefix(MARKS_ROOT).rstrip("/")
        for folder, has_restored in zip(folders, flags, strict=True)
        if has_restored
    )


UNREADABLE = (DamagedData, NotFound)
