"""`committed_addresses`: every address that a retained commit reaches (metaranges → ranges, each read once)."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark import addresses_on_hold, other_repositories
from lakegc_assets.mark.candidates import FROM_BASE_PART, Candidates, recorded_candidates
from lakegc_assets.mark.context import MarkRun, StepNotes, step
from lakegc_assets.mark.mark_chain import MarkChain, can_be_base, ranges_within, rows_of
from lakegc_assets.mark.metaranges import committed_metaranges, head_metaranges, metaranges
from spark_resources.lakefs.ranges import (
    check_all_read,
    distinct_refs,
    prefetched_tables,
    range_properties,
    range_tasks,
    ranges_of,
    table_ids,
    write_addresses,
    write_ranges_of,
)
from spark_resources.mark_store.mark import Mark
from spark_resources.model import (
    RANGE_IDS,
    RANGE_REFS,
    Scope,
)
from spark_resources.spark.datasets import Dataset, all_batches, write_rows, write_table
from spark_resources.spark.partitioning import tasks_from_ids
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.tasks import Batches

ASSET = "committed_addresses"
ADDRESSES_PART, MAYBE_GONE_PART, RANGES_PART = "addresses", "addresses_maybe_gone", "ranges"
SIZES_PARTS = {ADDRESSES_PART: "sizes", MAYBE_GONE_PART: "sizes_maybe_gone"}
METARANGES_PART, DROPPED_SINCE_LISTING_PART = "metaranges", "left_between"


def read_ranges(run: MarkRun) -> None:
    """Write which ranges count as committed, and their addresses inside the namespace.

    Addresses that only commits on hold reach, and those at paths on hold, are written separately (`addresses_on_hold`).
    Ranges that an earlier mark read aren't read again (see `lakegc_assets.rules.incremental`). For the scope
    `uncommitted`, the ranges of all commits count, expired or not. Without a commit graph, every range table under
    `_lakefs/` counts if there are no rules or the scope is `uncommitted` (formats §6). Addresses in ranges that count
    although no retained commit refers to them are written separately: they are live if stored, but their objects may
    be missing, because an earlier sweep may have deleted them. Finally, reads the tables of other repositories
    (`other_repositories`).
    """
    with step(run, ASSET) as notes:
        reads_all_ranges = run.mark.record.steps["retained_commits"].facts["all_ranges"]
        run.log_message(
            "reading all range tables" if reads_all_ranges else "reading the metaranges of retained commits"
        )
        candidates = recorded_candidates(run)
        refs, head_ranges = committed_ranges(
            run, notes, candidates.chain, additional=all_ranges(run) if reads_all_ranges else None
        )
        notes.facts |= {"ranges": len(refs), "entries": pc.sum(refs.column("entries")).as_py() or 0, "inside": 0}
        notes.facts |= {"outside": 0, "bytes_read": 0}
        addresses_on_hold.write_addresses_on_hold(run, notes, committed=set(refs["range_id"].to_pylist()))
        write_ranges_dropped_since_listing(run, notes, candidates, refs)
        candidates.write_reused_ranges(notes, refs["range_id"].to_pylist())
        refs = refs.filter(pc.invert(pc.is_in(refs["range_id"], value_set=ranges_already_read(run, candidates.chain))))
        entries = pc.sum(refs["entries"]).as_py() or 0
        run.log_message(f"reading {plural(len(refs), 'range')} with {plural(entries, 'entry')}")
        if reads_all_ranges or run.mark.record.scope is Scope.UNCOMMITTED:
            is_retained = pc.is_in(refs["range_id"], value_set=retained_ranges(run))
            read_addresses(run, notes, refs.filter(pc.invert(is_retained)), MAYBE_GONE_PART)
            refs = refs.filter(is_retained)
        read_addresses(run, notes, refs, ADDRESSES_PART, sizes_wanted=head_ranges)
        other_repositories.read_committed(run, notes)


def trusted_ranges(mark: Mark) -> list[str]:
    """The ids of the ranges that a re-verification of this mark needn't read; empty for a foreign mark.

    These are the ranges that the mark itself read and, if its record and those of all earlier marks are signed, the
    ranges that the earlier marks read. Without signatures, anyone who can write to the namespace could alter the
    records of earlier marks.
    """
    if ASSET not in mark.record.steps:
        return []
    ranges = [row["range_id"] for row in rows_of(mark, (ASSET, RANGES_PART), RANGE_REFS)]
    if mark.place.seal is not None or not mark.record.is_incremental:
        return ranges
    if FROM_BASE_PART not in mark.record.step(ASSET).datasets:  # written by an older version of lakegc
        return []
    from_base = {row["range_id"] for row in rows_of(mark, (ASSET, FROM_BASE_PART), RANGE_IDS)}
    return [range_id for range_id in ranges if range_id not in from_base]


def trusted_record(mark: Mark) -> Mark | None:
    """The mark itself if its record of metaranges, ranges and sizes needn't be verified by reading these tables again.
    None for a foreign mark or one that can't be a base, and for an incremental mark without signatures, whose record
    has rows of earlier marks (see `trusted_ranges`)."""
    has_record = ASSET in mark.record.steps and METARANGES_PART in mark.record.step(ASSET).datasets
    return mark if has_record and (mark.place.seal is not None or not mark.record.is_incremental) else None


def ranges_already_read(run: MarkRun, chain: MarkChain) -> pa.Array:
    """The ids of the ranges that needn't be read, because the approved mark or an earlier one read them."""
    if run.trusted_ranges is not None:
        return run.trusted_ranges
    return pa.array(sorted(chain.refs), pa.string())


def write_ranges_dropped_since_listing(run: MarkRun, notes: StepNotes, candidates: Candidates, refs: pa.Table) -> None:
    """Write the ranges that counted as committed when the candidates were listed but no longer do (RANGE_IDS): none
    unless a commit expired between the two steps. The next incremental mark needs them; a re-verification doesn't
    write them."""
    if run.trusted_ranges is not None:
        return
    dropped = candidates.ranges_dropped_since_listing(refs["range_id"].to_pylist())
    rows = [{"range_id": range_id} for range_id in sorted(dropped)]
    folder = run.mark.folder(ASSET, DROPPED_SINCE_LISTING_PART)
    notes.add_dataset(write_rows(run.place, folder, rows, RANGE_IDS), DROPPED_SINCE_LISTING_PART)


def read_addresses(
    run: MarkRun, notes: StepNotes, refs: pa.Table, part: str, sizes_wanted: Collection[str] = ()
) -> None:
    """Write a part: the addresses of these ranges that are inside the namespace. For the ranges with ids in
    `sizes_wanted`, write object sizes, too: paths to probe are selected by size (`restaged_content`). Raises
    `DamagedData` unless every entry was read."""
    entries = pc.sum(refs.column("entries")).as_py() or 0
    folder, sizes_folder = (run.mark.folder(ASSET, name) for name in (part, SIZES_PARTS[part]))
    # versions of one range share most entries, so put them in one file: see `arrow_shuffle.distinct_addresses`
    tasks = range_tasks(run.spark, refs, order_by=("min_key", "max_key", "range_id"))
    dataset, sizes, report = write_addresses(
        tasks, run.place, folder, total_entries=entries, sizes_folder=sizes_folder, sizes_wanted=sizes_wanted
    )
    notes.add_dataset(dataset, part)
    notes.add_dataset(sizes, SIZES_PARTS[part])
    check_all_read(report, ranges=len(refs), entries=entries)
    notes.facts["inside"] += dataset.rows
    notes.facts["outside"] += report.counters["outside"]
    notes.facts["bytes_read"] += report.counters["bytes"]


def live_datasets(run: MarkRun) -> list[Dataset]:
    """The datasets with all addresses that this step read (RANGE_ADDRESSES)."""
    parts = [part for part in (ADDRESSES_PART, MAYBE_GONE_PART) if part in run.mark.record.step(ASSET).datasets]
    return [run.mark.dataset(ASSET, part) for part in parts]


def committed_ranges(
    run: MarkRun, notes: StepNotes, chain: MarkChain, additional: pa.Table | None
) -> tuple[pa.Table, frozenset[str]]:
    """The distinct ranges (RANGE_REFS) of the commits whose objects are live, with those in `additional`, and the ids
    of the ranges at branch heads, as far as known. Writes these ranges, and which metarange contains which range."""
    metarange_ids = committed_metaranges(run)
    notes.facts["metaranges"] = len(metarange_ids)
    known = chain.known_metaranges
    new = [metarange_id for metarange_id in metarange_ids if metarange_id not in known]
    notes.facts["metaranges_read"] = len(new)
    is_base = run.trusted_ranges is None and can_be_base(run)
    folder, pairs_folder = (run.mark.folder(ASSET, part) for part in (RANGES_PART, METARANGES_PART))
    ranges_dataset, *pairs = write_ranges_of(
        run.spark, run.place, new, folder, pairs_folder=pairs_folder if is_base else ""
    )
    head_ranges, ids = frozenset[str](), chain.ranges_of(set(metarange_ids) & known)
    for written in pairs:
        notes.add_dataset(written, METARANGES_PART)
        heads = head_metaranges(run)
        head_ranges = ranges_within(run.place, [written], heads) | chain.ranges_of(heads & known)
    from_chain = pa.Table.from_pylist([chain.refs[range_id] for range_id in sorted(ids)], schema=RANGE_REFS)
    refs = pa.concat_tables(
        [from_chain, *all_batches(run.place, ranges_dataset, RANGE_REFS), *([] if additional is None else [additional])]
    )
    if len(ranges_dataset.files) > 1 or ids or additional is not None:
        refs = distinct_refs(refs)
        ranges_dataset = write_table(run.place, folder, refs)
    notes.add_dataset(ranges_dataset, RANGES_PART)
    return refs, head_ranges


def retained_ranges(run: MarkRun) -> pa.Array:
    """The ids of the ranges of retained commits."""
    ranges = ranges_of(run.spark, run.place, metaranges(run, include_expired=False)).select("range_id").distinct()
    with errors_from_executors():
        return pa.array([row["range_id"] for row in ranges.collect()], pa.string())


def all_ranges(run: MarkRun) -> pa.Table:
    """Every range of objects under `_lakefs/`, whether or not anything refers to it (RANGE_REFS), excluding metaranges
    and dumps of references. A missing range isn't noticed here, but `committed_ranges` adds those of known commits."""
    place = run.place

    def read(batches: Batches) -> Batches:
        ids = (table_id for batch in batches for table_id in batch.column(0).to_pylist())
        for table_id, data in prefetched_tables(place, ids, referrer="this namespace"):
            properties = range_properties(data, name=table_id, where=place.store().where)
            if properties is not None:
                row = [table_id, properties.count, properties.min_key, properties.max_key]
                arrays = [pa.array([value], type=field.type) for value, field in zip(row, RANGE_REFS, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=RANGE_REFS)

    return tasks_from_ids(run.spark, "table_id", list(table_ids(place)), batch_size=16).collected(read, RANGE_REFS)
