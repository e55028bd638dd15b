"""Prepare foreign marks (of the reference collector) for a sweep, using a listing of the objects that exist today.

A foreign mark records addresses only. lakegc writes its own mark record, `theirs/mark.json` in its own folder for
that mark id, with the current listing and the state of the sweep. It is unknown which ranges the foreign mark read, so
re-verifications read every live range.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from lakegc_assets.approval.foreign_marks import cutoff_of, open_sweep_record, record_of_foreign_mark, sweep_record_root
from lakegc_assets.approval.preconditions import end_in_words
from lakegc_assets.approval.verify_files import foreign_files
from lakegc_assets.mark import expired_set, namespace_slices
from lakegc_assets.mark.context import MarkRun, StepNotes, Target
from lakegc_assets.rules.addresses import slice_column
from lakegc_assets.sweep.context import ForeignMark, SweepRun
from spark_resources.errors import Refused
from spark_resources.mark_store.approval import (
    SWEPT,
    Approval,
    ApprovalEnd,
    read_approval,
    read_untrusted_approval,
    write_approval,
)
from spark_resources.mark_store.foreign_expired_set import NOT_RECORDED, REFERENCE_OBJECTS
from spark_resources.mark_store.foreign_layouts import ReferenceMark
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import StepRecord
from spark_resources.model import STORED_OBJECTS, MarkState
from spark_resources.spark.datasets import write_dataset
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.tasks import arrow_to_spark
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def begin_sweep_record(target: Target, foreign: ReferenceMark, approval: Approval) -> Mark:
    """Begin the record for a sweep of an approved foreign mark, or open the one that an interrupted sweep left.
    Raises `Refused` if the mark's files have changed since its approval."""
    files = foreign_files(target, foreign)
    if files.digest != approval.digest:
        raise Refused(
            f"the files of mark {foreign.mark_id} of {target.repository.id} are not those that were approved. Make a "
            "new mark.",
            invariant=7,
        )
    unfinished = open_sweep_record(target, foreign.mark_id)
    if unfinished is not None:
        return unfinished
    store = target.place.store()
    known = record_of_foreign_mark(target, foreign, files.addresses)
    record = replace(
        known,
        state=MarkState.MARKING,
        start=store.now(),
        cutoff=min(cutoff_of(store, foreign), approval.when),  # files may have changed since the approval
        finished=None,
        previous=None,
    )
    return Mark.begin(target.place, record, root=sweep_record_root(foreign.mark_id))


def record_stored_objects(run: SweepRun, foreign: ForeignMark) -> None:
    """Finish the record if it isn't finished yet (`write_listing`), and record the mark as approved."""
    mark = run.mark
    if mark.record.state is MarkState.FAILED:  # an earlier listing failed
        mark.move_to(MarkState.MARKING, failure=None)
    if mark.record.finished is None:
        write_listing(run, foreign)
    if mark.record.state is MarkState.MARKED:
        mark.move_to(MarkState.APPROVED, approval=foreign.approval.sha256)


def refuse_revoked(place: Place, approval: Approval) -> None:
    """Raise `Refused` if this approval of a foreign mark has been revoked or replaced since it was read. A revoke
    and the beginning of a sweep write different files, so a sweep calls this before it begins, afterwards, and when
    it resumes."""
    current = read_approval(place, approval.mark_id)
    if current != approval or current.ended is not None:
        ended = None if current is None else current.ended
        reason = end_in_words(ended) if ended is not None else "was replaced or removed"
        raise Refused(
            f"the approval of mark {approval.mark_id} in {place.namespace.uri} {reason}, so the mark isn't swept. Make "
            "a new mark.",
            invariant=7,
        )


def write_listing(run: SweepRun, foreign: ForeignMark) -> None:
    """List the namespace, write the mark's addresses with size and checksum as stored (REFERENCE_OBJECTS), and finish
    the record."""
    mark, store = run.mark, run.store
    inner = MarkRun(
        run.partition,
        run.target,
        mark,
        run.lakefs,
        run.spark,
        run.limits.marking,
        run.log_message,
        store_settings_of=run.store_settings_of,
    )
    namespace_slices.list_namespace(inner)
    started_at = store.now()
    with errors_from_executors():
        addresses = tasks_from_rows(run.spark, run.foreign_addresses(foreign), batch_size=50_000).frame()
        rows = with_stored_attributes(run, addresses)
        dataset = write_dataset(rows, run.place, mark.folder(expired_set.ASSET), REFERENCE_OBJECTS)
    notes = StepNotes()
    notes.add_dataset(dataset)
    mark.add_step(expired_set.ASSET, StepRecord(started_at, store.now(), 0, notes.datasets))
    mark.move_to(MarkState.MARKED, finished=store.now(), digest=foreign.approval.digest)


def with_stored_attributes(run: SweepRun, addresses: DataFrame) -> DataFrame:
    """The addresses as REFERENCE_OBJECTS, with their current sizes and checksums, but no times, since the mark has
    none."""
    from pyspark.sql import functions as F

    types = arrow_to_spark(REFERENCE_OBJECTS)
    listing = run.read(run.mark.dataset(namespace_slices.ASSET), STORED_OBJECTS)
    listed = listing.drop("modified").dropDuplicates(["address"])  # a page may be listed twice
    columns = {
        "slice": F.coalesce("slice", slice_column(F.col("address"))),
        "reason": F.lit(NOT_RECORDED),
    }
    listed_columns = ("address", "size", "checksum")
    return addresses.join(listed, "address", "left").select(
        *(
            F.col(name)
            if name in listed_columns
            else columns.get(name, F.lit(None).cast(types[name].dataType)).alias(name)
            for name in REFERENCE_OBJECTS.names
        )
    )


def record_approval_used(place: Place, approval: Approval, *, who: str, now: datetime) -> None:
    """Record in an approval that the mark was swept, so that the approval is no longer valid."""
    replacing = read_untrusted_approval(place, approval.mark_id)
    ended = ApprovalEnd(how=SWEPT, who=who, when=now.isoformat())
    write_approval(place, replace(approval, ended=ended), replacing=replacing)
