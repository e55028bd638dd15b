"""Restore quarantined objects to their original keys, or purge them after another re-verification.

Only approved objects that a receipt or intent names as quarantined are ever touched; the quarantine isn't listed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeAlias

import pyarrow as pa

from lakegc_assets.mark.keep_evidence import OBJECTS
from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.sweep.context import INTENDED, SWEEP_RECEIPTS, UNDONE, SweepRun
from lakegc_assets.sweep.delete_rounds import (
    Tally,
    expiry_time,
    refuse_rounds_without_progress,
    rescued_objects,
    run_round,
    still_garbage,
)
from lakegc_assets.sweep.head_watch import HeadWatch
from lakegc_assets.sweep.quarantine import quarantine_key
from lakegc_assets.sweep.report import read_report
from lakegc_assets.sweep.reverify import reverify
from spark_resources.deleting.quarantine import key_in_quarantine, stat_or_none
from spark_resources.deleting.receipts import Receipts
from spark_resources.deleting.sweep_task import Action
from spark_resources.errors import Refused
from spark_resources.mark_store.approval import withdraw_reference_summary
from spark_resources.mark_store.quarantine_format import QuarantineCounts
from spark_resources.model import ADDRESSES, PENDING, RECEIPTS, MarkState, Outcome
from spark_resources.records.json_records import record_bytes
from spark_resources.spark.arrow_shuffle import Grouped, GroupedRows, Input, co_group
from spark_resources.spark.datasets import open_dataset
from spark_resources.spark.persistence import Persisted
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Tasks, first_rows

ObjectsSince: TypeAlias = Callable[[SweepRun, int, Persisted], Grouped]
"""Finds the objects (PENDING) that a purge still has to process, given the round in which it began."""
FREED = "receipts of stray copies"
BEGUN_NAME = "begun.json"
BEGUN_FORMAT = 1
RESTORE_TIME = timedelta(days=1)  # a restore needs no re-verification, so this limit is arbitrary
CONCURRENT_STATS = 16
STRAY_COPIES = "stray copies freed"


def undo(run: SweepRun) -> Tally:
    """Restore every quarantined object to its original key, byte for byte, without overwriting anything."""
    withdraw_reference_summary(run.place, run.mark.record.mark_id)
    tally, since_round = Tally(), run.next_number()
    with run.persist, errors_from_executors():
        while True:
            with Persisted() as persist:
                quarantined = quarantined_objects(run, since_round, persist)
                if not quarantined.count:
                    write_quarantine_counts(run)
                    return tally
                record_restore_begun(run)
                until = run.store.now() + RESTORE_TIME
                tally.add(
                    run_round(
                        run, quarantined.rows, Action.RESTORE, run.undone, run.next_number(), until, quarantined.count
                    )
                )


def purge(run: SweepRun) -> Tally:
    """Permanently delete quarantined objects, after another re-verification. Objects that have become live are restored
    instead.

    Stray copies, whose originals were never deleted, are purged in the same way.
    """
    with run.persist, errors_from_executors():
        tally = purge_objects(run, purgeable_objects, run.undone)
        write_quarantine_counts(run)
        freed = purge_objects(run, stray_copies, run.freed)
    failed = freed.objects.pop(Outcome.FAILED.value, 0)
    tally.objects.update({Outcome.FAILED.value: failed, STRAY_COPIES: freed.total})
    tally.objects = +tally.objects
    return tally


def purge_objects(run: SweepRun, objects_since: ObjectsSince, receipts: Receipts) -> Tally:
    """Purge objects (PENDING), round by round, each under a re-verification, until none remain."""
    tally, since_round, rounds_without_progress = Tally(), run.next_number(), 0
    while True:
        with Persisted() as persist:
            objects = objects_since(run, since_round, persist)
            if not objects.count:
                return tally
            verification = reverify(run, objects)
            tally.reverifications.append(verification)
            if verification.rescued.rows:
                record_restore_begun(run)
                live = rescued_objects(run, objects, verification, persist)
                until = run.store.now() + RESTORE_TIME
                tally.add(run_round(run, live.rows, Action.RESTORE, receipts, run.next_number(), until, live.count))
            garbage = still_garbage(run, objects, verification, persist)
            if garbage.count:
                until, number = expiry_time(run, verification), run.next_number()
                heads = HeadWatch.of(run, verification.verified)
                done = run_round(run, garbage.rows, Action.PURGE, receipts, number, until, garbage.count, heads)
                rounds_without_progress = 0 if done.total else rounds_without_progress + 1
                refuse_rounds_without_progress(run, rounds_without_progress)
                tally.add(done)


def stray_copies(run: SweepRun, since_round: int, persist: Persisted) -> Grouped:
    """The approved objects (PENDING) with a stray copy in quarantine: a sweep was interrupted between copy and delete,
    and later kept the original.

    As long as a sweep may retry an object, its copy isn't stray, because it could then be the only copy left.
    """
    may_retry = run.mark.record.state is MarkState.SWEEPING

    def stray(rows: GroupedRows) -> pa.Table:
        in_place = sweep_outcomes.left_in_place(rows[OBJECTS], rows[SWEEP_RECEIPTS], rows[INTENDED])
        in_place = in_place.slice(0, 0) if may_retry else in_place
        return sweep_outcomes.pending(in_place, rows[FREED], rows[UNDONE], since_round=since_round)

    inputs = [
        run.approved(), run.outcomes(SWEEP_RECEIPTS), run.intents(INTENDED), run.outcomes(FREED, run.freed),
        run.intents(UNDONE, run.undone),
    ]  # fmt: skip
    strays = run.grouped(inputs, stray, PENDING, persist)
    return strays if not strays.count else with_copies(run, strays)


def with_copies(run: SweepRun, objects: Grouped) -> Grouped:
    """The objects among these (PENDING) that have a copy in quarantine."""
    store, mark_id = run.store, run.mark.record.mark_id
    table = first_rows(objects.rows, ["address"], objects.count).select(PENDING.names).cast(PENDING)
    keys = [key_in_quarantine(mark_id, key) for key in table["address"].to_pylist()]
    with ThreadPoolExecutor(CONCURRENT_STATS) as pool:
        exists = list(pool.map(lambda key: stat_or_none(store, key) is not None, keys))
    rows = table.filter(pa.array(exists, pa.bool_()))
    return Grouped(Tasks.of(run.spark, rows), len(rows), objects.report)


def purgeable_objects(run: SweepRun, since_round: int, persist: Persisted) -> Grouped:
    """The objects in quarantine (PENDING); if records are signed, only those that the sweep's report lists, because
    receipts, which tasks write, aren't signed.

    Raises `Refused` if records are signed but the sweep has no report yet.
    """
    objects = quarantined_objects(run, since_round, persist)
    if run.place.seal is None:
        return objects
    report = read_report(run.place, run.mark.record.mark_id)
    if report is None:
        raise Refused(
            f"the sweep of mark {run.mark.record.mark_id} of {run.partition.repository} has no report yet, so "
            "there is no signed list of the objects that it quarantined. Finish the sweep first: lakegc sweep "
            f"{run.partition.repository} {run.mark.record.mark_id}",
            invariant=10,
        )
    listed = open_dataset(run.place, report.dataset["folder"], sha256=report.dataset["sha256"])

    def quarantined(receipts: pa.Table) -> pa.Table:
        is_quarantined = sweep_outcomes.is_one_of(receipts["outcome"], [Outcome.QUARANTINED])
        return receipts.filter(is_quarantined).select(ADDRESSES.names)

    inputs = [
        objects.as_input(OBJECTS, PENDING),
        Input.selected(SWEEP_RECEIPTS, run.place, [listed], RECEIPTS, ADDRESSES, quarantined),
    ]
    return run.grouped(
        inputs, lambda rows: sweep_outcomes.with_addresses_in(rows[OBJECTS], rows[SWEEP_RECEIPTS]), PENDING, persist
    )


def record_restore_begun(run: SweepRun) -> None:
    """Record, before the first restore, that objects may be restored, so that later incremental marks look up this
    mark's objects."""
    run.store.write(f"{run.undone.folder}{BEGUN_NAME}", record_bytes({"format": BEGUN_FORMAT}))


def quarantined_objects(run: SweepRun, since_round: int, persist: Persisted) -> Grouped:
    """The approved objects (PENDING) that are in quarantine according to receipts, including those that failed in
    earlier runs."""

    def pending(rows: GroupedRows) -> pa.Table:
        quarantined = sweep_outcomes.quarantined(rows[OBJECTS], rows[SWEEP_RECEIPTS])
        return sweep_outcomes.pending(quarantined, rows[UNDONE], rows[INTENDED], since_round=since_round)

    inputs = [
        run.approved(), run.outcomes(SWEEP_RECEIPTS), run.outcomes(UNDONE, run.undone),
        run.intents(INTENDED, run.undone),
    ]  # fmt: skip
    return run.grouped(inputs, pending, PENDING, persist)


def write_quarantine_counts(run: SweepRun) -> None:
    """Write how many quarantined objects have been restored or purged so far."""

    def count_outcomes(rows: GroupedRows, report: TaskReport) -> pa.Table:
        for entry in sweep_outcomes.latest(rows[UNDONE])["outcome"].value_counts().to_pylist():
            report.count_for(entry["values"], objects=entry["counts"])
        return ADDRESSES.empty_table()

    counts = co_group(run.spark, [run.outcomes(UNDONE, run.undone)], count_outcomes, ADDRESSES, run.persist)
    later = QuarantineCounts(dict(counts.report.by_key["objects"]))
    run.place.records().write(quarantine_key(run.mark.record.mark_id), later.to_json())
