"""Finished marks made without Spark: the record and the files that a mark writes to a namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from spark_resources.mark_store.mark import Mark, asset_folder, reference_folder
from spark_resources.mark_store.record import CHAIN, MarkRecord, StepRecord, digest_of
from spark_resources.model import (
    ADDRESSES,
    COMMIT_VERDICTS,
    EXPIRED_OBJECTS,
    RANGE_REFS,
    STORED_OBJECTS,
    MarkState,
    Rules,
    Scope,
)
from spark_resources.spark.datasets import Dataset, finish_dataset, write_file, write_rows
from spark_resources.stores.place import Place

START = datetime(2026, 11, 21, 8, 50, tzinfo=UTC)
COUNTS: Mapping[str, int] = {
    "candidates": 100_000,
    "candidate_bytes": 1_000_000,
    "expired": 10_000,
    "expired_bytes": 100_000,
    "live": 80_000,
}


def finished_record(mark_id: str = "m1", *, start: datetime = START, **changes: Any) -> MarkRecord:
    """The record of a mark that ended, by default, nine minutes after its start."""
    record = MarkRecord(
        mark_id=mark_id,
        state=MarkState.MARKED,
        repository="lake",
        repository_created=start - timedelta(days=100),
        namespace="local://lake",
        scope=Scope.UNIFIED,
        min_age=timedelta(hours=24),
        start=start,
        cutoff=start - timedelta(hours=24),
        server_now=start,
        rules=Rules(21, {"dev": 7}),
        by="someone@somewhere",
        versions={"lakegc": "1"},
        counts=dict(COUNTS),
        finished=start + timedelta(minutes=9),
    )
    record = replace(record, **changes)
    return replace(record, digest=digest_of(record)) if "digest" not in changes else record


PARTS = {
    "namespace_slices": {"": STORED_OBJECTS},
    "uncommitted_addresses": {"first": ADDRESSES, "second": ADDRESSES},
    "retained_commits": {"": COMMIT_VERDICTS},
    "committed_addresses": {"addresses": ADDRESSES, "ranges": RANGE_REFS},
    "expired_set": {"": EXPIRED_OBJECTS},
}


def finished_mark(place: Place, addresses: Sequence[str], mark_id: str = "m1", **changes: Any) -> Mark:
    """A finished mark whose expired set is these addresses, with every file that a mark has."""
    facts: Mapping[str, Mapping[str, Any]] = changes.pop("facts", {})
    record = finished_record(mark_id, **changes)
    begun = Mark.begin(place, replace(record, state=MarkState.MARKING, finished=None, digest=None, counts={}))
    steps = {}
    for number, asset in enumerate(CHAIN, 1):
        began = record.start + timedelta(minutes=number)
        parts = {part: recorded(write_part(place, mark_id, asset, part, addresses)) for part in PARTS[asset]}
        if asset == "expired_set":
            parts |= {
                part: recorded(dataset) for part, dataset in write_reference_layout(place, mark_id, addresses).items()
            }
        steps[asset] = StepRecord(began, began + timedelta(seconds=30), number, parts, facts.get(asset, {}))
    sized = {**COUNTS, "expired": len(addresses), "expired_bytes": len(addresses)}
    counts: dict[str, Any] = {"steps": steps, "counts": changes.get("counts", sized)}
    digest = digest_of(replace(record, **counts))
    begun.move_to(MarkState.MARKED, finished=record.finished, digest=digest, previous=record.previous, **counts)
    return begun


def write_part(place: Place, mark_id: str, asset: str, part: str, addresses: Sequence[str]) -> Dataset:
    expired = [
        {"address": address, "size": 1, "modified": START - timedelta(days=50), "slice": "data/s/", "reason": "r"}
        for address in addresses
    ]
    rows = expired if (asset, part) == ("expired_set", "") else []
    return write_rows(place, asset_folder(mark_id, asset, part), rows, PARTS[asset][part])


def write_reference_layout(place: Place, mark_id: str, addresses: Sequence[str]) -> dict[str, Dataset]:
    folder, lines = reference_folder(mark_id), "".join(f"{address}\n" for address in addresses).encode()
    text = write_file(place, folder + "deleted.text/", "part-00000.txt", lines, len(addresses))
    return {
        "deleted": write_rows(place, folder + "deleted/", [{"address": address} for address in addresses], ADDRESSES),
        "deleted.text": finish_dataset(place, folder + "deleted.text/", [text]),
    }


def recorded(dataset: Dataset) -> dict[str, Any]:
    return {"sha256": dataset.sha256, "rows": dataset.rows, "bytes": dataset.size}
