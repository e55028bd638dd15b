"""Rows that the driver has, such as ids or file names, divided among tasks, and the work on them.

Work that isn't worth more than one task is done on the driver: for a small repository, starting a job of Spark takes
longer than the job. The same function runs in either place. See `partitioning` for how rows are divided.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from spark_resources.spark.remote_errors import errors_from_executors, on_executor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Batches: TypeAlias = Iterator[pa.RecordBatch]
Step: TypeAlias = Callable[[Batches], Batches]
"""The work of one task: from the batches of its rows to the batches of its result."""

_piece: ContextVar[int] = ContextVar("piece", default=0)


def arrow_to_spark(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def no_rows(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """A DataFrame with these columns and no rows.

    For an empty list, Spark would start Python workers of another kind, which takes two seconds. Spark knows that this
    DataFrame is empty, and does not compute the other side of an inner join with it: never join it with an Observation.
    """
    return spark.createDataFrame(schema.empty_table(), arrow_to_spark(schema))


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The rows of a table on the driver as a DataFrame, for joins."""
    # Spark finds no rows after an empty chunk
    return spark.createDataFrame(table.combine_chunks(), arrow_to_spark(table.schema))


@dataclass(frozen=True, slots=True)
class Tasks:
    """Rows of `schema`: one piece per task, each with at least one row.

    Up to `here` pieces are processed on the driver, each in a thread, and need no session until their result is joined;
    more are distributed over the executors.
    """

    spark: Callable[[], SparkSession]
    schema: pa.Schema
    pieces: Sequence[pa.Table]
    here: int = 1

    @property
    def is_here(self) -> bool:
        """Whether these tasks are done on the driver."""
        return len(self.pieces) <= self.here

    def select(self, *names: str) -> Tasks:
        """The same tasks with these columns only."""
        pieces = [piece.select(list(names)) for piece in self.pieces]
        return replace(self, schema=pa.schema([self.schema.field(name) for name in names]), pieces=pieces)

    def frame(self) -> DataFrame:
        """The rows as a DataFrame with one partition per task."""
        spark = self.spark()
        if not self.pieces:
            return no_rows(spark, self.schema)
        rows = pa.concat_tables(self.pieces)
        if len(self.pieces) <= spark.sparkContext.defaultParallelism:
            return frame_of(spark, rows).coalesce(len(self.pieces))
        # As a local relation, the rows would be split into as many tasks as there are cores, and shuffled once more.
        name = "spark.sql.execution.arrow.localRelationThreshold"  # the largest local relation, in bytes
        before = str(spark.conf.get(name))
        spark.conf.set(name, "0")
        try:
            return spark.createDataFrame(rows)
        finally:
            spark.conf.set(name, before)

    def mapped(self, step: Step, schema: pa.Schema) -> DataFrame:
        """What a step yields for each task (rows of `schema`), as a DataFrame; computed at once if on the driver."""
        if self.is_here:
            return frame_of(self.spark(), self._mapped_here(step, schema))
        return self.frame().mapInArrow(on_executor(step), arrow_to_spark(schema))

    def collected(self, step: Step, schema: pa.Schema) -> pa.Table:
        """What a step yields for each task (rows of `schema`), on the driver: only for few rows, such as names."""
        if self.is_here:
            return self._mapped_here(step, schema)
        return collected(self.frame(), step, schema)

    def _mapped_here(self, step: Step, schema: pa.Schema) -> pa.Table:
        given_up = threading.Event()

        def process(number: int) -> list[pa.Table]:
            _piece.set(number)
            batches = step(iter(self.pieces[number].to_batches()))
            until_given_up = takewhile(lambda _: not given_up.is_set(), batches)
            return [pa.Table.from_batches([batch]).cast(schema) for batch in until_given_up]

        if len(self.pieces) == 1:
            found = [process(0)]
        else:
            with ThreadPoolExecutor(max(len(self.pieces), 1)) as pool:
                processed = [pool.submit(process, number) for number in range(len(self.pieces))]
                try:
                    ended, _ = wait(processed, return_when=FIRST_EXCEPTION)
                    for future in ended:
                        future.result()  # raises what it failed with
                    found = [future.result() for future in processed]
                finally:  # after a failure or Ctrl-C, the other threads end at their next batch
                    given_up.set()
        return pa.concat_tables([schema.empty_table(), *(table for tables in found for table in tables)])


def mapped(rows: DataFrame | Tasks, step: Step, schema: pa.Schema) -> DataFrame:
    """What a step yields for each partition or task (rows of `schema`). Lakegc's errors are raised as they are."""
    if isinstance(rows, Tasks):
        return rows.mapped(step, schema)
    return rows.mapInArrow(on_executor(step), arrow_to_spark(schema))


def collected(rows: DataFrame | Tasks, step: Step, schema: pa.Schema) -> pa.Table:
    """The same as `mapped`, computed at once and collected on the driver: only for few rows, such as names of files."""
    if isinstance(rows, Tasks):
        return rows.collected(step, schema)
    with errors_from_executors():
        return rows.mapInArrow(on_executor(step), arrow_to_spark(schema)).toArrow()


def task_name() -> str:
    """Inside a task: the stem of its files' names.

    A retried task writes under new names, so an earlier attempt that is still running can't change a listed file.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    return f"part-{task.partitionId():05d}-{task.taskAttemptId()}" if task else f"part-{_piece.get():05d}"
