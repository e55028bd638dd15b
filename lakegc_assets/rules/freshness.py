"""Whether repositories are marked and swept often enough: pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cronsim import CronSim

MISSED_TIMES = 2
"""A repository is overdue after this many scheduled times without a mark."""


def mark_is_due_by(newest: datetime, cron: str, max_age: timedelta | None) -> datetime:
    """The time by which the next mark of a repository has to be finished, given the time of its newest one."""
    if max_age is not None:
        return newest + max_age
    times = CronSim(cron, newest.astimezone(UTC))
    return [next(times) for _ in range(MISSED_TIMES)][-1]


def sweep_is_due_by(
    newest_sweep: datetime | None, oldest_mark: datetime, expired_objects: int, max_age: timedelta
) -> datetime | None:
    """The time by which the next sweep of a repository has to be finished; None if nothing is expired. Before the first
    sweep, the time counts from the oldest known mark."""
    return (newest_sweep or oldest_mark) + max_age if expired_objects else None
