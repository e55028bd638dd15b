"""Rows that the driver holds, such as ids of ranges or names of files, dealt out to tasks: as many and as even ones as
the work is worth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_resources.spark.datasets import no_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


FEW_ENOUGH_TO_SEND = 250_000
"""Addresses: up to so many are sent to every task, instead of shuffling what is joined with them."""


def id_tasks(spark: SparkSession, name: str, ids: Sequence[str], *, batch: int) -> DataFrame:
    """Ids as a DataFrame of one column, spread over tasks of at least `batch` ids."""
    schema = pa.schema([pa.field(name, pa.string(), nullable=False)])
    return row_tasks(spark, pa.table({name: pa.array(ids, pa.string())}, schema=schema), batch=batch)


def row_tasks(
    spark: SparkSession, table: pa.Table, *, batch: int, near: Sequence[str] = (), weights: Sequence[int] = ()
) -> DataFrame:
    """The rows of a table that the driver holds, dealt out evenly to tasks of at least `batch` rows on average.

    With `near`, ordered by these columns, and those that are close to each other come into one task. With `weights`,
    one for each row, tasks get about as much of them, otherwise as many rows.
    """
    if not len(table):
        return no_rows(spark, table.schema)
    cores = spark.sparkContext.defaultParallelism
    wanted = min(-(-len(table) // batch), 8 * cores)
    if near:
        order = pc.sort_indices(table, [(name, "ascending") for name in near]).to_numpy()
    elif wanted <= cores:
        order = np.arange(len(table))
    else:
        order = np.argsort(np.arange(len(table)) % wanted, kind="stable")
    table = table.take(pa.array(order)).combine_chunks()  # behind an empty chunk Spark finds no more rows
    if wanted <= cores:
        return spark.createDataFrame(table).coalesce(wanted)
    return _a_task_each(spark, evenly(table, np.asarray(weights or [1] * len(table))[order], wanted))


def evenly(table: pa.Table, weights: NDArray[np.int64], pieces: int) -> list[pa.Table]:
    """A table cut, in order, into at most so many pieces of about the same weight, each with a row at least."""
    running = np.cumsum(weights)
    marks = running[-1] * np.arange(1, pieces) / pieces
    inner = np.searchsorted(running - weights / 2, marks)  # a row goes where most of it lies
    cuts = sorted({0, *inner.tolist(), len(table)})
    return [table.slice(start, end - start) for start, end in pairwise(cuts)]


def _a_task_each(spark: SparkSession, pieces: Sequence[pa.Table]) -> DataFrame:
    """Pieces of a table, each the rows of one task.

    Rows that Spark took for its own would come in as many tasks as there are cores, and be sent around once more.
    """
    name = "spark.sql.execution.arrow.localRelationThreshold"  # bytes, up to which Spark takes them
    before = str(spark.conf.get(name))
    spark.conf.set(name, "0")
    try:
        return spark.createDataFrame(pa.concat_tables(pieces))
    finally:
        spark.conf.set(name, before)
