"""Rounds: Spark jobs over pending objects, each under one re-verification, until every object has an outcome."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import duration, plural
from lakegc_assets.mark.keep_evidence import OBJECTS
from lakegc_assets.progress import logging_progress
from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.rules.delete_check import check_before_delete
from lakegc_assets.sweep.context import INTENDED, RESCUED, RESCUED_OBJECTS, SWEEP_RECEIPTS, Reverification, SweepRun
from lakegc_assets.sweep.head_watch import HeadWatch
from spark_resources.deleting.lookup import Lookup
from spark_resources.deleting.permit import PermitIssuer
from spark_resources.deleting.receipts import Receipts, receipt_rows
from spark_resources.deleting.sweep_task import (
    Action,
    SweepTaskConfig,
    receipts_of_interrupted,
    sweep_rows,
)
from spark_resources.errors import LakegcError, Refused
from spark_resources.model import PENDING, DeleteCheck, Outcome
from spark_resources.spark.arrow_shuffle import Grouped, GroupedRows, Input
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.persistence import Persisted
from spark_resources.spark.remote_errors import failure_counts, tasks_ended
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Rows, Tasks, partition_and_attempt, run_tasks, task_name
from spark_resources.stores.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERBS = {
    Action.DELETE: "deleting",
    Action.QUARANTINE: "quarantining",
    Action.RESTORE: "restoring",
    Action.PURGE: "purging",
}
MIN_ROWS_PER_TASK = 1_000
# consecutive rounds that ended before anything was deleted, because of new heads, rules or holds
MAX_ROUNDS_WITHOUT_PROGRESS = 3


@dataclass(slots=True)
class Tally:
    """Totals over the rounds of one sweep: objects by outcome, requests, and seconds spent deleting. `attempts` counts
    how often a request named a key. `taken` objects were deleted or quarantined by these requests, not by earlier
    attempts."""

    objects: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    attempts: int = 0
    taken: int = 0
    seconds: float = 0.0
    reverifications: list[Reverification] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of objects that have an outcome."""
        return sum(self.objects.values())

    def add(self, other: Tally) -> None:
        self.objects.update(other.objects)
        self.requests += other.requests
        self.attempts += other.attempts
        self.taken += other.taken
        self.seconds += other.seconds


def refuse_rounds_without_progress(run: SweepRun, rounds: int) -> None:
    """Raise `Refused` if too many consecutive rounds deleted nothing because the repository kept changing."""
    if rounds >= MAX_ROUNDS_WITHOUT_PROGRESS:
        raise Refused(
            f"mark {run.mark.record.mark_id} of {run.partition.repository} was re-verified {rounds} times in a row, "
            "and each time the repository changed before anything could be deleted (changed retention rules or "
            "holds, new tags covered by a hold, or too many new commits). Run the same command again when fewer "
            "changes are expected.",
            invariant=1,
        )


def expiry_time(run: SweepRun, verification: Reverification) -> datetime:
    """When a re-verification expires, by the store's clock. Raises `Refused` if it has expired already."""
    until, now = verification.started_at + run.limits.verification_age, run.store.now()
    if now >= until:
        raise too_old_error(run, now - verification.started_at)
    return until


def too_old_error(run: SweepRun, age: timedelta) -> Refused:
    """The error for a re-verification that was too old before a delete could be sent."""
    return Refused(
        f"the re-verification of mark {run.mark.record.mark_id} of {run.partition.repository} was {duration(age)} old "
        f"before a delete could be sent, but it is valid for only {duration(run.limits.verification_age)}. Raise "
        "LAKEGC_VERIFICATION_AGE, or give Spark more cores, and run the same command again.",
        invariant=1,
    )


def no_progress_error(run: SweepRun, objects: int, until: datetime, failure: str = "") -> LakegcError:
    """The error for a round without any outcome: its re-verification expired (`until`, store's clock), the last check
    for new commits failed (`failure`), or the cause is unknown."""
    if (now := run.store.now()) >= until:
        return too_old_error(run, now - until + run.limits.verification_age)
    return LakegcError(
        f"a whole round over {plural(objects, 'pending object')} of mark {run.mark.record.mark_id} processed none of "
        "them. "
        + (f"The last check for new commits failed: {failure.rstrip('.')}. " if failure else "")
        + "Check the store and the clocks, and run the same command again."
    )


def pending_objects(run: SweepRun, approved: Input, since_round: int, persist: Persisted) -> Grouped:
    """The objects that have no outcome yet, or failed before the round `since_round` (PENDING)."""

    def pending(rows: GroupedRows) -> pa.Table:
        return sweep_outcomes.pending(rows[OBJECTS], rows[SWEEP_RECEIPTS], rows[INTENDED], since_round=since_round)

    return run.grouped([approved, run.outcomes(SWEEP_RECEIPTS), run.intents(INTENDED)], pending, PENDING, persist)


def still_garbage(run: SweepRun, objects: Grouped, verification: Reverification, persist: Persisted) -> Grouped:
    """The objects (PENDING) that a re-verification did not rescue."""
    if not verification.rescued.rows:
        return objects
    inputs = [objects.as_input(OBJECTS, PENDING), rescued_input(run, verification)]
    return run.grouped(
        inputs, lambda rows: sweep_outcomes.without_addresses_in(rows[OBJECTS], rows[RESCUED_OBJECTS]), PENDING, persist
    )


def rescued_objects(run: SweepRun, objects: Grouped, verification: Reverification, persist: Persisted) -> Grouped:
    """The objects (PENDING, and `why`) that a re-verification rescued."""

    def with_reasons(rows: GroupedRows) -> pa.Table:
        live = sweep_outcomes.with_addresses_in(rows[OBJECTS], rows[RESCUED_OBJECTS])
        why = rows[RESCUED_OBJECTS]["why"].take(
            pc.index_in(live["address"], value_set=rows[RESCUED_OBJECTS]["address"])
        )
        return live.append_column(RESCUED.field("why"), why)

    inputs = [objects.as_input(OBJECTS, PENDING), rescued_input(run, verification)]
    return run.grouped(inputs, with_reasons, pa.schema([*PENDING, RESCUED.field("why")]), persist)


def rescued_input(run: SweepRun, verification: Reverification) -> Input:
    return Input.whole(RESCUED_OBJECTS, run.place, [verification.rescued], RESCUED)


def write_receipts_of_rescued(run: SweepRun, verification: Reverification, pending: Grouped) -> None:
    """Write a receipt for each pending object (PENDING) that the re-verification rescued.

    An interrupted attempt may have deleted or quarantined an object before it became live. Such an object is recorded
    as deleted or quarantined, so that the closing re-verification reports it and an undo restores it.
    """
    if not verification.rescued.rows:
        return
    receipts, number, verified_at, mark_id = (
        run.receipts,
        verification.number,
        verification.started_at,
        run.mark.record.mark_id,
    )

    def write(batches: Batches, _: TaskReport) -> None:
        rows = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if rows:
            table = pa.concat_tables(rows)
            table = table.set_column(1, PENDING.field("size"), pc.fill_null(table["size"], 0))
            removed = already_removed(receipts.store, table)
            remaining = table.filter(pc.invert(pc.is_in(table["address"], value_set=removed["address"])))
            rescued = receipt_rows(remaining, outcome=Outcome.RESCUED, why=remaining["why"], at=verified_at)
            interrupted = receipts_of_interrupted(receipts.store, removed, mark_id, verified_at)
            receipts.write("receipt", number, f"rescued-{task_name()}", pa.concat_tables([rescued, interrupted]))

    with Persisted() as persist:
        run_tasks(rescued_objects(run, pending, verification, persist).rows, write)


def already_removed(store: Store, rows: pa.Table) -> pa.Table:
    """The rows (columns address, slice, intended) that have an intent and no longer exist in the store."""
    intended = rows.filter(rows["intended"]).sort_by([("slice", "ascending"), ("address", "ascending")])
    stored_addresses = Lookup(store).look_up(intended)["address"]
    return intended.filter(pc.invert(pc.is_in(intended["address"], value_set=stored_addresses)))


def run_round(
    run: SweepRun, rows: Rows, action: Action, receipts: Receipts, number: int, until: datetime, objects: int,
    heads: HeadWatch | None = None,
) -> Tally:  # fmt: skip
    """Delete, quarantine, restore or purge the objects of these rows (PENDING): in Spark tasks, or on the driver if
    they are few. Returns the totals of this round. `number` is the round's number, `objects` the number of rows.

    A round ends early at `until` (store's clock), when the lease is lost, or when `heads` finds that too much has
    become live; some rows then have no receipt yet. An action that removes objects needs `heads`. Raises if the lease
    was lost, or if no object got an outcome, unless the repository changed (`heads.moved`).
    """
    spark = run.spark()
    tasks = max(1, min(spark.sparkContext.defaultParallelism, objects // MIN_ROWS_PER_TASK))
    sorted_rows = in_key_order(rows, tasks)
    secret = secrets.token_bytes(32)
    config = SweepTaskConfig(
        place=run.place,
        receipts=receipts,
        round=number,
        lease_token=run.lease.token,
        verified_until=until,
        check=delete_check(run),
        mark_id=run.mark.record.mark_id,
        permit_secret=secret,
        action=action,
        permit_interval_s=run.limits.head_check_interval.total_seconds(),
        max_rate=None if run.limits.rate is None else run.limits.rate / tasks,
        ramp=None if run.store.capabilities.ramp is None else run.store.capabilities.ramp / tasks,
    )

    def work(batches: Batches, report: TaskReport) -> None:
        sweep_rows(batches, config, *partition_and_attempt(), report)

    started, done = time.monotonic(), Tally()
    watched = run.lease.watched(config.request_time, all_tasks_ended(spark))
    watching = nullcontext() if heads is None else heads.during(PermitIssuer(receipts, number, secret))
    with watched, watching, reporting_progress(run, VERBS[action], receipts, number, objects):
        report = run_tasks(sorted_rows, work)
    done.seconds = time.monotonic() - started
    done.objects.update(report.by_key["objects"])
    done.requests += report.counters["requests"]
    done.attempts += report.counters["attempts"]
    done.taken += report.counters["taken"]
    run.lease.check()
    if not done.total and not (heads is not None and heads.moved):
        raise no_progress_error(run, objects, until, "" if heads is None else heads.failure)
    return done


def in_key_order(rows: Rows, tasks: int) -> Rows:
    """These rows (PENDING), sorted by slice and address, in this number of tasks."""
    order = ("slice", "address")
    if isinstance(rows, Tasks):
        table = rows.table.select(PENDING.names)
        return tasks_from_rows(rows.spark, table, batch_size=max(1, -(-len(table) // tasks)), order_by=order)
    partitioned = rows.repartitionByRange(tasks, *order) if tasks > 1 else rows.coalesce(1)
    return partitioned.select(*PENDING.names).sortWithinPartitions(*order)


def delete_check(run: SweepRun) -> Callable[[pa.Table, pa.Table], DeleteCheck]:
    """The check of every key right before its delete, as passed to the executors."""
    # times in whole seconds are rounded down: an object may be almost a second younger than it seems (invariant 6)
    return partial(check_before_delete, cutoff=run.mark.record.cutoff - run.store.capabilities.time_resolution)


def all_tasks_ended(spark: SparkSession) -> Callable[[], bool]:
    """A function that returns true once every task started from now on has ended. It stays false after a task was
    retried or lost, because its earlier attempt could still be running."""
    before = failure_counts(spark)
    return lambda: before is not None and failure_counts(spark) == before and tasks_ended(spark)


def reporting_progress(
    run: SweepRun, verb: str, receipts: Receipts, number: int, rows: int
) -> AbstractContextManager[None]:
    """While the context lasts, report the progress of a round, from the receipts that its tasks have written."""
    started = time.monotonic()

    def progress() -> str:
        done = receipts.finished_count(number)
        seconds = time.monotonic() - started
        rate = done / seconds
        time_left = f", {duration(timedelta(seconds=(rows - done) / rate))} left" if done else ""
        return f"{done:,} of {plural(rows, 'object')} done, {rate:,.0f} objects/s{time_left}"

    return logging_progress(run.log_message, f"{verb} {plural(rows, 'object')}", progress)
