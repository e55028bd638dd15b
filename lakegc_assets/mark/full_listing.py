"""List the objects in the store, one task per group of slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.listed_objects import ASSET
from lakegc_assets.rules.addresses import are_candidates, slice_of
from spark_resources.model import DATA, ROOT, STORED_OBJECTS
from spark_resources.spark.datasets import Producer, write_produced
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Tasks
from spark_resources.stores.base import Store, folders_in
from spark_resources.stores.parallel_listing import (
    CONCURRENT_LISTINGS,
    Part,
    all_fit_in_one_page,
    pages_of_parts,
    split_part,
)
from spark_resources.stores.place import Place

ROOT_PART = Part(ROOT, flat=True)
_PIECES_PER_CORE = 4
_PARTS = pa.schema(
    [
        pa.field("folder", pa.string(), nullable=False),
        pa.field("flat", pa.bool_(), nullable=False),
        pa.field("after", pa.string()),
        pa.field("up_to", pa.string()),
    ]
)


def all_parts(store: Store) -> list[Part]:
    """The parts that make up `data/`: objects directly in it, and every slice."""
    return [Part(DATA, flat=True), *map(Part, folders_in(store, DATA))]


def list_parts(run: MarkRun, notes: StepNotes, parts: Sequence[Part]) -> None:
    """List these parts and the root, and write STORED_OBJECTS."""
    tasks = listing_tasks(run, parts)
    produce = listing_producer(run.place, local_adapter=run.local_adapter)
    dataset, report = write_produced(tasks, produce, run.place, run.mark.folder(ASSET), STORED_OBJECTS)
    notes.add_dataset(dataset)
    notes.facts |= {
        "objects": dataset.rows,
        "slices": len(parts) - 1,
        **{name: report.counters[name] for name in ("bytes", "pages", "not_candidates", "unreadable_names")},
    }
    run.log_message(f"listed {plural(dataset.rows, 'object')} in {plural(len(parts) - 1, 'slice')}")


def listing_tasks(run: MarkRun, parts: Sequence[Part]) -> Tasks:
    """Divide these parts and the root among tasks. A few short parts are listed on the driver."""
    at_once = run.place.settings.listing_requests
    if len(parts) < at_once and all_fit_in_one_page(run.store, [ROOT_PART, *parts]):
        return tasks_from_rows(run.spark, parts_table([ROOT_PART, *parts]), batch_size=at_once)
    cores = run.spark().sparkContext.defaultParallelism
    pieces = split_parts(run.store, parts, max_pieces=_PIECES_PER_CORE * cores)
    # each task has at most as many pieces as it lists concurrently, but few enough that no core is idle
    return tasks_from_rows(
        run.spark, parts_table(pieces), batch_size=max(min(at_once, len(pieces) // cores), 1), max_on_driver=0
    )


def split_parts(store: Store, parts: Sequence[Part], *, max_pieces: int) -> list[Part]:
    """Split the root and these parts into pieces that can be listed concurrently.

    The root is split into at most `max_pieces` pieces if it is long. So is each long part, but only if there are fewer
    than `max_pieces` parts.
    """
    to_split = [ROOT_PART, *(parts if len(parts) < max_pieces else [])]
    with ThreadPoolExecutor(CONCURRENT_LISTINGS) as pool:
        pieces = [
            piece for split in pool.map(partial(split_part, store, count=max_pieces), to_split) for piece in split
        ]
    return pieces if len(to_split) > 1 else [*pieces, *parts]


def parts_table(parts: Sequence[Part]) -> pa.Table:
    return pa.Table.from_pylist([asdict(part) for part in parts], schema=_PARTS)


def listing_producer(place: Place, *, local_adapter: bool) -> Producer:
    """The function that each task runs: lists the candidates in its parts (rows of `parts_table`)."""

    def produce(batches: Batches, report: TaskReport) -> Batches:
        parts = [Part(**row) for batch in batches for row in batch.to_pylist()]
        yield from candidates_in(place, parts, report, local_adapter=local_adapter)

    return produce


def candidates_in(
    place: Place, parts: Sequence[Part], report: TaskReport, *, local_adapter: bool
) -> Iterator[pa.RecordBatch]:
    """The candidates in these parts, as STORED_OBJECTS."""
    for folder, page in pages_of_parts(place.store(), parts, at_once=place.settings.listing_requests):
        objects = page.objects.filter(are_candidates(page.objects.column(0), local_adapter=local_adapter))
        report.count(
            pages=1,
            unreadable_names=page.unreadable_names,
            not_candidates=len(page.objects) - len(objects),
            bytes=pc.sum(objects.column("size"), min_count=0).as_py(),
        )
        if len(objects):
            yield stored_batch(objects, slice_of(folder))


def stored_batch(objects: pa.RecordBatch, folder: str) -> pa.RecordBatch:
    """Convert rows of LISTED_OBJECTS, listed in this folder, to STORED_OBJECTS."""
    slices = pa.repeat(pa.scalar(folder, pa.string()), len(objects))
    return pa.RecordBatch.from_arrays([*objects.columns, slices], schema=STORED_OBJECTS)
