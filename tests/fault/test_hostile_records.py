"""Records replaced by somebody who can write to the namespace: no command reports a bug in lakegc
or lets a record control the terminal."""

from __future__ import annotations

import pytest

from spark_resources.mark_store.holds import HOLDS_KEY
from spark_resources.mark_store.mark import MARKS_ROOT
from tests.approval.conftest import Lake, lake, sandbox
from tests.support.command_line import Lakegc, check_terminal_safe, dagster_home, lakegc

__all__ = ["dagster_home", "lake", "lakegc", "sandbox"]

# each record, and a command that reads it
RECORDS = {
    f"{MARKS_ROOT}m1/mark.json": ("review", "LAKE", "m1"),
    f"{MARKS_ROOT}m1/approval.json": ("status", "LAKE"),
    f"{MARKS_ROOT}m1/auto_approval.json": ("review", "LAKE", "m1"),
    f"{MARKS_ROOT}m1/sweep.json": ("report", "LAKE", "m1"),
    f"{MARKS_ROOT}m1/quarantine.json": ("status", "LAKE"),
    f"{MARKS_ROOT}history.json": ("status",),
    f"{MARKS_ROOT}rules_history.json": ("rules", "LAKE", "--history"),
    HOLDS_KEY: ("holds", "LAKE", "list"),
    "_lakefs/retention/gc/unified/m1/summary.json": ("status", "LAKE"),
}
ALIASES = b"a0: &a0 [x, x]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40))
CONTENTS = {
    "nested deeply": b"[" * 100_000,
    "signed, nested deeply": b'{"record": ' + b"[" * 3_000 + b"]" * 3_000 + b', "signed": {}}',
    "a huge number": b'{"format": ' + b"9" * 5_000 + b"}",
    "of wrong types": b'{"format": {}, "state": [], "holds": 7, "marks": "x", "repositories": {"a": 1}}',
    "not UTF-8": b"\xff\xfe\x00{",
    "control characters": b'{"format": "\\u001b[31m\\u202e"}',
    "aliases of aliases": ALIASES,
}


@pytest.mark.parametrize("record", sorted(RECORDS))
def test_hostile_records_are_not_reported_as_bugs_and_do_not_control_the_terminal(
    lake: Lake, lakegc: Lakegc, record: str
) -> None:
    lake.add_mark()
    arguments = [lake.name if word == "LAKE" else word for word in RECORDS[record]]
    bugs = []
    for name, content in CONTENTS.items():
        lake.place.store().write(record, content)
        outcome = lakegc(lake.sandbox.settings, *arguments)
        check_terminal_safe(outcome.out + outcome.err)
        if "Traceback" in outcome.err or "bug in lakegc" in outcome.err:
            bugs.append((name, outcome.err))

    assert bugs == []
