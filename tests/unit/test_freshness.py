"""When a repository's next mark and sweep are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakegc_assets.rules.freshness import mark_is_due_by, sweep_is_due_by

NEWEST = datetime(2026, 11, 21, 3, 20, tzinfo=UTC)  # a Saturday


@pytest.mark.parametrize(
    ("cron", "due"),
    [
        ("0 3 * * *", datetime(2026, 11, 23, 3, tzinfo=UTC)),
        ("0 3 * * SAT", datetime(2026, 12, 5, 3, tzinfo=UTC)),
        ("*/10 * * * *", datetime(2026, 11, 21, 3, 40, tzinfo=UTC)),
    ],
)
def test_a_mark_is_overdue_after_two_missed_times_of_its_schedule(cron: str, due: datetime) -> None:
    """One missed time is tolerated: the mark may be running, or its repository was busy."""
    assert mark_is_due_by(NEWEST, cron, None) == due


def test_a_configured_age_replaces_the_schedule() -> None:
    assert mark_is_due_by(NEWEST, "0 3 * * SAT", timedelta(days=2)) == NEWEST + timedelta(days=2)


def test_a_sweep_is_due_only_while_objects_are_expired() -> None:
    """The time counts from the last sweep or, before the first sweep, from the oldest mark."""
    month = timedelta(days=30)
    oldest_mark = NEWEST - timedelta(days=100)

    assert sweep_is_due_by(NEWEST, oldest_mark, 1, month) == NEWEST + month
    assert sweep_is_due_by(None, oldest_mark, 1, month) == oldest_mark + month
    assert sweep_is_due_by(None, oldest_mark, 0, month) is None
