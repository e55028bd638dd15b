"""What people are told when Spark itself fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_resources.errors import LakegcError
from spark_resources.executors import errors_from_executors


def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise ValueError("no such thing\nand more")


def dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    os._exit(3)


def is_too_much(spark: SparkSession) -> None:
    spark.sql("select array_repeat(1, 2000000000)").collect()


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda spark: spark.range(9).mapInArrow(fails, "id long").count(), ["ValueError: no such thing"]),
        (lambda spark: spark.range(9).mapInArrow(dies, "id long").count(), ["worker exited", "LAKEGC_SPARK_MASTER"]),
        (is_too_much, ["OutOfMemoryError: Java heap space", "spark.driver.memory"]),
    ],
)
def test_a_failed_task_says_what_failed_and_what_to_do(
    spark: SparkSession, work: Callable[[SparkSession], object], words: list[str]
) -> None:
    """A task that raises, a worker that dies and a full heap are each told in one line, without a class's path."""
    with pytest.raises(LakegcError) as told, errors_from_executors():
        work(spark)

    for word in words:
        assert word in str(told.value)
    assert "\n" not in str(told.value)
    assert "org.apache" not in str(told.value)
