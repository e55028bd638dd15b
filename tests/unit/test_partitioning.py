"""How rows are distributed over tasks, and how unwanted rows are dropped. No wanted row is lost."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_resources.lakefs.ranges import (
    ENTRIES_PER_TASK,
    RANGE_OVERHEAD_ENTRIES,
    RANGES_PER_TASK,
    ROWS_PER_BATCH,
    best_ranked_rows,
    range_tasks,
)
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.tasks import arrow_to_spark, no_rows

SCHEMA = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("id", pa.int64(), nullable=False)])


def test_rows_with_the_same_key_are_in_one_task_or_in_adjacent_ones(spark: SparkSession) -> None:
    """Every row is in exactly one task, in order."""
    rows = [{"key": f"k{number % 20:02}", "id": number} for number in range(400)]

    tasks = tasks_from_rows(
        lambda: spark, pa.Table.from_pylist(rows, schema=SCHEMA), batch_size=1, order_by=("key", "id")
    ).frame()
    collected = tasks.select(F.spark_partition_id().alias("task"), "key", "id").collect()

    assert sorted((row["key"], row["id"]) for row in collected) == sorted((row["key"], row["id"]) for row in rows)
    in_tasks = sorted(collected, key=lambda row: row["task"])  # a stable sort: rows of a task keep their order
    assert [row["key"] for row in in_tasks] == sorted(row["key"] for row in rows)
    assert len({row["task"] for row in collected}) > 1


@pytest.mark.parametrize("order_by", [(), ("key", "id")])
@pytest.mark.parametrize("count", [5, 17, 400])
def test_rows_are_distributed_evenly_without_a_shuffle(
    spark: SparkSession, count: int, order_by: tuple[str, ...]
) -> None:
    """The distribution needs one stage."""
    rows = [{"key": f"k{number}", "id": number} for number in range(count)]

    tasks = tasks_from_rows(
        lambda: spark, pa.Table.from_pylist(rows, schema=SCHEMA), batch_size=1, order_by=order_by
    ).frame()

    sizes = [row["count"] for row in tasks.groupBy(F.spark_partition_id()).count().collect()]
    assert sum(sizes) == count
    assert len(sizes) == tasks.rdd.getNumPartitions() == min(count, 8 * spark.sparkContext.defaultParallelism)
    assert max(sizes) - min(sizes) <= 1
    assert "Exchange" not in tasks._jdf.queryExecution().toString()


@pytest.mark.parametrize(
    ("count", "entries", "tasks"),
    [
        (RANGES_PER_TASK, 0, 1),
        (RANGES_PER_TASK, 10, 1),
        (RANGES_PER_TASK + 1, 10, 2),
        (8, ENTRIES_PER_TASK, 8),
        (8, ENTRIES_PER_TASK // 4, 2),
        (10_000, ENTRIES_PER_TASK, 10_000),
    ],
)
def test_small_ranges_share_a_task_up_to_a_limit_of_entries_or_ranges(
    spark: SparkSession, count: int, entries: int, tasks: int
) -> None:
    """Every range is in exactly one task."""
    ranges = pa.table({"id": pa.array(range(count), pa.int64()), "entries": pa.array([entries] * count, pa.int64())})

    frame = range_tasks(lambda: spark, ranges).frame()

    cores = spark.sparkContext.defaultParallelism
    assert frame.rdd.getNumPartitions() == min(tasks, 8 * cores)
    assert sorted(row["id"] for row in frame.collect()) == list(range(count))


@pytest.mark.parametrize("order_by", [(), ("key", "id")])
def test_large_ranges_are_spread_over_the_tasks(spark: SparkSession, order_by: tuple[str, ...]) -> None:
    """Tasks have about equal numbers of entries, as far as whole ranges allow, even if large ranges are adjacent."""
    entries = [50_000] * 100 + [20] * 2_700 + [3_000_000]
    rows = [{"key": f"k{number:05}", "id": number, "entries": count} for number, count in enumerate(entries)]

    tasks = range_tasks(lambda: spark, pa.Table.from_pylist(rows), order_by=order_by).frame()
    collected = tasks.select(F.spark_partition_id().alias("task"), "id", "entries").collect()

    assert sorted(row["id"] for row in collected) == list(range(len(entries)))
    costs: dict[int, int] = {}
    for row in collected:
        costs[row["task"]] = costs.get(row["task"], 0) + row["entries"] + RANGE_OVERHEAD_ENTRIES
    even = sum(costs.values()) / (8 * spark.sparkContext.defaultParallelism)
    assert max(costs.values()) <= even + max(entries)
    assert sorted(costs.values())[-2] <= even + 50_000 + RANGE_OVERHEAD_ENTRIES
    if order_by:
        ids = [row["id"] for row in sorted(collected, key=lambda row: row["task"])]
        assert ids == sorted(ids)


def test_ranges_with_an_unknown_number_of_entries_are_distributed_too(spark: SparkSession) -> None:
    """The number is unknown if no metarange refers to the range."""
    ranges = pa.table({"id": pa.array(range(60), pa.int64()), "entries": pa.array([None, 90_000, 5] * 20, pa.int64())})

    for some in (ranges, ranges.slice(0, 1)):
        assert sorted(row["id"] for row in range_tasks(lambda: spark, some).frame().collect()) == some["id"].to_pylist()


def test_distributing_rows_leaves_the_sessions_settings_unchanged(spark: SparkSession) -> None:
    """A changed setting would make Spark represent later tables differently."""
    name = "spark.sql.execution.arrow.localRelationThreshold"
    before = spark.conf.get(name)

    table = pa.Table.from_pylist([{"key": "k", "id": number} for number in range(100)], schema=SCHEMA)
    tasks_from_rows(lambda: spark, table, batch_size=1).frame()

    assert spark.conf.get(name) == before


@pytest.mark.parametrize("chunks", [[3, 0, 3], [0, 0, 3], [0, 3, 0, 17], [3]])
def test_rows_after_an_empty_chunk_are_not_lost(spark: SparkSession, chunks: list[int]) -> None:
    """Every row is there, whatever chunks the table has."""
    ids = iter(range(sum(chunks)))
    pieces = [pa.array([next(ids) for _ in range(size)], pa.int64()) for size in chunks]
    keys = [pa.array(["k"] * size, pa.string()) for size in chunks]
    table = pa.table([pa.chunked_array(keys), pa.chunked_array(pieces)], schema=SCHEMA)
    assert table["id"].num_chunks == len(chunks)

    collected = tasks_from_rows(lambda: spark, table, batch_size=1).frame().collect()

    assert sorted(row["id"] for row in collected) == list(range(sum(chunks)))


def test_without_rows_there_are_no_tasks(spark: SparkSession) -> None:
    """Even for a single task, Spark would start Python workers of another kind. The empty result has every column."""
    frame = no_rows(spark, SCHEMA)

    assert frame.rdd.getNumPartitions() == 0
    assert frame.schema == arrow_to_spark(SCHEMA)
    assert tasks_from_rows(lambda: spark, SCHEMA.empty_table(), batch_size=0).frame().collect() == []


def as_tuples(batch: pa.RecordBatch) -> list[tuple[str, int, str]]:
    return list(zip(*(batch.column(name).to_pylist() for name in ("address", "rank", "path")), strict=True))


def rows(first: int, last: int, rank: int, path: str = "p") -> pa.RecordBatch:
    count = last - first
    columns = {
        "address": [f"data/{number}" for number in range(first, last)],
        "rank": pa.array([rank] * count, pa.int64()),
        "path": [path] * count,
    }
    return pa.RecordBatch.from_pydict(columns)


def test_exactly_the_rows_with_a_wanted_address_are_kept() -> None:
    """The batches may have any number of rows."""
    batches = [rows(start, start + 1000, start) for start in range(0, 120_000, 1000)]
    wanted = pa.array(["data/0", "data/49999", "data/50000", "data/119999", "data/none"])

    addresses = [row for batch in best_ranked_rows(batches, wanted) for row in batch.column(0).to_pylist()]

    assert addresses == ["data/0", "data/49999", "data/50000", "data/119999"]
    assert list(best_ranked_rows([], wanted)) == []


def test_all_rows_of_the_best_range_of_an_address_are_kept() -> None:
    """Rows from other ranges with the address are dropped. A row of the best range is kept even if it comes much
    later."""
    batches = [
        rows(0, 10, 0, "newest"),
        rows(5, 15, 1, "older"),
        rows(14, 15, 1, "older, at another path"),
        rows(100, 100 + ROWS_PER_BATCH, 1, "older"),
        rows(14, 15, 1, "older, much later"),
        rows(0, 20, 2, "oldest"),
    ]
    wanted = pa.array([f"data/{number}" for number in (0, 7, 12, 14, 19)])

    best_rows = [row for batch in best_ranked_rows(batches, wanted) for row in as_tuples(batch)]
    anything = [
        row for batch in best_ranked_rows(batches, None) for row in as_tuples(batch) if row[0] in wanted.to_pylist()
    ]

    assert sorted(row for row in best_rows if row[2] != "oldest") == [
        ("data/0", 0, "newest"),
        ("data/12", 1, "older"),
        ("data/14", 1, "older"),
        ("data/14", 1, "older, at another path"),
        ("data/14", 1, "older, much later"),
        ("data/7", 0, "newest"),
    ]
    assert [row[0] for row in best_rows].count("data/0") == [row[0] for row in best_rows].count("data/7") == 1
    for rows_found in (best_rows, anything):
        best = {address: rank for address, rank, _ in sorted(rows_found, reverse=True)}
        assert best == {"data/0": 0, "data/7": 0, "data/12": 1, "data/14": 1, "data/19": 2}
