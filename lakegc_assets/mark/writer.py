"""The last part of `expired_set`: writes expired objects, and those that no retained commit refers to, with reasons, in
one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark import expiry_reasons, sample_objects, totals
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.expiry_reasons import Attributions
from lakegc_assets.mark.mark_chain import can_be_base
from lakegc_assets.mark.reference_status import ReferenceStatus
from lakegc_assets.rules.expiry_reasons import MIXED_ROWS, explained, separated
from lakegc_assets.rules.incremental import union
from spark_resources.mark_store.foreign_layouts import reference_outputs
from spark_resources.model import EXPIRED_OBJECTS, NOT_RETAINED
from spark_resources.spark.datasets import BATCH_ROWS, Dataset, parquet, where_not_null, write_outputs
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, arrow_to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASSET = "expired_set"
NOT_RETAINED_PART = "not_retained"
ROWS_PER_TASK, ROWS_WORTH_A_TASK = 250_000, 50_000
SAMPLED_PER_TASK = 1_000  # addresses, to choose the range boundaries


def write_mark(
    run: MarkRun, notes: StepNotes, status: ReferenceStatus, deletable: DataFrame, attributions: Attributions
) -> Dataset:
    """Write in one pass the expired set, sorted and with reasons, its totals and sample for review, and the reference
    collector's layout; if this mark can be a base, also all objects that no retained commit refers to."""
    not_retained, all_known = can_be_base(run), expiry_reasons.all_known(run, notes)
    rows, verdicts = in_tasks(run, status, deletable, attributions), attributions.verdicts

    def produce(batches: Batches, report: TaskReport) -> Batches:
        rows = explained(*separated(batches), verdicts, all_known=all_known)
        expired = rows.filter(pc.is_valid(rows["reason"]))
        report.count(bytes=pc.sum(expired["size"], min_count=0).as_py())
        yield from rows.to_batches(max_chunksize=BATCH_ROWS)

    record = run.mark.record
    of_expired = {
        "": parquet(run.mark.folder(ASSET), EXPIRED_OBJECTS),
        totals.PART: totals.totals_output(run.mark.folder(ASSET, totals.PART), record.start),
        sample_objects.PART: sample_objects.highlights_output(
            run.mark.folder(ASSET, sample_objects.PART), record.mark_id
        ),
        **dict(zip(("deleted", "deleted.text"), reference_outputs(record.mark_id), strict=True)),
    }
    outputs = {part: where_not_null("reason", output) for part, output in of_expired.items()}
    if not_retained:
        outputs[NOT_RETAINED_PART] = parquet(run.mark.folder(ASSET, NOT_RETAINED_PART), NOT_RETAINED)
    written, report = write_outputs(rows, produce, run.place, list(outputs.values()))
    datasets = dict(zip(outputs, written, strict=True))
    for part, found in datasets.items():
        notes.wrote(found, part)
    dataset, text = datasets[""], datasets["deleted.text"]
    notes.facts |= {
        "expired": dataset.rows,
        "expired_bytes": report.counters["bytes"],
        "not_in_text": dataset.rows - text.rows,
        "kept_by_probes": notes.facts["unreferenced"]
        - notes.facts["kept_for_other_repositories"]
        - notes.facts["objects_on_hold"]
        - dataset.rows,
    }
    return dataset


def in_tasks(run: MarkRun, status: ReferenceStatus, deletable: DataFrame, attributions: Attributions) -> DataFrame:
    """The rows to write (MIXED_ROWS), range-partitioned by address."""
    objects = status.not_committed if can_be_base(run) else run.persist(deletable)
    rows = mixed(objects, deletable=deletable, attributions=attributions.rows)
    count, few = status.not_committed_count, status.few_not_committed
    tasks = tasks_for(count, run.spark().sparkContext.defaultParallelism)
    return in_ranges(rows, tasks, few if few is not None else some_addresses(status.not_committed, count, tasks))


def tasks_for(objects: int, cores: int) -> int:
    """Enough tasks that each can hold its rows, and at least one per core if there are enough rows."""
    return max(1 + objects // ROWS_PER_TASK, min(cores, objects // ROWS_WORTH_A_TASK))


def in_ranges(rows: DataFrame, tasks: int, addresses: pa.Array) -> DataFrame:
    """Range-partition the rows by address, one range per task, in task order.

    The boundaries are chosen from addresses of objects only, because objects with several attributions would skew them.
    """
    from pyspark.sql import functions as F

    if tasks == 1 or not len(addresses):
        return rows.repartition(1)
    if not hasattr(rows, "repartitionById"):  # before Spark 4.1 rows can't be assigned to partitions directly
        return rows.repartitionByRange(tasks, "address")
    ordered = addresses.sort()
    cuts = [ordered[len(ordered) * task // tasks].as_py() for task in range(1, tasks)]
    task = sum(((F.col("address") >= F.lit(cut)).cast("int") for cut in cuts), F.lit(0))
    spread: DataFrame = rows.withColumn("task", task).repartitionById(tasks, "task")
    return spread


def some_addresses(objects: DataFrame, count: int, tasks: int) -> pa.Array:
    """Addresses of these `count` objects: all, or a sample large enough for `tasks` ranges of even size."""
    share = min(1.0, SAMPLED_PER_TASK * tasks / max(count, 1))
    return objects.select("address").sample(fraction=share, seed=0).toArrow()["address"].combine_chunks()


def mixed(objects: DataFrame, *, deletable: DataFrame, attributions: DataFrame) -> DataFrame:
    """Combine objects (STORED_OBJECTS), the deletable addresses (column address) and attributions into MIXED_ROWS."""
    from pyspark.sql import functions as F

    def as_mixed(rows: DataFrame) -> DataFrame:
        return rows.select(
            *(
                F.col(field.name) if field.name in rows.columns else F.lit(None).cast(field.dataType).alias(field.name)
                for field in arrow_to_spark(MIXED_ROWS)
            )
        )

    is_deletable = deletable.select("address", F.lit(True).alias("deletable"))
    return union([as_mixed(rows) for rows in (objects, is_deletable, attributions)])
