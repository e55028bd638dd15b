"""Dates before 1970, after 2100, of zero, on a leap day, and when the clocks change. None of them causes the deletion
of a live or young object."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from lakegc_assets.queries.addresses import old_enough_at
from lakegc_assets.rules import garbage
from lakegc_assets.rules.delete_check import check_before_delete, how_changed
from lakegc_assets.rules.retention import commit_verdicts
from lakegc_assets.schedules.marks import is_due
from spark_resources.errors import WrongUsage
from spark_resources.model import ADDRESSES, PENDING, STORED_OBJECTS, Commit, Namespace, Rules
from spark_resources.stores import StoreSettings, open_store
from spark_resources.stores.local.files import modified_at

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
NOW = datetime(2028, 3, 1, 12, tzinfo=UTC)  # the day after a leap day
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
EPOCH, DOS_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1980, 1, 1, tzinfo=UTC)


def status_of(modified: datetime, *, cutoff: datetime = NOW - DAY) -> str:
    """The reference status of an object with this time that nothing refers to."""
    row = {"address": "data/s/a", "size": 1, "modified": modified, "checksum": None, "slice": "data/s/"}
    nothing = ADDRESSES.empty_table()
    rows = {
        garbage.STORED: pa.Table.from_pylist([row], schema=STORED_OBJECTS),
        **dict.fromkeys((garbage.COMMITTED, garbage.MAYBE_GONE, garbage.UNCOMMITTED), nothing),
    }
    statuses, _ = garbage.reference_status(rows, cutoff, SECOND)
    return str(statuses["status"][0].as_py())


@pytest.mark.parametrize("zero", [FIRST, EPOCH - SECOND, EPOCH, EPOCH + SECOND, DOS_EPOCH])
def test_an_object_whose_time_is_a_zero_value_is_kept(zero: datetime) -> None:
    """A store or tool that doesn't know the time writes zero. The object may be an upload that isn't linked yet."""
    assert status_of(zero) == garbage.Status.YOUNG_OR_UNCOMMITTED


@pytest.mark.parametrize("future", [NOW, datetime(2101, 1, 1, tzinfo=UTC), LAST])
def test_an_object_dated_in_the_future_is_kept(future: datetime) -> None:
    assert status_of(future) == garbage.Status.YOUNG_OR_UNCOMMITTED


def test_an_object_of_exactly_the_minimum_age_is_old_enough_even_across_a_leap_day() -> None:
    """Ages are spans of 24 hours, not calendar days."""
    cutoff = NOW - DAY - SECOND

    assert status_of(cutoff, cutoff=NOW - DAY) == garbage.Status.UNREFERENCED
    assert status_of(cutoff + SECOND, cutoff=NOW - DAY) == garbage.Status.YOUNG_OR_UNCOMMITTED
    assert status_of(garbage.EARLIEST_TIME) == garbage.Status.UNREFERENCED


@pytest.mark.parametrize("now", [EPOCH, FIRST, LAST])
def test_an_object_of_a_mark_without_times_is_not_deleted_if_its_time_is_zero_or_in_the_future(now: datetime) -> None:
    """The reference collector's marks have no times."""
    key: dict[str, Any] = {"address": "data/s/a", "size": 1, "checksum": None}
    marked = pa.Table.from_pylist([key | {"modified": None, "slice": "data/s/", "intended": False}], schema=PENDING)
    found = pa.Table.from_pylist([key | {"modified": now}], schema=PENDING.remove(5).remove(4))

    check = check_before_delete(marked, found, cutoff=NOW - DAY)
    assert (len(check.changed), len(check.unchanged)) == (1, 0)


@pytest.mark.parametrize("zero", [FIRST, EPOCH, DOS_EPOCH])
def test_an_object_without_a_time_is_not_deleted_or_copied_even_if_a_mark_of_an_earlier_version_expired_it(
    zero: datetime,
) -> None:
    """Earlier versions considered such an object old."""
    row: dict[str, Any] = {"address": "data/s/a", "size": 1, "modified": zero, "checksum": None}
    marked = pa.Table.from_pylist([row | {"slice": "data/s/", "intended": False}], schema=PENDING)
    found = pa.Table.from_pylist([row], schema=PENDING.remove(5).remove(4))

    check = check_before_delete(marked, found, cutoff=NOW - DAY)
    assert (len(check.changed), len(check.unchanged)) == (1, 0)
    assert how_changed(marked, found, cutoff=None) == [
        f"its modification time, {zero.replace(tzinfo=None)} UTC, is a zero value, so it may be young"
    ]


@pytest.mark.parametrize("modified", [FIRST, EPOCH, DOS_EPOCH, LAST - DAY + SECOND, LAST])
def test_no_time_is_given_at_which_an_object_without_a_plausible_time_is_old_enough(modified: datetime) -> None:
    """Otherwise, `lakegc explain` would name a day in 1970, or fail."""
    times = pa.chunked_array([pa.array([modified, NOW], STORED_OBJECTS.field("modified").type)])
    assert old_enough_at(times, DAY).to_pylist() == [None, NOW + DAY]


@pytest.mark.parametrize("seconds", [10**12, -(10**12), 2**63 // 10**9])
def test_a_files_time_beyond_what_a_date_can_hold_counts_as_the_latest_date(seconds: int) -> None:
    """Otherwise, one such file would stop every listing."""
    status = cast(os.stat_result, SimpleNamespace(st_mtime_ns=seconds * 10**9))

    assert status_of(modified_at(status)) == garbage.Status.YOUNG_OR_UNCOMMITTED


@pytest.mark.parametrize("seconds", [-1, 0, 4_200_000_000, 10**11])
def test_files_dated_before_1970_or_after_2100_are_listed(tmp_path: Path, seconds: int) -> None:
    (tmp_path / "lake").mkdir()
    store = open_store(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))
    store.write("data/a", b"x")
    os.utime(tmp_path / "lake" / "data" / "a", (seconds, seconds))

    [listed] = [stored for page in store.pages("data/") for stored in page.objects]
    assert status_of(listed.modified) == garbage.Status.YOUNG_OR_UNCOMMITTED or seconds > 0
    assert store.stat("data/a") == listed


# --- commits --------------------------------------------------------------------------------------------------------


def retained(commits: list[Commit], rules: Rules, *, now: datetime = NOW) -> set[str]:
    """The ids of the retained commits, of which the last one is the head of main."""
    verdicts = commit_verdicts(commits, {"main": commits[-1].id}, rules, now=now)
    return {verdict.commit_id for verdict in verdicts if verdict.retained}


@pytest.mark.parametrize("created", [FIRST, EPOCH - SECOND, EPOCH, datetime(2101, 1, 1, tzinfo=UTC), LAST])
@pytest.mark.parametrize("days", [0, 7, 10**12])
def test_a_head_is_always_retained_and_its_parent_as_long_as_the_rule_says(created: datetime, days: int) -> None:
    """A commit retains its parent for `days` after its own date, which may lie in the future."""
    commits = [Commit("parent", (), FIRST, "m1"), Commit("head", ("parent",), created, "m2")]
    parent_is_retained = created > NOW or days == 10**12

    assert retained(commits, Rules(days)) == ({"parent", "head"} if parent_is_retained else {"head"})


def test_the_days_of_a_rule_have_24_hours_even_across_a_leap_day() -> None:
    """From February 28, 2028, a day ends on the 29th, and two days on March 1."""
    child = datetime(2028, 2, 28, 12, tzinfo=UTC)
    commits = [Commit("parent", (), child - DAY, "m1"), Commit("head", ("parent",), child, "m2")]

    assert retained(commits, Rules(1), now=child + DAY) == {"parent", "head"}
    assert retained(commits, Rules(1), now=child + DAY + SECOND) == {"head"}
    assert retained(commits, Rules(2), now=datetime(2028, 3, 1, 12, tzinfo=UTC)) == {"parent", "head"}
    assert retained(commits, Rules(2), now=datetime(2028, 3, 1, 12, 0, 1, tzinfo=UTC)) == {"head"}


# --- schedules ------------------------------------------------------------------------------------------------------


def every_minute(start: datetime, hours: int) -> Iterator[datetime]:
    return (start + timedelta(minutes=minute) for minute in range(60 * hours))


@pytest.mark.parametrize("day", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)])
def test_a_repository_is_due_once_on_a_day_on_which_clocks_change(
    day: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cron schedules are in UTC, so no night has an hour twice or lacks one, whatever time zone the time of a tick is
    given in."""
    monkeypatch.setenv("LAKEGC_MARK_CRON", "30 1 * * *")
    minutes = [
        minute for minute in every_minute(day, 4) if is_due("lake", minute.astimezone(ZoneInfo("Europe/Berlin")))
    ]

    assert minutes == [day + timedelta(hours=1, minutes=30)]


def test_a_cron_for_february_29_is_due_only_in_leap_years(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for February 30 is refused."""
    monkeypatch.setenv("LAKEGC_MARK_CRON", "0 3 29 2 *")
    assert is_due("lake", datetime(2028, 2, 29, 3, tzinfo=UTC))
    assert not is_due("lake", datetime(2027, 3, 1, 3, tzinfo=UTC))

    monkeypatch.setenv("LAKEGC_MARK_CRON", "0 3 30 2 *")
    with pytest.raises(WrongUsage, match="expected a cron schedule"):
        is_due("lake", datetime(2028, 3, 1, 3, tzinfo=UTC))
