"""Marks altered by somebody who may write to the namespace. All checksums and the digest match again afterwards."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import MarkRecord, StepRecord, digest_of
from spark_resources.spark.datasets import finish_dataset, parquet_bytes, write_file
from spark_resources.stores.place import Place

Change = Callable[[pa.Table], pa.Table]


def forge(place: Place, mark_id: str, asset: str, part: str, change: Change) -> None:
    """Change the rows of each file of a mark's dataset, and adapt the file, the list of files and the record."""
    mark = Mark.open(place, mark_id)
    folder, store = mark.folder(asset, part), place.store()
    files = []
    for file in mark.dataset(asset, part).files:
        rows = change(pq.read_table(io.BytesIO(store.read(folder + file.name))))
        files.append(write_file(place, folder, file.name, parquet_bytes(rows), len(rows)))
    dataset = finish_dataset(place, folder, files)
    recorded = {"sha256": dataset.sha256, "rows": dataset.rows, "bytes": dataset.size}
    step: StepRecord = mark.record.step(asset)
    forged = replace(step, datasets={**step.datasets, part: recorded})
    write_record(mark, steps={**mark.record.steps, asset: forged})


def write_record(mark: Mark, **changes: Any) -> None:
    """Replace a mark's record by one with these changes and a matching digest."""
    record: MarkRecord = replace(mark.record, **changes)
    mark.store.write(mark.key, replace(record, digest=digest_of(record)).to_json())
