"""`namespace_slices`: what the store holds, listed first of all (formats §2, "Order is a safety rule")."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lakegc_assets.marking import inventories
from lakegc_assets.marking.run import MarkRun, step
from spark_resources.datasets import Batches, Counts, Place, write_produced
from spark_resources.entries import id_tasks
from spark_resources.model import STORED_OBJECTS, is_candidate
from spark_resources.stores.base import Page

ASSET = "namespace_slices"
DATA = "data/"
ROOT = ""


def list_namespace(run: MarkRun) -> None:
    """List every object that may ever be collected, a task a group of slices, into STORED_OBJECTS."""
    with step(run, ASSET) as notes:
        if run.mark.record.inventory is not None:
            inventories.read_slices(run, notes, run.mark.record.inventory)
            return
        run.say(f"listing {run.store.where}")
        slices = [prefix for page in run.store.pages(DATA, delimiter="/") for prefix in page.prefixes]
        tasks = id_tasks(run.spark(), "folder", [ROOT, DATA, *slices], batch=1)
        place, local_adapter = run.place, run.local_adapter

        def produce(batches: Batches, counts: Counts) -> Batches:
            for batch in batches:
                for folder in batch.column(0).to_pylist():
                    yield from listed(place, folder, counts, local_adapter=local_adapter)

        folder = run.mark.folder(ASSET)
        dataset, counts = write_produced(tasks, produce, place, folder, STORED_OBJECTS)
        notes.wrote(dataset)
        notes.facts |= {
            "objects": dataset.rows,
            "bytes": counts.get("bytes", 0),
            "slices": len(slices),
            "pages": counts.get("pages", 0),
            "not_candidates": counts.get("not_candidates", 0),
            "unreadable_names": counts.get("unreadable_names", 0),
        }
        run.say(f"listed {dataset.rows:,} objects in {len(slices):,} slices")


def listed(place: Place, folder: str, counts: Counts, *, local_adapter: bool) -> Batches:
    """The candidates of one folder: a whole slice, or only what lies right in `data/` or at the root."""
    flat = "/" if folder in (DATA, ROOT) else None
    for page in place.store().pages(folder, delimiter=flat):
        counts["pages"] = counts.get("pages", 0) + 1
        counts["unreadable_names"] = counts.get("unreadable_names", 0) + page.unreadable_names
        found = [one for one in page.objects if is_candidate(one.key, local_adapter=local_adapter)]
        counts["not_candidates"] = counts.get("not_candidates", 0) + len(page.objects) - len(found)
        counts["bytes"] = counts.get("bytes", 0) + sum(one.size for one in found)
        if found:
            yield stored_batch(Page(found), folder)


def stored_batch(page: Page, folder: str) -> pa.RecordBatch:
    columns: Sequence[Sequence[object]] = (
        [one.key for one in page.objects],
        [one.size for one in page.objects],
        [one.modified for one in page.objects],
        [one.checksum for one in page.objects],
        [folder] * len(page.objects),
    )
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, STORED_OBJECTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=STORED_OBJECTS)
