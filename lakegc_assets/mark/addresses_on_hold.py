"""The addresses that only holds keep: those that only commits on hold reach, and those at paths on hold.

An object on hold may be missing from the store, because an earlier sweep may have deleted it before the hold was
placed. Missing objects are therefore counted and reported, but don't stop the mark. A missing range that is on hold
does stop it (invariant 3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark import holds_in_force, listed_objects, missing_objects
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.keep_evidence import KeepEvidence, UndecidedObjects
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.rules import garbage, keep_reasons
from lakegc_assets.rules.addresses import listed_area_column
from lakegc_assets.rules.holds import PathHolds, prefixes_of
from spark_resources.lakefs.ranges import (
    addresses_inside,
    check_all_read,
    decoder_for,
    prefetched_tables,
    range_tasks,
    ranges_of,
    verified_entries,
)
from spark_resources.model import (
    ADDRESSES_ON_HOLD,
    COMMIT_VERDICTS,
    HOLD_SEPARATOR,
    OBJECTS_ON_HOLD,
    RANGE_REFS,
    RANGES_ON_HOLD,
)
from spark_resources.spark.arrow_shuffle import Input
from spark_resources.spark.datasets import Output, Producer, parquet_output, where_not_null, write_produced, write_rows
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakegc_assets.mark.candidates import Candidates

ASSET = "committed_addresses"
RANGES_PART, ADDRESSES_PART = "ranges_on_hold", "on_hold"
OBJECTS_PART = "on_hold"  # of the expired set
COLUMNS = ("path", "address", "address_type")
NORMALIZED_BY_SOME_STORES = r"//|/$|^/|(^|/)\.{1,2}(/|$)|\\"  # addresses that some stores normalize


# --- reading --------------------------------------------------------------------------------------------------------


def write_addresses_on_hold(run: MarkRun, notes: StepNotes, *, committed: Collection[str]) -> None:
    """Write the ranges that only commits on hold reach or that may contain paths on hold, and their addresses on hold.

    `committed` are the ids of the ranges that count as committed; these are left out.
    """
    paths = PathHolds.of(holds_in_force.in_force(run))
    ranges = [row for row in ranges_with_holds(run, paths) if row["range_id"] not in committed]
    notes.add_dataset(write_rows(run.place, run.mark.folder(ASSET, RANGES_PART), ranges, RANGES_ON_HOLD), RANGES_PART)
    folder = run.mark.folder(ASSET, ADDRESSES_PART)
    if ranges:
        run.log_message(f"reading {plural(len(ranges), 'range')} for holds")
        tasks = range_tasks(run.spark, pa.Table.from_pylist(ranges, schema=RANGES_ON_HOLD))
        dataset, report = write_produced(
            tasks, on_hold_producer(run.place, paths), run.place, folder, ADDRESSES_ON_HOLD
        )
        check_all_read(report, ranges=len(ranges), entries=sum(row["entries"] for row in ranges))
    else:
        dataset = write_rows(run.place, folder, [], ADDRESSES_ON_HOLD)
    notes.add_dataset(dataset, ADDRESSES_PART)
    notes.facts |= {"ranges_on_hold": len(ranges), "addresses_on_hold": dataset.rows}


def ranges_with_holds(run: MarkRun, paths: PathHolds) -> list[dict[str, Any]]:
    """The ranges of commits that only holds retain, and those ranges of expired commits that may contain paths on hold
    (RANGES_ON_HOLD). Commits that the rules retain may contain these ranges, too."""
    from pyspark.sql import functions as F

    verdicts = run.rows("retained_commits", COMMIT_VERDICTS)
    expired = [row for row in verdicts if row["hold"] or (paths.patterns and not row["retained"])]
    wanted = sorted({row["metarange_id"] for row in expired} - {""})
    if not wanted:
        return []
    commits = tasks_from_rows(
        run.spark, pa.Table.from_pylist(expired, schema=COMMIT_VERDICTS), batch_size=10_000
    ).frame()
    ranges = ranges_of(run.spark, run.place, wanted).join(commits.select("metarange_id", "hold"), "metarange_id")
    with errors_from_executors():
        rows = ranges.groupBy(*RANGE_REFS.names).agg(F.collect_set("hold").alias("holds")).collect()
    return [
        {name: row[name] for name in RANGE_REFS.names} | {"hold": join_hold_ids(row["holds"])}
        for row in rows
        if row["holds"] or paths.may_match_between(bytes(row["min_key"]), bytes(row["max_key"]))
    ]


def join_hold_ids(hold_fields: Iterable[str]) -> str | None:
    """Merge the hold ids of several `hold` fields into a single field; None if there are none."""
    ids = {hold_id for hold_field in hold_fields for hold_id in hold_field.split(HOLD_SEPARATOR)}
    return HOLD_SEPARATOR.join(sorted(ids)) or None


def on_hold_producer(place: Place, paths: PathHolds) -> Producer:
    """The function that each task runs: maps rows of RANGES_ON_HOLD to the addresses on hold inside the namespace
    (ADDRESSES_ON_HOLD), and verifies every entry."""

    def produce(batches: Batches, report: TaskReport) -> Batches:
        refs = {str(row["range_id"]): row for batch in batches for row in batch.to_pylist()}
        decoder = decoder_for(refs.values())
        for range_id, data in prefetched_tables(place, refs, referrer="a hold"):
            batch = verified_entries(data, refs[range_id], COLUMNS, decoder)
            report.count(ranges=1, entries=batch.num_rows)
            if refs[range_id]["hold"]:
                yield on_hold_batch(batch, refs[range_id]["hold"], place)
            for hold_id, rows in paths.matching(batch.column("path").to_pylist() if paths.patterns else []):
                yield on_hold_batch(batch.take(pa.array(rows)), hold_id, place)

    return produce


def on_hold_batch(entries: pa.RecordBatch, hold: str, place: Place) -> pa.RecordBatch:
    keys, _ = addresses_inside(entries.column("address"), entries.column("address_type"), place.namespace)
    return pa.RecordBatch.from_arrays(
        [keys, pa.repeat(pa.scalar(hold, pa.string()), len(keys))], schema=ADDRESSES_ON_HOLD
    )


def recorded_addresses_on_hold(run: MarkRun) -> DataFrame:
    """The addresses on hold by commit or path, as recorded by `committed_addresses` (ADDRESSES_ON_HOLD, with
    duplicates)."""
    return run.read(ASSET, ADDRESSES_ON_HOLD, ADDRESSES_PART)


# --- keeping --------------------------------------------------------------------------------------------------------


def look_up(run: MarkRun, notes: StepNotes, objects: UndecidedObjects, chain: MarkChain) -> KeepEvidence | None:
    """The evidence that keeps objects on hold (by commit, path or prefix); None if no hold can keep any."""
    prefixes, addresses = prefixes_of(holds_in_force.in_force(run)), run.mark.dataset(ASSET, ADDRESSES_PART)
    if not addresses.rows and not prefixes:
        return None
    name = keep_reasons.HOLD.name
    on_hold = Input.whole(name, run.place, [addresses], ADDRESSES_ON_HOLD)
    return KeepEvidence(keep_reasons.on_hold(name, prefixes), (on_hold,))


def on_hold_output(run: MarkRun) -> Output:
    """The output for the objects that would expire without holds (OBJECTS_ON_HOLD): the rows with a `hold`."""
    return where_not_null("hold", parquet_output(run.mark.folder("expired_set", OBJECTS_PART), OBJECTS_ON_HOLD))


def count_by_hold(objects: pa.Table, report: TaskReport) -> None:
    """Add the total bytes of these objects (OBJECTS_ON_HOLD) to the report, and the objects and bytes per hold."""
    report.count(bytes_on_hold=pc.sum(objects["size"], min_count=0).as_py())
    groups = objects.group_by("hold", use_threads=False).aggregate([("size", "count"), ("size", "sum")])
    for group in groups.to_pylist():
        for hold_id in group["hold"].split(HOLD_SEPARATOR):
            report.count_for(hold_id, objects=group["size_count"], bytes=group["size_sum"])


def note_objects_on_hold(run: MarkRun, notes: StepNotes, candidates: Candidates, report: TaskReport) -> None:
    """Record how many objects only holds keep (`count_by_hold` counted them in `report`), and how many addresses on
    hold are missing from the listing."""
    absent = count_missing(run, candidates) if run.mark.dataset(ASSET, ADDRESSES_PART).rows else 0
    notes.facts |= {
        "on_hold": counts_by_hold(report),
        "objects_on_hold": notes.datasets[OBJECTS_PART]["rows"],
        "bytes_on_hold": report.counters["bytes_on_hold"],
        "on_hold_not_listed": absent,
    }


def counts_by_hold(report: TaskReport) -> dict[str, dict[str, int]]:
    """Counts per hold; an object kept by two holds counts for both."""
    objects, sizes = report.by_key["objects"], report.by_key["bytes"]
    return {hold_id: {"objects": objects[hold_id], "bytes": sizes[hold_id]} for hold_id in sorted(objects)}


def count_missing(run: MarkRun, candidates: Candidates) -> int:
    """Count and report the addresses on hold that are missing from the listing. Raises `Refused` if the store has one
    of them under a normalized name."""
    addresses = recorded_addresses_on_hold(run).select("address").dropDuplicates()
    expected = addresses.where(listed_area_column(addresses["address"]))
    missing = expected.transform(garbage.without_addresses_in(listed_objects.stored_objects(run)))
    missing = run.persist(candidates.without_unchanged(missing))
    normalizable = missing.where(missing["address"].rlike(NORMALIZED_BY_SOME_STORES)).collect()
    missing_objects.refuse_normalized(run, [row["address"] for row in normalizable], state="is on hold and not listed")
    count = missing.count()
    if count and run.mark.record.inventory is None:
        run.log_message(
            f"missing from the store: {plural(count, 'object')} on hold (lost, or deleted before the hold was placed)"
        )
    elif count:
        run.log_message(
            f"missing from the inventory: {plural(count, 'object')} on hold (lost, written later, or deleted before "
            "the hold was placed)"
        )
    return count
