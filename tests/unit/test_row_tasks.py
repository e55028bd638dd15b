"""How rows come to tasks, and which of what they read goes on: none may be lost on the way."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_resources.datasets import arrow_to_spark, no_rows
from spark_resources.entries import ENTRIES_A_RANGE, ENTRIES_A_TASK, RANGES_A_TASK, ROWS_AT_ONCE, best_told, range_tasks
from spark_resources.tasks import row_tasks

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


@pytest.mark.parametrize("near", [(), ("key", "id")])
@pytest.mark.parametrize("count", [5, 17, 400])
def test_a_task_has_more_to_do_than_others(spark: SparkSession, count: int, near: tuple[str, ...]) -> None:
    """Rows are dealt out evenly, and in one stage: nothing is sent from task to task for it."""
    rows = [{"key": f"k{number}", "id": number} for number in range(count)]

    tasks = row_tasks(spark, pa.Table.from_pylist(rows, schema=SCHEMA), batch=1, near=near)

    sizes = [row["count"] for row in tasks.groupBy(F.spark_partition_id()).count().collect()]
    assert sum(sizes) == count
    assert len(sizes) == tasks.rdd.getNumPartitions() == min(count, 8 * spark.sparkContext.defaultParallelism)
    assert max(sizes) - min(sizes) <= 1
    assert "Exchange" not in tasks._jdf.queryExecution().toString()


@pytest.mark.parametrize(
    ("count", "entries", "tasks"),
    [
        (RANGES_A_TASK, 0, 1),
        (RANGES_A_TASK, 10, 1),
        (RANGES_A_TASK + 1, 10, 2),
        (8, ENTRIES_A_TASK, 8),
        (8, ENTRIES_A_TASK // 4, 2),
        (10_000, ENTRIES_A_TASK, 10_000),
    ],
)
def test_tiny_ranges_take_a_task_each_or_many_wait_for_one(
    spark: SparkSession, count: int, entries: int, tasks: int
) -> None:
    """Ranges share a task until they have some entries, or are some in number; every range comes to one."""
    ranges = pa.table({"id": pa.array(range(count), pa.int64()), "entries": pa.array([entries] * count, pa.int64())})

    found = range_tasks(spark, ranges)

    cores = spark.sparkContext.defaultParallelism
    assert found.rdd.getNumPartitions() == min(tasks, 8 * cores)
    assert sorted(row["id"] for row in found.collect()) == list(range(count))


@pytest.mark.parametrize("near", [(), ("key", "id")])
def test_a_task_gets_all_large_ranges(spark: SparkSession, near: tuple[str, ...]) -> None:
    """Tasks get as many entries, as far as whole ranges allow it: large ones that lie together are spread over them."""
    entries = [50_000] * 100 + [20] * 2_700 + [3_000_000]
    rows = [{"key": f"k{number:05}", "id": number, "entries": each} for number, each in enumerate(entries)]

    tasks = range_tasks(spark, pa.Table.from_pylist(rows), near=near)
    found = tasks.select(F.spark_partition_id().alias("task"), "id", "entries").collect()

    assert sorted(row["id"] for row in found) == list(range(len(entries)))
    costs: dict[int, int] = {}
    for row in found:
        costs[row["task"]] = costs.get(row["task"], 0) + row["entries"] + ENTRIES_A_RANGE
    even = sum(costs.values()) / (8 * spark.sparkContext.defaultParallelism)
    assert max(costs.values()) <= even + max(entries)
    assert sorted(costs.values())[-2] <= even + 50_000 + ENTRIES_A_RANGE
    if near:
        ids = [row["id"] for row in sorted(found, key=lambda row: row["task"])]
        assert ids == sorted(ids)


def test_ranges_nobody_knows_the_entries_of_are_lost(spark: SparkSession) -> None:
    """Tables that nothing refers to are dealt out with the others, though nobody says how many entries they have."""
    ranges = pa.table({"id": pa.array(range(60), pa.int64()), "entries": pa.array([None, 90_000, 5] * 20, pa.int64())})

    for some in (ranges, ranges.slice(0, 1)):
        assert sorted(row["id"] for row in range_tasks(spark, some).collect()) == some["id"].to_pylist()


def test_settings_of_the_session_change(spark: SparkSession) -> None:
    """How Spark holds other tables stays as it was."""
    name = "spark.sql.execution.arrow.localRelationThreshold"
    before = spark.conf.get(name)

    row_tasks(spark, pa.Table.from_pylist([{"key": "k", "id": one} for one in range(100)], schema=SCHEMA), batch=1)

    assert spark.conf.get(name) == before


@pytest.mark.parametrize("chunks", [[3, 0, 3], [0, 0, 3], [0, 3, 0, 17], [3]])
def test_rows_behind_an_empty_piece_are_lost(spark: SparkSession, chunks: list[int]) -> None:
    """Every row comes, whatever pieces a table is made of."""
    ids = iter(range(sum(chunks)))
    pieces = [pa.array([next(ids) for _ in range(size)], pa.int64()) for size in chunks]
    keys = [pa.array(["k"] * size, pa.string()) for size in chunks]
    table = pa.table([pa.chunked_array(keys), pa.chunked_array(pieces)], schema=SCHEMA)
    assert table["id"].num_chunks == len(chunks)

    found = row_tasks(spark, table, batch=1).collect()

    assert sorted(row["id"] for row in found) == list(range(sum(chunks)))


def test_nothing_takes_a_task(spark: SparkSession) -> None:
    """Without rows there is no task, for which Spark would start Python workers of another kind; and every column."""
    found = no_rows(spark, SCHEMA)

    assert found.rdd.getNumPartitions() == 0
    assert found.schema == arrow_to_spark(SCHEMA)
    assert row_tasks(spark, SCHEMA.empty_table(), batch=1).collect() == []


def told(batch: pa.RecordBatch) -> list[tuple[str, int, str]]:
    return list(zip(*(batch.column(name).to_pylist() for name in ("address", "rank", "path")), strict=True))


def rows(first: int, last: int, rank: int, path: str = "p") -> pa.RecordBatch:
    count = last - first
    columns = {
        "address": [f"data/{number}" for number in range(first, last)],
        "rank": pa.array([rank] * count, pa.int64()),
        "path": [path] * count,
    }
    return pa.RecordBatch.from_pydict(columns)


def test_rows_that_come_first_in_any_batch_are_lost() -> None:
    """Of all batches, exactly the rows with a wanted address are left, however few or many there are at a time."""
    batches = [rows(start, start + 1000, start) for start in range(0, 120_000, 1000)]
    wanted = pa.array(["data/0", "data/49999", "data/50000", "data/119999", "data/none"])

    found = [one for batch in best_told(batches, wanted) for one in batch.column(0).to_pylist()]

    assert found == ["data/0", "data/49999", "data/50000", "data/119999"]
    assert list(best_told([], wanted)) == []


def test_an_address_is_told_by_any_of_the_ranges_that_hold_it() -> None:
    """Of an address that several ranges hold, the rows of the best one are left, all of them; of what comes much later,
    too."""
    batches = [
        rows(0, 10, 0, "newest"),
        rows(5, 15, 1, "older"),
        rows(14, 15, 1, "older, at another path"),
        rows(100, 100 + ROWS_AT_ONCE, 1, "older"),
        rows(14, 15, 1, "older, much later"),
        rows(0, 20, 2, "oldest"),
    ]
    wanted = pa.array([f"data/{number}" for number in (0, 7, 12, 14, 19)])

    found = [one for batch in best_told(batches, wanted) for one in told(batch)]
    anything = [one for batch in best_told(batches, None) for one in told(batch) if one[0] in wanted.to_pylist()]

    assert sorted(one for one in found if one[2] != "oldest") == [
        ("data/0", 0, "newest"),
        ("data/12", 1, "older"),
        ("data/14", 1, "older"),
        ("data/14", 1, "older, at another path"),
        ("data/14", 1, "older, much later"),
        ("data/7", 0, "newest"),
    ]
    assert [one[0] for one in found].count("data/0") == [one[0] for one in found].count("data/7") == 1
    for rows_found in (found, anything):
        best = {address: rank for address, rank, _ in sorted(rows_found, reverse=True)}
        assert best == {"data/0": 0, "data/7": 0, "data/12": 1, "data/14": 1, "data/19": 2}
