"""`lakegc approve` and `lakegc revoke`: what they print and ask, and the options that a script needs."""

from __future__ import annotations

import io
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.history import FinishedSweep, History, write_history
from spark_resources.model import MarkState, Rules
from tests.approval.conftest import Lake
from tests.support.command_line import Lakegc, Outcome
from tests.support.finished_marks import COUNTS


class Terminal(io.StringIO):
    """Standard input at a terminal where somebody types this text."""

    def isatty(self) -> bool:
        return True


def approve(lakegc: Lakegc, lake: Lake, *options: str, mark: str = "m1") -> Outcome:
    return lakegc(lake.sandbox.settings, "approve", lake.name, mark, *options)


def approve_by_script(lakegc: Lakegc, lake: Lake, *options: str) -> Outcome:
    return approve(lakegc, lake, "--yes", "--digest", lake.record().digest or "", *options)


def type_answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(text))


def test_totals_brakes_and_digest_are_shown_before_the_confirmation(
    lakegc: Lakegc, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that revokes the approval is printed afterwards."""
    mark = lake.add_mark()
    type_answer(monkeypatch, "approve\n")
    outcome = approve(lakegc, lake)

    assert outcome.code == 0, outcome.err
    for words in ("3 objects, 3 B", "100,000 objects", mark.record.digest or "", "Brakes", "jump", "Type 'approve'"):
        assert words in outcome.out
    assert f"lakegc revoke {lake.name} m1" in outcome.out
    assert "Nothing was deleted" in outcome.out
    approval = lake.approval()
    assert approval is not None
    assert (approval.how, "@" in approval.who, "process" in approval.who) == ("lakegc approve", True, False)
    lake.verify()


def test_the_approver_is_told_that_another_mark_was_swept_since_this_one_began(
    lakegc: Lakegc, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark's counts may include objects that are gone."""
    record = lake.add_mark().record
    write_history(lake.place, History().with_sweep(FinishedSweep("m0", record.start + timedelta(hours=1), 2, 20)))
    type_answer(monkeypatch, "approve\n")

    outcome = approve(lakegc, lake)

    assert outcome.code == 0, outcome.err
    assert "may already be gone: since it began, the sweep of mark m0" in " ".join(outcome.out.split())


def test_a_refused_approval_does_not_prompt_and_prints_the_command_that_would_succeed(
    lakegc: Lakegc, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reasons of the refusal are reported before anything has to be typed."""
    lake.add_mark(counts={**COUNTS, "expired": 60_000, "live": 0})
    type_answer(monkeypatch, "approve\n")

    options = ("--release", "live", "--because", "all is old", "--by", "Ada L")
    outcome = approve(lakegc, lake, *options)

    outcome.stopped(3, "share: 60.0% of all objects")
    releases = "--release share --because WHY --release live --because 'all is old'"
    assert f"lakegc approve {lake.name} m1 --by 'Ada L' {releases}" in outcome.err


def test_the_refusal_of_an_outdated_mark_has_the_command_for_a_new_one_with_the_same_options(
    lakegc: Lakegc, lake: Lake
) -> None:
    """Without them, the new mark would be another one."""
    lake.add_mark(min_age=timedelta(0))
    set_rules(lake.sandbox.repository(lake.name), Rules(7))

    mark_again = f"Make a new mark: lakegc mark {lake.name} --min-age 0 --allow-young"
    approve_by_script(lakegc, lake).stopped(3, "from none to default 7 days", mark_again)


def test_a_refusal_names_every_tripped_brake_and_every_unnecessary_release(lakegc: Lakegc, lake: Lake) -> None:
    """The approver then needs only one more attempt."""
    lake.add_mark(counts={**COUNTS, "expired": 60_000, "live": 0})

    outcome = approve_by_script(
        lakegc, lake, "--release", "age", "--because", "so", "--release", "jump", "--because", "so"
    )

    outcome.stopped(2, "age, jump have not tripped", "share: 60.0%", "live: nothing", "--release share --because WHY")
    again = outcome.err.strip().rpartition("\n")[2]
    assert "--release age" not in again
    assert lake.approval() is None


def test_a_printed_command_releases_no_brake_until_its_placeholder_is_replaced_by_a_reason(
    lakegc: Lakegc, lake: Lake
) -> None:
    """Otherwise, pasting the next step of a review would release its brakes without a thought."""
    lake.add_mark(counts={**COUNTS, "expired": 60_000})

    outcome = approve_by_script(lakegc, lake, "--release", "share", "--because", "WHY")

    outcome.stopped(2, "replace WHY with your reason for releasing the brake 'share'")
    assert lake.approval() is None


def test_approve_latest_approves_the_newest_finished_mark(
    lakegc: Lakegc, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The given digest has to be that of this mark; the digest of a different mark is refused."""
    lake.add_mark(start=lake.finished - timedelta(hours=1))
    newest = lake.add_mark(["data/s/z"], "m2")
    settings = lake.sandbox.settings

    lakegc(settings, "approve", lake.name, "latest", "--yes", "--digest", lake.record().digest or "").stopped(3, "m2")
    lakegc.output(settings, "approve", lake.name, "latest", "--yes", "--digest", newest.record.digest or "")

    assert (lake.state(), lake.state("m2")) == ("marked", "approved")


def test_end_of_input_approves_nothing(lakegc: Lakegc, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-D counts as a refusal, not as a bug in lakegc."""
    lake.add_mark()
    type_answer(monkeypatch, "")
    monkeypatch.setattr("builtins.input", mock.Mock(side_effect=EOFError))

    outcome = approve(lakegc, lake)

    assert (outcome.code, lake.approval()) == (2, None)
    assert "nothing was approved" in outcome.err


@pytest.mark.parametrize("answer", ["", "\n", "y\n", "yes\n", "Approve\n", "approve it\n", "m1\n"])
def test_only_the_word_approve_approves(
    lakegc: Lakegc, lake: Lake, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """Any other input approves nothing."""
    lake.add_mark()
    type_answer(monkeypatch, answer)
    outcome = approve(lakegc, lake)

    assert outcome.code in (1, 2)
    assert "bug in lakegc" not in outcome.err
    assert (lake.record().state, lake.approval()) == (MarkState.MARKED, None)


def test_a_script_has_to_pass_yes_and_the_digest_of_the_reviewed_set(lakegc: Lakegc, lake: Lake) -> None:
    """A script can't be prompted: without the digest, or with a wrong one, the approval is refused. Tripped brakes are
    named first."""
    lake.add_mark()

    lake.add_mark(mark_id="m2", counts={**COUNTS, "expired": 60_000})

    approve(lakegc, lake).stopped(2, "pass --yes and --digest")
    approve(lakegc, lake, mark="m2").stopped(3, "share: 60.0% of all objects", "--release share --because WHY")
    approve(lakegc, lake, "--digest", lake.record().digest or "").stopped(2, "pass --yes and --digest")
    approve(lakegc, lake, "--yes").stopped(2, "--yes requires --digest", f"lakegc review {lake.name} m1")
    approve(lakegc, lake, "--yes", "--digest", "0" * 64).stopped(3, "a different set")
    assert lake.record().state is MarkState.MARKED
    outcome = approve_by_script(lakegc, lake, "--by", "Ada", "--format", "json")
    shown_record = json.loads(outcome.out)
    assert (shown_record["repository"], shown_record["mark_id"], shown_record["who"], shown_record["digest"]) == (
        lake.name, "m1", "Ada", lake.record().digest
    )  # fmt: skip
    lake.verify()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--release", "share"), "1 time and --because 0 times"),
        (("--because", "so"), "0 times and --because 1 time"),
        (("--release", "shares", "--because", "so"), "no brake 'shares'"),
        (("--release", "share", "--because", " "), "reason for releasing 'share'"),
        (("--release", "share", "--because", "a", "--release", "share", "--because", "b"), "twice"),
        (("--release", "jump", "--because", "so"), "has not tripped"),
        (("--by", " "), "name after --by"),
        (("--until", "soon"), "expected a duration"),
        (("--until", "2020-01-01"), "has passed"),
        (("--until", "0"), "has passed"),
        (("--until", "99999999999d"), "expected a duration"),
    ],
)
def test_contradictory_or_invalid_options_are_refused(
    lakegc: Lakegc, lake: Lake, options: tuple[str, ...], words: str
) -> None:
    """The message says what was expected, and nothing is approved."""
    lake.add_mark()

    approve_by_script(lakegc, lake, *options).stopped(2, words)
    assert lake.approval() is None


def test_each_release_is_paired_with_its_reason(lakegc: Lakegc, lake: Lake) -> None:
    """If no brake is released, the error names the tripped ones."""
    lake.add_mark(counts={**COUNTS, "expired": 60_000, "live": 0})

    approve_by_script(lakegc, lake).stopped(3, "share: 60.0% of all objects", "live: nothing")
    options = ("--release", "share", "--because", "first sweep", "--release", "live", "--because", "it was emptied")
    assert approve_by_script(lakegc, lake, *options).code == 0
    approval = lake.approval()
    assert approval is not None
    assert approval.released == {"share": "first sweep", "live": "it was emptied"}


@pytest.mark.parametrize(
    ("until", "end"),
    [
        ("36h", timedelta(hours=36)),
        ("{date}", None),
        ("{date}T12:00:00+02:00", None),
    ],
)
def test_until_takes_a_duration_a_date_or_a_time(lakegc: Lakegc, lake: Lake, until: str, end: timedelta | None) -> None:
    """Dates and times are in UTC unless they have an offset."""
    lake.add_mark()
    date = f"{lake.now + timedelta(days=3):%Y-%m-%d}"
    assert approve_by_script(lakegc, lake, "--until", until.format(date=date)).code == 0
    approval = lake.approval()

    assert approval is not None
    if end is not None:
        assert approval.until == approval.when + end
    else:
        at = datetime.fromisoformat(f"{date}T10:00:00+00:00" if "T" in until else f"{date}T00:00:00+00:00")
        assert approval.until == at


def test_handing_a_mark_to_the_reference_collector_prints_a_warning(lakegc: Lakegc, lake: Lake) -> None:
    """Revoking the approval removes the summary again."""
    lake.add_mark()
    outcome = approve_by_script(lakegc, lake, "--for-reference", "--format", "json")

    assert outcome.code == 0
    assert json.loads(outcome.out)["for_reference"] is True
    assert "without re-verification" in outcome.err
    assert lake.summary.exists()
    assert lakegc(lake.sandbox.settings, "revoke", lake.name, "m1").code == 0
    assert not lake.summary.exists()


def test_an_approval_that_dagster_cannot_record_is_valid_and_the_error_says_so(lake: Lake, tmp_path: Path) -> None:
    """Dagster's settings are invalid; the approver must not believe that nothing was approved."""
    lake.add_mark()
    (tmp_path / "dagster.yaml").write_text("storage: [")
    outcome = approve_by_script(Lakegc(tmp_path, on_disk=True), lake)

    assert outcome.code == 1
    for words in ("the approval was recorded", str(tmp_path / "dagster.yaml"), "lakegc sweep"):
        assert words in outcome.err
    assert "bug in lakegc" not in outcome.err
    assert lake.approval() is not None


def test_status_shows_an_expired_approval_and_removes_its_summary(
    lakegc: Lakegc, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this, the reference collector could still sweep the mark."""
    lake.add_mark()
    approval = lake.approve(until=lake.now + timedelta(hours=1), for_reference=True)
    assert statuses(lakegc, lake) == ["approved"]
    later = approval.until + timedelta(seconds=1)
    monkeypatch.setattr(type(lake.place.store()), "now", lambda _: later)

    assert lake.summary.exists()
    assert statuses(lakegc, lake) == ["approval expired"]
    assert f"lakegc review {lake.name} m1" in lakegc.output(lake.sandbox.settings, "status", lake.name)
    assert not lake.summary.exists()


def test_status_names_the_sweep_of_an_approved_mark_before_the_review_of_a_newer_one(
    lakegc: Lakegc, lake: Lake
) -> None:
    """An approval would otherwise be forgotten when the next mark is made."""
    lake.add_mark(start=lake.finished - timedelta(hours=1))
    lake.approve()
    lake.add_mark(mark_id="m2")

    commands = lakegc.output(lake.sandbox.settings, "status", lake.name).splitlines()[-2:]

    assert [line.rpartition(": ")[2] for line in commands] == [
        f"lakegc sweep {lake.name} m1", f"lakegc review {lake.name} m2"
    ]  # fmt: skip


def statuses(lakegc: Lakegc, lake: Lake) -> list[str]:
    outcome = lakegc(lake.sandbox.settings, "status", lake.name, "--format", "json")
    rows: list[dict[str, Any]] = json.loads(outcome.out)["marks"]
    return [row["state"] for row in rows]


def test_revoke_ends_an_approval_and_records_who_revoked_it(lakegc: Lakegc, lake: Lake) -> None:
    """A mark that isn't approved, or doesn't exist, is refused."""
    lake.add_mark()
    settings = lake.sandbox.settings
    lakegc(settings, "revoke", lake.name, "m1").stopped(2, "is not approved")
    lakegc(settings, "revoke", lake.name, "m2").stopped(2, "there is no mark m2")
    lake.approve()

    assert "is not approved" in lakegc(settings, "revoke", lake.name, "m1", "--by", "Grace").out
    ended = lake.approval()
    assert ended is not None
    assert ended.ended is not None
    assert ended.ended["who"] == "Grace"
    lakegc(settings, "revoke", lake.name, "m1").stopped(2, "is not approved")
