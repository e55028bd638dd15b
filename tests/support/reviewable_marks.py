"""Finished marks to review, made without Spark: an expired set and the other files that a mark writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark import sample_objects, totals
from spark_resources.mark_store.mark import Mark, asset_folder
from spark_resources.mark_store.record import CHAIN, StepRecord, digest_of
from spark_resources.model import (
    COMMIT_VERDICTS,
    EXPIRED_OBJECTS,
    OBJECTS_ON_HOLD,
    STORED_OBJECTS,
    ExpiredReason,
    MarkState,
)
from spark_resources.spark.datasets import (
    Dataset,
    File,
    Output,
    finish_dataset,
    parquet_bytes,
    parquet_output,
    write_file,
    write_rows,
)
from spark_resources.stores.place import Place
from tests.support.finished_marks import START, finished_record, recorded

FACTS: Mapping[str, Any] = {"candidates": 1_000, "candidate_bytes": 1_000_000}


def expired(address: str, size: int = 1, old: float = 50, path: str | None = None, **more: Any) -> dict[str, Any]:
    """A row of an expired set, `old` days old. With a path, the object was in an expired commit of main (21 days)."""
    row = {"address": address, "size": size, "modified": START - timedelta(days=old), "path": path}
    row["slice"] = "/".join(address.split("/")[:2]) + "/" if address.count("/") > 1 else ""
    if path is None:
        return {**row, "reason": ExpiredReason.NEVER_COMMITTED.value, **more}
    rule = {"commit_id": "c" * 64, "branch": "main", "days": 21, "until": START - timedelta(days=1)}
    return {**row, "reason": ExpiredReason.EXPIRED_COMMIT.value, **rule, **more}


def tables(rows: Iterable[Mapping[str, Any]], *, per_file: int = 1_000_000) -> list[pa.Table]:
    """Tables of an expired set in address order, each with up to `per_file` rows."""
    whole = sorted(rows, key=lambda row: str(row["address"]).encode())
    return [
        pa.Table.from_pylist(whole[i : i + per_file], schema=EXPIRED_OBJECTS) for i in range(0, len(whole), per_file)
    ]


def reviewable(
    place: Place,
    files: Iterable[pa.Table],
    mark_id: str = "m1",
    *,
    commits: Sequence[Mapping[str, Any]] = (),
    listed: Iterable[pa.Table] = (),
    on_hold: Sequence[Mapping[str, Any]] = (),
    facts: Mapping[str, Any] = FACTS,
    elsewhere: Mapping[str, Any] | None = None,
    start: datetime = START,
    **changes: Any,
) -> Mark:
    """A finished mark. `files` are the tables of its expired set, `listed` those of its listing; `facts` are those of
    the expired set, and `elsewhere` those about other repositories."""
    changes.setdefault("repository_created", START - timedelta(days=100))
    record = finished_record(mark_id, start=start, **changes)
    mark = Mark.begin(place, replace(record, state=MarkState.MARKING, finished=None, digest=None, counts={}))
    parts, sums = write_set(place, mark, files)
    if on_hold:
        folder = asset_folder(mark_id, "expired_set", "on_hold")
        parts["on_hold"] = write_rows(place, folder, list(on_hold), OBJECTS_ON_HOLD)
    written = {
        "namespace_slices": {"": write_listing(place, mark, listed)},
        "retained_commits": {"": write_rows(place, mark.folder("retained_commits"), list(commits), COMMIT_VERDICTS)},
        "expired_set": parts,
    }
    steps = {}
    for number, asset in enumerate(CHAIN, 1):
        began = start + timedelta(minutes=number)
        datasets = {part: recorded(dataset) for part, dataset in written.get(asset, {}).items()}
        asset_facts = {**facts, **sums} if asset == "expired_set" else {}
        if asset == "committed_addresses" and elsewhere is not None:
            asset_facts = {"elsewhere": dict(elsewhere)}
        steps[asset] = StepRecord(began, began + timedelta(seconds=30), number, datasets, asset_facts)
    counts = {**record.counts, **{name: facts[name] for name in ("candidates", "candidate_bytes")}, **sums}
    final: dict[str, Any] = {"steps": steps, "counts": counts, "previous": record.previous}
    digest = digest_of(replace(record, **final))
    mark.move_to(MarkState.MARKED, finished=record.finished, digest=digest, **final)
    return mark


def write_set(place: Place, mark: Mark, files: Iterable[pa.Table]) -> tuple[dict[str, Dataset], dict[str, int]]:
    record, objects, size = mark.record, 0, 0
    outputs: dict[str, Output] = {
        "": parquet_output(mark.folder("expired_set"), EXPIRED_OBJECTS),
        totals.PART: totals.totals_output(mark.folder("expired_set", totals.PART), record.start),
        sample_objects.PART: sample_objects.samples_output(
            mark.folder("expired_set", sample_objects.PART), record.mark_id
        ),
    }
    written: dict[str, list[File]] = {part: [] for part in outputs}
    for number, table in enumerate(files):
        objects, size = objects + len(table), size + (pc.sum(table["size"]).as_py() or 0)
        for part, output in outputs.items():
            data, rows = output.encode(table)
            written[part].append(write_file(place, output.folder, f"part-{number:05}-0-000.parquet", data, rows))
    datasets = {
        part: finish_dataset(place, outputs[part].folder, written_files) for part, written_files in written.items()
    }
    return datasets, {"expired": objects, "expired_bytes": size}


def write_listing(place: Place, mark: Mark, listed: Iterable[pa.Table]) -> Dataset:
    folder, files = mark.folder("namespace_slices"), []
    for number, table in enumerate(listed):
        data = parquet_bytes(table.select(STORED_OBJECTS.names).cast(STORED_OBJECTS))
        files.append(write_file(place, folder, f"part-{number:05}.parquet", data, len(table)))
    return finish_dataset(place, folder, files)


def commit(message: str, *, days: float = 40, commit_id: str = "c" * 64, **more: Any) -> dict[str, Any]:
    """A row of COMMIT_VERDICTS: an expired commit of main."""
    row = {"commit_id": commit_id, "retained": False, "reason": "expired", "branch": "main", "days": 21}
    row |= {"created": START - timedelta(days=days), "message": message, "metarange_id": "m", "server_listed": False}
    return {**row, **more}


def sums(rows: Iterable[Mapping[str, Any]], *names: str) -> dict[Any, tuple[int, int]]:
    """The number of objects and bytes of the rows, grouped by their value, or tuple of values, for these names."""
    return {
        tuple(row[name] for name in names) if len(names) > 1 else row[names[0]]: (row["objects"], row["bytes"])
        for row in rows
    }
