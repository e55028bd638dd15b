"""The holds file: its content, its errors with their line numbers, and how it is changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_resources.errors import Refused
from spark_resources.mark_store.hold_file import (
    KINDS,
    MAX_FILE_BYTES,
    BadHolds,
    BranchHold,
    CommitHold,
    Hold,
    PathHold,
    PrefixHold,
    TagHold,
    literal_prefix,
    parse_holds,
    with_hold,
    without_hold,
)

WHOSE = {"owner": "ada", "reason": "because"}
FILE = b"""\
# ours, reviewed
holds:
  # customers run these
  - id: releases
    tags: "v*"
    history: true
    owner: ada@example.org
    reason: |
      signed
      # not a comment
    until: 2027-06-30

  # asked for by the lawyers
  - {id: legal, commits: {legal: no}, owner: ada, reason: yes}
  - id: reports
    paths: "reports/*.pdf"
    owner: ada
    reason: x # really
"""


def hold_file(**fields: str) -> bytes:
    """A file with one hold, one field per line, starting at the third line."""
    selector = {name: value for name, value in fields.items() if name in KINDS} or {"tags": "v*"}
    known = {"id": "h", **selector, **WHOSE, **fields}
    lines = [f"    {name}: {value}" for name, value in known.items()]
    return "\n".join(["holds:", "  -", *lines, ""]).encode()


def errors_in(data: bytes) -> list[tuple[int, str]]:
    with pytest.raises(BadHolds) as caught:
        parse_holds(data, "holds.yaml")
    assert isinstance(caught.value, Refused)
    return [(problem.line, problem.what) for problem in caught.value.problems]


def test_every_field_of_a_hold_is_read_as_text() -> None:
    """YAML would read `no` as a boolean, and a date as a day in the time zone of the machine."""
    releases, legal, reports = parse_holds(FILE, "holds.yaml")

    assert releases == TagHold(
        id="releases", tags="v*", history="true", owner="ada@example.org", reason="signed\n# not a comment\n",
        until="2027-06-30",
    )  # fmt: skip
    assert legal == CommitHold(id="legal", commits={"legal": "no"}, owner="ada", reason="yes")
    assert reports == PathHold(id="reports", paths="reports/*.pdf", owner="ada", reason="x")
    assert parse_holds(b"holds: []", "holds.yaml") == ()


@pytest.mark.parametrize(
    ("data", "line", "word"),
    [
        (b"", 1, "empty"),
        (b"# nothing\n", 1, "empty"),
        (b"\xff", 1, "not YAML"),
        (b"holds: [", 1, "expected"),
        (b"holds:\n  - {id: a\n", 3, "expected"),
        (b"- id: a\n", 1, "expected exactly one 'holds:' with a list"),
        (b"holds: all\n", 1, "must be a list"),
        (b"\nholds: []\nhold: []\n", 3, "'hold' is unknown"),
        (b"holds: []\nholds: []\n", 1, "exactly one"),
        (b"holds:\n  - releases\n", 2, "expected the fields of a hold"),
        (b"holds: &all []\nothers: *all\n", 2, "alias"),
        (b"holds:\n  - !!binary aGVsbG8=\n", 2, "tag"),
        (b"holds: []\n---\nholds: []\n", 2, "but found another document"),
        (b"[" * 100_000, 1, "nested too deeply"),
        (b"#" * (MAX_FILE_BYTES + 1), 1, "bytes"),
        (
            hold_file(untill="2027-01-01"),
            7,
            "'untill' is unknown; a hold with 'tags' can have id, owner, reason, until, tags",
        ),
        (hold_file(days="3"), 7, "'days' is unknown"),
        (hold_file(paths="a", history="true"), 7, "'history' is unknown; a hold with 'paths'"),
        (hold_file(tags="a", paths="b"), 3, "the hold has tags and paths; expected exactly one"),
        (b"holds:\n  - {id: a, owner: b, reason: c}\n", 2, "doesn't say what it keeps"),
        (b"holds:\n  - {id: a, tags: b, reason: c}\n", 2, "'owner' is missing"),
        (b"holds:\n  - {id: a, tags: b, owner: c}\n", 2, "'reason' is missing"),
        (b"holds:\n  - {id: a, branches: b, owner: c, reason: d}\n", 2, "'days' is missing"),
        (b"holds:\n  - id: a\n    tags: b\n    tags: c\n", 4, "'tags' appears twice"),
        (hold_file(id="Releases"), 3, "lower-case"),
        (hold_file(id='"a, b"'), 3, "lower-case"),
        (hold_file(owner='" "'), 5, "must not be empty"),
        (hold_file(reason='"\\e[31m"'), 6, "unprintable"),
        (hold_file(tags='""'), 4, "empty pattern"),
        (hold_file(tags="v[0-9"), 4, "never closed"),
        (hold_file(tags='"[]"'), 4, "never closed"),
        (hold_file(tags="v[9-0]"), 4, "empty range"),
        (hold_file(tags="[a, b]"), 4, "valid string"),
        (hold_file(history="maybe"), 7, "neither true nor false"),
        (hold_file(branches="b", days="0"), 7, "not a number of days"),
        (hold_file(branches="b", days="-3"), 7, "not a number of days"),
        (hold_file(branches="b", days="1.5"), 7, "not a number of days"),
        (hold_file(branches="b", days="999999"), 7, "not a number of days"),
        (hold_file(commits="{}"), 4, "one key"),
        (hold_file(commits="{a: b, c: d}"), 4, "one key"),
        (hold_file(commits="{a: '['}"), 4, "never closed"),
        (hold_file(commits="legal"), 4, "dictionary"),
        (hold_file(prefix='""'), 4, "no collectable object"),
        (hold_file(prefix="_lakefs/x"), 4, "no collectable object"),
        (hold_file(prefix="data/../_lakefs/"), 4, "no collectable object"),
        (hold_file(prefix="s3://bucket/data/"), 4, "no collectable object"),
        (hold_file(prefix="/data/"), 4, "no collectable object"),
        (hold_file(until="tomorrow"), 7, "neither a date"),
        (hold_file(until="2027-02-30"), 7, "not a valid date"),
        (hold_file(until="2027-1-1"), 7, "neither a date"),
        (hold_file(until="2027-01-01T10:00"), 7, "neither a date"),
        (hold_file(until="2027-01-01T25:00Z"), 7, "not a valid date"),
        (hold_file(until='""'), 7, "neither a date"),
        (hold_file() + hold_file()[7:], 8, "the id 'h' is already used by the hold on line 3"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_refused_with_the_line_number(data: bytes, line: int, word: str) -> None:
    """The whole file is refused, so that no hold is silently lost or changed."""
    assert any(number == line and word in what for number, what in errors_in(data)), errors_in(data)


def test_all_errors_of_a_file_are_reported_at_once() -> None:
    """Somebody who corrects the first error doesn't have to try again to see the second."""
    assert [line for line, _ in errors_in(hold_file(tags='"[x"', id="A", until="never", what="x"))] == [3, 4, 7, 8]


@pytest.mark.parametrize(
    ("until", "end"),
    [
        ("2027-06-30", datetime(2027, 7, 1, tzinfo=UTC)),
        ("2027-06-30T12:00Z", datetime(2027, 6, 30, 12, tzinfo=UTC)),
        ("2027-06-30 12:00:01+02:00", datetime(2027, 6, 30, 10, 0, 1, tzinfo=UTC)),
    ],
)
def test_a_hold_lasts_until_the_end_of_its_last_day_in_utc_or_until_an_exact_time(until: str, end: datetime) -> None:
    (hold,) = parse_holds(hold_file(until=until), "holds.yaml")

    assert hold.end == end
    assert not hold.has_expired(end - timedelta(seconds=1))
    assert hold.has_expired(end)


def test_dropping_a_hold_keeps_the_others_and_their_comments() -> None:
    """The comment of the dropped hold is removed with it."""
    for hold in parse_holds(FILE, "holds.yaml"):
        remaining = without_hold(FILE, hold.id, "holds.yaml")

        assert parse_holds(remaining, "holds.yaml") == tuple(
            other for other in parse_holds(FILE, "holds.yaml") if other.id != hold.id
        )
        assert b"# ours, reviewed" in remaining
        assert (b"the lawyers" in remaining) is (hold.id != "legal")
        assert (b"customers" in remaining) is (hold.id != "releases")
        assert (b"# really" in remaining) is (hold.id != "reports")


def test_a_hold_is_added_at_the_end_of_the_unchanged_file() -> None:
    """The new hold is indented like the rest of the file."""
    more = BranchHold(id="more", branches="exp-*", days="90", **WHOSE)
    flat = FILE.replace(b"\n  ", b"\n")

    for data in (FILE, flat, FILE.rstrip(b"\n")):
        added = with_hold(data, more, "holds.yaml")

        assert added.startswith(data)
        assert parse_holds(added, "holds.yaml") == (*parse_holds(FILE, "holds.yaml"), more)
    for data in (None, b"holds: []", b"{holds: [{id: a, tags: b, owner: c, reason: d}]}"):
        assert parse_holds(with_hold(data, more, "holds.yaml"), "holds.yaml")[-1] == more


words = st.builds("{}x{}".format, *2 * [st.text(st.sampled_from(" :#'\"-*&!|>%@`{}],?\\~no1é\u2028\t\n"), max_size=6)])
ids = st.text("a0.-_", max_size=6).map("h{}".format)
patterns = words
ends = st.none() | st.dates().map(str)


@st.composite
def holds(draw: st.DrawFn) -> Hold:
    common = {"id": draw(ids), "owner": draw(words), "reason": draw(words), "until": draw(ends)}
    return draw(
        st.one_of(
            st.builds(TagHold, tags=patterns, history=st.sampled_from(["true", "false"]), **_just(common)),
            st.builds(CommitHold, commits=st.dictionaries(words, patterns, min_size=1, max_size=1), **_just(common)),
            st.builds(BranchHold, branches=patterns, days=st.integers(1, 9999).map(str), **_just(common)),
            st.builds(PathHold, paths=patterns, **_just(common)),
            st.builds(PrefixHold, prefix=st.sampled_from(["data/x", "data/", "legacy"]), **_just(common)),
        )
    )


def _just(fields: dict[str, str | None]) -> dict[str, st.SearchStrategy[str | None]]:
    return {name: st.just(value) for name, value in fields.items()}


@given(st.lists(holds(), min_size=1, max_size=5, unique_by=lambda hold: hold.id), st.data())
@settings(deadline=None, max_examples=25)
def test_added_holds_are_read_back_as_written(several: list[Hold], data: st.DataObject) -> None:
    """The fields may contain any text. A hold that is dropped afterwards is gone."""
    text = None
    for hold in several:
        text = with_hold(text, hold, "holds.yaml")
    assert text is not None
    assert parse_holds(text, "holds.yaml") == tuple(several)
    assert yaml.safe_load(text).keys() == {"format", "holds"}

    dropped = data.draw(st.sampled_from(several))
    remaining = without_hold(text, dropped.id, "holds.yaml")
    assert parse_holds(remaining, "holds.yaml") == tuple(hold for hold in several if hold != dropped)


def test_the_literal_prefix_of_a_pattern_ends_at_its_first_special_character() -> None:
    """The prefix decides which ranges are skipped."""
    assert [literal_prefix(pattern) for pattern in ("a/b", "a*b", "a?", "a[[]b", "*")] == ["a/b", "a", "a", "a", ""]


def test_a_hold_on_commits_matches_key_and_value() -> None:
    """A commit needs both the key and the value; case matters."""
    hold = CommitHold(id="legal", commits={"legal": "hol?"}, **WHOSE)

    assert hold.matches({"legal": "hold", "who": "ada"})
    for other in ({}, {"legal": "no"}, {"Legal": "hold"}, {"legal": "Hold"}, {"who": "hold"}):
        assert not hold.matches(other)
