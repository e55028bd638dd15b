"""`lakegc explain` and `lakegc pins`: why an object is kept, expired or gone, and what keeps how much."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets import queries
from lakegc_assets.cli.explain import until_sentence
from lakegc_assets.queries.explanation import EXPLANATIONS
from lakegc_assets.queries.pinned import PINS
from lakegc_assets.rules.retention import Reason
from lakegc_assets.sweep.report import Report, report_key
from spark_resources.copying.copy_log import LOGGED, CopyStatus, Log
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.mark import mark_folder
from spark_resources.model import RECEIPTS, Rules
from spark_resources.spark.datasets import write_rows
from spark_resources.stores.place import Place
from tests.commands.conftest import Marked
from tests.support.command_line import NO_AGE, Lakegc
from tests.support.finished_marks import finished_record
from tests.support.mark_runs import environment, target_of

OUTSIDE = "local:///elsewhere/imported"


@dataclass
class Asked:
    """A marked repository with objects in every state, and their addresses by name."""

    sandbox: Sandbox
    lakegc: Lakegc
    repository: str = "asked"
    addresses: dict[str, str] = field(default_factory=dict)

    def explained(self, *arguments: str) -> dict[str, Any]:
        output = self.lakegc.output(self.sandbox.settings, "explain", self.repository, *arguments, "--format", "json")
        return dict(json.loads(output))

    def row(self, *arguments: str) -> Mapping[str, Any]:
        """The answer about a single address."""
        (row,) = self.explained(*arguments)["objects"]
        return dict(row)

    def text(self, *arguments: str) -> str:
        return self.lakegc.output(self.sandbox.settings, "explain", self.repository, *arguments)


@pytest.fixture(scope="module")
def asked(sandbox: Sandbox, lakegc: Lakegc) -> Asked:
    asked = Asked(sandbox, lakegc)
    lake, now = sandbox.create(asked.repository), sandbox.now()

    def put(branch: str, path: str, name: str) -> None:
        asked.addresses[name] = lake.put(branch, path, name.encode()).address

    lake.create_branch("old", "main")
    put("main", "a", "first")
    lake.commit("main", "first", date=now - timedelta(days=60))
    put("old", "only/on/old", "pinned by a stale branch")
    lake.commit("old", "an experiment", date=now - timedelta(days=55))
    put("main", "a", "second")
    put("main", asked.addresses["first"], "path like an address")
    lake.link("main", "imported", OUTSIDE, size=1, checksum="0" * 32)
    lake.commit("main", "second", date=now - timedelta(days=50))
    put("main", "a", "third")
    lake.commit("main", "third", date=now - timedelta(days=5))
    put("main", "b", "overwritten")
    put("main", "b", "staged")
    put("main", "c", "without a time")
    put("main", "c", "staged later")
    os.utime(sandbox.local_path / asked.repository / asked.addresses["without a time"], (0, 0))
    set_rules(lake, Rules(4, {"main": 30}))
    lakegc.output(sandbox.settings, "mark", asked.repository, "--mark-id", "m1", *NO_AGE)
    return asked


def test_a_path_is_explained_with_every_address_it_has_or_had(asked: Asked) -> None:
    rows = {row["address"]: row for row in asked.explained("a")["objects"]}
    assert {name for name, address in asked.addresses.items() if address in rows} == {"first", "second", "third"}
    first, second, third = (rows[asked.addresses[name]] for name in ("first", "second", "third"))
    assert (first["decision"], first["kept_by"], first["branch"], first["days"]) == ("expired", [], "main", 30)
    assert (second["decision"], second["kept_by"]) == ("kept", ["committed"])
    assert second["kept_until"] is not None
    assert (third["kept_until"], third["served_by"]) == (None, ["main"])
    assert [commit["message"] for commit in second["commits"]] == ["second"]
    text = asked.text("a")
    for words in ("a has, or had, 3 addresses", "Expired since", "main's rule of 30 days", "newest commit of main"):
        assert words in text


def test_an_object_without_a_plausible_time_is_kept_without_a_known_end(asked: Asked) -> None:
    row = asked.row(asked.addresses["without a time"])
    assert (row["decision"], row["kept_by"], row["kept_until"]) == ("kept", ["young"], None)
    assert "its modification time isn't plausible" in asked.text(asked.addresses["without a time"])


def test_what_no_rule_expires_is_explained_by_the_missing_rules_or_the_servers_list(
    asked: Asked, still: Marked
) -> None:
    """Without rules, there are no columns about them: they would be empty."""
    text = asked.lakegc.output(still.settings, "explain", still.repository, "a", "--path")
    [headings], [with_rules] = (re.findall(".*commit .* date .*", shown) for shown in (text, asked.text("only/on/old")))
    kept = {
        "kept_by": ["committed"],
        "kept_until": None,
        "commits": [{"retained": True, "until": None, "branch": None}],
    }
    listed = {**kept, "commits": [{**kept["commits"][0], "reason": Reason.SERVER.value}]}

    assert "No rule expires it: the repository had no retention rules at the time of the mark.\n" in text
    assert ("branch" in headings, "until" in headings) == (False, False)
    assert ("branch" in with_rules, "until" in with_rules) == (True, True)
    assert "as long as the server lists its commit as retained" in until_sentence(listed, finished_record())


def test_a_lakefs_uri_is_read_as_a_path(asked: Asked) -> None:
    assert asked.explained("lakefs://asked/main/a")["objects"] == asked.explained("a", "--path")["objects"]


def test_an_address_is_explained_with_its_paths_and_commits(asked: Asked) -> None:
    """The address may also be given as a full URI."""
    row = asked.row(asked.addresses["second"])
    assert [(commit["path"], commit["message"]) for commit in row["commits"]] == [("a", "second")]
    assert row == asked.row(f"local://{asked.repository}/{asked.addresses['second']}")


def test_staged_and_overwritten_objects_are_explained(asked: Asked) -> None:
    staged, overwritten = asked.row("b", "--path"), asked.row(asked.addresses["overwritten"])
    assert (staged["address"], staged["kept_by"], staged["served_by"]) == (
        asked.addresses["staged"], ["staged"], ["main"]
    )  # fmt: skip
    assert overwritten["decision"] == "expired"
    assert "no commit and no staged change refers to it" in asked.text(asked.addresses["overwritten"])


def test_objects_outside_the_namespace_and_metadata_are_explained_as_never_collected(asked: Asked) -> None:
    """The object outside the namespace is an imported one, explained by its path and by its address."""
    for arguments in (("imported",), (OUTSIDE,)):
        row = asked.row(*arguments)
        assert (row["address"], row["decision"]) == (OUTSIDE, "never collected")
        assert "outside the namespace" in row["why_never"]
    assert "metadata of lakeFS" in asked.row("_lakefs/anything", "--address")["why_never"]


def test_a_name_that_is_both_a_path_and_an_address_has_to_be_qualified(asked: Asked) -> None:
    address = asked.addresses["first"]
    asked.lakegc(asked.sandbox.settings, "explain", asked.repository, address).stopped(2, "--path", "--address")
    assert asked.row(address, "--address")["decision"] == "expired"
    assert asked.row(address, "--path")["address"] == asked.addresses["path like an address"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("never/was",), 1, ("'never/was' isn't in any commit that mark m1 of asked knew", "case-sensitive")),
        (("data/never/was", "--address"), 1, ("there is no object at local://asked/data/never/was", "--path")),
        (("a", "--path", "--address"), 2, ("mutually exclusive",)),
        (("a", "--mark", "m0"), 1, ("there is no mark m0", "lakegc status")),
        (("lakefs://another/main/a",), 2, ("is not a path in asked", "lakefs://REPOSITORY/BRANCH/PATH")),
    ],
)
def test_unknown_names_and_contradictory_options_are_refused_with_an_explanation(
    asked: Asked, arguments: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    asked.lakegc(asked.sandbox.settings, "explain", asked.repository, *arguments).stopped(code, *words)


def test_pins_show_the_stale_branch_that_alone_keeps_objects_first(asked: Asked) -> None:
    """Deleting that branch would make the objects garbage."""
    settings, size = asked.sandbox.settings, len("pinned by a stale branch")
    document = json.loads(asked.lakegc.output(settings, "pins", asked.repository, "--format", "json"))
    first, second = document["pins"][:2]
    assert (first["kind"], first["name"], first["objects"], first["stale"]) == ("branch", "old", 1, True)
    assert (second["kind"], second["name"], second["objects"]) == ("branch", "main", 3)
    text = asked.lakegc.output(settings, "pins", asked.repository)
    for words in ("Kept by a branch alone", "stale: kept only as the branch's head", f"{size} B", "an experiment",
                  "mark again: lakegc mark asked --min-age 0 --allow-young\n"):  # fmt: skip
        assert words in text


def test_functions_for_notebooks_return_the_same_answers_as_arrow_tables(asked: Asked) -> None:
    with environment(asked.sandbox.settings):
        explained, pins = queries.explain(asked.repository, "a"), queries.pins(asked.repository)

    assert (explained.schema, pins.schema) == (EXPLANATIONS, PINS)
    assert explained["decision"].to_pylist() == [row["decision"] for row in asked.explained("a")["objects"]]


def test_the_outcomes_of_a_sweep_and_a_restore_are_explained_with_their_receipts(
    asked: Asked, sandbox: Sandbox
) -> None:
    """If the files of a sweep were removed, the answer says that its outcomes can't be read."""
    place, address = target_of(sandbox.settings, asked.repository).place, asked.addresses["first"]
    write_sweep(place, "m1", address)
    row = asked.row(address, "--address")
    assert [(swept["mark_id"], swept["outcome"]) for swept in row["sweeps"]] == [("m1", "quarantined")]
    text = asked.text(address, "--address")
    for words in (
        f"{address}: quarantined",
        "Mark m1: quarantined",
        f"Receipt: local://asked/{mark_folder('m1')}sweep_report/",
        "lakegc undo",
    ):
        assert words in text

    write_restore(place, "m1", address)
    text = asked.text(address, "--address")
    for words in (
        f"{address}: restored from a backup",
        "Mark m1: restored from a backup 2026-11-22 00:00:00 UTC",
        f"Receipt: local://asked/{mark_folder('m1')}restored/",
        "lakegc report asked m1",
    ):
        assert words in text

    write_sweep(place, "removed", address)
    shutil.rmtree(sandbox.local_path / asked.repository / f"{mark_folder('removed')}sweep_report")
    document = asked.explained(address, "--address")
    assert list(document["unreadable_sweeps"]) == ["removed"]
    assert "removed can't be read" in asked.text(address, "--address")


def write_sweep(place: Place, mark_id: str, address: str) -> None:
    """Write the report of a sweep that quarantined this object."""
    at = datetime(2026, 11, 21, tzinfo=UTC)
    rows = [{"address": address, "size": 5, "outcome": "quarantined", "code": "", "why": "", "attempts": 1, "at": at}]
    dataset = write_rows(place, f"{mark_folder(mark_id)}sweep_report/", rows, RECEIPTS)
    report = Report(
        mark_id=mark_id, repository="asked", digest="0", by="ada", began=at, ended=at, approved=1,
        objects={"quarantined": 1}, sizes={"quarantined": 5}, seconds=1.0, requests=1, attempts=1, verifications=(at,),
        late=(), late_objects=0, quarantine=True, dataset=dataset.name_for_record(),
    )  # fmt: skip
    place.store().write(report_key(mark_id), report.to_json())


def write_restore(place: Place, mark_id: str, address: str) -> None:
    """Write the log of a restore that copied this object back from a backup, and found another one unchanged."""
    log, at = Log(place, f"{mark_folder(mark_id)}restored/"), datetime(2026, 11, 22, tzinfo=UTC)
    line: dict[str, Any] = {field.name: None for field in LOGGED if field.nullable}
    line |= {"key": f"objects/{address}", "size": 5, "seconds": 0.1, "at": at, "why": ""}
    for run, outcome in enumerate((CopyStatus.COPIED, CopyStatus.ALREADY_THERE), 1):
        rows = [{**line, "address": address, "outcome": outcome.value}]
        log.write(run, "0-0", pa.Table.from_pylist(rows, schema=LOGGED))
