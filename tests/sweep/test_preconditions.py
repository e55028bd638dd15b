"""A sweep begins or resumes only with an approval of this set, not with a record that merely claims to have one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lakegc_assets.sweep.preconditions import (
    approved_foreign_mark,
    refuse_changed_before_lease,
    refuse_resumption,
    refuse_unapproved,
)
from spark_resources.errors import Refused
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import MarkRecord, digest_of
from spark_resources.model import MarkState, Partition
from tests.approval.conftest import Lake, lake, sandbox
from tests.approval.test_foreign_marks import later, write_foreign_mark
from tests.support.foreign_sweeps import begin_foreign_sweep

__all__ = ["lake", "sandbox"]

DAY = timedelta(days=1)


def altered(lake: Lake, **changes: object) -> MarkRecord:
    """The record of the mark, overwritten with other valid content."""
    mark = Mark.open(lake.place, "m1")
    changed = replace(mark.record, **changes)  # type: ignore[arg-type]
    lake.place.store().write(mark.key, changed.to_json())
    return Mark.open(lake.place, "m1").record


def test_a_mark_set_to_sweeping_by_hand_is_refused(lake: Lake) -> None:
    """The state in the record doesn't replace an approval."""
    lake.add_mark()
    record = altered(lake, state=MarkState.SWEEPING)

    with pytest.raises(Refused, match="the approval of its sweep is missing"):
        refuse_unapproved(lake.target, record)


def test_a_sweep_resumes_only_with_the_approved_set(lake: Lake) -> None:
    """Another set is refused even if its record and files agree."""
    lake.add_mark()
    lake.approve()
    mark = Mark.open(lake.place, "m1")
    mark.move_to(MarkState.SWEEPING)
    refuse_unapproved(lake.target, mark.record)

    other = replace(mark.record, cutoff=mark.record.cutoff + DAY)
    record = altered(lake, cutoff=other.cutoff, digest=digest_of(other))
    with pytest.raises(Refused, match="for a different set"):
        refuse_unapproved(lake.target, record)


def test_a_sweep_that_a_sensor_restarted_is_refused_once_its_approval_has_expired(lake: Lake) -> None:
    """The run may have been queued for days. A person may still resume the sweep."""
    lake.add_mark()
    approval = lake.approve()
    Mark.open(lake.place, "m1").move_to(MarkState.SWEEPING)
    refuse_resumption(lake.target, lake.record(), max_age=7 * DAY)

    lake.sandbox.set_clock(approval.until)
    with pytest.raises(Refused, match="isn't resumed automatically: the approval expired"):
        refuse_resumption(lake.target, lake.record(), max_age=70 * DAY)
    refuse_unapproved(lake.target, lake.record())


def test_a_killed_sweep_can_be_resumed_after_its_approval_has_expired(lake: Lake) -> None:
    """The sweep has already used the approval."""
    lake.add_mark()
    approval = lake.approve(until=lake.now + timedelta(seconds=1))
    Mark.open(lake.place, "m1").move_to(MarkState.SWEEPING)
    lake.sandbox.set_clock(approval.until + DAY)
    try:
        refuse_unapproved(lake.target, lake.record())
    finally:
        lake.sandbox.set_clock(approval.when)


def test_a_mark_altered_between_verification_and_lease_is_refused(lake: Lake) -> None:
    """A sweep uses only the record that was verified before the lease was taken."""
    verified = lake.add_mark().record
    approved = replace(verified, state=MarkState.APPROVED)
    refuse_changed_before_lease(approved, verified)

    for changed in (
        replace(approved, state=MarkState.MARKED),
        replace(approved, steps={}),
        replace(
            approved, cutoff=verified.cutoff + DAY, digest=digest_of(replace(verified, cutoff=verified.cutoff + DAY))
        ),
    ):
        with pytest.raises(Refused):
            refuse_changed_before_lease(changed, verified)


def test_an_unfinished_sweep_of_a_foreign_mark_resumes_only_with_the_approved_set(lake: Lake) -> None:
    """The sweep's own records don't replace the approval."""
    write_foreign_mark(lake)
    lake.approve("t1", **later(lake))
    partition = Partition.of(lake.name, "t1")
    begin_foreign_sweep(lake, digest=lake.proposal("t1").digest)
    approved_foreign_mark(lake.target, partition)

    begin_foreign_sweep(lake, digest="0" * 64)
    with pytest.raises(Refused, match="a different set"):
        approved_foreign_mark(lake.target, partition)


def test_the_approval_of_a_foreign_mark_that_is_being_swept_cannot_be_revoked(lake: Lake) -> None:
    """The revocation is refused as too late, and isn't recorded."""
    write_foreign_mark(lake)
    lake.approve("t1", **later(lake))
    approval = lake.approval("t1")
    begin_foreign_sweep(lake, digest=lake.proposal("t1").digest)

    with pytest.raises(Refused, match="has been used: the mark's state is sweeping"):
        lake.revoke("t1")
    assert lake.approval("t1") == approval


def test_an_expired_approval_is_renewed_only_by_a_newer_one(lake: Lake) -> None:
    """Repeating the approval with its original time doesn't renew it."""
    lake.add_mark()
    approval = lake.approve(until=lake.now + timedelta(minutes=1))
    late = approval.until + timedelta(minutes=1)

    with pytest.raises(Refused, match="expired"):
        lake.approve(now=late, when=approval.when)
    assert lake.approval() == approval
    lake.approve(now=late, when=late)
    lake.verify(now=late)
