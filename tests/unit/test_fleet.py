"""What each repository in the overview is waiting for, and its latest problem."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.rules.brakes import BrakeLimits
from lakegc_assets.rules.fleet import INTERRUPTED, SeenMark, newest_problem, next_step
from spark_resources.mark_store.history import FinishedSweep
from spark_resources.model import MarkState
from spark_resources.settings import Settings
from tests.support.finished_marks import COUNTS, START, finished_record

LIMITS = BrakeLimits.of(Settings())
NOW = START + timedelta(hours=1)
UNFINISHED: dict[str, Any] = {"finished": None, "digest": None, "counts": {}}


def seen(mark_id: str = "m1", state: str = "marked", *, is_running: bool = False, **changes: Any) -> SeenMark:
    return SeenMark(finished_record(mark_id, **changes), state, is_running)


@pytest.mark.parametrize(
    ("marks", "waits_for", "command"),
    [
        ([], "its first mark", "mark lake"),
        ([seen()], "approval", "review lake m1"),
        ([seen(state="not approved")], "approval", "review lake m1"),
        ([seen(state="approval expired")], "approval", "review lake m1"),
        (
            [seen(counts={**COUNTS, "expired": 90_000})],
            "approval and the release of the brake 'share'",
            "review lake m1",
        ),
        ([seen(counts={**COUNTS, "expired": 0})], "", ""),
        ([seen(state="approved")], "the sweep of mark m1", "sweep lake m1"),
        ([seen(state="sweeping")], "the interrupted sweep of mark m1", "sweep lake m1"),
        (
            [seen(state="sweeping", quarantine=True)],
            "the interrupted sweep of mark m1",
            "sweep lake m1 --quarantine",
        ),
        ([seen("m2"), seen("m1", "sweeping")], "the interrupted sweep of mark m1", "sweep lake m1"),
        ([seen("m2"), seen("m1", "approved")], "the sweep of mark m1", "sweep lake m1"),
        ([seen(state="sweeping", is_running=True)], "its run to end", "status lake"),
        ([seen(state="swept")], "", ""),
        ([seen(state="swept with failures")], "a retry of its sweep", "report lake m1"),
        ([seen("m2"), seen("m1", "swept with failures")], "approval", "review lake m2"),
        ([seen("m2", "failed", **UNFINISHED), seen("m1")], "approval", "review lake m1"),
        ([seen("m2", "failed", **UNFINISHED)], "a mark", "mark lake"),
        ([seen(format=1)], "a new mark: an earlier version made the newest", "mark lake"),
    ],
)
def test_the_overview_shows_at_most_one_next_step_with_one_command_for_a_repository(
    marks: list[SeenMark], waits_for: str, command: str
) -> None:
    """Runs come first, then whatever was begun or approved, then the newest finished mark."""
    step = next_step("lake", marks, LIMITS, now=NOW)

    assert (step.waits_for, " ".join(step.command)) == (waits_for, command)
    assert step.needs_person == (bool(waits_for) and waits_for != "its run to end")


def test_a_repository_whose_mark_is_too_old_to_be_swept_waits_for_a_new_mark() -> None:
    """The overview doesn't ask for an approval of the old mark, which would be refused."""
    newest = seen()
    assert newest.record.finished is not None

    at_the_limit, later = (
        next_step("lake", [newest], LIMITS, now=newest.record.finished + LIMITS.age + more)
        for more in (timedelta(0), timedelta(seconds=1))
    )

    assert at_the_limit.command == ("review", "lake", "m1")
    assert (later.waits_for, later.command) == ("a new mark: the newest is too old", ("mark", "lake"))


def test_a_failed_mark_is_a_problem_until_a_later_one_finishes() -> None:
    """The overview shows the reason of the failure. An interrupted run has no other reason."""
    failed = SeenMark(replace(seen(**UNFINISHED).record, failure="the store was away"), MarkState.FAILED.value)
    interrupted = seen("m3", INTERRUPTED, **UNFINISHED)

    assert newest_problem([failed, seen("m0")], None) == "mark m1 failed: the store was away"
    assert newest_problem([interrupted], None) == "mark m3 failed: its run was interrupted"
    assert newest_problem([seen("m2"), failed], None) == ""


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        ({}, ""),
        ({"failed": 2}, "the sweep of mark m1 failed to delete 2 objects"),
        ({"failed": 2, "late": 1}, "1 object became live while being deleted by the sweep of mark m1"),
    ],
)
def test_the_last_sweep_is_a_problem_if_deletes_failed_or_deleted_objects_became_live(
    counts: dict[str, int], problem: str
) -> None:
    """If both happened, only the objects that became live are reported, because they are the greater problem."""
    assert newest_problem([seen()], FinishedSweep("m1", NOW, 3, 30, **counts)) == problem
