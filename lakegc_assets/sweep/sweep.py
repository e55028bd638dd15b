"""A sweep from its approval to its report.

The order of effects, and the state that a crash right after each leaves:

1. a key of lakegc's own is written and deleted   nothing (a required backup is read before that)
2. the mark becomes `sweeping`                    the same command resumes; the approval is used up
3. the reference collector's summary is removed   the same; the reference collector can't sweep this mark any more
   objects missing from the backup are recorded   the same; they are compared again
4. rounds: re-verification, then chunks           every key has an outcome or an intent, or is untouched
5. the closing re-verification                    the same command re-verifies
6. the report's rows, then `sweep.json`           the same command writes them again, from the receipts
7. the mark becomes `swept`                       done
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from lakegc_assets.mark.keep_evidence import OBJECTS
from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.sweep.context import SWEEP_RECEIPTS, UNDONE, Reverification, SweepRun
from lakegc_assets.sweep.foreign_marks import record_approval_used, record_stored_objects, refuse_revoked
from lakegc_assets.sweep.report import Report
from lakegc_assets.sweep.report_writer import write_report
from lakegc_assets.sweep.require_backup import backed_up_objects, required_backup
from lakegc_assets.sweep.reverify import CANDIDATES, reverify
from lakegc_assets.sweep.round_loop import run_rounds
from spark_resources.errors import Forbidden, Unavailable
from spark_resources.mark_store.approval import withdraw_reference_summary
from spark_resources.model import MarkState
from spark_resources.spark.arrow_shuffle import GroupedRows, Input
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.stores.permissions import delete_permission, identity
from spark_resources.stores.retry import delete_own_files


def sweep(run: SweepRun) -> Report:
    """Delete the approved objects that are still garbage, and report the outcome of every object."""
    backup = required_backup(run)
    check_permissions(run)
    started_at: datetime = run.store.now()
    if run.foreign is not None:
        record_stored_objects(run, run.foreign)
        refuse_revoked(run.place, run.foreign.approval)
    run.mark.begin_sweep(quarantine=run.limits.quarantine)
    if run.foreign is not None:
        refuse_revoked(run.place, run.foreign.approval)
    withdraw_reference_summary(run.place, run.mark.record.mark_id)
    approved = run.approved()
    with run.persist, errors_from_executors():
        tally = run_rounds(run, approved if backup is None else backed_up_objects(run, approved, backup))
        closing = closing_reverification(run, approved)
        report = write_report(run, approved, tally, closing, started_at)
    run.mark.move_to(MarkState.SWEPT if report.success else MarkState.SWEPT_WITH_FAILURES)
    if run.foreign is not None and report.success:
        record_approval_used(run.place, run.foreign.approval, who=run.by, now=run.store.now())
    return report


def check_permissions(run: SweepRun) -> None:
    """Write and delete one of lakegc's own keys. If the delete fails, raises `Forbidden`, or `Unavailable` for a
    transient failure."""
    key, scheme = f"{run.receipts.folder}may-delete-{run.lease.token}", run.place.namespace.uri.partition("://")[0]
    run.store.write(key, b"")
    for failed in delete_own_files(run.store, [key]):
        refusal = f"nothing can be deleted in {run.store.where}: {failed.code} {failed.message}".rstrip(". ")
        if failed.transient:
            raise Unavailable(f"{refusal}. Run the same command again. Nothing was deleted.")
        raise Forbidden(
            f"{refusal}. A permission is missing for {identity(scheme, run.place.settings)}. Required: "
            f"{delete_permission(scheme)}. Grant the permission, or set other credentials, and run the same "
            "command again. Nothing was deleted."
        )


def closing_reverification(run: SweepRun, approved: Input) -> Reverification | None:
    """Re-verify the objects that were deleted or quarantined and not restored, to find those that became live in the
    meantime; None if there are no such objects."""

    def removed(rows: GroupedRows) -> pa.Table:
        return sweep_outcomes.removed(rows[OBJECTS], rows[SWEEP_RECEIPTS], rows[UNDONE])

    inputs = [approved, run.outcomes(SWEEP_RECEIPTS), run.outcomes(UNDONE, run.undone)]
    objects = run.grouped(inputs, removed, CANDIDATES)
    if not objects.count:
        return None
    run.log_message("re-verifying deleted objects")
    return reverify(run, objects)
