"""When a failed sweep may be restarted without a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from lakegc_assets.rules.resumption import UNFINISHED_SWEEPS, why_not_resumed
from spark_resources.mark_store.approval import Approval
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import MarkState
from tests.support.finished_marks import START, finished_record

WEEK = timedelta(days=7)
FINISHED = START + timedelta(minutes=9)


def approved(**changes: Any) -> tuple[MarkRecord, Approval]:
    """A mark with its approval, which expires after ten days."""
    record = finished_record()
    fields = {"until": FINISHED + timedelta(days=10), **changes}
    approval = Approval("m1", None, str(record.digest), "Ada", "a test", FINISHED, **fields)
    return replace(record, state=MarkState.SWEEPING, approval=approval.sha256), approval


def why(
    record: MarkRecord, approval: Approval | None, *, now: datetime, outcomes: Mapping[str, int] | None = None
) -> str:
    return why_not_resumed(record, approval, outcomes, max_age=WEEK, now=now) or ""


@pytest.mark.parametrize("state", list(MarkState))
def test_only_unfinished_sweeps_are_resumed(state: MarkState) -> None:
    record, approval = approved()
    unfinished = why(replace(record, state=state), approval, now=FINISHED, outcomes={"failed": 1}) == ""
    assert unfinished == (state in UNFINISHED_SWEEPS)


def test_a_sweep_is_resumed_until_its_mark_is_too_old() -> None:
    """As for an approval, an age of exactly the limit is still allowed."""
    record, approval = approved()
    assert why(record, approval, now=FINISHED + WEEK) == ""
    assert "too old" in why(record, approval, now=FINISHED + WEEK + timedelta(seconds=1))


def test_if_an_approval_released_the_age_brake_a_sweep_is_resumed_until_the_approval_expires() -> None:
    record, approval = approved(released={"age": "it is fine"})
    end = approval.until
    assert why(record, approval, now=end - timedelta(seconds=1)) == ""
    assert "the approval expired at" in why(record, approval, now=end)


def test_a_mark_from_an_inventory_ages_from_the_time_of_the_inventory() -> None:
    record, approval = approved()
    older = replace(record, inventory={"where": "s3://inventory"}, start=FINISHED - timedelta(days=1))
    assert "too old" in why(older, approval, now=FINISHED + WEEK)


def test_a_sweep_with_a_missing_or_different_approval_or_set_is_never_resumed() -> None:
    record, approval = approved()
    for altered in (None, replace(approval, who="Eve"), replace(approval, digest="0" * 64)):
        assert "missing, or was altered" in why(record, altered, now=FINISHED)
    assert "missing, or was altered" in why(replace(record, digest="0" * 64), approval, now=FINISHED)


@pytest.mark.parametrize("outcomes", [None, {}, {"failed": 0, "deleted": 3}])
def test_a_finished_sweep_without_failed_objects_is_not_repeated(outcomes: Mapping[str, int] | None) -> None:
    """Objects that became live after they were deleted need a person; another sweep would not help."""
    record, approval = approved()
    ended = replace(record, state=MarkState.SWEPT_WITH_FAILURES)
    assert "no object failed" in why(ended, approval, now=FINISHED, outcomes=outcomes)
    assert why(ended, approval, now=FINISHED, outcomes={"failed": 1}) == ""
