"""The steps of a backup, from a finished mark to the summary.

The steps in order, each with the state that a crash right after it leaves behind:

1. begun.json                                no copies; the same command resumes
2. copies, and a log of each chunk           copies without a log line; the same command finds and compares them
3. the log is checked against a listing of the copies   as after step 2
4. the list of all objects                   as after step 2; the same command writes another list
5. backup.json                               done
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakegc_assets.backup.context import BackupRun, logging_copies, task_count
from lakegc_assets.backup.manifest import INCOMPLETE_OUTCOMES, SCHEMA, SUMMARY, Backup, read_backup
from lakegc_assets.formatting import plural
from lakegc_assets.rules.delete_check import how_changed
from spark_resources.copying.backup_keys import OBJECTS, RENAMED
from spark_resources.copying.backup_task import WANTED, backup_rows
from spark_resources.copying.copy_log import HAS_COPY, CopyStatus
from spark_resources.errors import FinishedWithFailures
from spark_resources.spark.datasets import write_dataset
from spark_resources.spark.partitioning import tasks_from_ids
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, arrow_to_spark, partition_and_attempt, run_tasks
from spark_resources.stores.parallel_listing import Part, pages_of_parts
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_NAMED = 5
ROWS_PER_FILE = 250_000
LISTED_COPIES = pa.schema([("copy_key", pa.string()), ("copy_size", pa.int64()), ("listed_checksum", pa.string())])


def back_up(run: BackupRun) -> Backup:
    """Copy the mark's objects that the backup lacks. Write and return the summary of the backup.

    Raises `FinishedWithFailures`, and writes no summary, if an object could not be copied. Objects that vanished,
    changed or can't be read from an archive tier are only listed and counted.
    """
    started_at, monotonic_start = run.to.store().now(), time.monotonic()
    with errors_from_executors():
        state = logged_state(run).persist()
        missing = state.where(~_has_copy()).select(*WANTED.names).persist()
        missing_totals = missing.agg({"*": "count", "size": "sum"}).collect()[0]
        if missing_totals["count(1)"]:
            copy_round(run, missing, missing_totals["count(1)"], missing_totals["sum(size)"])
        state.unpersist()
        missing.unpersist()
        return finish_backup(run, started_at, monotonic_start)


def _has_copy() -> Any:
    from pyspark.sql import functions as F

    return F.coalesce(F.col("outcome").isin(*HAS_COPY), F.lit(False))


# --- status -----------------------------------------------------------------------------------------------------------


def logged_state(run: BackupRun) -> DataFrame:
    """Each object of the mark with its log line, or nulls if there is none. A line is ignored if its copy isn't listed
    with the logged size and checksum. The columns are those of MARKED, then those of the log (`logged_…` if both have
    the name)."""
    from pyspark.sql import functions as F

    spark = run.spark()
    lines = run.log.latest_entries(spark)
    lines = lines.transform(lambda rows: compared_with_copies(rows, spark, run.to, run.folder))
    is_valid = ~F.col("outcome").isin(*HAS_COPY) | F.col("has_intact_copy")
    lines = lines.where(is_valid).drop("has_intact_copy")
    logged = [F.col(name).alias(name if name not in WANTED.names else f"logged_{name}") for name in lines.columns]
    renamed = lines.select(*logged).withColumnRenamed("logged_address", "address")
    return run.objects().join(renamed, "address", "left")


def compared_with_copies(rows: DataFrame, spark: SparkSession, place: Place, folder: str) -> DataFrame:
    """Add the column `has_intact_copy` to the rows of a log or list: whether the copy is listed with the size and
    checksum that the row records."""
    from pyspark.sql import functions as F

    copies = listed_copies(spark, place, folder)
    is_same = (F.col("copy_size") == F.col("size")) & F.col("listed_checksum").eqNullSafe(F.col("copy_checksum"))
    joined = rows.join(copies, rows["key"] == copies["copy_key"], "left")
    return joined.select(*rows.columns, F.coalesce(is_same, F.lit(False)).alias("has_intact_copy"))


def listed_copies(spark: SparkSession, place: Place, folder: str) -> DataFrame:
    """All copies of a backup, as the store lists them now (LISTED_COPIES). Keys are relative to the backup's folder."""

    def read(batches: Batches) -> Batches:
        for part in (part for batch in batches for part in batch.column(0).to_pylist()):
            for _, page in pages_of_parts(place.store(), [Part(folder + part)]):
                names = [key[len(folder) :] for key in page.objects.column("address").to_pylist()]
                columns = [pa.array(names, pa.string()), page.objects.column("size"), page.objects.column("checksum")]
                yield pa.RecordBatch.from_arrays(columns, schema=LISTED_COPIES)

    return tasks_from_ids(lambda: spark, "part", [OBJECTS, RENAMED], batch_size=1).mapped(read, LISTED_COPIES)


# --- copying ----------------------------------------------------------------------------------------------------------


def copy_round(run: BackupRun, rows: DataFrame, objects: int, size: int | None) -> Counter[str]:
    """Copy these objects (rows of WANTED) in one Spark job. Returns the number of objects by outcome."""
    spark, number = run.spark(), run.log.next_run()
    tasks = task_count(spark, objects, run.limits)
    config = run.task_config(number, tasks, source=run.target.place, target=run.to, log=run.log)
    changes = partial(how_changed, cutoff=run.marked.cutoff)

    def work(batches: Batches, report: TaskReport) -> None:
        backup_rows(batches, config, changes, *partition_and_attempt(), report)

    partitioned = rows.repartitionByRange(tasks, "slice", "address") if tasks > 1 else rows.coalesce(1)
    sorted_rows = partitioned.select(*WANTED.names).sortWithinPartitions("slice", "address")
    with logging_copies(run.log_message, "copying", run.log, number, objects, size):
        return run_tasks(sorted_rows, work).by_key["objects"]


# --- finishing --------------------------------------------------------------------------------------------------------


def finish_backup(run: BackupRun, started_at: datetime, monotonic_start: float) -> Backup:
    """Check the copies against the log, write the list of objects, then the summary, and return the summary.

    Raises `FinishedWithFailures`, and writes neither, if the backup is incomplete.
    """
    run.log_message("verifying the copies")
    rows = listed_rows(run).persist()
    totals = rows.groupBy("outcome").agg({"*": "count", "size": "sum"}).collect()
    objects = {row["outcome"]: row["count(1)"] for row in totals}
    refuse_incomplete(run, rows, objects)
    marked = sum(objects.values())
    key = f"{run.folder}backed_up/{run.log.next_run():04d}/"
    partitioned = rows.repartitionByRange(1 + marked // ROWS_PER_FILE, "address").sortWithinPartitions("address")
    dataset = write_dataset(partitioned, run.to, key, SCHEMA)
    rows.unpersist()
    earlier = read_backup(run.to, run.folder)
    backup = Backup(
        subject=run.marked.subject,
        by=run.by,
        began=earlier.began if earlier else started_at,
        ended=run.to.store().now(),
        marked=marked,
        objects=objects,
        sizes={row["outcome"]: row["sum(size)"] or 0 for row in totals},
        seconds=round(time.monotonic() - monotonic_start, 2),
        dataset=dataset.name_for_record(),
    )
    run.to.store().write(run.folder + SUMMARY, backup.to_json())
    return backup


def listed_rows(run: BackupRun) -> DataFrame:
    """One line per object of the mark (SCHEMA). An object without a line in `logged_state` counts as failed."""
    from pyspark.sql import functions as F

    columns = {
        "outcome": F.coalesce("outcome", F.lit(CopyStatus.FAILED.value)),
        "key": F.coalesce("key", F.lit("")),
        "size": F.coalesce("logged_size", "size", F.lit(0)),
        "modified": F.coalesce("logged_modified", "modified"),
        "checksum": F.coalesce("logged_checksum", "checksum"),
        "seconds": F.coalesce("seconds", F.lit(0.0)),
        "at": F.coalesce("at", F.current_timestamp()),
        "why": F.coalesce("why", F.lit("its copy is missing, or was changed after it was made")),
    }
    types = arrow_to_spark(SCHEMA)
    return logged_state(run).select(
        *(columns.get(name, F.col(name)).cast(types[name].dataType).alias(name) for name in SCHEMA.names)
    )


def refuse_incomplete(run: BackupRun, rows: DataFrame, objects: dict[str, int]) -> None:
    """Raise `FinishedWithFailures` if an object has no copy, unless it vanished, changed or is in an archive tier."""
    from pyspark.sql import functions as F

    failed = sum(objects.get(outcome, 0) for outcome in INCOMPLETE_OUTCOMES)
    if not failed:
        return
    examples = rows.where(F.col("outcome").isin(*INCOMPLETE_OUTCOMES)).orderBy("address").limit(MAX_NAMED).collect()
    named = ", ".join(f"{row['address']!r} ({row['why']})" for row in examples)
    more = ", …" if failed > len(examples) else ""
    subject = run.marked.subject
    raise FinishedWithFailures(
        f"{failed:,} of {plural(sum(objects.values()), 'object')} of mark {subject.mark_id} of {subject.repository} "
        f"could not be copied, so the backup is incomplete: {named}{more}. Run the same command again; finished copies "
        "are kept."
    )
