"""`lakegc report`, and what `status` and `review` show of a mark that was swept."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.cli.console import EscapingConsole
from lakegc_assets.cli.status import Row, as_table
from lakegc_assets.cli.sweep_report import next_commands
from lakegc_assets.sweep.metadata import sweep_result
from lakegc_assets.sweep.report import Report, read_report, report_key
from lakegc_assets.sweep.report_writer import ASSET
from spark_resources.mark_store.mark import Mark, mark_folder
from spark_resources.model import RECEIPTS, MarkState, Outcome
from spark_resources.records.json_records import record_bytes
from spark_resources.spark.datasets import write_rows
from tests.approval.conftest import Lake, lake, sandbox
from tests.support.command_line import Lakegc, dagster_home, lakegc
from tests.support.reviewable_marks import expired, reviewable, tables

__all__ = ["dagster_home", "lake", "lakegc", "sandbox"]

FREES = "a delete frees the space and can't be undone"


def swept(
    lake: Lake, outcomes: Mapping[str, tuple[Outcome, str]], mark_id: str = "m1", *, late: tuple[str, ...] = ()
) -> None:
    """Write a mark and the report of its sweep, as a sweep leaves them. Objects are one byte each. `outcomes` has the
    outcome of each address, and the reason for it."""
    lake.add_mark(list(outcomes), mark_id)
    at = lake.now
    rows = [
        {"address": address, "size": 1, "outcome": outcome.value, "code": "", "why": why, "attempts": 1, "at": at}
        for address, (outcome, why) in outcomes.items()
    ]
    mark = Mark.open(lake.place, mark_id)
    dataset = write_rows(lake.place, mark.folder(ASSET), rows, RECEIPTS)
    counts = {name: sum(row["outcome"] == name for row in rows) for name in {str(row["outcome"]) for row in rows}}
    failed = Outcome.FAILED.value in counts
    report = Report(
        mark_id=mark_id, repository=lake.name, digest=mark.record.digest or "", by="ada@here", began=at,
        ended=at + timedelta(seconds=len(list(lake.place.store().pages(mark_folder("m"))))), approved=len(rows),
        objects=counts, sizes=counts, seconds=2.0, requests=1, attempts=1, verifications=(at,), late=late,
        late_objects=len(late), quarantine=Outcome.QUARANTINED.value in counts,
        taken=counts.get("deleted", 0) + counts.get("quarantined", 0), deleting=FREES,
        dataset={"folder": dataset.folder, "sha256": dataset.sha256, "rows": dataset.rows, "bytes": dataset.size},
    )  # fmt: skip
    lake.place.store().write(report_key(mark_id), report.to_json())
    lake.approve(mark_id)
    for state in (MarkState.SWEEPING, MarkState.SWEPT_WITH_FAILURES if failed else MarkState.SWEPT):
        Mark.open(lake.place, mark_id).move_to(state)


MIXED = {
    "data/s/a": (Outcome.DELETED, ""),
    "data/s/b": (Outcome.RESCUED, "it is staged on a branch"),
    "data/s/c": (Outcome.FAILED, "the store said no"),
}


def test_a_report_shows_rescued_and_failed_objects_with_their_reasons(lake: Lake, lakegc: Lakegc) -> None:
    """Even after the terminal is closed, everyone can read what happened to each object, and where that is recorded."""
    swept(lake, {**MIXED, "data/s/d": (Outcome.ALREADY_GONE, "")}, late=("data/s/a",))
    output = lakegc.output(lake.sandbox.settings, "report", lake.name, "m1")
    document = json.loads(lakegc.output(lake.sandbox.settings, "report", lake.name, "latest", "--format", "json"))

    for words in (
        "it is staged on a branch", "rescued: data/s/b", "the store said no", "failed: data/s/c", "1 request.",
        "1 object became live while being deleted", "  data/s/a", f"{mark_folder('m1')}{ASSET}/",
        f"lakegc sweep {lake.name} m1", "Swept by ada@here", "already gone: data/s/d",
        f"What deleted an object that was already gone: lakegc explain {lake.name} data/s/d --address",
    ):  # fmt: skip
        assert words in output
    assert {(row["outcome"], row["reason"], row["objects"]) for row in document["reasons"]} == {
        ("rescued", "it is staged on a branch", 1), ("failed", "the store said no", 1),
        ("already gone", "it was gone before this sweep: ask 'explain' what deleted it", 1),
    }  # fmt: skip
    assert document["named"]["rescued"] == [
        {"address": "data/s/b", "size": 1, "code": "", "why": "it is staged on a branch"}
    ]
    assert (document["late"], document["where"].endswith(f"{ASSET}/")) == (["data/s/a"], True)


def test_the_outcome_of_every_object_is_listed_in_every_format(lake: Lake, lakegc: Lakegc) -> None:
    """The lists for scripts have all columns and exact keys; in the one for people, each object has one line."""
    swept(lake, {**MIXED, "data/s/two\nlines": (Outcome.ALREADY_GONE, "")})

    def listed(form: str) -> str:
        return lakegc.output(lake.sandbox.settings, "report", lake.name, "m1", "--list", "--format", form)

    as_json = json.loads(listed("json"))
    assert [{name: row[name] for name in ("address", "size", "outcome", "why")} for row in as_json] == [
        {"address": "data/s/a", "size": 1, "outcome": "deleted", "why": ""},
        {"address": "data/s/b", "size": 1, "outcome": "rescued", "why": "it is staged on a branch"},
        {"address": "data/s/c", "size": 1, "outcome": "failed", "why": "the store said no"},
        {"address": "data/s/two\nlines", "size": 1, "outcome": "already gone", "why": ""},
    ]
    assert [json.loads(line) for line in listed("jsonl").splitlines()] == as_json
    assert list(csv.DictReader(io.StringIO(listed("csv"), newline=""))) == [
        {name: str(value) for name, value in row.items()} for row in as_json
    ]
    assert [" ".join(line.split()) for line in listed("table").splitlines()] == [
        "deleted 1 B data/s/a",
        "rescued 1 B data/s/b (it is staged on a branch)",
        "failed 1 B data/s/c (the store said no)",
        r"already gone 1 B data/s/two\nlines",
    ]
    lakegc(lake.sandbox.settings, "report", lake.name, "m1", "--format", "csv").stopped(2, "add --list")


def test_a_report_of_a_mark_that_was_not_swept_is_refused_and_its_state_is_shown(lake: Lake, lakegc: Lakegc) -> None:
    """A sweep that was interrupted has to be resumed, with --quarantine if it did so before; a mark that was never
    swept has no report."""
    settings = lake.sandbox.settings
    lake.add_mark()
    lakegc(settings, "report", lake.name, "m1").stopped(2, "is marked and was not swept", f"review {lake.name} m1")
    lakegc(settings, "report", lake.name, "latest").stopped(1, "no mark", f"lakegc status {lake.name}")
    lakegc(settings, "report", lake.name, "m0").stopped(2, "was not swept", f"lakegc status {lake.name}")
    lake.approve()
    Mark.open(lake.place, "m1").begin_sweep(quarantine=False)
    lakegc(settings, "report", lake.name, "m1").stopped(2, "was interrupted", f"lakegc sweep {lake.name} m1\n")
    Mark.open(lake.place, "m1").begin_sweep(quarantine=True)
    lakegc(settings, "report", lake.name, "m1").stopped(2, f"lakegc sweep {lake.name} m1 --quarantine\n")
    Mark.open(lake.place, "m1").begin_sweep(quarantine=False)
    assert Mark.open(lake.place, "m1").record.quarantine


def test_the_command_that_retries_a_sweep_has_its_options(lake: Lake) -> None:
    """Otherwise, the retry of a sweep that quarantined would delete, and that of a slow one might not be slow."""
    swept(lake, {"data/s/a": (Outcome.FAILED, "busy"), "data/s/b": (Outcome.QUARANTINED, "")})
    report = read_report(lake.place, "m1")
    assert report is not None

    retry, *_ = next_commands(report, 1, rate=50.0)

    assert retry == ("Retry the failed objects", f"lakegc sweep {lake.name} m1 --quarantine --rate 50")


def test_a_review_of_a_swept_mark_says_that_it_was_swept(lake: Lake, lakegc: Lakegc) -> None:
    """The review lists what was approved, not what would be deleted."""
    reviewable(lake.place, tables([expired("data/s/a")]), repository=lake.name)
    Mark.open(lake.place, "m1").move_to(MarkState.APPROVED, approval="f" * 64)
    for state in (MarkState.SWEEPING, MarkState.SWEPT):
        Mark.open(lake.place, "m1").move_to(state)

    output = lakegc.output(lake.sandbox.settings, "review", lake.name, "m1")

    assert "This mark was swept. The set that was approved follows" in output
    assert f"lakegc report {lake.name} m1" in output


def test_a_report_says_that_a_quarantine_frees_no_space(lake: Lake, lakegc: Lakegc) -> None:
    """Quarantined objects still cost money, and can be brought back."""
    swept(lake, {"data/s/a": (Outcome.QUARANTINED, ""), "data/s/b": (Outcome.QUARANTINED, "")})

    output = lakegc.output(lake.sandbox.settings, "report", lake.name, "m1")

    assert FREES not in output
    assert "2 objects (2 B) in quarantine: purging the quarantine frees the space" in output
    assert "Quarantined objects now: 2 in quarantine." in output
    assert f"lakegc undo {lake.name} m1" in output


def test_the_ui_shows_how_to_undo_a_quarantine_and_claims_no_freed_space(lake: Lake) -> None:
    """People read `sweep_report` after a sweep, when they decide what happens to the objects."""
    swept(lake, {"data/s/a": (Outcome.QUARANTINED, "")})
    swept(lake, {"data/s/b": (Outcome.DELETED, "")}, "m2")
    quarantined, deleted = (shown_in_the_ui(lake, mark_id) for mark_id in ("m1", "m2"))

    assert "deleting" not in quarantined
    assert f"lakegc undo {lake.name} m1" in quarantined["quarantine"]
    assert (deleted["deleting"], "quarantine" in deleted) == (FREES, False)


def test_the_ui_names_objects_that_became_live_too_late(lake: Lake) -> None:
    """Readers miss these objects, so somebody has to restore them."""
    swept(lake, MIXED, late=("data/s/a",))
    metadata = shown_in_the_ui(lake, "m1")

    assert metadata["came_to_life_too_late"] == 1
    assert "| data/s/a |" in metadata["readers_miss"]
    assert "Not everything went well" in metadata["summary"]


def test_the_ui_names_a_command_for_each_question_after_a_sweep(lake: Lake) -> None:
    swept(lake, MIXED)
    metadata = shown_in_the_ui(lake, "m1")

    for command in ("explain", "pins", "rules", "what-if", "report"):
        assert f"`lakegc {command} {lake.name}" in metadata["questions"]


def shown_in_the_ui(lake: Lake, mark_id: str) -> dict[str, Any]:
    """The metadata of `sweep_report` for a mark's report, as plain values."""
    report = read_report(lake.place, mark_id)
    assert report is not None
    metadata = sweep_result(lake.place, report, None).metadata or {}
    return {name: getattr(value, "value", value) for name, value in metadata.items()}


IN_QUARANTINE = {f"data/s/{name}": (Outcome.QUARANTINED, "") for name in "abc"}


@pytest.mark.parametrize(
    ("outcomes", "since", "sentence"),
    [
        ({"data/s/a": (Outcome.DELETED, "")}, None, "deleted"),
        ({"data/s/a": (Outcome.RESCUED, "so")}, None, "nothing deleted"),
        (IN_QUARANTINE, None, "in quarantine"),
        (IN_QUARANTINE, {"restored": 3}, "undone"),
        (IN_QUARANTINE, {"purged": 3}, "purged"),
        (IN_QUARANTINE, {"restored": 1, "purged": 2}, "1 undone, 2 purged"),
        (IN_QUARANTINE, {"restored": 1, "failed": 2}, "2 in quarantine, 1 undone"),
    ],
)
def test_status_shows_the_outcome_of_a_sweep(
    lake: Lake, lakegc: Lakegc, outcomes: dict[str, tuple[Outcome, str]], since: dict[str, int] | None, sentence: str
) -> None:
    """The state `swept` alone doesn't tell whether objects are deleted, in quarantine, restored, or purged."""
    swept(lake, outcomes)
    if since is not None:
        note = record_bytes({"format": 1, "objects": since})
        lake.place.store().write(f"{mark_folder('m1')}quarantine.json", note)

    [row] = json.loads(lakegc.output(lake.sandbox.settings, "status", lake.name, "--format", "json"))["marks"]

    assert (row["state"], row["outcome"]) == ("swept", sentence)
    assert f"swept: {sentence}" in " ".join(lakegc.output(lake.sandbox.settings, "status", lake.name).split())


@pytest.mark.parametrize(
    ("since", "left"),
    [({}, "3 objects (3 B) in quarantine"), ({"restored": 1}, "2 objects in quarantine"), ({"purged": 3}, None)],
)
def test_a_report_offers_undo_and_purge_only_while_objects_are_in_quarantine(
    lake: Lake, lakegc: Lakegc, since: dict[str, int], left: str | None
) -> None:
    """After an undo or a purge, there is nothing left to restore or delete."""
    swept(lake, IN_QUARANTINE)
    lake.place.store().write(f"{mark_folder('m1')}quarantine.json", record_bytes({"format": 1, "objects": since}))

    output = lakegc.output(lake.sandbox.settings, "report", lake.name, "m1")

    assert (f"lakegc undo {lake.name} m1" in output, f"lakegc purge {lake.name} m1" in output) == (
        bool(left),
        bool(left),
    )
    assert (left or "") in output
    assert ("purging the quarantine frees the space" in output) == bool(left)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_status_shows_full_ids_on_a_terminal_of_any_width(width: int) -> None:
    """People copy the id of a mark from this table."""
    mark_id = "20261121T085000Z-with-a-long-name-of-its-own"
    row = Row(
        "a-repository", mark_id, "swept", "2026-11-21 08:50:00", 102_318, 2**40, "ada@a-host (process 7)", "undone"
    )
    output = io.StringIO()

    EscapingConsole(file=output, width=width).print(as_table([row]), crop=False)

    assert mark_id in output.getvalue()
