"""What may begin a sweep, or go on with one: a person's word for this very set, and nothing that merely says so."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lakegc_assets.sweeping.opening import approved_theirs, refuse_moved, refuse_unapproved
from spark_resources.errors import Refused
from spark_resources.marks import Mark, MarkRecord, digest_of
from spark_resources.model import MarkState, Partition
from tests.approval.conftest import Lake, lake, sandbox
from tests.approval.test_marks_of_the_reference import later, leave
from tests.sweep.theirs import begin_theirs

__all__ = ["lake", "sandbox"]

DAY = timedelta(days=1)


def altered(lake: Lake, **changes: object) -> MarkRecord:
    """The record of the mark after somebody wrote over it what a record may say."""
    mark = Mark.open(lake.place, "m1")
    changed = replace(mark.record, **changes)  # type: ignore[arg-type]
    lake.place.store().write(mark.key, changed.to_json())
    return Mark.open(lake.place, "m1").record


def test_a_mark_that_only_says_sweeping_is_swept(lake: Lake) -> None:
    """A record whose state was set to a sweep's by hand is no approval."""
    lake.marked()
    record = altered(lake, state=MarkState.SWEEPING)

    with pytest.raises(Refused, match="the approval that a sweep begins with isn't there"):
        refuse_unapproved(lake.target, record)


def test_a_begun_sweep_goes_on_with_another_set(lake: Lake) -> None:
    """A sweep goes on only with the set that its approval names, even where record and files agree with each other."""
    lake.marked()
    lake.approve()
    mark = Mark.open(lake.place, "m1")
    mark.move_to(MarkState.SWEEPING)
    refuse_unapproved(lake.target, mark.record)

    other = replace(mark.record, cutoff=mark.record.cutoff + DAY)
    record = altered(lake, cutoff=other.cutoff, digest=digest_of(other))
    with pytest.raises(Refused, match="for another set"):
        refuse_unapproved(lake.target, record)


def test_a_killed_sweep_ends_with_its_approval(lake: Lake) -> None:
    """A sweep that was begun goes on after the end of its approval, which it has used."""
    lake.marked()
    given = lake.approve(until=lake.now + timedelta(seconds=1))
    Mark.open(lake.place, "m1").move_to(MarkState.SWEEPING)
    lake.sandbox.set_clock(given.until + DAY)
    try:
        refuse_unapproved(lake.target, lake.record())
    finally:
        lake.sandbox.set_clock(given.when)


def test_a_mark_is_altered_between_its_proof_and_the_lease(lake: Lake) -> None:
    """The record that a sweep works by is the one that was verified, whatever is written until the lease is taken."""
    verified = lake.marked().record
    approved = replace(verified, state=MarkState.APPROVED)
    refuse_moved(approved, verified)

    for changed in (
        replace(approved, state=MarkState.MARKED),
        replace(approved, steps={}),
        replace(
            approved, cutoff=verified.cutoff + DAY, digest=digest_of(replace(verified, cutoff=verified.cutoff + DAY))
        ),
    ):
        with pytest.raises(Refused):
            refuse_moved(changed, verified)


def test_a_begun_sweep_of_a_reference_mark_is_of_another_set(lake: Lake) -> None:
    """What a sweep of the reference's mark wrote down about itself doesn't replace the approval."""
    leave(lake)
    lake.approve("t1", **later(lake))
    partition = Partition.of(lake.name, "t1")
    begin_theirs(lake, digest=lake.proposal("t1").digest)
    approved_theirs(lake.target, partition)

    begin_theirs(lake, digest="0" * 64)
    with pytest.raises(Refused, match="another set"):
        approved_theirs(lake.target, partition)


def test_an_approval_is_taken_back_from_a_sweep_at_work(lake: Lake) -> None:
    """Who revokes a reference's mark while it is swept is told that it is too late, and nothing is noted."""
    leave(lake)
    lake.approve("t1", **later(lake))
    given = lake.approval("t1")
    begin_theirs(lake, digest=lake.proposal("t1").digest)

    with pytest.raises(Refused, match="was used: it is sweeping"):
        lake.revoke("t1")
    assert lake.approval("t1") == given


def test_an_old_word_renews_an_approval_that_has_ended(lake: Lake) -> None:
    """An approval that has expired is renewed by a newer word only, never by what it was given by itself."""
    lake.marked()
    given = lake.approve(until=lake.now + timedelta(minutes=1))
    late = given.until + timedelta(minutes=1)

    with pytest.raises(Refused, match="ended"):
        lake.approve(now=late, when=given.when)
    assert lake.approval() == given
    lake.approve(now=late, when=late)
    lake.verify(now=late)
