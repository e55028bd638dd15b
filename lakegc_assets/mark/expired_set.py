"""`expired_set`: which objects are expired, computed from the data of earlier steps. Every invariant is checked before
it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lakegc_assets.formatting import plural
from lakegc_assets.mark import (
    addresses_on_hold,
    dot_segments,
    expiry_reasons,
    holds_in_force,
    keep_lookups,
    missing_objects,
)
from lakegc_assets.mark.candidates import recorded
from lakegc_assets.mark.context import MarkRun, StepNotes, step
from lakegc_assets.mark.reference_status import compare
from lakegc_assets.mark.writer import write_mark
from lakegc_assets.rules import keep_reasons
from spark_resources.mark_store.approval import withdraw_reference_summary
from spark_resources.mark_store.files import remove_unrecorded
from spark_resources.mark_store.mark import previous_mark
from spark_resources.mark_store.record import digest_of
from spark_resources.model import MarkState
from spark_resources.spark.remote_errors import errors_from_executors

ASSET = "expired_set"


def compute(run: MarkRun) -> None:
    """Write EXPIRED_OBJECTS, also in the reference collector's layout, and finish the mark."""
    with step(run, ASSET) as notes, errors_from_executors():
        write_expired(run, notes)
    finish(run)


def finish(run: MarkRun) -> None:
    """Write the counts for the brakes and the digest for approvals. This finishes the mark: its data never changes."""
    record = run.mark.record
    remove_unrecorded(run.place, record)
    withdraw_reference_summary(run.place, record.mark_id)
    facts = record.steps[ASSET].facts
    counts = {name: facts[name] for name in ("candidates", "candidate_bytes", "expired", "expired_bytes")}
    compared: dict[str, Any] = {
        "counts": counts | {"live": facts["live_inside"]},
        "previous": previous_mark(run.place, record),
    }
    digest = digest_of(replace(record, **compared))
    run.mark.move_to(MarkState.MARKED, digest=digest, finished=run.store.now(), **compared)
    run.log_message(f"{facts['expired']:,} of {facts['candidates']:,} objects are expired")


def write_expired(run: MarkRun, notes: StepNotes) -> None:
    """Write stored − committed − uncommitted − young − kept for other reasons."""
    candidates = recorded(run)
    run.log_message("comparing stored objects with live addresses")
    status = compare(run, candidates)
    notes.facts |= status.counts
    missing_objects.check_listing(run, notes, status.missing)
    dot_segments.note(run, notes, status.dot_segments)
    run.log_message(f"determining expiry reasons for {plural(status.counts['unreferenced'], 'object')}")
    attributions = expiry_reasons.attribute(run, notes, candidates, status)
    unreferenced = keep_reasons.undecided(attributions.in_scope(status.unreferenced, run.mark.record.scope))
    decided = keep_lookups.attributed(run, notes, unreferenced, candidates.chain)
    decided = addresses_on_hold.write_objects_on_hold(run, notes, decided, candidates)
    run.log_message("writing the expired set")
    written = write_mark(run, notes, status, keep_reasons.not_kept(decided), attributions)
    candidates.count_missed(notes, written)
    holds_in_force.in_force(run)  # raises if they have changed since the mark began
