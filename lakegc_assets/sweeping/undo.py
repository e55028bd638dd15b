"""What a sweep put aside: back in its place, or gone for good after one more proof.

Only what a receipt says was quarantined, and what was approved, is ever touched; the quarantine's listing is not asked.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from lakegc_assets import sweep
from lakegc_assets.mark import only, without
from lakegc_assets.sweeping.proof import prove
from lakegc_assets.sweeping.quarantine import write_quarantine
from lakegc_assets.sweeping.rounds import Tally, end_of, round_of
from lakegc_assets.sweeping.run import SweepRun
from spark_resources.approvals import withdraw_reference_summary
from spark_resources.deleting.task import Action
from spark_resources.executors import errors_from_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BEGUN = "begun.json"
NO_HURRY = timedelta(days=1)  # bringing back needs no proof


def undo(run: SweepRun) -> Tally:
    """Bring every quarantined object back to its place, byte for byte, never over something else."""
    withdraw_reference_summary(run.place, run.mark.record.mark_id)
    tally, since = Tally(), run.next_number()
    with errors_from_executors():
        while True:
            rows = aside(run, since=since).persist()
            objects = rows.count()
            if not objects:
                write_quarantine(run)
                return tally
            note_begin(run)
            until = run.store.now() + NO_HURRY
            tally.add(round_of(run, rows, Action.RESTORE, run.undone, run.next_number(), until, objects))
            rows.unpersist()


def purge(run: SweepRun) -> Tally:
    """Delete quarantined objects for good, after one more proof; what is live by now is brought back instead."""
    tally, since = Tally(), run.next_number()
    with errors_from_executors():
        while True:
            rows = aside(run, since=since).persist()
            objects = rows.count()
            if not objects:
                write_quarantine(run)
                return tally
            proof = prove(run, rows)
            tally.proofs.append(proof)
            live = proof.rescued_objects
            if live:
                note_begin(run)
                wanted = rows.transform(only(proof.rescued))
                until = run.store.now() + NO_HURRY
                tally.add(round_of(run, wanted, Action.RESTORE, run.undone, run.next_number(), until, live))
            if objects > live:
                garbage = rows.transform(without(proof.rescued))
                until = end_of(run, proof)
                tally.add(round_of(run, garbage, Action.PURGE, run.undone, run.next_number(), until, objects - live))
            rows.unpersist()


def note_begin(run: SweepRun) -> None:
    """Write that something may be back in its place, before it is: a later mark then looks at all of this one's."""
    run.store.write(f"{run.undone.folder}{BEGUN}", b"{}")


def aside(run: SweepRun, *, since: int) -> DataFrame:
    """The approved objects that lie in quarantine (PENDING), as far as receipts know; what failed before, again."""
    spark = run.spark()
    put_aside = sweep.quarantined(run.receipts.outcomes(spark))
    nothing = run.undone.intents(spark)
    return sweep.pending(run.approved().transform(only(put_aside)), run.undone.outcomes(spark), nothing, since=since)
