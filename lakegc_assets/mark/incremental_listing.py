"""`namespace_slices` of an incremental mark: list the folders that may have changed, and look up the other candidates
one by one.

The listing comes first here, too. The ranges that are no longer retained are determined before it, but only to decide
which objects are looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.listed_objects import (
    ASSET,
    COMPARED_PART,
    FOLDERS_PART,
    LOOKED_UP_PART,
    NO_LONGER_RETAINED_PART,
)
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.mark.retained_commits import complete_graph, dumped_graph
from lakegc_assets.rules import garbage
from lakegc_assets.rules.addresses import listed_area_column, slice_column, slice_of, slices_of
from lakegc_assets.rules.incremental import may_have_changed, slice_opened_at
from lakegc_assets.rules.retention import commit_verdicts
from spark_resources.deleting.lookup import Lookup
from spark_resources.lakefs.ranges import ranges_of
from spark_resources.model import ADDRESSES, DATA, RANGE_IDS, ROOT, STORED_OBJECTS
from spark_resources.spark.datasets import Producer, write_dataset, write_produced, write_rows
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches
from spark_resources.stores.base import Store, folders_in
from spark_resources.stores.parallel_listing import Part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLDERS = pa.schema([STORED_OBJECTS.field("slice")])
MAX_SHARD_DEPTH = 4  # maximum nesting of shard folders
LOOKUPS_PER_TASK = 20_000


def possibly_changed_parts(store: Store, since: datetime) -> list[Part]:
    """The parts of `data/` to list: objects directly in it, slices that may have been written to since `since`, and
    folders that aren't slices.

    Shard folders (`data/!…/`, formats §1) are searched for slices.
    """
    parts = (part for folder in folders_in(store, DATA) for part in _parts_below(store, folder, since))
    return [Part(DATA, flat=True), *parts]


def _parts_below(store: Store, folder: str, since: datetime, depth: int = 0) -> Iterator[Part]:
    name = folder.rstrip("/").rpartition("/")[2]
    if slice_opened_at(name) is None and depth < MAX_SHARD_DEPTH and (depth or name.startswith("!")):
        yield Part(folder, flat=True)
        for below in folders_in(store, folder):
            yield from _parts_below(store, below, since, depth + 1)
    elif may_have_changed(name, since):
        yield Part(folder)


def fully_listed_slices(parts: Sequence[Part]) -> list[str]:
    """The slices that a listing of these parts covers completely, named as in a full mark."""
    return sorted({ROOT, *(part.folder for part in parts if part.folder == DATA or _is_whole_slice(part))})


def _is_whole_slice(part: Part) -> bool:
    return part.folder == slice_of(part.folder) and not part.flat


def ranges_no_longer_retained(run: MarkRun, chain: MarkChain) -> frozenset[str] | None:
    """The ranges that counted as committed at the base mark but belong to no retained commit now; None without a
    commit graph.

    This doesn't wait for the server's list: a commit that only the server retains yields candidates that turn out to
    be live.
    """
    repository, record = run.partition.repository, run.mark.record
    heads = run.lakefs.branches(repository)
    dumped = dumped_graph(run)
    if dumped is None:
        return None
    commits = complete_graph(run, dumped, set(heads.values()))
    verdicts = commit_verdicts(commits.values(), heads, record.rules, now=record.server_now)
    metaranges = {verdict.metarange_id for verdict in verdicts if verdict.retained} - {""}
    new = metaranges - chain.known_metaranges
    live = chain.ranges_of(metaranges - new)
    if new:
        new_ranges = ranges_of(run.spark, run.place, sorted(new)).select("range_id").distinct()
        live |= {row["range_id"] for row in new_ranges.collect()}
    return chain.committed_at_base - live


def addresses_to_look_up(run: MarkRun, chain: MarkChain, ranges: frozenset[str], folders: Sequence[str]) -> DataFrame:
    """Addresses outside these folders that may be garbage (columns address, slice): those that no retained commit
    referred to at the base mark and that the sweep of that mark didn't remove, those in ranges that are no longer
    retained, and those that may have been restored since then."""
    not_retained = (
        chain.not_retained().select("address").transform(garbage.without_addresses_in(chain.removed_by_sweep()))
    )
    in_ranges = chain.addresses(ranges)
    addresses = (
        not_retained.union(in_ranges).union(chain.expired_in_restored_marks().select("address")).dropDuplicates()
    )
    listed = tasks_from_rows(run.spark, pa.table({"slice": list(folders)}, schema=FOLDERS), batch_size=10_000).frame()
    address = addresses["address"]
    sliced = addresses.where(listed_area_column(address)).withColumn("slice", slice_column(address))
    return sliced.join(listed, "slice", "left_anti").select("address", "slice")


def look_up(run: MarkRun, notes: StepNotes, chain: MarkChain, ranges: frozenset[str], folders: Sequence[str]) -> None:
    """Look up the objects outside these folders that may be garbage. Writes their addresses (with those that a sweep of
    the base mark removed), those objects that are stored (STORED_OBJECTS), and the folders and ranges.

    `ranges` are the ids of ranges that are no longer retained.
    """
    with errors_from_executors():
        wanted = run.persist(addresses_to_look_up(run, chain, ranges, folders))
        count = wanted.count()
        run.log_message(f"looking up {plural(count, 'object')}")
        all_wanted = wanted.select("address").unionByName(chain.removed_by_sweep())  # deleted objects need no lookup
        compared = write_dataset(all_wanted, run.place, run.mark.folder(ASSET, COMPARED_PART), ADDRESSES)
        folder, report = run.mark.folder(ASSET, LOOKED_UP_PART), TaskReport()
        if count:
            partitioned = wanted.repartitionByRange(1 + count // LOOKUPS_PER_TASK, "slice", "address")
            rows = partitioned.sortWithinPartitions("slice", "address")
            stored_dataset, report = write_produced(rows, lookup_producer(run), run.place, folder, STORED_OBJECTS)
        else:
            stored_dataset = write_rows(run.place, folder, [], STORED_OBJECTS)
    notes.add_dataset(compared, COMPARED_PART)
    notes.add_dataset(stored_dataset, LOOKED_UP_PART)
    write_folders_and_ranges(run, notes, ranges, folders)
    notes.facts |= {"compared": count, "looked_up": stored_dataset.rows, "ranges_no_longer_retained": len(ranges)}
    notes.facts["objects"] += stored_dataset.rows
    notes.facts["bytes"] += report.counters["bytes"]


def lookup_producer(run: MarkRun) -> Producer:
    """The function that each task runs: maps addresses (columns address and slice, sorted by slice and address) to the
    objects stored there (STORED_OBJECTS)."""
    place = run.place

    def produce(batches: Batches, report: TaskReport) -> Batches:
        lookup = Lookup(place.store())
        for batch in batches:
            stored = lookup.look_up(pa.Table.from_batches([batch])).combine_chunks()
            wanted = pc.is_in(stored["address"], value_set=batch.column("address"))
            for objects in stored.filter(wanted).to_batches():
                report.count(bytes=pc.sum(objects.column("size"), min_count=0).as_py())
                slices = slices_of(objects.column("address"))
                yield pa.RecordBatch.from_arrays([*objects.columns, slices], schema=STORED_OBJECTS)

    return produce


def write_folders_and_ranges(run: MarkRun, notes: StepNotes, ranges: frozenset[str], folders: Sequence[str]) -> None:
    """Write which folders were listed, and which ranges were treated as no longer retained."""
    slices = [{"slice": folder} for folder in folders]
    notes.add_dataset(write_rows(run.place, run.mark.folder(ASSET, FOLDERS_PART), slices, FOLDERS), FOLDERS_PART)
    rows = [{"range_id": range_id} for range_id in sorted(ranges)]
    notes.add_dataset(
        write_rows(run.place, run.mark.folder(ASSET, NO_LONGER_RETAINED_PART), rows, RANGE_IDS), NO_LONGER_RETAINED_PART
    )
