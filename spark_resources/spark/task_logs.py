"""Logs that tasks write as they progress: Parquet files, named after their run's number and their number of rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_resources.errors import plural
from spark_resources.records.parquet_files import parquet_rows
from spark_resources.spark.tasks import Batches, no_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def name_pattern(last: str) -> re.Pattern[str]:
    """The pattern of a log's file keys: run number, stem, number of rows, and a last part that matches `last`."""
    return re.compile(rf"/(\d{{4,}})/([^/]+)\.(\d+)\.({last})\.parquet\Z")


def table_of(data: bytes, name_match: re.Match[str] | None, schema: pa.Schema) -> pa.Table:
    """The rows of one file. `name_match` is the match of `name_pattern` in its key, None if there is none.

    Raises `ValueError`, with the reason, if the file can't be read, or if its name doesn't match or states another
    number of rows.
    """
    try:
        table = parquet_rows(data)
        if name_match is not None and table.num_rows == int(name_match.group(3)):
            return table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError) as error:
        raise ValueError(str(error)) from error
    stated = "no number" if name_match is None else name_match.group(3)
    raise ValueError(f"it has {plural(table.num_rows, 'row')}, but its name states {stated}")


def rows_of(
    spark: SparkSession, keys: Sequence[str], schema: pa.Schema, read: Callable[[str], pa.Table], run_column: str
) -> DataFrame:
    """All rows of these files, read by the executors. The first column, `run_column`, has the number of the run."""
    from spark_resources.spark.partitioning import tasks_from_ids

    if not keys:
        return no_rows(spark, schema)

    def read_all(batches: Batches) -> Batches:
        for key in (key for batch in batches for key in batch.column(0).to_pylist()):
            table = read(key)
            run = pa.scalar(int(key.split("/")[-2]), pa.int32())
            table = table.add_column(0, schema.field(run_column), pa.repeat(run, len(table)))
            yield from table.cast(schema).to_batches(max_chunksize=100_000)

    return tasks_from_ids(lambda: spark, "key", keys, batch_size=16).mapped(read_all, schema)
