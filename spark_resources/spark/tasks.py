"""Rows that the driver has, such as ids or file names, divided among tasks, and the work on them.

Work that isn't worth more than one task is done on the driver: for a small repository, starting a Spark job takes
longer than the work. The same function runs in either place. See `partitioning` for how rows are divided.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import reduce
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from spark_resources.errors import LakegcError
from spark_resources.spark.remote_errors import errors_from_executors, with_encoded_errors
from spark_resources.spark.task_report import TaskReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Batches: TypeAlias = Iterator[pa.RecordBatch]
Step: TypeAlias = Callable[[Batches], Batches]
"""The work of one task: from the batches of its rows to the batches of its result."""

Rows: TypeAlias = "DataFrame | Tasks"
"""Rows that the executors have, or a few that the driver has."""

_REPORTS = pa.schema([pa.field("report", pa.string())])
_piece: ContextVar[int] = ContextVar("piece", default=0)


def arrow_to_spark(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def no_rows(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """A DataFrame with these columns and no rows.

    For an empty list, Spark would start Python workers of another kind, which takes two seconds. Spark knows that this
    DataFrame is empty, and does not compute the other side of an inner join with it. That side must not have an
    Observation, which would never be filled.
    """
    return spark.createDataFrame(schema.empty_table(), arrow_to_spark(schema))


def to_dataframe(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The rows of a table on the driver as a DataFrame, for joins."""
    # Spark drops the rows that follow an empty chunk
    return spark.createDataFrame(table.combine_chunks(), arrow_to_spark(table.schema))


@dataclass(frozen=True, slots=True)
class Tasks:
    """Rows of `schema`: one piece per task, each with at least one row.

    If there are at most `max_on_driver` pieces, the driver processes them, each in a thread, and needs no session until
    their result is joined. Otherwise they are distributed over the executors.
    """

    spark: Callable[[], SparkSession]
    schema: pa.Schema
    pieces: Sequence[pa.Table]
    max_on_driver: int = 1

    @classmethod
    def of(cls, spark: Callable[[], SparkSession], table: pa.Table) -> Tasks:
        """A single task with all rows of a table; no task if the table is empty."""
        return cls(spark, table.schema, (table,) if len(table) else ())

    @property
    def table(self) -> pa.Table:
        """All rows."""
        return pa.concat_tables([self.schema.empty_table(), *self.pieces])

    @property
    def is_on_driver(self) -> bool:
        """Whether these tasks run on the driver."""
        return len(self.pieces) <= self.max_on_driver

    def select(self, *names: str) -> Tasks:
        """These tasks, with only these columns."""
        pieces = [piece.select(list(names)) for piece in self.pieces]
        return replace(self, schema=pa.schema([self.schema.field(name) for name in names]), pieces=pieces)

    def frame(self) -> DataFrame:
        """The rows as a DataFrame with one partition per task."""
        spark = self.spark()
        if not self.pieces:
            return no_rows(spark, self.schema)
        rows = pa.concat_tables(self.pieces)
        if len(self.pieces) <= spark.sparkContext.defaultParallelism:
            return to_dataframe(spark, rows).coalesce(len(self.pieces))
        # As a local relation, the rows would be split into as many tasks as there are cores, and shuffled once more.
        name = "spark.sql.execution.arrow.localRelationThreshold"  # the largest local relation, in bytes
        previous = str(spark.conf.get(name))
        spark.conf.set(name, "0")
        try:
            return spark.createDataFrame(rows)
        finally:
            spark.conf.set(name, previous)

    def mapped(self, step: Step, schema: pa.Schema) -> DataFrame:
        """The rows (of `schema`) that a step yields for each task, as a DataFrame; computed immediately if on the
        driver."""
        if self.is_on_driver:
            return to_dataframe(self.spark(), self._mapped_on_driver(step, schema))
        return self.frame().mapInArrow(with_encoded_errors(step), arrow_to_spark(schema))

    def collected(self, step: Step, schema: pa.Schema) -> pa.Table:
        """The rows (of `schema`) that a step yields for each task, on the driver: only for few rows, such as names."""
        if self.is_on_driver:
            return self._mapped_on_driver(step, schema)
        return collected(self.frame(), step, schema)

    def _mapped_on_driver(self, step: Step, schema: pa.Schema) -> pa.Table:
        cancelled = threading.Event()

        def process(number: int) -> list[pa.Table]:
            _piece.set(number)
            batches = step(iter(self.pieces[number].to_batches()))
            until_cancelled = takewhile(lambda _: not cancelled.is_set(), batches)
            try:
                return [pa.Table.from_batches([batch]).cast(schema) for batch in until_cancelled]
            except (OSError, pa.ArrowException) as error:  # such as a full disk: not a bug in lakegc
                raise LakegcError(f"a task failed: {type(error).__name__}: {error}") from error

        if len(self.pieces) == 1:
            results = [process(0)]
        else:
            with ThreadPoolExecutor(max(len(self.pieces), 1)) as pool:
                futures = [pool.submit(process, number) for number in range(len(self.pieces))]
                try:
                    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                    for future in done:
                        future.result()  # raises the error that it failed with
                    results = [future.result() for future in futures]
                finally:  # after a failure or Ctrl-C, the other threads end at their next batch
                    cancelled.set()
        return pa.concat_tables([schema.empty_table(), *(table for tables in results for table in tables)])


def mapped(rows: Rows, step: Step, schema: pa.Schema) -> Rows:
    """The rows (of `schema`) that a step yields for each partition or task; computed immediately on the driver if the
    input is there. lakegc's own errors are raised unchanged."""
    if isinstance(rows, Tasks) and rows.is_on_driver:
        return Tasks.of(rows.spark, rows.collected(step, schema))
    return as_frame(rows).mapInArrow(with_encoded_errors(step), arrow_to_spark(schema))


def filtered(rows: Rows, keep: Callable[[pa.RecordBatch], pa.Array], schema: pa.Schema) -> Rows:
    """The rows (of `schema`) for which `keep` is true."""

    def step(batches: Batches) -> Batches:
        return (batch.filter(keep(batch)) for batch in batches)

    return mapped(rows, step, schema)


def distinct_rows(parts: Sequence[Rows], schema: pa.Schema) -> Rows | None:
    """The distinct rows (of `schema`) of all parts, on the driver if all are there; None if there are no parts."""
    if not parts:
        return None
    on_driver = [part for part in parts if isinstance(part, Tasks)]
    if len(on_driver) == len(parts):
        rows = pa.concat_tables(part.table for part in on_driver)
        return Tasks.of(on_driver[0].spark, rows.group_by(schema.names, use_threads=False).aggregate([]).cast(schema))
    return reduce(lambda frame, other: frame.unionByName(other), map(as_frame, parts)).dropDuplicates()


def moved_to_driver_if_few(rows: Rows, max_rows: int) -> Rows:
    """The same rows, moved to the driver if there are at most `max_rows`."""
    if isinstance(rows, Tasks):
        return rows
    with errors_from_executors():
        first = rows.limit(max_rows + 1).toArrow()
    return Tasks.of(lambda: rows.sparkSession, first) if len(first) <= max_rows else rows


def as_frame(rows: Rows) -> DataFrame:
    """The rows as a DataFrame, for joins and anything else that only a DataFrame can do."""
    return rows.frame() if isinstance(rows, Tasks) else rows


def first_rows(rows: Rows, order_by: Sequence[str], limit: int) -> pa.Table:
    """The first rows in this order, on the driver."""
    if isinstance(rows, Tasks):
        return rows.table.sort_by([(name, "ascending") for name in order_by]).slice(0, limit)
    with errors_from_executors():
        return rows.orderBy(*order_by).limit(limit).toArrow()


def collected(rows: Rows, step: Step, schema: pa.Schema) -> pa.Table:
    """Like `mapped`, but computed immediately and collected on the driver: only for few rows, such as names of
    files."""
    if isinstance(rows, Tasks):
        return rows.collected(step, schema)
    with errors_from_executors():
        return rows.mapInArrow(with_encoded_errors(step), arrow_to_spark(schema)).toArrow()


def run_tasks(rows: Rows, work: Callable[[Batches, TaskReport], None]) -> TaskReport:
    """Do work that returns no rows: it gets the batches of each partition or task, and a report to fill.

    Returns the sum of the reports. Raises the same lakegc error as the task that failed.
    """

    def run(batches: Batches) -> Batches:
        report = TaskReport()
        work(batches, report)
        yield pa.RecordBatch.from_pydict({"report": [report.to_json()]}, schema=_REPORTS)

    return TaskReport.summed(collected(rows, run, _REPORTS)["report"].to_pylist())


def partition_and_attempt() -> tuple[int, int]:
    """Inside a task: its partition, and a number that no other attempt of the task has.

    Spark's attempt number restarts when a whole stage is retried, so files named after it would be overwritten.
    Tasks on the driver are never retried.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    return (task.partitionId(), task.taskAttemptId()) if task else (_piece.get(), 0)


def task_name() -> str:
    """Inside a task: the stem of its files' names.

    A retried task writes under new names, so an earlier attempt that is still running can't change a listed file.
    """
    from pyspark import TaskContext

    partition, attempt = partition_and_attempt()
    return f"part-{partition:05d}-{attempt}" if TaskContext.get() else f"part-{partition:05d}"
