"""`expired_set`: the expired objects, computed from the data of earlier steps. Every invariant is checked before the
step ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from lakegc_assets.formatting import is_or_are, plural
from lakegc_assets.mark import (
    addresses_on_hold,
    dot_segments,
    expiry_reasons,
    holds_in_force,
    keep_lookups,
    missing_objects,
)
from lakegc_assets.mark.candidates import recorded_candidates
from lakegc_assets.mark.context import MarkRun, StepNotes, step
from lakegc_assets.mark.expiry_reasons import ATTRIBUTED, Attributions
from lakegc_assets.mark.keep_evidence import UndecidedObjects
from lakegc_assets.mark.reference_status import STATUS, ReferenceStatus, compare
from lakegc_assets.mark.writer import write_mark
from lakegc_assets.rules import garbage
from lakegc_assets.rules.garbage import REFERENCE_STATUS
from spark_resources.mark_store.approval import withdraw_reference_summary
from spark_resources.mark_store.files import remove_unrecorded_files
from spark_resources.mark_store.mark import previous_mark
from spark_resources.mark_store.record import digest_of
from spark_resources.model import MarkState, Scope
from spark_resources.spark.arrow_shuffle import GroupedRows, co_group
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport

ASSET = "expired_set"


def compute(run: MarkRun) -> None:
    """Write EXPIRED_OBJECTS, also in the reference collector's layout, and finish the mark."""
    with step(run, ASSET) as notes, errors_from_executors():
        write_expired(run, notes)
    finish(run)


def finish(run: MarkRun) -> None:
    """Remove files that no step recorded, and write the counts for the brakes and the digest for approvals. This
    finishes the mark, whose data never changes afterwards."""
    record = run.mark.record
    remove_unrecorded_files(run.place, record)
    withdraw_reference_summary(run.place, record.mark_id)
    facts = record.steps[ASSET].facts
    counts = {name: facts[name] for name in ("candidates", "candidate_bytes", "expired", "expired_bytes")}
    comparison: dict[str, Any] = {
        "counts": counts | {"live": facts["live_inside"]},
        "previous": previous_mark(run.place, record),
    }
    digest = digest_of(replace(record, **comparison))
    run.mark.move_to(MarkState.MARKED, digest=digest, finished=run.store.now(), **comparison)
    expired, stored = facts["expired"], plural(facts["candidates"], "object")
    run.log_message(f"{expired:,} of {stored} {is_or_are(expired)} expired")


def write_expired(run: MarkRun, notes: StepNotes) -> None:
    """Write stored − committed − uncommitted − young − kept for other reasons."""
    candidates = recorded_candidates(run)
    run.spark()  # if Spark can't start, every mark fails, even one that is too small to need it
    run.log_message("comparing stored objects with live addresses")
    status = compare(run, candidates)
    notes.facts |= status.counts
    missing_objects.check_listing(run, notes, status.missing)
    dot_segments.record_names(run, notes, status.dot_segments)
    run.log_message(f"determining expiry reasons for {plural(status.counts['unreferenced'], 'object')}")
    attributions = expiry_reasons.attribute(run, notes, candidates.chain, status)
    evidence = keep_lookups.look_up(run, notes, unreferenced_objects(run, status, attributions), candidates.chain)
    run.log_message("writing the expired set")
    written, report = write_mark(run, notes, status, attributions, evidence)
    addresses_on_hold.note_objects_on_hold(run, notes, candidates, report)
    candidates.count_missed(notes, written)
    holds_in_force.in_force(run)  # raises if the holds have changed since the mark began


def unreferenced_objects(run: MarkRun, status: ReferenceStatus, attributions: Attributions) -> UndecidedObjects:
    """The objects that expire unless a reason keeps them."""
    objects, scope = status.grouped, run.mark.record.scope
    if scope is Scope.COMMITTED:

        def only_in_scope(grouped: GroupedRows, _: TaskReport) -> pa.Table:
            return garbage.in_scope(grouped[STATUS], grouped[ATTRIBUTED]["address"], scope)

        inputs = [status.input, *attributions.inputs]
        objects = co_group(run.spark, inputs, only_in_scope, REFERENCE_STATUS, run.persist)
    return UndecidedObjects(run, objects, REFERENCE_STATUS, garbage.unreferenced)
