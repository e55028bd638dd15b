"""The rounds of a sweep: their numbers, timely re-verifications, and the commands that resume."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from lakegc_assets.cli.sweep_report import show_report
from lakegc_assets.sweep import undo as undoing
from lakegc_assets.sweep.context import SweepLimits, SweepRun
from lakegc_assets.sweep.delete_rounds import Tally, expiry_time, no_progress_error
from lakegc_assets.sweep.report import Report
from spark_resources.errors import Refused
from spark_resources.model import PENDING
from spark_resources.spark.arrow_shuffle import Grouped
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Tasks
from tests.approval.conftest import Lake, lake, sandbox

__all__ = ["lake", "sandbox"]

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def run_of(lake: Lake, **more: Any) -> SweepRun:
    """A run without a lease and without Spark."""
    known: dict[str, Any] = dict.fromkeys(("partition", "lakefs", "spark", "limits", "lease", "by", "log_message"))
    mark = SimpleNamespace(record=SimpleNamespace(mark_id="m1", repository=lake.name))
    return SweepRun(**{**known, "target": lake.target, "mark": mark, "partition": mark.record, **more})


def test_a_new_round_gets_a_higher_number_than_any_earlier_round_with_files(lake: Lake) -> None:
    """Files of other programs in the folder don't matter."""
    run, store = run_of(lake), lake.place.store()
    assert run.next_number() == 1
    for name in (
        "verifications/0001/mark.json",
        "receipts/0003/x",
        "undone/0002/x",
        "receipts/strange/x",
        "verifications/-7/x",
    ):
        store.write(f"_lakefs/retention/gc/lakegc/m1/{name}", b"")

    assert run.next_number() == 4


def test_the_error_about_a_re_verification_that_takes_too_long_names_the_setting(lake: Lake) -> None:
    """The re-verification took longer than its maximum age, so no delete could rely on it."""
    run = run_of(lake, limits=SweepLimits(SimpleNamespace(), timedelta(minutes=30)))  # type: ignore[arg-type]
    verification: Any = SimpleNamespace(started_at=lake.now - timedelta(minutes=10))

    assert expiry_time(run, verification) == verification.started_at + timedelta(minutes=30)
    verification.started_at -= timedelta(minutes=21)
    with pytest.raises(Refused, match="LAKEGC_VERIFICATION_AGE") as refused:
        expiry_time(run, verification)
    assert refused.value.invariant == 1


def test_the_error_about_a_round_that_outlasts_its_re_verification_names_the_setting_to_raise(lake: Lake) -> None:
    """If `verification_age` is too short, no delete is ever sent."""
    run = run_of(lake, limits=SweepLimits(SimpleNamespace(), timedelta(seconds=5)))  # type: ignore[arg-type]

    late, early = (no_progress_error(run, 1, lake.now + timedelta(seconds=by)) for by in (-2, 60))

    assert isinstance(late, Refused)
    assert "it is valid for only 5 seconds" in str(late)
    assert "LAKEGC_VERIFICATION_AGE" in str(late)
    assert "a whole round over 1 pending object" in str(early)
    assert "clocks" in str(early)


def rows(objects: int) -> Grouped:
    """A table with this many rows. Only its length matters."""
    return Grouped(Tasks(lambda: cast(SparkSession, None), PENDING, ()), objects, TaskReport())


def test_undo_repeats_rounds_until_nothing_is_left(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round may leave keys without an outcome."""
    rounds = iter([rows(3), rows(1), rows(0)])
    monkeypatch.setattr(undoing, "withdraw_reference_summary", lambda *_: False)
    monkeypatch.setattr(undoing, "quarantined_objects", lambda *_: next(rounds))
    monkeypatch.setattr(undoing, "write_quarantine_counts", lambda run: None)
    settled = iter([2, 1])
    monkeypatch.setattr(undoing, "run_round", lambda *_: Tally(objects={"restored": next(settled)}))  # type: ignore[arg-type]

    assert undoing.undo(run_of(lake)).objects == {"restored": 3}
    assert list(rounds) == []


def report(**changes: Any) -> Report:
    known: dict[str, Any] = {
        "mark_id": "m1",
        "repository": "lake",
        "digest": "d",
        "by": "Ada",
        "began": NOON,
        "ended": NOON,
        "approved": 3,
        "objects": {"quarantined": 2, "failed": 1},
        "sizes": {},
        "seconds": 1.0,
        "requests": 1,
        "attempts": 3,
        "verifications": (NOON,),
        "late": (),
        "late_objects": 0,
    }
    return Report(**{**known, **changes})


def test_the_printed_command_that_retries_a_quarantine_includes_the_option_quarantine() -> None:
    """Without the option, the command would delete for good the objects that failed to be quarantined."""
    assert "lakegc sweep lake m1 --quarantine" in report(quarantine=True).sentence()
    assert report().sentence().endswith("lakegc sweep lake m1")


def test_a_report_is_read_back_as_written_and_says_whether_the_sweep_succeeded() -> None:
    """A sweep succeeded if every approved object has an outcome and none failed."""
    written = report(quarantine=True, late=("data/s/a",), late_objects=1)

    assert Report.from_json(written.to_json(), "here") == written
    assert (written.success, report(objects={"deleted": 2}).success, report(objects={"deleted": 3}).success) == (
        False,
        False,
        True,
    )


def test_a_resumed_sweep_reports_the_rate_of_its_last_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The work of earlier runs is shown separately."""
    show_report(report(objects={"deleted": 50_000}, approved=50_000, taken=10, attempts=12, seconds=2.0), as_json=False)
    output = " ".join(capsys.readouterr().out.split())

    assert "5 objects/s" in output
    assert "49,990 objects were handled by earlier runs" in output


def test_a_resumed_sweep_of_an_earlier_version_reports_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """It counted objects that an interrupted run had deleted as if its last run had, so neither number is known."""
    show_report(report(objects={"deleted": 60}, approved=60, taken=59, attempts=0, requests=0), as_json=False)
    output = capsys.readouterr().out

    assert "Deleting took" not in output
    assert "earlier runs" not in output
