"""Distributes rows on the driver, such as range ids or file names, evenly over as many tasks as are worthwhile."""

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


MAX_BROADCAST_ADDRESSES = 250_000
"""Up to this number, addresses are sent to every task, so that the rows they are joined with need no shuffle."""


def id_tasks(spark: SparkSession, name: str, ids: Sequence[str], *, batch: int) -> DataFrame:
    """Ids as a DataFrame of one column, spread over tasks of at least `batch` ids."""
    schema = pa.schema([pa.field(name, pa.string(), nullable=False)])
    return row_tasks(spark, pa.table({name: pa.array(ids, pa.string())}, schema=schema), batch=batch)


def row_tasks(
    spark: SparkSession, table: pa.Table, *, batch: int, order_by: Sequence[str] = (), weights: Sequence[int] = ()
) -> DataFrame:
    """The rows of a table on the driver, distributed evenly over tasks of at least `batch` rows on average.

    With `order_by`, rows are ordered by these columns, and neighbours go to the same task. With `weights`, one per row,
    tasks get about the same total weight, otherwise the same number of rows.
    """
    if not len(table):
        return no_rows(spark, table.schema)
    cores = spark.sparkContext.defaultParallelism
    wanted = min(-(-len(table) // batch), 8 * cores)
    if order_by:
        order = pc.sort_indices(table, [(name, "ascending") for name in order_by]).to_numpy()
    elif wanted <= cores:
        order = np.arange(len(table))
    else:
        order = np.argsort(np.arange(len(table)) % wanted, kind="stable")
    table = table.take(pa.array(order)).combine_chunks()  # Spark finds no rows after an empty chunk
    if wanted <= cores:
        return spark.createDataFrame(table).coalesce(wanted)
    return _one_task_per_piece(spark, split_evenly(table, np.asarray(weights or [1] * len(table))[order], wanted))


def split_evenly(table: pa.Table, weights: NDArray[np.int64], pieces: int) -> list[pa.Table]:
    """A table cut, in order, into at most `pieces` pieces of about the same weight, each with at least one row."""
    running = np.cumsum(weights)
    marks = running[-1] * np.arange(1, pieces) / pieces
    inner = np.searchsorted(running - weights / 2, marks)  # a row belongs to the piece with its midpoint
    cuts = sorted({0, *inner.tolist(), len(table)})
    return [table.slice(start, end - start) for start, end in pairwise(cuts)]


def _one_task_per_piece(spark: SparkSession, pieces: Sequence[pa.Table]) -> DataFrame:
    """A DataFrame of pieces of a table, with one task per piece.

    As a local relation, the rows would be split into as many tasks as there are cores, and shuffled once more.
    """
    name = "spark.sql.execution.arrow.localRelationThreshold"  # the largest local relation, in bytes
    before = str(spark.conf.get(name))
    spark.conf.set(name, "0")
    try:
        return spark.createDataFrame(pa.concat_tables(pieces))
    finally:
        spark.conf.set(name, before)
