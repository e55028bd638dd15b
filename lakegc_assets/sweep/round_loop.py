"""The rounds of a sweep, each under a re-verification, until every approved object has an outcome."""

from __future__ import annotations

import pyarrow.compute as pc

from lakegc_assets.sweep.context import SweepRun
from lakegc_assets.sweep.delete_rounds import (
    Tally,
    expiry_time,
    pending_objects,
    refuse_rounds_without_progress,
    run_round,
    still_garbage,
    write_receipts_of_rescued,
)
from lakegc_assets.sweep.first_delete import delete_first
from lakegc_assets.sweep.head_watch import HeadWatch
from lakegc_assets.sweep.reverify import reverify
from spark_resources.deleting.sweep_task import Action
from spark_resources.model import PENDING
from spark_resources.spark.arrow_shuffle import Input
from spark_resources.spark.persistence import Persisted
from spark_resources.spark.tasks import Rows, filtered


def run_rounds(run: SweepRun, approved: Input) -> Tally:
    """Delete the pending objects that are still garbage: a single one first, then the others, round by round.

    `approved` are rows of APPROVED. Raises if a round makes no progress, and `Forbidden` if the store refuses the first
    delete because of missing permissions.
    """
    tally, since_round, rounds_without_progress, first_delete_done = Tally(), run.next_number(), 0, False
    action = Action.QUARANTINE if run.limits.quarantine else Action.DELETE
    while True:
        with Persisted() as persist:
            pending = pending_objects(run, approved, since_round, persist)
            if not pending.count:
                return tally
            verification = reverify(run, pending)
            tally.reverifications.append(verification)
            write_receipts_of_rescued(run, verification, pending)
            grouped = still_garbage(run, pending, verification, persist)
            garbage, objects = grouped.rows, grouped.count
            if objects:
                until, number, done = expiry_time(run, verification), verification.number, Tally()
                heads = HeadWatch.of(run, verification.verified)
                if not first_delete_done:
                    first = delete_first(run, garbage, action, verification, heads)
                    done.add(first.tally)
                    first_delete_done, number = first.address is not None, run.next_number()
                    if first.address is not None:
                        garbage, objects = without_address(garbage, first.address), objects - 1
                if objects and not (done.total and run.store.now() >= until):
                    done.add(run_round(run, garbage, action, run.receipts, number, until, objects, heads))
                rounds_without_progress = 0 if done.total else rounds_without_progress + 1
                refuse_rounds_without_progress(run, rounds_without_progress)
                tally.add(done)


def without_address(rows: Rows, address: str) -> Rows:
    """The rows (PENDING) with any other address."""
    return filtered(rows, lambda batch: pc.not_equal(batch["address"], address), PENDING)
