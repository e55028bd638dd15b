"""A few objects of an expired set for review: the largest, the newest, and a random sample.

Each executor selects from the rows that it writes, and the final samples are selected from these. The random sample is
drawn by a keyed hash of each address, so the same mark has the same sample, regardless of how its rows are partitioned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.mark_store.mark import Mark
from spark_resources.model import COMMIT_VERDICTS, EXPIRED_OBJECTS, HIGHLIGHTS
from spark_resources.spark.datasets import Output, all_rows, parquet_bytes, read_file

PART = "sample_objects"
ORDERS: Mapping[str, list[tuple[str, str]]] = {
    "largest": [("size", "descending"), ("address", "ascending")],
    "newest": [("modified", "descending"), ("address", "ascending")],
    "sample": [("draw", "ascending"), ("address", "ascending")],
}
OBJECTS_PER_KIND = {"largest": 10, "newest": 10, "sample": 20}


def select_samples(objects: pa.Table, *, seed: str) -> pa.Table:
    """The sample objects among these (EXPIRED_OBJECTS) as HIGHLIGHTS, each kind in its order."""
    drawn = objects.append_column("draw", sampling_keys(objects["address"], seed))
    samples = [_first(drawn, kind) for kind in ORDERS]
    return pa.concat_tables(samples)


def _first(drawn: pa.Table, kind: str) -> pa.Table:
    rows = pc.select_k_unstable(drawn, k=min(OBJECTS_PER_KIND[kind], len(drawn)), sort_keys=ORDERS[kind])
    table = drawn.take(rows).select(EXPIRED_OBJECTS.names)
    return table.add_column(0, HIGHLIGHTS.field("kind"), pa.repeat(kind, len(table))).cast(HIGHLIGHTS)


def sampling_keys(addresses: Any, seed: str) -> pa.Array:
    """A number for each address that depends only on the seed and the address."""
    import pandas as pd  # slow to import, so not when Dagster loads the graph

    key = hashlib.sha256(seed.encode()).hexdigest()[:16]
    values = addresses.to_numpy(zero_copy_only=False) if isinstance(addresses, pa.Array) else addresses.to_numpy()
    return pa.array(pd.util.hash_array(values, hash_key=key, categorize=False), pa.uint64())


def samples_output(folder: str, seed: str) -> Output:
    """The output of sample objects: a small file of HIGHLIGHTS for each file of an expired set."""

    def encode(objects: pa.Table) -> tuple[bytes, int]:
        samples = select_samples(objects.select(EXPIRED_OBJECTS.names).cast(EXPIRED_OBJECTS), seed=seed)
        return parquet_bytes(samples), len(samples)

    return Output(folder, ".parquet", encode)


# --- reading them ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as recorded in its verdict; `created` was set by the client."""

    commit_id: str
    created: datetime | None
    message: str | None


def samples_by_kind(mark: Mark) -> dict[str, list[dict[str, Any]]]:
    """The sample objects of a mark by kind, as rows of EXPIRED_OBJECTS."""
    all_samples, by_kind = all_rows(mark.place, mark.dataset("expired_set", PART), HIGHLIGHTS), {}
    for kind in ORDERS:
        rows = [{name: row[name] for name in EXPIRED_OBJECTS.names} for row in all_samples if row["kind"] == kind]
        table = pa.Table.from_pylist(rows, schema=EXPIRED_OBJECTS)
        drawn = table.append_column("draw", sampling_keys(table["address"], mark.record.mark_id))
        by_kind[kind] = _first(drawn, kind).select(EXPIRED_OBJECTS.names).to_pylist()
    return by_kind


def newest_object_time(mark: Mark) -> datetime | None:
    """When the newest object of an expired set was stored, by the store's clock; None if the set is empty, or the
    mark has no sample objects."""
    if PART not in mark.record.step("expired_set").datasets:
        return None
    dataset = mark.dataset("expired_set", PART)
    newest = [
        pc.max(table.filter(pc.equal(table["kind"], "newest"))["modified"]).as_py()
        for table in (read_file(mark.place, dataset.folder, file, HIGHLIGHTS) for file in dataset.files)
    ]
    return max((moment for moment in newest if moment is not None), default=None)


def commits_of(mark: Mark, rows: Iterable[Mapping[str, Any]]) -> dict[str, Commit]:
    """Date and message of the commits that these rows name, by id."""
    wanted = pa.array(sorted({row["commit_id"] for row in rows} - {None}), pa.string())
    dataset, commits = mark.dataset("retained_commits"), {}
    for file in dataset.files:
        table = read_file(mark.place, dataset.folder, file, COMMIT_VERDICTS)
        for row in table.filter(pc.is_in(table["commit_id"], value_set=wanted)).to_pylist():
            commits[row["commit_id"]] = Commit(row["commit_id"], row["created"], row["message"])
    return commits
