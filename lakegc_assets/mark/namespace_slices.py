"""`namespace_slices`: what the store holds, listed first of all (formats §2, "Order is a safety rule")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark import inventory_listing
from lakegc_assets.mark.base_mark import UNREADABLE, Base
from lakegc_assets.mark.context import MarkRun, StepNotes, step
from lakegc_assets.mark.incremental_listing import LOOKED_UP_PART, changed_parts, let_go, listed_whole, look
from lakegc_assets.rules.addresses import are_candidates
from spark_resources.model import DATA, ROOT, STORED_OBJECTS
from spark_resources.spark.datasets import Batches, Counts, Dataset, Producer, read_datasets, write_produced
from spark_resources.spark.partitioning import row_tasks
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.stores.base import Store, folders_in
from spark_resources.stores.parallel_listing import AT_ONCE, Part, listed, spread
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ASSET = "namespace_slices"
_RANGES_A_CORE = 4
_PARTS = pa.schema(
    [
        pa.field("folder", pa.string(), nullable=False),
        pa.field("flat", pa.bool_(), nullable=False),
        pa.field("after", pa.string()),
        pa.field("upto", pa.string()),
    ]
)


def list_namespace(run: MarkRun) -> None:
    """List every object that may ever be collected, a task a group of slices, into STORED_OBJECTS.

    An incremental run lists what can have changed since an earlier mark, and looks up what it knows of elsewhere.
    """
    with step(run, ASSET) as notes:
        if run.mark.record.inventory is not None:
            inventory_listing.read_slices(run, notes, run.mark.record.inventory)
            return
        base, gone = what_is_known(run)
        run.say(f"listing {run.store.where}")
        whole = all_parts(run.store) if base is None else changed_parts(run.store, base.newest.start)
        list_parts(run, notes, whole)
        if base is not None:
            look(run, notes, base, gone, listed_whole(whole))


def what_is_known(run: MarkRun) -> tuple[Base | None, frozenset[str]]:
    """What an incremental run goes on from, and the ranges that were let go since; None for a full one.

    Where earlier marks, or the commit graph, can't be read, this mark becomes a full one, and says why.
    """
    if not run.mark.record.incremental:
        return None, frozenset()
    try:
        base = Base.of(run)
        run.say(f"looking for what may have changed since mark {base.newest.mark_id}")
        if base.marks_brought_back:
            run.say(f"looking at what was brought back of {', '.join(base.marks_brought_back)}, too")
        with errors_from_executors():
            gone = let_go(run, base)
        why = "the commit graph may not be read"
    except UNREADABLE as error:
        gone, why = None, f"an earlier mark can't be read: {error}"
    if gone is not None:
        return base, gone
    run.mark.make_clean(why)
    run.say(f"looking at everything: {why}")
    return None, frozenset()


def all_parts(store: Store) -> list[Part]:
    """All under `data/`: what lies right in it, and every slice."""
    return [Part(DATA, flat=True), *map(Part, folders_in(store, DATA))]


def list_parts(run: MarkRun, notes: StepNotes, whole: Sequence[Part]) -> None:
    """List these parts and the root, into STORED_OBJECTS."""
    spark = run.spark()
    parts = parts_of(run.store, whole, wanted=_RANGES_A_CORE * spark.sparkContext.defaultParallelism)
    tasks = tasks_of(spark, parts, at_once=run.place.settings.listing_requests)
    produce = producer(run.place, local_adapter=run.local_adapter)
    dataset, counts = write_produced(tasks, produce, run.place, run.mark.folder(ASSET), STORED_OBJECTS)
    notes.wrote(dataset)
    notes.facts |= {
        "objects": dataset.rows,
        "bytes": counts.get("bytes", 0),
        "slices": len(whole) - 1,
        "pages": counts.get("pages", 0),
        "not_candidates": counts.get("not_candidates", 0),
        "unreadable_names": counts.get("unreadable_names", 0),
    }
    run.say(f"listed {plural(dataset.rows, 'object')} in {plural(len(whole) - 1, 'slice')}")


def datasets(run: MarkRun) -> list[Dataset]:
    """All that a mark found in the store (STORED_OBJECTS)."""
    looked_up = [LOOKED_UP_PART] if LOOKED_UP_PART in run.mark.record.step(ASSET).datasets else []
    return [run.mark.dataset(ASSET, part) for part in ("", *looked_up)]


def stored(run: MarkRun) -> DataFrame:
    """The same as a DataFrame."""
    return read_datasets(run.spark(), run.place, datasets(run), STORED_OBJECTS)


def parts_of(store: Store, whole: Sequence[Part], *, wanted: int) -> list[Part]:
    """The parts in pieces to list, and what lies at the root.

    A long root is cut for as many tasks as wanted; the parts too, where they are fewer than that.
    """
    cut = [Part(ROOT, flat=True), *(whole if len(whole) < wanted else [])]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ranges = [part for parts in pool.map(partial(spread, store, wanted=wanted), cut) for part in parts]
    return ranges if len(cut) > 1 else [*ranges, *whole]


def tasks_of(spark: SparkSession, parts: Sequence[Part], *, at_once: int = AT_ONCE) -> DataFrame:
    """The parts as rows, in tasks of as many as are listed at once, or of fewer, so that no core has none."""
    table = pa.Table.from_pylist([asdict(part) for part in parts], schema=_PARTS)
    batch = min(at_once, len(parts) // spark.sparkContext.defaultParallelism)
    return row_tasks(spark, table, batch=max(batch, 1))


def producer(place: Place, *, local_adapter: bool) -> Producer:
    """What a task does with its rows of `tasks_of`: lists their candidates."""

    def produce(batches: Batches, counts: Counts) -> Batches:
        parts = [Part(**row) for batch in batches for row in batch.to_pylist()]
        yield from candidates(place, parts, counts, local_adapter=local_adapter)

    return produce


def candidates(place: Place, parts: Sequence[Part], counts: Counts, *, local_adapter: bool) -> Iterator[pa.RecordBatch]:
    """The candidates among what the parts hold, as STORED_OBJECTS."""
    for folder, page in listed(place.store(), parts, at_once=place.settings.listing_requests):
        found = page.objects.filter(are_candidates(page.objects.column(0), local_adapter=local_adapter))
        for name, number in (
            ("pages", 1),
            ("unreadable_names", page.unreadable_names),
            ("not_candidates", len(page.objects) - len(found)),
            ("bytes", pc.sum(found.column("size"), min_count=0).as_py()),
        ):
            counts[name] = counts.get(name, 0) + number
        if len(found):
            yield stored_batch(found, slice_listed(folder))


def slice_listed(folder: str) -> str:
    """The slice that a folder of a listing is, or is in: shards are not told apart."""
    return "/".join(folder.split("/")[:2]) + "/" if folder.count("/") > 2 else folder


def stored_batch(objects: pa.RecordBatch, folder: str) -> pa.RecordBatch:
    """Rows of LISTED as STORED_OBJECTS, listed in this folder."""
    slices = pa.repeat(pa.scalar(folder, pa.string()), len(objects))
    return pa.RecordBatch.from_arrays([*objects.columns, slices], schema=STORED_OBJECTS)
