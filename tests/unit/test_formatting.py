"""Counts, durations and errors, formatted for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakegc_assets.cli.diff import differing_settings, holds_in_words
from lakegc_assets.formatting import duration, duration_argument, is_or_are, plural, rules_in_words
from lakegc_assets.mark.context import Clocks
from spark_resources.errors import Refused, capitalized, full_stop, parse_problem, with_article
from spark_resources.mark_store.hold_file import BranchHold
from spark_resources.model import Rules
from spark_resources.settings import parse_duration
from tests.support.finished_marks import finished_record


def test_counts_are_followed_by_the_right_singular_or_plural() -> None:
    """Messages never read `1 requests` or `0 object`."""
    assert [plural(count, "object") for count in (0, 1, 1_000)] == ["0 objects", "1 object", "1,000 objects"]
    assert [plural(1, thing) for thing in ("address", "branch", "entry")] == ["1 address", "1 branch", "1 entry"]
    assert [plural(2, thing) for thing in ("address", "branch", "entry", "day")] == [
        "2 addresses", "2 branches", "2 entries", "2 days"
    ]  # fmt: skip
    assert plural(0, "person", "people") == "0 people"
    assert [is_or_are(count) for count in (0, 1, 2)] == ["are", "is", "are"]


def test_rules_and_holds_of_one_day_are_formatted_in_the_singular() -> None:
    assert rules_in_words(Rules(1, {"main": 21})) == "default 1 day, main 21"
    assert BranchHold(id="h", owner="me", reason="a test", branches="dev", days="1").what == "branches dev for 1 day"


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(0), "0 seconds"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(minutes=30), "30 minutes"),
        (timedelta(minutes=2, seconds=5), "2 minutes 5 seconds"),
        (timedelta(days=1), "1 day"),
        (timedelta(days=1, seconds=5), "1 day"),
        (timedelta(days=2, hours=3, minutes=59), "2 days 3 hours"),
    ],
)
def test_a_duration_is_formatted_with_its_two_largest_units(span: timedelta, words: str) -> None:
    """Python itself would print `1 day, 0:00:00`."""
    assert duration(span) == words


def test_durations_in_messages_and_comparisons_are_formatted() -> None:
    """The messages are about clocks that disagree and about two marks with different minimum ages."""
    now = datetime(2026, 11, 21, 9, tzinfo=UTC)
    with pytest.raises(Refused, match="differ by 1 day 2 hours, and at most 5 minutes is allowed"):
        Clocks(now, now + timedelta(hours=26), now).check(timedelta(minutes=5), "lake")
    ages = [finished_record(min_age=age) for age in (timedelta(0), timedelta(days=1))]
    assert differing_settings(*ages)["minimum age"] == ("0 seconds", "1 day")


def test_sentences_end_with_one_full_stop_and_nouns_have_the_right_article() -> None:
    """Messages never say `a empty segment`, and never end with two full stops if they include another message."""
    assert [full_stop(text) for text in ("gone", "gone.", ValueError("gone.. "))] == ["gone."] * 3
    assert [with_article(thing) for thing in ("empty segment", "long key", "NUL")] == [
        "an empty segment", "a long key", "a NUL"
    ]  # fmt: skip


def test_if_there_are_no_holds_none_is_printed_instead_of_their_checksum() -> None:
    """The holds file remains after the last hold was dropped, but its checksum would be of no use."""
    assert holds_in_words(finished_record(holds={"ids": [], "sha256": "b3103bb84b9d" * 5})) == "none"
    assert holds_in_words(finished_record(holds={"ids": ["legal"], "sha256": "ab" * 32})) == "legal (abababababab)"


def test_a_sentence_that_begins_with_a_name_keeps_the_case_of_the_name() -> None:
    """In lower case, an access key would be another key."""
    assert capitalized("the access key AKIA123") == "The access key AKIA123"
    assert capitalized("") == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("size"), "'size' is missing"),
        (TypeError("'NoneType' object is not subscriptable"), "a value has an unexpected type"),
        (OverflowError("cannot convert float infinity to integer"), "a number is out of range"),
        (ValueError("the size is -1"), "the size is -1"),
    ],
)
def test_a_problem_with_data_is_described_without_python_internals(error: Exception, words: str) -> None:
    """Python's `KeyError` has only the key as its text."""
    assert parse_problem(error) == words


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(days=90), "90d"), (timedelta(hours=36), "36h"), (timedelta(minutes=90), "90m"),
        (timedelta(seconds=90), "90s"), (timedelta(0), "0"),
    ],
)  # fmt: skip
def test_durations_in_commands_are_accepted_by_options_and_settings(span: timedelta, text: str) -> None:
    assert duration_argument(span) == text
    assert parse_duration(text) == span
