"""The output of `lakegc status`: every mark with its true state, and every repository that couldn't be read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_resources.mark_store.lease import LEASE_KEY, LEASE_TIME, Holder
from spark_resources.mark_store.mark import Mark, mark_folder
from spark_resources.model import MarkState
from tests.commands.conftest import Marked
from tests.commands.test_marks import check_terminal_safe
from tests.support.command_line import Lakegc

UNIFIED = "_lakefs/retention/gc/unified"


def states(lakegc: Lakegc, settings: dict[str, str], *repository: str) -> dict[str, dict[str, Any]]:
    """The marks in the JSON form, by repository and id."""
    document = json.loads(lakegc(settings, "status", *repository, "--format", "json").out)
    return {f"{row['repository']} {row['mark_id']}": row for row in document["marks"]}


@pytest.fixture
def written(still: Marked) -> Iterator[list[Path]]:
    """Folders that a test made in the namespace; they are removed afterwards."""
    files: list[Path] = []
    yield files
    for folder in files:
        shutil.rmtree(folder)


def another(still: Marked, written: list[Path], mark_id: str, **changes: Any) -> None:
    """Write a record like that of the finished mark, with these changes."""
    folder = still.folder / mark_folder(mark_id)
    folder.mkdir()
    written.append(folder)
    record = replace(Mark.open(still.place, "m1").record, mark_id=mark_id, **changes)
    (folder / "mark.json").write_bytes(record.to_json())


def reference(still: Marked, written: list[Path], mark_id: str) -> Path:
    """A mark as the reference collector leaves it, without its summary."""
    folder = still.folder / UNIFIED / mark_id
    (folder / "deleted").mkdir(parents=True)
    written.append(folder)
    (folder / "deleted" / "part-0.parquet").touch()
    return folder


def test_status_shows_a_row_for_each_repository_or_the_marks_of_the_given_one(
    hostile: Marked, still: Marked, pond: str, lakegc: Lakegc
) -> None:
    """The JSON for scripts has all marks in both cases."""
    every = states(lakegc, still.settings)
    of_all, of_one = (lakegc(still.settings, "status", *which).out for which in ((), ("still",)))

    assert {"hostile m1", "still m1"} <= set(every)
    assert set(states(lakegc, still.settings, "still")) == {"still m1"}
    assert (every["still m1"]["state"], every["still m1"]["expired"], every["still m1"]["expired_bytes"]) == (
        "marked", 0, 0
    )  # fmt: skip
    assert all(name in of_all for name in ("Repositories", "hostile", "still", "m1", "marked"))
    assert "Marks of still" in of_one
    assert "hostile" not in of_one


def test_the_overview_says_what_each_repository_is_waiting_for(
    hostile: Marked, still: Marked, pond: str, lakegc: Lakegc
) -> None:
    """The command is the one that the repository needs next. Repositories without marks are also in the table."""
    settings = {**still.settings, "owners": "data-platform"}
    output = lakegc(settings, "status").out
    document = json.loads(lakegc(settings, "status", "--format", "json").out)
    rows = {row["repository"]: row for row in document["repositories"]}
    # other tests may have repositories here, too; what was swept isn't expired any more
    total = sum(row["expired"] or 0 for row in rows.values() if not (row["state"] or "").startswith("swept"))

    assert rows["hostile"]["waits_for"].startswith("approval")
    assert rows["hostile"]["next"] == "lakegc review hostile m1"
    assert f"hostile is waiting for {rows['hostile']['waits_for']} by data-platform: lakegc review hostile m1" in output
    assert (rows["still"]["expired"], rows["still"]["waits_for"], rows["still"]["next"]) == (0, "", "")
    assert (rows[pond]["mark_id"], rows[pond]["waits_for"], rows[pond]["next"]) == (
        None, "its first mark", f"lakegc mark {pond}",
    )  # fmt: skip
    assert rows["hostile"]["expired"] > 0
    assert document["totals"]["expired"] == total
    assert f"{total:,} objects" in output


def test_the_overview_lists_the_newest_mark_first(hostile: Marked, still: Marked, lakegc: Lakegc) -> None:
    """Repositories without marks come last."""
    rows = json.loads(lakegc(still.settings, "status", "--format", "json").out)["repositories"]
    made = [row["made"] for row in rows]

    assert [time for time in made if time] == sorted([time for time in made if time], reverse=True)
    assert made == sorted(made, key=lambda time: time is None)


def test_the_marks_of_a_repository_are_listed_newest_first(still: Marked, lakegc: Lakegc, written: list[Path]) -> None:
    """Ids don't have to sort by time."""
    start = Mark.open(still.place, "m1").record.start
    another(still, written, "a-newer", start=start + timedelta(days=1))
    another(still, written, "z-older", start=start - timedelta(days=1))

    output = lakegc(still.settings, "status", "still").out

    assert output.index("a-newer") < output.index("m1") < output.index("z-older")


def test_status_names_the_command_that_makes_a_mark_if_there_are_none(
    pond: str, hostile: Marked, lakegc: Lakegc
) -> None:
    """An empty list would leave people without a hint."""
    assert lakegc(hostile.settings, "status", pond).out == f"There are no marks yet. To make one: lakegc mark {pond}\n"
    assert states(lakegc, hostile.settings, pond) == {}


def test_status_shows_stopped_and_interrupted_marks_as_failed(
    still: Marked, lakegc: Lakegc, written: list[Path]
) -> None:
    """A mark whose run holds the lease is shown as marking."""
    unfinished: dict[str, Any] = {"finished": None, "digest": None, "counts": {}}
    another(still, written, "broke", state=MarkState.FAILED, failure="the store was away", **unfinished)
    another(still, written, "killed", state=MarkState.MARKING, **unfinished)
    another(still, written, "at-work", state=MarkState.MARKING, **unfinished)
    store = still.place.store()
    before = store.read(LEASE_KEY)
    store.write(LEASE_KEY, Holder("someone", "at-work", "t", store.now() + LEASE_TIME).to_json())
    try:
        by_mark = states(lakegc, still.settings, "still")
    finally:
        store.write(LEASE_KEY, before)

    assert {name: row["state"] for name, row in by_mark.items()} == {
        "still m1": "marked",
        "still broke": "failed",
        "still killed": "failed (interrupted)",
        "still at-work": "marking",
    }
    assert [by_mark[f"still {name}"]["expired"] for name in ("broke", "killed", "at-work")] == [None] * 3


def test_foreign_marks_are_listed_beside_lakegcs_own(still: Marked, lakegc: Lakegc, written: list[Path]) -> None:
    """lakegc's own aren't listed again as foreign."""
    finished = reference(still, written, "theirs")
    (finished / "summary.json").write_text('{"success":true,"num_deleted_objects":7}')
    reference(still, written, "stopped")

    by_mark = states(lakegc, still.settings, "still")

    assert set(by_mark) == {"still m1", "still theirs", "still stopped"}
    assert (by_mark["still theirs"]["state"], by_mark["still theirs"]["expired"]) == ("marked", 7)
    assert "marked" not in by_mark["still stopped"]["state"]
    assert all("reference" in by_mark[f"still {name}"]["by"] for name in ("theirs", "stopped"))


def test_ids_and_names_chosen_by_others_are_escaped(still: Marked, lakegc: Lakegc, written: list[Path]) -> None:
    """The id of a folder or the name of a mark's maker could move the cursor or be read as markup."""
    reference(still, written, "\x1b[31m[bold]x")
    another(still, written, "odd", by="[/nobody]\x1b]0;title\x07")

    output = lakegc(still.settings, "status", "still").out

    check_terminal_safe(output)
    assert "\\x1b[31m[bold]x" in output
    assert "[/nobody]\\x1b]0;title\\x07" in output


def test_a_repository_that_cannot_be_read_is_shown_beside_the_others(
    hostile: Marked, still: Marked, lakegc: Lakegc
) -> None:
    """The reason is shown. If only this repository is requested, the command fails."""
    folder = still.folder / mark_folder("damaged")
    folder.mkdir()
    (folder / "mark.json").write_bytes(b"\x1b[2J")
    try:
        outcome = lakegc(still.settings, "status")
        document = json.loads(lakegc(still.settings, "status", "--format", "json").out)
        alone = lakegc(still.settings, "status", "still")
    finally:
        shutil.rmtree(folder)

    check_terminal_safe(outcome.out)
    listed = {row["repository"] for row in document["marks"]}
    assert (outcome.code, listed & {"hostile", "still"}) == (0, {"hostile"})
    assert "still: " in outcome.out
    assert "1 unreadable" in outcome.out
    assert "damaged/mark.json is not a valid mark record" in document["unreadable"]["still"]
    alone.stopped(3, "damaged/mark.json is not a valid mark record")


def test_the_status_of_an_unknown_repository_is_refused(still: Marked, lakegc: Lakegc) -> None:
    """An unknown repository is not shown as one without marks."""
    lakegc(still.settings, "status", "nowhere").stopped(1, "nowhere")


def test_status_shows_times_by_the_stores_clock_and_in_utc(still: Marked, lakegc: Lakegc) -> None:
    """The terminal's own time zone doesn't matter."""
    record = Mark.open(still.place, "m1").record

    assert states(lakegc, still.settings, "still")["still m1"]["made"] == f"{record.start:%Y-%m-%d %H:%M:%S}"
    assert record.start.utcoffset() == timedelta(0)
