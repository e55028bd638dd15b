"""Which paths are probed on branches: each that may serve a candidate. Candidates whose probes aren't sent are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakegc_assets.rules import path_probes
from spark_resources.model import SERVED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENTRIES = pa.schema(
    [pa.field(name, pa.string()) for name in ("repository", "range_id", "path")] + [("size", pa.int64())]
)
RANGES = pa.schema([pa.field(name, pa.string()) for name in ("repository", "branch", "range_id")])
CANDIDATES = pa.schema([("address", pa.string()), ("size", pa.int64())])
WANTED = pa.schema([SERVED.field(name) for name in ("repository", "branch", "path", "size")])


def frame(spark: SparkSession, schema: pa.Schema, *rows: Sequence[Any]) -> DataFrame:
    return spark.createDataFrame(
        pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
    )


def test_each_path_with_an_entry_of_a_candidates_size_is_probed_once_on_each_branch(spark: SparkSession) -> None:
    """A path that isn't probed would hide a live object. A range counts only in its own repository."""
    entries = frame(
        spark, ENTRIES,
        ("lake", "r1", "p", 1), ("lake", "r1", "p", 1), ("lake", "r1", "q", 2), ("lake", "r1", "too large", 3),
        ("lake", "r2", "r", 1), ("lake", "r2", None, 1), ("lake", "r3", "on no branch", 1), ("pond", "r1", "s", 2),
    )  # fmt: skip
    branches = frame(
        spark, RANGES,
        ("lake", "main", "r1"), ("lake", "main", "r1"), ("lake", "dev", "r1"), ("lake", "dev", "r2"),
        ("pond", "main", "r1"), ("pond", "main", "r2"),
    )  # fmt: skip
    candidates = frame(spark, CANDIDATES, ("a", 1), ("b", 1), ("c", 2))

    probes = path_probes.probes(entries, branches, candidates)

    assert probes.columns == ["repository", "branch", "path", "size"]
    assert sorted(map(tuple, probes.collect()), key=str) == [
        ("lake", "dev", "p", 1), ("lake", "dev", "q", 2), ("lake", "dev", "r", 1),
        ("lake", "dev", None, 1),
        ("lake", "main", "p", 1), ("lake", "main", "q", 2),
        ("pond", "main", "s", 2),
    ]  # fmt: skip


def test_sizes_with_few_probes_are_probed_first_up_to_the_limit(spark: SparkSession) -> None:
    """The limit applies to the total number of probes. No size is probed in part. If counts are equal, the smaller size
    comes first."""
    one_each = [("lake", "main", f"{size}/{number}", size) for size in (7, 9, 8) for number in range(2)]
    wanted = frame(spark, WANTED, *one_each, *(("lake", "main", f"6/{number}", 6) for number in range(3)))

    beyond = {bound: path_probes.beyond_bound(wanted, bound) for bound in (0, 1, 2, 3, 4, 5, 6, 8, 9)}

    assert beyond[0].columns == ["size"]
    assert {bound: sorted(row["size"] for row in unsent.collect()) for bound, unsent in beyond.items()} == {
        0: [6, 7, 8, 9], 1: [6, 7, 8, 9], 2: [6, 8, 9], 3: [6, 8, 9], 4: [6, 9], 5: [6, 9], 6: [6], 8: [6], 9: [],
    }  # fmt: skip


def test_a_probe_that_is_not_sent_is_unclear_and_names_no_address(spark: SparkSession) -> None:
    """Every candidate of its size is therefore kept."""
    beyond = frame(spark, WANTED, ("lake", "main", "p", 1), ("lake", "dev", None, 2)).select(
        "size", "path", "branch", "repository"
    )

    results = path_probes.not_sent(beyond, "there are too many")

    assert results.columns == SERVED.names
    assert results.schema["address"].dataType.simpleString() == "string"
    assert sorted(map(tuple, results.collect())) == [
        ("lake", "dev", None, 2, None, "there are too many"),
        ("lake", "main", "p", 1, None, "there are too many"),
    ]
