"""Write the report of a sweep: the outcome of each approved object, and totals that must add up before the sweep is
done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.formatting import plural
from lakegc_assets.mark.keep_evidence import OBJECTS
from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.sweep.context import RESCUED, SWEEP_RECEIPTS, UNDONE, Reverification, SweepRun
from lakegc_assets.sweep.delete_rounds import Tally
from lakegc_assets.sweep.other_sweeps import REMOVED_BY_OTHERS, removed_by_others
from lakegc_assets.sweep.report import MAX_NAMED, Refusal, Report, report_key
from spark_resources.errors import DamagedData
from spark_resources.identifiers import lakefs_id
from spark_resources.model import RECEIPTS, Outcome
from spark_resources.spark.arrow_shuffle import GroupedRows, Input, sampled_boundaries, shuffle
from spark_resources.spark.datasets import parquet_output
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import first_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASSET = "sweep_report"
ROWS_PER_TASK = 250_000
MAX_REFUSALS = 3  # maximum number of reasons for failures in a summary


def all_unread(verifications: Iterable[Reverification]) -> dict[str, str]:
    """The other repositories that any of these re-verifications could not read, each with the reason."""
    return {repository: why for verification in verifications for repository, why in verification.unread.items()}


def most_frequent_failures(outcomes: DataFrame) -> tuple[Refusal, ...]:
    """`Report.refusals` computed from the outcomes (RECEIPTS)."""
    from pyspark.sql import functions as F

    failed = outcomes.where(F.col("outcome") == Outcome.FAILED.value)
    comparable = failed.withColumn("why", F.replace(F.coalesce("why", F.lit("")), F.col("address"), F.lit("…")))
    groups = comparable.groupBy("code", "why").agg(F.count("*").alias("objects"), F.min("address").alias("example"))
    rows = groups.orderBy(F.desc("objects"), "code", "why").limit(MAX_REFUSALS).collect()
    return tuple(
        Refusal(code=row["code"], why=row["why"], objects=row["objects"], example=row["example"]) for row in rows
    )


def write_report(
    run: SweepRun, approved: Input, tally: Tally, closing: Reverification | None, started_at: datetime
) -> Report:
    """Write each object's outcome (RECEIPTS), then `sweep.json`. Raises `DamagedData` if an object has no outcome."""

    def reported(rows: GroupedRows, report: TaskReport) -> pa.Table:
        outcomes = sweep_outcomes.reported(rows[OBJECTS], rows[SWEEP_RECEIPTS], rows[UNDONE], rows[REMOVED_BY_OTHERS])
        report.count(approved=len(rows[OBJECTS]))
        groups = outcomes.group_by("outcome", use_threads=False).aggregate([("size", "count"), ("size", "sum")])
        for group in groups.to_pylist():
            report.count_for(group["outcome"], objects=group["size_count"], bytes=group["size_sum"])
        return outcomes

    inputs = [approved, run.outcomes(SWEEP_RECEIPTS), run.outcomes(UNDONE, run.undone), removed_by_others(run)]
    output = parquet_output(run.mark.folder(ASSET), RECEIPTS)
    with errors_from_executors():
        (dataset,), totals = shuffle(run.spark, inputs, boundaries=boundaries_for(run, approved)).write(
            reported, run.place, [output]
        )
        count, objects = totals.counters["approved"], totals.by_key["objects"]
        if without_outcome := count - dataset.rows:
            raise DamagedData(
                f"mark {run.mark.record.mark_id} has no outcome for {without_outcome:,} of "
                f"{plural(count, 'approved object')}. "
                "The sweep isn't finished: run the same command again.",
                invariant=10,
            )
        late = run.read(closing.rescued, RESCUED) if closing and closing.rescued.rows else None
        late_addresses = first_rows(late, ["address"], MAX_NAMED)["address"].to_pylist() if late is not None else []
        refusals = most_frequent_failures(run.read(dataset, RECEIPTS)) if objects[Outcome.FAILED.value] else ()
    record = run.mark.record
    report = Report(
        mark_id=record.mark_id,
        repository=record.repository,
        digest=record.digest or "",
        by=run.by,
        began=started_at,
        ended=run.store.now(),
        approved=count,
        objects=dict(objects),
        sizes=dict(totals.by_key["bytes"]),
        seconds=round(tally.seconds, 2),
        requests=tally.requests,
        attempts=tally.attempts,
        verifications=tuple(verification.started_at for verification in tally.reverifications),
        late=tuple(late_addresses),
        late_objects=closing.rescued.rows if closing else 0,
        quarantine=run.limits.quarantine,
        taken=tally.taken,
        deleting=run.store.delete_effect().value,
        unread=all_unread([*tally.reverifications, *([closing] if closing else [])]),
        refusals=refusals,
        dataset=dataset.name_for_record(),
    )
    stored = replace(report, repository=lakefs_id(report.repository))  # without the server's name
    run.place.records().write(report_key(record.mark_id), stored.to_json())
    return report


def boundaries_for(run: SweepRun, approved: Input) -> pa.Array:
    """Addresses that divide the approved ones evenly among tasks."""
    tasks = 1 + approved.count // ROWS_PER_TASK
    if tasks == 1:
        return pa.array([], pa.string())
    return sampled_boundaries(run.read(*run.recorded_objects), approved.count, tasks)
