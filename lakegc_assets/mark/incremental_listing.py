"""`namespace_slices` of an incremental run: the folders that can have changed, and candidates elsewhere, one by one.

What is listed comes first here, too: which ranges are let go is asked before, and decides only what is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark.base_mark import Base
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.retained_commits import completed, dumped_graph
from lakegc_assets.rules import garbage
from lakegc_assets.rules.incremental import can_have_changed, opened, slice_of, union
from lakegc_assets.rules.reference_status import slices_of
from lakegc_assets.rules.retention import retained_commits
from spark_resources.deleting.lookup import Looker
from spark_resources.lakefs.ranges import ranges_of
from spark_resources.model import ADDRESSES, DATA, RANGE_IDS, ROOT, STORED_OBJECTS
from spark_resources.spark.datasets import Batches, Counts, Producer, write_dataset, write_produced, write_rows
from spark_resources.spark.partitioning import row_tasks
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.stores.base import Store, folders_in
from spark_resources.stores.parallel_listing import Part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASSET = "namespace_slices"
LOOKED_UP_PART, LOOKED_AT_PART, FOLDERS_PART, LET_GO_PART = "looked_up", "compared", "folders", "no_longer_retained"
FOLDERS = pa.schema([STORED_OBJECTS.field("slice")])
SHARDS_DEEP = 4  # folders of shards in each other at the most
LOOKS_A_TASK = 20_000


def changed_parts(store: Store, since: datetime) -> list[Part]:
    """What is to be listed under `data/`: what lies right in it, open slices, and folders that are no slices.

    Folders of shards (`data/!…/`, formats §1) are looked into for slices.
    """
    parts = (part for folder in folders_in(store, DATA) for part in _parts_below(store, folder, since))
    return [Part(DATA, flat=True), *parts]


def _parts_below(store: Store, folder: str, since: datetime, deep: int = 0) -> Iterator[Part]:
    name = folder.rstrip("/").rpartition("/")[2]
    if opened(name) is None and deep < SHARDS_DEEP and (deep or name.startswith("!")):
        yield Part(folder, flat=True)
        for below in folders_in(store, folder):
            yield from _parts_below(store, below, since, deep + 1)
    elif can_have_changed(name, since):
        yield Part(folder)


def listed_whole(parts: Sequence[Part]) -> list[str]:
    """The slices, as a full run names them, of which a listing of these parts tells everything."""
    return sorted({ROOT, *(part.folder for part in parts if part.folder == DATA or _is_top(part))})


def _is_top(part: Part) -> bool:
    return part.folder.count("/") == 2 and not part.flat


def let_go(run: MarkRun, base: Base) -> frozenset[str] | None:
    """The ranges that counted at the earlier mark and are of no retained commit by now; None without a commit graph.

    The server's list isn't waited for: a commit that only it retains makes candidates that turn out to be live.
    """
    repository, record = run.partition.repository, run.mark.record
    heads = run.lakefs.branches(repository)
    dumped = dumped_graph(run)
    if dumped is None:
        return None
    commits = completed(run, dumped, set(heads.values()))
    verdicts = retained_commits(commits.values(), heads, record.rules, now=record.server_now)
    metaranges = {one.metarange_id for one in verdicts if one.retained} - {""}
    new = metaranges - base.known_metaranges
    live = base.ranges_of(metaranges - new)
    if new:
        found = ranges_of(run.spark(), run.place, sorted(new)).select("range_id").distinct()
        live |= {row["range_id"] for row in found.collect()}
    return base.counted - live


def candidates(run: MarkRun, base: Base, gone: frozenset[str], folders: Sequence[str]) -> DataFrame:
    """Addresses outside these folders that may be garbage (columns address, slice): unsettled before, in ranges that
    were let go, or brought back since."""
    unsettled = base.unsettled().select("address").transform(garbage.without(base.gone()))
    in_ranges = base.addresses(gone)
    addresses = union([unsettled, in_ranges, base.brought_back().select("address")]).dropDuplicates()
    listed = row_tasks(run.spark(), pa.table({"slice": list(folders)}, schema=FOLDERS), batch=10_000)
    sliced = addresses.where(garbage.in_listed_area()).withColumn("slice", slice_of(addresses["address"]))
    return sliced.join(listed, "slice", "left_anti").select("address", "slice")


def look(run: MarkRun, notes: StepNotes, base: Base, gone: frozenset[str], folders: Sequence[str]) -> None:
    """Write which addresses are looked for outside these folders, and what the store holds of them (STORED_OBJECTS)."""
    with errors_from_executors():
        wanted = run.keep(candidates(run, base, gone, folders))
        count = wanted.count()
        run.say(f"looking up {plural(count, 'object')}")
        told = wanted.select("address").unionByName(base.gone())  # what a sweep took away needs no look
        asked = write_dataset(told, run.place, run.mark.folder(ASSET, LOOKED_AT_PART), ADDRESSES)
        folder, counts = run.mark.folder(ASSET, LOOKED_UP_PART), Counts()
        if count:
            spread = wanted.repartitionByRange(1 + count // LOOKS_A_TASK, "slice", "address")
            rows = spread.sortWithinPartitions("slice", "address")
            found, counts = write_produced(rows, looking(run), run.place, folder, STORED_OBJECTS)
        else:
            found = write_rows(run.place, folder, [], STORED_OBJECTS)
    notes.wrote(asked, LOOKED_AT_PART)
    notes.wrote(found, LOOKED_UP_PART)
    write_down(run, notes, gone, folders)
    notes.facts |= {"compared": count, "looked_up": found.rows, "ranges_no_longer_retained": len(gone)}
    notes.facts["objects"] += found.rows
    notes.facts["bytes"] += counts.get("bytes", 0)


def looking(run: MarkRun) -> Producer:
    place = run.place

    def produce(batches: Batches, counts: Counts) -> Batches:
        looker = Looker(place.store())
        for batch in batches:
            found = looker.look(pa.Table.from_batches([batch])).combine_chunks()
            wanted = pc.is_in(found["address"], value_set=batch.column("address"))
            for objects in found.filter(wanted).to_batches():
                counts["bytes"] = counts.get("bytes", 0) + (pc.sum(objects.column("size")).as_py() or 0)
                slices = slices_of(objects.column("address"))
                yield pa.RecordBatch.from_arrays([*objects.columns, slices], schema=STORED_OBJECTS)

    return produce


def write_down(run: MarkRun, notes: StepNotes, gone: frozenset[str], folders: Sequence[str]) -> None:
    slices = [{"slice": one} for one in folders]
    notes.wrote(write_rows(run.place, run.mark.folder(ASSET, FOLDERS_PART), slices, FOLDERS), FOLDERS_PART)
    ranges = [{"range_id": one} for one in sorted(gone)]
    notes.wrote(write_rows(run.place, run.mark.folder(ASSET, LET_GO_PART), ranges, RANGE_IDS), LET_GO_PART)
