"""Distributes rows on the driver, such as range ids or file names, evenly over as many tasks as are worthwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_resources.spark.tasks import Tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MAX_BROADCAST_ADDRESSES = 250_000
"""Up to this many addresses are sent to every task, so that the rows they are joined with need no shuffle."""


def tasks_from_ids(
    spark: Callable[[], SparkSession], name: str, ids: Sequence[str], *, batch_size: int, max_on_driver: int = 1
) -> Tasks:
    """Ids as rows of the single column `name`, divided among tasks as by `tasks_from_rows`."""
    schema = pa.schema([pa.field(name, pa.string(), nullable=False)])
    return tasks_from_rows(
        spark,
        pa.table({name: pa.array(ids, pa.string())}, schema=schema),
        batch_size=batch_size,
        max_on_driver=max_on_driver,
    )


def tasks_from_rows(
    spark: Callable[[], SparkSession],
    table: pa.Table,
    *,
    batch_size: int,
    order_by: Sequence[str] = (),
    weights: Sequence[int] = (),
    max_on_driver: int = 1,
) -> Tasks:
    """The rows of a table on the driver, divided evenly among tasks of about `batch_size` rows.

    On the executors, there are at most eight tasks per core, so with many rows the tasks are larger.

    With `order_by`, rows are ordered by these columns, and neighboring rows go to the same task. With `weights`, one
    per row, all tasks get about the same total weight; without them, about the same number of rows. If there are at
    most `max_on_driver` tasks, they run on the driver.
    """
    if not len(table):
        return Tasks(spark, table.schema, (), max_on_driver)
    task_count = -(-len(table) // batch_size)
    if task_count > max(max_on_driver, 1):
        task_count = min(task_count, 8 * spark().sparkContext.defaultParallelism)
    if order_by:
        order = pc.sort_indices(table, [(name, "ascending") for name in order_by]).to_numpy()
    else:
        order = np.argsort(np.arange(len(table)) % task_count, kind="stable")
    table = table.take(pa.array(order)).combine_chunks()
    pieces = split_evenly(table, np.asarray(weights or [1] * len(table))[order], task_count)
    return Tasks(spark, table.schema, pieces, max_on_driver)


def split_evenly(table: pa.Table, weights: NDArray[np.int64], max_pieces: int) -> list[pa.Table]:
    """A table cut, in order, into at most `max_pieces` pieces of about the same weight, each with at least one row."""
    cumulative = np.cumsum(weights)
    targets = cumulative[-1] * np.arange(1, max_pieces) / max_pieces
    inner = np.searchsorted(cumulative - weights / 2, targets)  # a row belongs to the piece that contains its midpoint
    boundaries = sorted({0, *inner.tolist(), len(table)})
    return [table.slice(start, end - start) for start, end in pairwise(boundaries)]
