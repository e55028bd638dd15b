"""A record that doesn't match its declaration is damage: the error names the file, the field and the mistake."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_resources.errors import LakegcError, UnknownFormat
from spark_resources.mark_store.quarantine_format import QuarantineCounts
from spark_resources.records.json_records import record_bytes
from tests.unit.test_record_bytes import RECORDS, recorded

EARLIEST = "0001-01-01T00:00:00+14:00"  # Python has no such time in UTC
WITH_COUNTS = RECORDS | {"since": QuarantineCounts({"restored": 1})}


def refusal(name: str, data: bytes) -> str:
    """The message of the error about a record with these bytes. An error that isn't lakegc's own would show as a
    traceback."""
    with pytest.raises(LakegcError) as refused:
        type(WITH_COUNTS[name]).from_json(data, "WHERE/KEY")
    assert not isinstance(refused.value, UnknownFormat)
    return str(refused.value)


def altered(name: str, *path: str, to: Any) -> bytes:
    """The recorded example with another value at this path."""
    plain = json.loads(recorded(name))
    inner = plain
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = to
    return record_bytes(plain)


ALTERED: list[tuple[str, tuple[str, ...], Any, str]] = [
    ("mark", ("start",), EARLIEST, "start: date value out of range"),
    ("mark", ("start",), "2026-01-01T00:00:00", "start: the time 2026-01-01T00:00:00 has no time zone"),
    ("mark", ("start",), 5, "start: fromisoformat: argument must be str"),
    ("mark", ("min_age",), 1e300, "min_age: "),
    ("mark", ("min_age",), True, "min_age: True is not a number of seconds"),
    ("mark", ("min_age",), None, "min_age: "),
    ("mark", ("state",), "gone", "state is 'gone': "),
    ("mark", ("rules",), {"default_days": -1, "branch_days": {}}, "default retention is -1 days"),
    ("mark", ("rules",), {"default_days": "1", "branch_days": {}}, "rules.default_days is '1': "),
    ("mark", ("accepted_missing",), "data/a", "accepted_missing is 'data/a': "),
    ("mark", ("counts", "expired"), True, "counts.expired is True: "),
    ("mark", ("counts", "expired"), 1.0, "counts.expired is 1.0: "),
    ("mark", ("holds", "more"), 1, "holds.more is unknown"),
    ("mark", ("basis", "incremental"), 1, "basis.incremental is 1: "),
    ("mark", ("basis", "chain"), ["../m0"], "basis.chain.0: '../m0' can't be a mark id"),
    ("mark", ("basis", "digests"), [], "the chain of marks and their digests differ in length"),
    ("mark", ("previous", "more"), 1, "previous.more is unknown"),
    ("mark", ("steps", "expired_set", "datasets", "", "rows"), "1", "steps.expired_set.datasets..rows is '1': "),
    ("mark", ("steps", "expired_set", "number"), None, "steps.expired_set.number is None: "),
    ("approval", ("released",), {"share": 1}, "released.share is 1: "),
    ("approval", ("until",), "9999-12-31T23:59:59-14:00", "until: date value out of range"),
    ("approval_revoked", ("ended", "when"), EARLIEST, "ended.when: date value out of range"),
    ("approval_revoked", ("ended", "when"), "today", "ended.when: "),
    ("approval_revoked", ("ended", "more"), "x", "ended.more is unknown"),
    ("lease", ("until",), EARLIEST, "until: date value out of range"),
    ("lease", ("tasks_stop_after_s",), -1, "tasks_stop_after_s is -1: "),
    ("lease", ("tasks_stop_after_s",), 10**400, "tasks_stop_after_s is 1000"),
    ("lease", ("process", "pid"), "12", "process.pid is '12': "),
    ("backup", ("subject", "digest"), 1, "subject.digest is 1: "),
    ("backup", ("subject", "more"), 1, "subject.more is unknown"),
    ("backup", ("marked",), 4, "its counts don't add up"),
    ("backup", ("dataset",), {}, "dataset.folder is missing"),
    ("sweep", ("format",), 3, "format 3; this version of lakegc supports 1 and 2"),
    ("sweep", ("verifications",), [EARLIEST], "verifications.0: date value out of range"),
    ("sweep", ("refusals",), [{}], "refusals.0.code is missing"),
    ("sweep", ("objects", "deleted"), -1, "objects.deleted is -1: "),
]


@pytest.mark.parametrize(("name", "path", "to", "why"), ALTERED)
def test_the_error_about_an_altered_field_names_the_field_and_its_file(
    name: str, path: tuple[str, ...], to: Any, why: str
) -> None:
    """No value is coerced, not even in nested records."""
    message = refusal(name, altered(name, *path, to=to))

    assert "WHERE/KEY" in message
    assert why in message


NO_RECORD = (b"", b"\xff", b"[]", b"null", b"5", b'"text"', b'{"a": NaN}', b"{}", b"[" * 100_000)


@pytest.mark.parametrize("name", WITH_COUNTS)
@pytest.mark.parametrize("data", NO_RECORD, ids=[repr(data)[:12] for data in NO_RECORD])
def test_a_file_that_is_not_a_json_record_is_refused(name: str, data: bytes) -> None:
    """The file may contain another JSON value, JSON that only Python accepts, or text that isn't JSON."""
    assert "WHERE/KEY" in refusal(name, data)


@pytest.mark.parametrize("name", RECORDS)
def test_the_error_about_a_record_names_the_missing_field(name: str) -> None:
    """Defaults apply only to records created in code. When a record is read, only fields that earlier versions didn't
    write may be missing. A retired mark needs its state, because its format is known only from that."""
    kind, plain = type(RECORDS[name]), json.loads(recorded(name))
    for field in plain.keys() - kind.optional_fields - ({"state"} if name == "mark_retired" else set()):
        rest = {key: value for key, value in plain.items() if key != field}

        assert f"{field} is missing" in refusal(name, record_bytes(rest))


def test_the_error_about_a_record_names_only_the_first_few_problems() -> None:
    """A message that named all of them would be too long to read."""
    assert "(mark_id is missing; state is missing; repository is missing …)" in refusal("mark", b"{}")


@pytest.mark.parametrize(("name", "number"), [("mark", 3), ("lease", 2), ("backup", 2)])
def test_a_record_of_a_newer_format_is_reported_as_newer_and_not_as_damaged(name: str, number: int) -> None:
    """The error tells the user to update lakegc."""
    for data in (altered(name, "format", to=number), record_bytes({"format": number, "new": []})):
        with pytest.raises(UnknownFormat, match=rf"WHERE/KEY is of format {number}.*Update lakegc"):
            type(RECORDS[name]).from_json(data, "WHERE/KEY")
