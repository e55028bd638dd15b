"""`committed_addresses`: every address that a retained commit reaches: metaranges → ranges, each read once."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.marking import held_addresses, other_repositories
from lakegc_assets.marking.run import MarkRun, StepNotes, step
from spark_resources.datasets import Batches, all_rows, arrow_to_spark, write_dataset
from spark_resources.entries import (
    check_all_read,
    fetched_ahead,
    id_tasks,
    range_properties,
    ranges_of,
    read_table,
    row_tasks,
    table_ids,
    write_addresses,
)
from spark_resources.executors import errors_from_executors, on_executor
from spark_resources.model import ADDRESSES, COMMIT_VERDICTS, RANGE_REFS, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASSET = "committed_addresses"
ADDRESSES_PART, MAYBE_GONE_PART, RANGES_PART = "addresses", "addresses_maybe_gone", "ranges"


def read_ranges(run: MarkRun) -> None:
    """Write the manifest of the ranges that count as committed, and the addresses inside the namespace that they hold.

    What only held commits reach, and what is held at its path, is written apart (`held_addresses`).
    For the scope `uncommitted` that is all commits', expired or not. Where neither rules nor a commit graph say what
    is committed, it is every range table under `_lakefs/` (formats §6). What only such ranges hold is written apart: it
    counts where it is stored, and may be gone, since an earlier sweep took what had expired.
    """
    with step(run, ASSET) as notes:
        everything = run.mark.record.steps["retained_commits"].facts["all_ranges"]
        run.say("reading all range tables" if everything else "reading the metaranges of retained commits")
        ranges = committed_ranges(run, notes)
        if everything:  # and not instead: a range that a known commit needs and that is not there must be missed
            ranges = distinct_ranges(ranges.unionByName(every_range(run)))
        folder = run.mark.folder(ASSET, RANGES_PART)
        manifest = write_dataset(ranges, run.place, folder, RANGE_REFS)
        notes.wrote(manifest, RANGES_PART)
        refs = pa.Table.from_pylist(all_rows(run.place, manifest, RANGE_REFS), schema=RANGE_REFS)
        notes.facts |= {"ranges": len(refs), "entries": pc.sum(refs.column("entries")).as_py() or 0, "inside": 0}
        notes.facts |= {"outside": 0, "bytes_read": 0}
        held_addresses.read_held(run, notes, committed=set(refs["range_id"].to_pylist()))
        if run.proven is not None:
            refs = refs.filter(pc.invert(pc.is_in(refs["range_id"], value_set=run.proven)))
        run.say(f"reading {len(refs):,} ranges with {pc.sum(refs['entries']).as_py() or 0:,} entries")
        if everything or run.mark.record.scope is Scope.UNCOMMITTED:
            needed = pc.is_in(refs["range_id"], value_set=needed_ranges(run))
            read_addresses(run, notes, refs.filter(pc.invert(needed)), MAYBE_GONE_PART)
            refs = refs.filter(needed)
        read_addresses(run, notes, refs, ADDRESSES_PART)
        other_repositories.read_committed(run, notes)


def read_addresses(run: MarkRun, notes: StepNotes, refs: pa.Table, part: str) -> None:
    """Write the addresses inside the namespace that these ranges hold, every entry of which must be read."""
    entries = pc.sum(refs.column("entries")).as_py() or 0
    folder = run.mark.folder(ASSET, part)
    tasks = row_tasks(run.spark(), refs, batch=1)
    dataset, counts = write_addresses(tasks, run.place, folder, total_entries=entries)
    notes.wrote(dataset, part)
    check_all_read(counts, ranges=len(refs), entries=entries)
    notes.facts["inside"] += dataset.rows
    notes.facts["outside"] += counts.get("outside", 0)
    notes.facts["bytes_read"] += counts.get("bytes", 0)


def read_live(run: MarkRun) -> DataFrame:
    """All addresses that this step found, whatever part they are in (ADDRESSES)."""
    parts = [part for part in (ADDRESSES_PART, MAYBE_GONE_PART) if part in run.mark.record.step(ASSET).datasets]
    return reduce(lambda left, right: left.unionByName(right), (run.read(ASSET, ADDRESSES, part) for part in parts))


def committed_ranges(run: MarkRun, notes: StepNotes) -> DataFrame:
    """The distinct ranges of the commits that count, as RANGE_REFS."""
    counted = metaranges(run, expired_too=run.mark.record.scope is Scope.UNCOMMITTED)
    notes.facts["metaranges"] = len(counted)
    return distinct_ranges(ranges_of(run.spark(), run.place, counted))


def needed_ranges(run: MarkRun) -> pa.Array:
    """The ids of the ranges of retained commits."""
    ranges = ranges_of(run.spark(), run.place, metaranges(run, expired_too=False)).select("range_id").distinct()
    with errors_from_executors():
        return pa.array([row["range_id"] for row in ranges.collect()], pa.string())


def metaranges(run: MarkRun, *, expired_too: bool) -> list[str]:
    verdicts = run.rows("retained_commits", COMMIT_VERDICTS)
    by_rules = (row for row in verdicts if expired_too or (row["retained"] and not row["hold"]))
    return sorted({row["metarange_id"] for row in by_rules} - {""})


def distinct_ranges(ranges: DataFrame) -> DataFrame:
    """Each range once; a range that two metaranges describe differently stays twice, and is then refused when read."""
    return ranges.select(*RANGE_REFS.names).dropDuplicates()


def every_range(run: MarkRun) -> DataFrame:
    """Every range of objects under `_lakefs/`, whoever refers to it; without metaranges and dumps of references."""
    place = run.place

    def read(batches: Batches) -> Batches:
        ids = (one for batch in batches for one in batch.column(0).to_pylist())
        for table_id, data in fetched_ahead(ids, lambda one: read_table(place, one, needed_by="this namespace")):
            properties = range_properties(data, name=table_id, where=place.store().where)
            if properties is not None:
                row = [table_id, properties.count, properties.min_key, properties.max_key]
                arrays = [pa.array([value], type=field.type) for value, field in zip(row, RANGE_REFS, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=RANGE_REFS)

    tasks = id_tasks(run.spark(), "table_id", list(table_ids(place)), batch=16)
    return tasks.mapInArrow(on_executor(read), arrow_to_spark(RANGE_REFS))
