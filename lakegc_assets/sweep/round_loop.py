"""The rounds of a sweep, each under a re-verification, until every approved object has an outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakegc_assets.rules.garbage import without
from lakegc_assets.sweep.context import SweepRun
from lakegc_assets.sweep.delete_rounds import (
    Tally,
    expiry_of,
    pending_objects,
    refuse_fruitless,
    run_round,
    write_rescued,
)
from lakegc_assets.sweep.first_delete import delete_first
from lakegc_assets.sweep.head_watch import HeadWatch
from lakegc_assets.sweep.reverify import reverify
from spark_resources.deleting.sweep_task import Action

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run_rounds(run: SweepRun, approved: DataFrame) -> Tally:
    """Delete the pending objects that are still garbage: a single one first, then the others, round by round.

    `approved` has those columns of EXPIRED_OBJECTS that a listing provides. Raises if a round makes no progress, and
    `Forbidden` if the store refuses the first delete for missing rights.
    """
    tally, since, fruitless, tried = Tally(), run.next_number(), 0, False
    action = Action.QUARANTINE if run.limits.quarantine else Action.DELETE
    while True:
        pending = pending_objects(run, approved, since).persist()
        left = pending.count()
        if not left:
            return tally
        verification = reverify(run, pending)
        tally.reverifications.append(verification)
        write_rescued(run, verification, pending)
        garbage, objects = pending.transform(without(verification.rescued)), left - verification.rescued_objects
        if objects:
            until, number, done = expiry_of(run, verification), verification.number, Tally()
            heads = HeadWatch.of(run, verification.verified)
            if not tried:
                first = delete_first(run, garbage, action, verification, heads)
                done.add(first.tally)
                tried, number = first.address is not None, run.next_number()
                if first.address is not None:
                    garbage, objects = garbage.where(garbage["address"] != first.address), objects - 1
            if objects and not (done.total and run.store.now() >= until):
                done.add(run_round(run, garbage, action, run.receipts, number, until, objects, heads))
            fruitless = 0 if done.total else fruitless + 1
            refuse_fruitless(run, fruitless)
            tally.add(done)
        pending.unpersist()
