"""`lakegc holds`: adding, listing, checking and dropping holds."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest

from spark_resources.lakefs import LakeFS
from spark_resources.lakefs_sandbox import Sandbox, SandboxRepository
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.hold_file import parse_holds
from spark_resources.mark_store.holds import HOLDS_KEY, read_holds
from spark_resources.model import Rules
from spark_resources.stores.local.store import LocalStore
from tests.support.command_line import Lakegc, Outcome
from tests.support.mark_runs import target_of

WHOSE = ("--owner", "ada", "--reason", "because")
_serial = itertools.count(1)


@dataclass
class Held:
    """A repository, and the command line on its holds."""

    sandbox: Sandbox
    lakegc: Lakegc
    repository: SandboxRepository

    def __call__(self, *arguments: str) -> Outcome:
        return self.lakegc(self.sandbox.settings, "holds", self.repository.id, *arguments)

    @property
    def file(self) -> Path:
        return self.sandbox.local_path / self.repository.id / HOLDS_KEY

    def ids(self) -> list[str]:
        return [hold.id for hold in parse_holds(self.file.read_bytes(), "holds.yaml")]

    def write(self, text: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(text)


@pytest.fixture
def held(sandbox: Sandbox, lakegc: Lakegc) -> Held:
    """Three commits on main. The second one has a tag and the metadata `legal`; the rules retain only the last one."""
    lake, now = sandbox.create(f"held-{next(_serial)}"), sandbox.now()
    for days, metadata in ((60, {}), (50, {"legal": "hold"}), (40, {})):
        lake.put("main", "a", f"{days}".encode())
        lake.commit("main", f"{days}", metadata=metadata, date=now - timedelta(days=days))
        if metadata:
            lake.create_tag("v1", "main")
    set_rules(lake, Rules(7))
    return Held(sandbox, lakegc, lake)


def test_a_hold_is_listed_as_it_was_added_until_it_is_dropped(held: Held) -> None:
    """Both the file and the list show the hold."""
    empty = held("list")
    added = [
        held("add", "releases", "--tags", "v*", "--history", *WHOSE, "--until", "2127-01-31"),
        held("add", "legal", "--commits", "legal=hold", *WHOSE),
        held("add", "experiments", "--branches", "exp-*", "--days", "90", *WHOSE),
        held("add", "reports", "--paths", "[bold]*.pdf", *WHOSE),
        held("add", "imported", "--prefix", "data/imported/", *WHOSE),
    ]
    listed = json.loads(held("list", "--json").out)
    output = held("list")
    dropped = held("drop", "legal")

    assert "has no holds" in empty.out
    assert [outcome.code for outcome in (*added, output, dropped)] == [0] * 7
    assert "tags v* with their history, until 2127-01-31" in added[0].out
    assert [row["id"] for row in listed["holds"]] == ["releases", "legal", "experiments", "reports", "imported"]
    assert listed["holds"][0]["history"] == "true"
    assert {row["state"] for row in listed["holds"]} == {"in force"}
    assert "[bold]*.pdf" in output.out
    assert held.ids() == ["releases", "experiments", "reports", "imported"]


def test_a_check_counts_what_each_hold_currently_matches(held: Held) -> None:
    """The check also counts how many of these commits the rules would expire."""
    for hold_id, *what in (
        ("tagged", "--tags", "v*"),
        ("history", "--tags", "*", "--history"),
        ("legal", "--commits", "legal=*"),
        ("typo", "--tags", "V1"),
        ("main", "--branches", "ma*", "--days", "45"),
        ("data", "--prefix", "data/"),
        ("reports", "--paths", "*"),
    ):
        assert held("add", hold_id, *what, *WHOSE).code == 0

    checked = held("check", "--json")
    rows = {row.pop("hold"): row for row in json.loads(checked.out)["holds"]}
    counts = {
        name: tuple(row[k] for k in ("branches", "tags", "commits", "beyond_the_rules")) for name, row in rows.items()
    }

    assert counts["tagged"] == (None, 1, 1, 1)
    assert counts["history"] == (None, 1, 3, 3)  # the repository's first commit, too
    assert counts["legal"] == (None, None, 1, 1)
    assert counts["typo"] == (None, 0, 0, 0)
    assert counts["main"] == (1, None, 2, 1)
    assert rows["data"]["objects"] == "3"
    assert "counted by the next mark" in held("check").out


def test_a_check_omits_columns_that_are_empty_for_every_hold(held: Held) -> None:
    """Keys are long and terminals narrow. A prefix has no branches, tags or commits to count."""
    held("add", "imported", "--prefix", "data/imported/", *WHOSE)
    alone = held("check").out
    held("add", "legal", "--commits", "legal=*", *WHOSE)
    both = held("check").out

    assert [heading in alone for heading in ("objects", "commits", "beyond the rules", "tags")] == [True] + [False] * 3
    assert [heading in both for heading in ("objects", "commits", "beyond the rules", "tags")] == [True] * 3 + [False]


def test_an_expired_hold_is_listed_as_expired(held: Held) -> None:
    """The server's clock decides."""
    held.write("holds:\n  - {id: old, tags: '*', owner: a, reason: b, until: 2020-01-01}\n")

    assert json.loads(held("list", "--json").out)["holds"][0]["state"] == "expired"
    checked = json.loads(held("check", "--json").out)["holds"][0]
    assert (checked["state"], checked["commits"]) == ("expired", 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("h", "--tags", "*", "--until", "2020-01-01"), ("in the past", "server's clock")),
        (("h", "--tags", "*", "--until", "soon"), ("'until'", "neither a date")),
        (("h", "--tags", "v[0-9"), ("never closed",)),
        (("H", "--tags", "*"), ("lower-case",)),
        (("h",), ("needs exactly one of tags, commits, branches, paths, prefix",)),
        (("h", "--tags", "*", "--paths", "*"), ("tags and paths",)),
        (("h", "--paths", "*", "--history"), ("'history' is unknown",)),
        (("h", "--branches", "*"), ("'days' is missing",)),
        (("h", "--branches", "*", "--days", "0"), ("number of days",)),
        (("h", "--commits", "legal"), ("KEY=PATTERN",)),
        (("h", "--prefix", "_lakefs/"), ("no collectable object",)),
    ],
)
def test_an_invalid_hold_is_refused(held: Held, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    """The file of holds stays unchanged."""
    held("add", *arguments, *WHOSE).stopped(2, *words)

    assert not held.file.exists()


def test_a_duplicate_id_and_an_unknown_id_are_refused(held: Held) -> None:
    """The existing hold stays as it is."""
    assert held("add", "h", "--tags", "*", *WHOSE).code == 0

    held("add", "h", "--paths", "*", *WHOSE).stopped(2, "the hold 'h' already exists")
    held("drop", "g").stopped(2, "there is no hold 'g'", "Existing holds: h")


@pytest.mark.parametrize("command", [("list",), ("check",), ("drop", "h"), ("add", "g", "--tags", "*", *WHOSE)])
def test_a_holds_file_with_one_error_is_refused_as_a_whole(held: Held, command: tuple[str, ...]) -> None:
    """No command uses a part of it. The error names the line, and the file isn't changed."""
    text = "holds:\n  - {id: h, tags: '*', owner: a, reason: b}\n  - {id: i, tag: '*', owner: a, reason: b}\n"
    held.write(text)

    held(*command).stopped(3, "line 3", "exactly one of tags")

    assert held.file.read_text() == text


def test_the_second_of_two_simultaneous_changes_is_refused(held: Held) -> None:
    """The other person's change stays, and retrying succeeds."""
    read = LocalStore.read_with_tag

    def and_then_somebody_writes(store: LocalStore, key: str) -> tuple[bytes, str]:
        try:
            return read(store, key)
        finally:
            if not self_written:
                self_written.append(key)
                with_more = held.file.read_text() if held.file.exists() else "holds:\n"
                held.write(with_more + "  - {id: theirs, paths: '*', owner: a, reason: b}\n")

    for known in ([], ["theirs"]):
        self_written: list[str] = []
        if known:
            held.write("holds:\n  - {id: ours, tags: '*', owner: a, reason: b}\n")
        with mock.patch.object(LocalStore, "read_with_tag", and_then_somebody_writes):
            held("add", "mine", "--tags", "*", *WHOSE).stopped(3, "changed by another process after it was read")
        assert held.ids()[-1] == "theirs"
    assert held("add", "mine", "--tags", "*", *WHOSE).code == 0
    assert held.ids() == ["ours", "theirs", "mine"]


def test_a_hold_on_commits_is_checked_only_if_the_whole_commit_graph_can_be_read(held: Held) -> None:
    """If some commits can't be read, the check says so."""
    assert held("add", "legal", "--commits", "legal=*", *WHOSE).code == 0

    with mock.patch.object(LakeFS, "dump_refs", return_value=None):
        held("check").stopped(3, "legal", "whole commit graph")


def test_a_missing_holds_file_means_no_holds(held: Held) -> None:
    """A file with an empty list also means no holds, but such a file has a hash."""
    place = target_of(held.sandbox.settings, held.repository.id).place

    assert (read_holds(place).holds, read_holds(place).sha256) == ((), "")
    held.write("holds: []\n")
    assert read_holds(place).holds == ()
    assert len(read_holds(place).sha256) == 64
