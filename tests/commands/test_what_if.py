"""`lakegc what-if`: its tables, its JSON, and what it refuses."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_resources.lakefs_sandbox import Sandbox
from tests.commands.conftest import HOSTILE, Marked
from tests.support.command_line import Lakegc, Outcome

GARBAGE = len(b"garbage") * len(HOSTILE)
FIRST = len(b"first version")


def rules_file(folder: Path, name: str, default: int, **branches: int) -> str:
    path = folder / name
    rules = [f"  - {{branch_id: {branch}, retention_days: {days}}}\n" for branch, days in branches.items()]
    path.write_text(f"default_retention_days: {default}\n" + ("branches:\n" + "".join(rules) if rules else ""))
    return str(path)


def ask(lakegc: Lakegc, marked: Marked, *options: str, **settings: str) -> Outcome:
    return lakegc({**marked.settings, **settings}, "what-if", marked.repository, "--mark", "m1", *options)


def variants(outcome: Outcome) -> dict[str, Mapping[str, Any]]:
    assert outcome.code == 0, outcome.err
    return {row["variant"]: row for row in json.loads(outcome.out)["variants"]}


def test_several_rule_files_are_compared_with_the_current_rules(
    lakegc: Lakegc, hostile: Marked, tmp_path: Path
) -> None:
    """The comparison is in objects, bytes and money, by branch, and with the differences from the current rules."""
    longer, shorter = rules_file(tmp_path, "longer.yaml", 100), rules_file(tmp_path, "shorter.yml", 0, main=1)
    outcome = ask(
        lakegc, hostile, "--rules", longer, "--rules", shorter, "--format", "json", price_per_gb_month="1073741824"
    )

    rows, names = variants(outcome), [Path(longer).name, Path(shorter).name]
    assert list(rows) == ["today", *names]
    assert (rows["today"]["objects"], rows["today"]["bytes"]) == (len(HOSTILE) + 1, GARBAGE + FIRST)
    assert (
        rows["longer.yaml"]["fewer_objects"],
        rows["longer.yaml"]["fewer_bytes"],
        rows["longer.yaml"]["more_objects"],
    ) == (1, FIRST, 0)
    assert (rows["shorter.yml"]["objects"], rows["shorter.yml"]["commits"]) == (len(HOSTILE) + 1, 2)
    assert rows["longer.yaml"]["rules"] == {"default_retention_days": 100, "branches": []}
    assert rows["today"]["monthly_savings"] == GARBAGE + FIRST
    branches = {(row["branch"], row["committed"]): row["bytes"] for row in rows["today"]["by_branch"]}
    assert branches == {("main", True): FIRST, (None, False): GARBAGE}
    document = json.loads(outcome.out)
    assert (document["based_on"], document["stored"]["objects"]) == ("m1", len(HOSTILE) + 3)


def test_the_table_names_each_variant_and_says_that_nothing_is_changed(
    lakegc: Lakegc, hostile: Marked, tmp_path: Path
) -> None:
    """Holds, a different minimum age and rules can be combined."""
    rules = rules_file(tmp_path, "r.yaml", 100)
    output = ask(lakegc, hostile, "--rules", rules, "--hold", "prefix=data/s/", "--min-age", "0d").out

    for words in (
        "hostile as of mark m1", "Nothing is changed", "today: default 30 days", "default 100 days; minimum age 0",
        "holding stored objects data/s/…", "(in no commit)", "main", f"lakegc rules hostile --set {rules}\n",
    ):  # fmt: skip
        assert words in output


def test_holds_of_every_kind_and_a_minimum_age_can_be_tried(lakegc: Lakegc, hostile: Marked) -> None:
    """An address without a kind puts that object on hold."""
    kept = sum(key.startswith("data/s/") for key in HOSTILE)
    for hold, fewer in {
        "prefix=data/s/": kept, "data/tab\there/a": 1, "paths=a": 1, "branches=m*:90": 1, "history=v*": 0,
        "commits=legal=hold": 0, "tags=v*": 0,
    }.items():  # fmt: skip
        (_, changed) = variants(ask(lakegc, hostile, "--hold", hold, "--format", "json")).values()
        assert changed["fewer_objects"] == fewer, hold
    (_, young) = variants(ask(lakegc, hostile, "--min-age", "900d", "--format", "json")).values()
    assert (young["variant"], young["objects"]) == ("minimum age 900 days", 0)


def test_invalid_requests_are_refused_before_anything_is_read(lakegc: Lakegc, hostile: Marked, tmp_path: Path) -> None:
    """Each message says what to write instead."""
    for options, words in {
        (): "pass --rules FILE",
        ("--rules", str(tmp_path / "none")): "can't be read",
        ("--rules", rules_file(tmp_path, "r.yaml", 5, mian=9)): "no branch 'mian'. Did you mean main?",
        ("--drop-branch", "gone"): "no branch 'gone'",
        ("--drop-branch", "main"): "default branch",
        ("--min-age", "soon"): "expected a duration",
        ("--hold", "branches=exp"): "--hold branches=exp",
        ("--hold", "color=red"): "tags=PATTERN",
        ("--hold", "s3://bucket/x"): "no collectable object's key starts with",
    }.items():
        ask(lakegc, hostile, *options).stopped(2, words)


def test_a_repository_without_any_mark_is_refused(lakegc: Lakegc, sandbox: Sandbox, pond: str) -> None:
    """The message names the command that makes one."""
    lakegc(sandbox.settings, "what-if", pond, "--min-age", "1d").stopped(1, "no finished mark", f"lakegc mark {pond}")


def test_a_saved_result_cannot_be_approved(lakegc: Lakegc, hostile: Marked, tmp_path: Path) -> None:
    """A result names no set of objects. The message says how to make a mark with the new rules."""
    result = tmp_path / "result.json"
    result.write_text(ask(lakegc, hostile, "--min-age", "1d", "--format", "json").out)

    outcome = lakegc(hostile.settings, "approve", "hostile", str(result), "--yes", "--digest", "d" * 64)
    outcome.stopped(2, "is a result of 'lakegc what-if', not a mark", "lakegc rules hostile --set FILE")


def test_setting_shorter_rules_shows_what_they_would_free_first(
    lakegc: Lakegc, hostile: Marked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is set unless it is confirmed."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    outcome = lakegc(hostile.settings, "rules", "hostile", "--set", rules_file(tmp_path, "r.yaml", 20))

    assert outcome.code == 2
    assert "nothing was set" in outcome.err
    for words in ("Commits expire earlier", "hostile as of mark m1", "Expired, and the difference from today"):
        assert words in outcome.out
    assert "\nr.yaml: default 20 days\n" in outcome.out


def test_there_is_no_table_by_branch_if_no_variant_expires_anything(lakegc: Lakegc, still: Marked) -> None:
    output = ask(lakegc, still, "--hold", "prefix=data/").out

    assert "Expired, and the difference from today" in output
    assert "by branch" not in output
