"""Restore quarantined objects to their original keys, or purge them after another re-verification.

Only approved objects that a receipt or intent names as quarantined are ever touched; the quarantine isn't listed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.rules.garbage import only, without
from lakegc_assets.sweep.context import SweepRun
from lakegc_assets.sweep.delete_rounds import Tally, expiry_of, refuse_fruitless, run_round
from lakegc_assets.sweep.head_watch import HeadWatch
from lakegc_assets.sweep.quarantine import write_quarantine
from lakegc_assets.sweep.report import read_report
from lakegc_assets.sweep.reverify import reverify
from spark_resources.deleting.quarantine import quarantine_key, stat_or_none
from spark_resources.deleting.receipts import Receipts
from spark_resources.deleting.sweep_task import Action
from spark_resources.errors import Refused
from spark_resources.mark_store.approval import withdraw_reference_summary
from spark_resources.model import PENDING, RECEIPTS, MarkState, Outcome
from spark_resources.records.json_records import record_bytes
from spark_resources.spark.datasets import open_dataset
from spark_resources.spark.remote_errors import errors_from_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BEGUN = "begun.json"
BEGUN_FORMAT = 1
NO_HURRY = timedelta(days=1)  # restoring needs no re-verification
STATS_AT_ONCE = 16
STRAY_COPIES = "stray copies freed"


def undo(run: SweepRun) -> Tally:
    """Restore every quarantined object to its original key, byte for byte, without overwriting anything."""
    withdraw_reference_summary(run.place, run.mark.record.mark_id)
    tally, since = Tally(), run.next_number()
    with errors_from_executors():
        while True:
            rows = in_quarantine(run, since=since).persist()
            objects = rows.count()
            if not objects:
                write_quarantine(run)
                return tally
            note_begin(run)
            until = run.store.now() + NO_HURRY
            tally.add(run_round(run, rows, Action.RESTORE, run.undone, run.next_number(), until, objects))
            rows.unpersist()


def purge(run: SweepRun) -> Tally:
    """Delete quarantined objects for good, after another re-verification. Objects that are live by now are restored.

    Stray copies, whose originals were never deleted, are purged in the same way.
    """
    with errors_from_executors():
        tally = purged(run, lambda since: in_quarantine(run, since=since).transform(only_signed(run)), run.undone)
        write_quarantine(run)
        freed = purged(run, lambda since: stray_copies(run, since=since), run.freed)
    failed = freed.objects.pop(Outcome.FAILED.value, 0)
    tally.objects.update({Outcome.FAILED.value: failed, STRAY_COPIES: freed.total})
    tally.objects = +tally.objects
    return tally


def purged(run: SweepRun, rows_since: Callable[[int], DataFrame], receipts: Receipts) -> Tally:
    """Purge rows of PENDING, round by round, each under a re-verification, until none remain."""
    tally, since, fruitless = Tally(), run.next_number(), 0
    while True:
        rows = rows_since(since).persist()
        objects = rows.count()
        if not objects:
            return tally
        verification = reverify(run, rows)
        tally.reverifications.append(verification)
        live = verification.rescued_objects
        if live:
            note_begin(run)
            wanted = rows.transform(only(verification.rescued))
            until = run.store.now() + NO_HURRY
            tally.add(run_round(run, wanted, Action.RESTORE, receipts, run.next_number(), until, live))
        if objects > live:
            garbage = rows.transform(without(verification.rescued))
            until, number, left = expiry_of(run, verification), run.next_number(), objects - live
            heads = HeadWatch.of(run, verification.verified)
            done = run_round(run, garbage, Action.PURGE, receipts, number, until, left, heads)
            fruitless = 0 if done.total else fruitless + 1
            refuse_fruitless(run, fruitless)
            tally.add(done)
        rows.unpersist()


def stray_copies(run: SweepRun, *, since: int) -> DataFrame:
    """The approved objects (PENDING) with a stray copy in quarantine: a sweep was interrupted between copy and delete,
    and later kept the original.

    As long as a sweep may retry an object, its copy isn't stray: it could be the only one left by then.
    """
    spark = run.spark()
    nothing = run.undone.intents(spark)
    if run.mark.record.state is MarkState.SWEEPING:
        return sweep_outcomes.pending(run.approved(), run.receipts.outcomes(spark), nothing, since=since).limit(0)
    left = sweep_outcomes.not_taken(run.receipts.outcomes(spark)).transform(only(run.receipts.intents(spark)))
    rows = sweep_outcomes.pending(run.approved().transform(only(left)), run.freed.outcomes(spark), nothing, since=since)
    table = rows.toArrow().select(PENDING.names).cast(PENDING)
    keys = [quarantine_key(run.mark.record.mark_id, key) for key in table["address"].to_pylist()]
    with ThreadPoolExecutor(STATS_AT_ONCE) as pool:
        found = list(pool.map(lambda key: stat_or_none(run.store, key) is not None, keys))
    return spark.createDataFrame(table.filter(pa.array(found, pa.bool_())))


def only_signed(run: SweepRun) -> Callable[[DataFrame], DataFrame]:
    """A filter for the objects that the sweep's report lists as quarantined, if reports are signed: receipts, which
    tasks write, aren't.

    Raises `Refused` if the sweep has not ended with a report.
    """
    if run.place.seal is None:
        return lambda rows: rows
    report = read_report(run.place, run.mark.record.mark_id)
    if report is None:
        raise Refused(
            f"the sweep of mark {run.mark.record.mark_id} of {run.partition.repository} has no report yet, so no "
            "signed list has the objects that it quarantined. Finish the sweep first: run lakegc sweep again.",
            invariant=10,
        )
    listed = open_dataset(run.place, report.dataset["folder"], sha256=report.dataset["sha256"])
    return only(sweep_outcomes.quarantined(run.read(listed, RECEIPTS)))


def note_begin(run: SweepRun) -> None:
    """Record, before the first restore, that objects may be restored: later marks list all of this mark's again."""
    run.store.write(f"{run.undone.folder}{BEGUN}", record_bytes({"format": BEGUN_FORMAT}))


def in_quarantine(run: SweepRun, *, since: int) -> DataFrame:
    """The approved objects in quarantine according to receipts (PENDING), including those that failed before."""
    spark = run.spark()
    quarantined = sweep_outcomes.quarantined(run.receipts.outcomes(spark))
    nothing = run.undone.intents(spark)
    return sweep_outcomes.pending(
        run.approved().transform(only(quarantined)), run.undone.outcomes(spark), nothing, since=since
    )
