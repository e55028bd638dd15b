"""Marks of a repository in which each kind of hold keeps an object that nothing else keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
import yaml

from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.queries import grouping, paths
from lakegc_assets.queries.addresses import Decision, explain_addresses
from lakegc_assets.queries.pinned import pins_of
from spark_resources.errors import DamagedData, Forbidden, Refused
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs_sandbox import Sandbox, SandboxRepository
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.hold_file import BadHolds, parse_holds
from spark_resources.mark_store.holds import HOLDS_KEY
from spark_resources.mark_store.mark import Mark, marks
from spark_resources.model import OBJECTS_ON_HOLD, RANGES_ON_HOLD, Rules, Scope
from spark_resources.spark.datasets import all_rows
from tests.support.mark_runs import Marked, Marker, on_executors, target_of
from tests.support.messages import on_first_message
from tests.support.recorded_marks import history_of

WHOSE = "owner: ada, reason: because"
EVERY_KIND = f"""
holds:
  - {{id: tagged, tags: "v*", {WHOSE}}}
  - {{id: with-history, tags: w1, history: true, {WHOSE}}}
  - {{id: legal, commits: {{legal: "hol?"}}, {WHOSE}}}
  - {{id: experiments, branches: "exp-*", days: 12, {WHOSE}}}
  - {{id: reports, paths: "reports/*", {WHOSE}}}
  - {{id: imported, prefix: data/imported/, {WHOSE}}}
"""


@dataclass(frozen=True)
class World:
    """A repository, and a name for each object that would expire without holds."""

    sandbox: Sandbox
    lake: SandboxRepository
    named: dict[str, str]

    def hold(self, text: str | None) -> None:
        file = self.lake.objects.file(HOLDS_KEY)
        file.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            file.unlink(missing_ok=True)
        else:
            file.write_text(text)

    def mark(self, mark_id: str, scope: Scope = Scope.UNIFIED) -> Marked:
        options = MarkOptions(scope, timedelta(0), allow_young=True)
        return Marker().mark(self.sandbox.settings, "lake", mark_id, options)

    def expired(self, mark: Marked) -> set[str]:
        return {self.named[address] for address in mark.expired}

    def on_hold_by_name(self, mark: Marked) -> dict[str, str]:
        """The objects that would have expired without holds, by name, with the holds that keep them."""
        dataset = Mark.open(mark.target.place, mark.record.mark_id).dataset("expired_set", "on_hold")
        return {
            self.named[row["address"]]: row["hold"] for row in all_rows(mark.target.place, dataset, OBJECTS_ON_HOLD)
        }

    def check_no_finished_mark(self, mark_id: str) -> None:
        (record,) = [
            record for record in marks(target_of(self.sandbox.settings, "lake").place) if record.mark_id == mark_id
        ]
        assert (record.finished, record.digest) == (None, None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Sandbox(tmp_path_factory.mktemp("held")) as sandbox:
        lake, now, named = sandbox.create("lake"), sandbox.now(), {}
        set_rules(lake, Rules(7))

        def commit(branch: str, days: int, metadata: Mapping[str, str] | None = None, **paths: str) -> None:
            for path, name in paths.items():
                address = lake.put(branch, path.replace("_", "/"), name.encode()).address
                named[address] = name
            lake.commit(branch, f"{days} days ago", metadata=metadata, date=now - timedelta(days=days))

        commit("main", 90, a="a, first", reports_x="report, first")
        commit("main", 80, a="a, second", reports_x="report, second")
        lake.create_tag("v1", "main")
        commit("main", 70, a="a, third")
        lake.create_tag("w1", "main")
        commit("main", 60, a="a, fourth")
        lake.create_branch("gone", "main")
        commit("gone", 50, {"legal": "hold"}, b="legal")
        commit("gone", 49, {"legal": "hold", "who": "ada"}, b="legal, too")
        commit("gone", 48, {"legal": "no"}, b="not legal")
        lake.delete_branch("gone")
        lake.create_branch("exp-1", "main")
        for days, name in ((20, "experiment, first"), (15, "experiment, second"), (10, "experiment, third")):
            commit("exp-1", days, e=name)
        commit("main", 30, a="a, fifth", reports_x="report, last")
        for key in ("data/imported/1", "data/imported/2", "data/left", "data/imported-too/1"):
            lake.objects.write(key, key.encode())
            named[key] = key
        yield World(sandbox, lake, named)


@pytest.fixture
def world(whole: World) -> Iterator[World]:
    yield whole
    whole.hold(None)


@pytest.fixture(scope="module")
def every_kind(whole: World) -> Marked:
    """A mark with a hold of every kind."""
    whole.hold(EVERY_KIND)
    try:
        return whole.mark("every-kind")
    finally:
        whole.hold(None)


ONLY_IN_EXPIRED_COMMITS = {"a, first", "a, second", "a, third", "report, first"}
ONLY_IN_EXPIRED_COMMITS |= {"legal", "legal, too", "not legal", "experiment, first", "experiment, second"}
NEVER_COMMITTED = {"data/imported/1", "data/imported/2", "data/left", "data/imported-too/1"}
HELD = {
    "a, first": "with-history",
    "report, first": "reports, with-history",
    "a, second": "tagged, with-history",
    "a, third": "with-history",
    "legal": "legal",
    "legal, too": "legal",
    "experiment, second": "experiments",
}
IMPORTED = {"data/imported/1": "imported", "data/imported/2": "imported"}


def test_each_kind_of_hold_keeps_exactly_the_objects_that_it_names(world: World, every_kind: Marked) -> None:
    """Kept objects are written to their own dataset, with the ids of all holds that keep them."""
    mark = every_kind

    assert world.expired(mark) == (ONLY_IN_EXPIRED_COMMITS | NEVER_COMMITTED) - HELD.keys() - IMPORTED.keys()
    assert world.on_hold_by_name(mark) == {**HELD, **IMPORTED}
    facts = mark.facts("expired_set")
    assert facts["on_hold"]["imported"] == {"objects": 2, "bytes": len(b"data/imported/1") * 2}
    assert (facts["objects_on_hold"], facts["on_hold"]["legal"]["objects"]) == (len(HELD) + 2, 2)
    assert facts["kept_by_probes"] == 0


def test_queries_report_the_holds_that_keep_objects_and_what_each_tag_alone_keeps(
    world: World, every_kind: Marked
) -> None:
    """The commit of v1 is also in the history of w1. A report is also on hold by its path, whatever the tags."""
    world.hold(EVERY_KIND)
    mark = every_kind
    history = history_of(world.sandbox.settings, mark)
    answers = explain_addresses(history, pa.array(sorted(world.named), pa.string())).to_pylist()

    assert {row["address"] for row in answers if row["decision"] == Decision.EXPIRED} == mark.expired
    by_hold = {world.named[row["address"]]: row["detail"] for row in answers if row["kept_by"] == ["hold"]}
    assert by_hold == {**HELD, **IMPORTED}
    with on_executors(), mock.patch.object(grouping, "ROWS_ON_DRIVER", -1):
        pins = {(row["kind"], row["name"]): row["objects"] for row in pins_of(history).to_pylist()}
    assert (pins["tag", "w1"], pins["tag", "v1"]) == (2, 0)
    assert pins["branch", "exp-1"] == 2  # the third experiment by its rule, the second by the hold on the branch


def test_objects_are_explained_without_the_commit_graph_but_pins_are_refused(world: World) -> None:
    with mock.patch.object(LakeFS, "dump_refs", return_value=None):
        history = history_of(world.sandbox.settings, mark := world.mark("no-graph"))
    answers = explain_addresses(history, pa.array(sorted(world.named), pa.string())).to_pylist()

    assert {row["address"] for row in answers if not row["kept_by"]} == mark.expired
    assert [row["path"] for row in paths.entries_at(history, "e").to_pylist()] == ["e"] * 3
    with pytest.raises(
        Refused, match=r"^'lakegc pins' needs .* has the scope 'unified', and the commit graph could not be read"
    ):
        pins_of(history)


def test_entries_at_a_path_are_the_same_whether_the_driver_or_executors_read_them(
    world: World, every_kind: Marked
) -> None:
    history = history_of(world.sandbox.settings, every_kind)
    on_driver = paths.entries_at(history, "a")
    limits = {"METARANGES_ON_DRIVER": -1, "ENTRIES_ON_DRIVER": -1}
    with on_executors(), mock.patch.multiple(paths, **limits):
        on_their_own = paths.entries_at(history, "a")

    assert on_driver.to_pylist() == on_their_own.to_pylist()
    assert [world.named[row["address"]] for row in on_driver.to_pylist() if row["message"] == "90 days ago"] == [
        "a, first"
    ]


def test_holds_keep_the_same_objects_whether_the_namespace_or_the_settings_have_them(world: World) -> None:
    """Half of the holds are in each place."""
    tables = [hold.fields() for hold in parse_holds(EVERY_KIND.encode(), "holds.yaml")]
    world.hold(yaml.safe_dump({"holds": tables[::2]}))
    settings = {**world.sandbox.settings, "holds": json.dumps(tables[1::2])}
    options = MarkOptions(min_age=timedelta(0), allow_young=True)
    mark = Marker().mark(settings, "lake", "half", options)

    assert world.expired(mark) == (ONLY_IN_EXPIRED_COMMITS | NEVER_COMMITTED) - HELD.keys() - IMPORTED.keys()
    assert world.on_hold_by_name(mark).keys() == HELD.keys() | IMPORTED.keys()


@pytest.mark.parametrize("scope", [Scope.COMMITTED, Scope.UNCOMMITTED])
def test_objects_on_hold_are_kept_in_the_scopes_committed_and_uncommitted(world: World, scope: Scope) -> None:
    """Objects that would have expired in a scope are attributed to the holds."""
    world.hold(EVERY_KIND)
    mark = world.mark(scope.value, scope)

    of_scope, on_hold_by_name = (
        (ONLY_IN_EXPIRED_COMMITS, HELD) if scope is Scope.COMMITTED else (NEVER_COMMITTED, IMPORTED)
    )
    assert world.expired(mark) == of_scope - on_hold_by_name.keys()
    assert world.on_hold_by_name(mark) == on_hold_by_name
    history = history_of(world.sandbox.settings, mark)
    answers = explain_addresses(history, pa.array(sorted(world.named), pa.string())).to_pylist()
    assert {row["address"] for row in answers if not row["kept_by"]} == mark.expired


def test_expired_holds_keep_nothing(world: World) -> None:
    """The result is the same as without a file of holds."""
    world.hold(EVERY_KIND.replace("because", "because, until: 2020-01-01"))
    with_expired = world.mark("with-expired")
    world.hold(None)
    without = world.mark("without")

    assert with_expired.expired == without.expired
    assert world.expired(without) == ONLY_IN_EXPIRED_COMMITS | NEVER_COMMITTED
    for mark in (with_expired, without):
        assert (mark.facts("expired_set")["on_hold"], mark.facts("retained_commits")["on_hold"]) == ({}, 0)
        assert not world.on_hold_by_name(mark)
    assert (without.record.holds, with_expired.record.holds["ids"][0]) == ({"sha256": "", "ids": []}, "tagged")
    assert with_expired.record.digest != without.record.digest


def test_missing_objects_on_hold_are_counted_and_do_not_stop_the_mark(world: World) -> None:
    """The objects were deleted before they were put on hold."""
    world.hold(EVERY_KIND)
    missing = next(address for address, name in world.named.items() if name == "a, second")
    file = world.lake.objects.file(missing)
    data = file.read_bytes()
    file.unlink()
    try:
        mark = world.mark("gone")
    finally:
        file.write_bytes(data)

    assert mark.facts("expired_set")["on_hold_not_listed"] == 1
    assert "a, first" in world.on_hold_by_name(mark)


# --- what stops a mark ----------------------------------------------------------------------------------------------


def test_a_missing_range_that_only_a_hold_needs_stops_the_mark(world: World, every_kind: Marked) -> None:
    """Without the range, it is unknown what is on hold. The error names the range."""
    world.hold(EVERY_KIND)
    place = every_kind.target.place
    ranges = all_rows(
        place, Mark.open(place, "every-kind").dataset("committed_addresses", "ranges_on_hold"), RANGES_ON_HOLD
    )
    on_hold_by_name = next(row for row in ranges if row["hold"] == "with-history")
    file = world.lake.objects.file(f"_lakefs/{on_hold_by_name['range_id']}")
    data = file.read_bytes()
    file.unlink()
    try:
        with pytest.raises(
            DamagedData, match=f"table {on_hold_by_name['range_id']}, referenced by a hold, is missing"
        ) as caught:
            world.mark("no-range")
    finally:
        file.write_bytes(data)

    assert caught.value.invariant == 3
    world.check_no_finished_mark("no-range")


def test_a_mark_is_refused_if_the_holds_file_is_invalid(world: World) -> None:
    """The repository isn't read, and no record is written."""
    world.hold(EVERY_KIND.replace("reason: because", "raison: because", 1))

    with pytest.raises(BadHolds, match="line 3: 'raison' is unknown") as caught:
        world.mark("bad-file")

    assert (caught.value.exit_code, caught.value.invariant) == (3, 3)
    assert not Mark.exists(target_of(world.sandbox.settings, "lake").place, "bad-file")


def test_a_change_to_the_holds_during_a_mark_stops_it(world: World) -> None:
    """The mark stops whichever step comes next."""
    world.hold(EVERY_KIND)
    changed = on_first_message("reading staged addresses", lambda: world.hold(None))
    with changed, pytest.raises(Refused, match="were changed while the repository was being marked") as caught:
        world.mark("changed")

    assert caught.value.invariant == 7
    world.check_no_finished_mark("changed")


def test_a_hold_added_before_the_mark_finishes_stops_it(world: World) -> None:
    """By that time, everything has been read, and the expired set has been written."""
    changed = on_first_message("writing the expired set", lambda: world.hold(EVERY_KIND))
    with changed, pytest.raises(Refused, match="were changed while the repository was being marked"):
        world.mark("late")

    world.check_no_finished_mark("late")


@pytest.mark.parametrize(
    ("call", "result", "words"),
    [
        ("dump_refs", {"return_value": None}, r"lake has holds on commits or paths \(legal, reports\)"),
        ("tags", {"side_effect": Forbidden("no permission")}, r"lake has holds on tags \(tagged, with-history\)"),
    ],
)
def test_holds_that_cannot_be_evaluated_stop_the_mark(world: World, call: str, result: Any, words: str) -> None:
    """Holds need the commit graph, or the permission to list tags."""
    world.hold(EVERY_KIND)

    with mock.patch.object(LakeFS, call, **result), pytest.raises(Refused, match=words):
        world.mark(f"no-{call}".replace("_", "-"))

    world.check_no_finished_mark(f"no-{call}".replace("_", "-"))


def test_a_tag_created_during_a_mark_is_on_hold_with_its_history(world: World) -> None:
    """The tag is created after the commits were read."""
    world.hold(f"holds: [{{id: all, tags: '*', history: true, {WHOSE}}}]")
    dangling = next(commit.id for commit in world.lake.commits() if commit.message == "48 days ago")
    try:
        with on_first_message("reading once more", lambda: world.lake.create_tag("late", dangling)):
            mark = world.mark("late-tag")
    finally:
        world.lake.delete_tag("late")

    assert world.expired(mark) & {"legal", "legal, too", "not legal"} == set()
    assert "experiment, first" in world.expired(mark)
