"""How rows come to tasks, and which of what they read goes on: none may be lost on the way."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_resources.entries import only_wanted, row_tasks

SCHEMA = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("id", pa.int64(), nullable=False)])


def test_rows_that_are_alike_are_lost_or_kept_apart(spark: SparkSession) -> None:
    """Every row comes to exactly one task, rows with the same key to one or to neighbours, in order."""
    rows = [{"key": f"k{number % 20:02}", "id": number} for number in range(400)]

    tasks = row_tasks(spark, pa.Table.from_pylist(rows, schema=SCHEMA), batch=1, near=("key", "id"))
    found = tasks.select(F.spark_partition_id().alias("task"), "key", "id").collect()

    assert sorted((row["key"], row["id"]) for row in found) == sorted((row["key"], row["id"]) for row in rows)
    in_tasks = sorted(found, key=lambda row: row["task"])  # stable: within a task as they came
    assert [row["key"] for row in in_tasks] == sorted(row["key"] for row in rows)
    assert len({row["task"] for row in found}) > 1


def test_rows_that_come_first_in_any_batch_are_lost() -> None:
    """Of all batches, exactly the rows with a wanted address are left, however few or many there are at a time."""
    batches = [
        pa.RecordBatch.from_pydict({"address": [f"data/{number}" for number in range(start, start + 1000)]})
        for start in range(0, 120_000, 1000)
    ]
    wanted = pa.array(["data/0", "data/49999", "data/50000", "data/119999", "data/none"])

    found = [one for batch in only_wanted(batches, wanted) for one in batch.column(0).to_pylist()]

    assert found == ["data/0", "data/49999", "data/50000", "data/119999"]
    assert list(only_wanted([], wanted)) == []
