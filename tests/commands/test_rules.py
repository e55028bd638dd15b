"""`lakegc rules`: the server's retention rules shown, checked and set, and the history of changes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from spark_resources.errors import DamagedData, Untrusted
from spark_resources.mark_store import rules_history
from spark_resources.mark_store.rules_history import (
    RULES_HISTORY_KEY,
    RulesChange,
    add_rules_change,
    read_rules_history,
)
from spark_resources.model import Rules
from spark_resources.stores.place import Place
from tests.approval.conftest import Lake, alter_file, lake, sandbox
from tests.support.command_line import Lakegc, Outcome, dagster_home, lakegc
from tests.support.mark_runs import target_of

__all__ = ["dagster_home", "lake", "lakegc", "sandbox"]

KEY = "0123456789abcdef" * 4


class Terminal(io.StringIO):
    """Standard input at a terminal where somebody types this text."""

    def isatty(self) -> bool:
        return True


def written(folder: Path, default: int, **branches: int) -> str:
    """The path of a new file with these rules."""
    rules = [{"branch_id": branch, "retention_days": days} for branch, days in branches.items()]
    path = folder / "rules.json"
    path.write_text(json.dumps({"default_retention_days": default, "branches": rules}))
    return str(path)


def set_rules(lakegc: Lakegc, lake: Lake, file: str, *options: str, **settings: str) -> Outcome:
    return lakegc({**lake.sandbox.settings, **settings}, "rules", lake.name, "--set", file, *options)


def shown(lakegc: Lakegc, lake: Lake, *options: str) -> Any:
    return json.loads(lakegc.output(lake.sandbox.settings, "rules", lake.name, "--format", "json", *options))


def test_rules_are_set_recorded_and_shown_with_their_origin(lakegc: Lakegc, lake: Lake, tmp_path: Path) -> None:
    """The JSON that shows the rules is a valid file for setting them."""
    assert "no retention rules" in lakegc.output(lake.sandbox.settings, "rules", lake.name)
    file = written(tmp_path, 21, main=28)

    outcome = set_rules(lakegc, lake, file, "--yes", "--by", "Ada")

    assert outcome.code == 0, outcome.err
    assert "Commits expire earlier" in outcome.out  # before, nothing expired
    assert lake.lakefs.rules(lake.name) == Rules(21, {"main": 28})
    table = lakegc.output(lake.sandbox.settings, "rules", lake.name)
    for words in ("for 0 other branches", "its own rule", "Set with lakegc by Ada"):
        assert words in table
    document = shown(lakegc, lake)
    assert document["rules"] == json.loads(Path(file).read_text())
    assert document["branches"] == [{"branch": "main", "days": 28, "from": "its own rule", "exists": True}]
    (change,) = shown(lakegc, lake, "--history")["changes"]
    assert (change["who"], change["before"], change["after"]) == ("Ada", None, document["rules"])
    assert document["set_with_lakegc"] == change


def test_longer_retention_is_set_without_confirmation_and_shorter_retention_only_with_it(
    lakegc: Lakegc, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script has to pass --yes; a person types a word."""
    lake.lakefs.set_rules(lake.name, Rules(21, {"main": 28}))
    assert set_rules(lakegc, lake, written(tmp_path, 22, main=28)).code == 0
    shorter = written(tmp_path, 22, main=7)

    set_rules(lakegc, lake, shorter).stopped(2, "shortens retention (branch main: 28 → 7)", "--yes")
    set_rules(lakegc, lake, shorter, "--format", "json").stopped(2, "--yes")
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    assert "'no' is not 'set': nothing was set" in set_rules(lakegc, lake, shorter).err
    assert lake.lakefs.rules(lake.name) == Rules(22, {"main": 28})

    monkeypatch.setattr("sys.stdin", Terminal("set\n"))
    outcome = set_rules(lakegc, lake, shorter)
    assert "Commits expire earlier" in outcome.out
    assert lake.lakefs.rules(lake.name) == Rules(22, {"main": 7})
    output = lakegc.output(lake.sandbox.settings, "rules", lake.name, "--history")
    assert output.index("main: 28 days → 7 days") < output.index("default: 21 days → 22 days")


def test_rules_that_are_already_set_are_not_set_again(lakegc: Lakegc, lake: Lake, tmp_path: Path) -> None:
    """The history contains only real changes."""
    lake.lakefs.set_rules(lake.name, Rules(21, {"main": 28}))

    outcome = set_rules(lakegc, lake, written(tmp_path, 21, main=28))

    assert "Nothing was changed" in outcome.out
    assert read_rules_history(lake.place).changes == ()


def test_rules_that_somebody_else_changed_in_the_meantime_are_not_overwritten(
    lakegc: Lakegc, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was confirmed was a change from the rules that were shown."""
    lake.lakefs.set_rules(lake.name, Rules(21))

    class Typing(Terminal):
        def readline(self, *arguments: Any) -> str:
            lake.lakefs.set_rules(lake.name, Rules(90))
            return super().readline(*arguments)

    monkeypatch.setattr("sys.stdin", Typing("set\n"))
    outcome = set_rules(lakegc, lake, written(tmp_path, 7))

    assert outcome.code == 3
    assert "somebody else in the meantime: default: 21 days → 90 days. Nothing was set" in outcome.err
    assert lake.lakefs.rules(lake.name) == Rules(90)
    assert read_rules_history(lake.place).changes == ()


def test_invalid_rules_and_rules_for_unknown_branches_are_not_set(lakegc: Lakegc, lake: Lake, tmp_path: Path) -> None:
    """Otherwise, a misspelled branch would silently get the default."""
    set_rules(lakegc, lake, written(tmp_path, 7, mian=90)).stopped(2, "branch 'mian'", "Did you mean main?")
    set_rules(lakegc, lake, written(tmp_path, 0)).stopped(2, "no rules at all")
    set_rules(lakegc, lake, str(tmp_path / "missing.json")).stopped(2, "missing.json can't be read")
    set_rules(lakegc, lake, written(tmp_path, -1)).stopped(2, "is -1")
    lakegc(lake.sandbox.settings, "rules", lake.name, "--yes").stopped(2, "--set FILE")
    assert lake.lakefs.rules(lake.name) is None


def test_rules_changed_without_lakegc_are_shown_as_such(lakegc: Lakegc, lake: Lake, tmp_path: Path) -> None:
    """For example, somebody may have used lakectl. Rules for branches that no longer exist are also marked."""
    set_rules(lakegc, lake, written(tmp_path, 21), "--yes", "--by", "Ada")
    lake.lakefs.set_rules(lake.name, Rules(7, {"gone": 3}))

    output = lakegc.output(lake.sandbox.settings, "rules", lake.name)

    assert "Ada set rules with lakegc" in output
    assert "changed without lakegc since then: default: 21 days → 7 days; gone: the default → 3 days" in output
    assert "this branch doesn't exist" in output


def test_the_history_of_rules_is_signed_if_a_key_is_set_and_an_altered_history_stops_changes(
    lakegc: Lakegc, lake: Lake, tmp_path: Path
) -> None:
    """Nobody who can only write to the bucket can attribute a change to somebody else."""
    assert set_rules(lakegc, lake, written(tmp_path, 21), "--yes", "--by", "Ada", signing_key=KEY).code == 0
    path, signed = lake.folder / RULES_HISTORY_KEY, target_of({**lake.sandbox.settings, "signing_key": KEY}, lake.name)
    assert [change.who for change in read_rules_history(signed.place).changes] == ["Ada"]

    set_rules(lakegc, lake, written(tmp_path, 22)).stopped(3, "is signed", "LAKEGC_SIGNING_KEY")
    alter_file(path, lambda data: data.replace(b'"Ada"', b'"Eve"'))
    with pytest.raises(Untrusted):
        read_rules_history(signed.place)
    set_rules(lakegc, lake, written(tmp_path, 23), signing_key=KEY).stopped(3, "doesn't match its signature")
    assert lake.lakefs.rules(lake.name) == Rules(21)


def test_a_change_is_added_to_a_history_that_another_process_wrote_at_the_same_time(lake: Lake) -> None:
    """No change is lost, and the number of kept changes is limited."""
    now, read = lake.now, rules_history._read

    def read_before_another_process_writes(place: Place) -> Any:
        found = read(place)
        with mock.patch.object(rules_history, "_read", read):
            add_rules_change(place, RulesChange("other", now, None, Rules(1)))
        return found

    reads = iter([read, read_before_another_process_writes, read])

    def next_read(place: Place) -> Any:
        return next(reads)(place)

    with (
        mock.patch.object(rules_history, "MAX_CHANGES", 2),
        mock.patch.object(rules_history, "_read", next_read),
    ):
        add_rules_change(lake.place, RulesChange("first", now, None, Rules(2)))
        add_rules_change(lake.place, RulesChange("last", now, Rules(2), Rules(3)))

    assert [change.who for change in read_rules_history(lake.place).changes] == ["other", "last"]


def test_a_history_of_large_rules_keeps_only_as_many_changes_as_can_be_read(lake: Lake) -> None:
    """Rules for thousands of branches, changed hundreds of times, would exceed the limit of a record."""
    rules = Rules(1, {f"branch-{number:05}": 2 for number in range(100)})
    changes = [RulesChange(f"{number}", lake.now, rules, rules) for number in range(9)]

    with mock.patch.object(rules_history, "MAX_BYTES", 4 * len(changes[0].to_json())):
        for change in changes:
            add_rules_change(lake.place, change)
            kept = read_rules_history(lake.place).changes
            assert kept[-1] == change
            assert lake.place.store().stat(RULES_HISTORY_KEY).size <= rules_history.MAX_BYTES
    assert [change.who for change in kept] == ["6", "7", "8"]


def test_the_newest_change_is_recorded_even_if_it_exceeds_the_limit(lake: Lake) -> None:
    with mock.patch.object(rules_history, "MAX_BYTES", 1):
        add_rules_change(lake.place, RulesChange("first", lake.now, None, Rules(1)))
        add_rules_change(lake.place, RulesChange("second", lake.now, Rules(1), Rules(2)))

    assert [change.who for change in read_rules_history(lake.place).changes] == ["second"]


def test_a_server_that_stores_different_rules_is_reported(lake: Lake) -> None:
    """A real server takes zero days everywhere to mean that there are no rules."""
    with pytest.raises(DamagedData, match="were set, but the server now has none"):
        lake.lakefs.set_rules(lake.name, Rules(0))
