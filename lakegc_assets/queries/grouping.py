"""Co-group the rows of a query, in this process if there aren't too many: that takes less time than starting Spark."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from lakegc_assets.queries.history import History
from spark_resources.spark.arrow_shuffle import Combine, Input, InputFile, co_group
from spark_resources.spark.persistence import Persisted
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Tasks, collected

ROWS_ON_DRIVER, THREADS = 10_000_000, 4


def combined(
    history: History, inputs: Sequence[Input], combine: Combine, schema: pa.Schema, persist: Persisted
) -> tuple[pa.Table, TaskReport]:
    """What `combine` returns for all rows of these inputs (rows of `schema`), and its report. Up to ROWS_ON_DRIVER are
    grouped by this process; more by the executors, which call `combine` bucket by bucket."""
    on_driver = all(source.rows is None or isinstance(source.rows, Tasks) for source in inputs)
    if not on_driver or sum(source.count for source in inputs) > ROWS_ON_DRIVER:
        grouped = co_group(history.run.spark, inputs, combine, schema, persist)
        return collected(grouped.rows, lambda batches: batches, schema), grouped.report
    rows = {source.name: [source.schema.empty_table()] for source in inputs}
    files = [(source, file) for source in inputs for file in source.files]
    with ThreadPoolExecutor(THREADS) as pool:
        for (source, _), table in zip(files, pool.map(lambda pair: selected_rows(*pair), files), strict=True):
            rows[source.name].append(table)
    for source in inputs:
        if isinstance(source.rows, Tasks):
            rows[source.name].append(source.rows.table)
    report = TaskReport()
    return combine({name: pa.concat_tables(tables) for name, tables in rows.items()}, report), report


def selected_rows(source: Input, file: InputFile) -> pa.Table:
    """The verified rows of a file that are to be grouped, without redundant ones."""
    table = file.read()
    table = table if file.select is None else file.select(table)
    return table if source.reduce is None else source.reduce(table)
