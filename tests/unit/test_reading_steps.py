"""What the steps that read staged objects and commits write: on small repositories, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from lakegc_assets.mark.context import Limits, MarkRun
from lakegc_assets.mark.retained_commits import decide_commits
from lakegc_assets.mark.uncommitted_addresses import datasets, read_uncommitted
from lakegc_assets.mark.uncommitted_readings import MAX_TRIES, Reading, read_staged
from lakegc_assets.rules.retention import Reason
from spark_resources.errors import DamagedData, NotFound, Refused
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import delete_rules, dump_refs, set_rules
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.mark_store.hold_file import BranchHold, CommitHold, Hold, TagHold
from spark_resources.mark_store.holds import add_hold, read_holds
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import CHAIN, MarkRecord, StepRecord
from spark_resources.model import ADDRESSES, COMMIT_VERDICTS, HEADS, TAGS, Commit, Partition, Rules, Scope
from spark_resources.settings import Settings
from spark_resources.spark.datasets import Dataset, all_rows
from tests.support.mark_runs import quick_environment, target_of

NOW = datetime.now(UTC).replace(microsecond=0)
WHOLE_SECOND = timedelta(seconds=1)  # what a truncated date of the server may hide
HELD = TagHold(id="releases", owner="us", reason="audits", tags="v*")


def days_ago(days: int) -> datetime:
    return NOW - timedelta(days=days)


def no_spark() -> Any:
    """Only the number of cores of a Spark session: using anything else would start a JVM."""
    return SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path) as running:
        yield running


@pytest.fixture
def lake(sandbox: Sandbox) -> SandboxRepository:
    return sandbox.create("lake")


def begun(
    sandbox: Sandbox,
    *,
    before: str,
    scope: Scope = Scope.UNIFIED,
    on_message: Callable[[str], None] = lambda _: None,
) -> MarkRun:
    """A mark of `lake` whose next step is `before`."""
    settings = Settings.load(quick_environment(sandbox.settings), home=Path("/nonexistent"))
    target, lakefs = target_of(sandbox.settings, "lake"), LakeFS(*LakeFSSettings.of(settings))
    record = MarkRecord(
        mark_id="m1", state="marking", repository="lake", repository_created=target.repository.created,
        namespace=target.place.namespace.uri, scope=scope, min_age=timedelta(0), start=NOW, cutoff=NOW,
        server_now=NOW, rules=lakefs.rules("lake"), by="tests", versions={},
        holds=read_holds(target.place).record_fields(),
    )  # fmt: skip
    mark = Mark.begin(target.place, record)
    for earlier in CHAIN[: CHAIN.index(before)]:
        mark.add_step(earlier, StepRecord(NOW, NOW))
    return MarkRun(Partition("lake", "m1"), target, mark, lakefs, no_spark, Limits(), on_message)


def acting_at(words: str, act: Callable[[], object]) -> Callable[[str], None]:
    """Call this function at the message with these words."""
    return lambda message: (act(), None)[1] if words in message else None


# --- commits --------------------------------------------------------------------------------------------------------


@pytest.fixture
def history(lake: SandboxRepository) -> dict[str, Commit]:
    """Main is retained for 7 days, dev for 60; `dangling` is on no branch, `tagged` has the tag v1."""
    set_rules(lake, Rules(7, {"dev": 60}))
    commits: dict[str, Commit] = {}

    def commit(name: str, branch: str, days: int) -> None:
        lake.put(branch, "a", name.encode())
        commits[name] = lake.commit(branch, name, date=days_ago(days))

    commit("tagged", "main", 100)
    commit("shared", "main", 90)
    lake.create_branch("dev", "main")
    commit("main", "main", 80)
    commit("dev", "dev", 40)
    lake.create_branch("gone", "main")
    commit("dangling", "gone", 3)
    lake.delete_branch("gone")
    lake.create_tag("v1", commits["tagged"].id)
    lake.create_tag("nightly", commits["shared"].id)
    return commits


def decided(run: MarkRun) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Run the step. Returns its facts, and the verdicts by message."""
    decide_commits(run)
    return dict(run.mark.record.step("retained_commits").facts), {
        row["message"]: row for row in run.rows("retained_commits", COMMIT_VERDICTS)
    }


def heads(run: MarkRun) -> set[tuple[str, str, str]]:
    return {
        (row["branch"], row["commit_id"], row["metarange_id"]) for row in run.rows("retained_commits", HEADS, "heads")
    }


def test_each_commit_has_a_verdict_with_the_rule_that_decided(
    sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit]
) -> None:
    """Every column is written, and the facts count the verdicts."""
    add_hold(target_of(sandbox.settings, "lake").place, HELD)
    messages: list[str] = []
    run = begun(sandbox, before="retained_commits", on_message=messages.append)

    facts, verdicts = decided(run)

    def verdict(name: str, retained: bool, reason: Reason, branch: str | None, days: int | None, until: int | None,
                *, listed: bool, hold: str | None = None) -> dict[str, Any]:  # fmt: skip
        commit = history[name]
        return {
            "commit_id": commit.id, "retained": retained, "reason": reason.value, "branch": branch, "days": days,
            "until": None if until is None else days_ago(until) + WHOLE_SECOND, "created": commit.created,
            "message": name, "metarange_id": commit.metarange_id, "server_listed": listed, "hold": hold,
        }  # fmt: skip

    first = verdicts.pop("Repository created")
    assert (first["retained"], first["metarange_id"]) == (False, "")
    assert verdicts == {
        "tagged": verdict("tagged", True, Reason.ON_HOLD, "dev", 60, 90 - 60, listed=False, hold="releases"),
        "shared": verdict("shared", True, Reason.CHILD_YOUNG, "dev", 60, 40 - 60, listed=True),
        "main": verdict("main", True, Reason.HEAD, "main", 7, None, listed=True),
        "dev": verdict("dev", True, Reason.HEAD, "dev", 60, None, listed=True),
        "dangling": verdict("dangling", True, Reason.DANGLING, None, 7, 3 - 7, listed=True),
    }
    assert facts.pop("seconds") >= 0
    assert facts == {
        "commits": 6, "retained": 4, "on_hold": 1, "expired": 1, "retained_by_server_only": 0, "server_listed": 4,
        "branches": 2, "graph": True, "all_ranges": False, "holds": ["releases"],
    }  # fmt: skip
    assert heads(run) == {(name, history[name].id, history[name].metarange_id) for name in ("main", "dev")}
    assert run.rows("retained_commits", TAGS, "tags") == [
        {"tag": "nightly", "commit_id": history["shared"].id},
        {"tag": "v1", "commit_id": history["tagged"].id},
    ]
    assert messages[-1] == "4 of 6 commits are retained, and 1 more is on hold"
    assert run.decided is not None
    assert set(run.decided.commits) >= {commit.id for commit in history.values()}
    assert run.decided.holds == (HELD,)
    assert run.decided.branches == {"main": history["main"].id, "dev": history["dev"].id}
    assert run.decided.tags == {("v1", history["tagged"].id), ("nightly", history["shared"].id)}


def test_commits_found_only_in_the_dump_get_verdicts_and_holds_on_branches_apply(
    sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit]
) -> None:
    """An old dangling commit is in no log and on no list. The hold keeps what was main's head until 90 days ago."""
    lake.create_branch("gone", "main")
    lake.put("gone", "a", b"old")
    lake.commit("gone", "old", date=days_ago(9))
    lake.delete_branch("gone")
    hold = BranchHold(id="main", branches="main", days="95", owner="us", reason="audits")
    add_hold(target_of(sandbox.settings, "lake").place, hold)

    facts, verdicts = decided(begun(sandbox, before="retained_commits"))

    assert (verdicts["old"]["retained"], verdicts["old"]["reason"]) == (False, Reason.EXPIRED_DANGLING)
    assert {name: row["reason"] for name, row in verdicts.items() if row["hold"] == "main"} == {
        "tagged": Reason.ON_HOLD
    }
    assert (facts["commits"], facts["server_listed"]) == (7, 4)


def test_heads_and_tags_from_before_and_after_the_servers_list_are_retained(
    sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit]
) -> None:
    """Main moves, dev is deleted and its head tagged while the server prepares its list."""
    moved: list[Commit] = []
    add_hold(target_of(sandbox.settings, "lake").place, HELD)

    def change() -> None:
        lake.put("main", "a", b"new")
        moved.append(lake.commit("main", "new", date=days_ago(0)))
        lake.delete_tag("v1")
        lake.create_tag("v2", history["dev"].id)
        lake.delete_branch("dev")

    run = begun(sandbox, before="retained_commits", on_message=acting_at("waiting for the server's list", change))
    _, verdicts = decided(run)

    assert {name: (row["retained"], row["reason"]) for name, row in verdicts.items() if row["retained"]} == {
        "new": (True, Reason.HEAD),
        "main": (True, Reason.CHILD_YOUNG),
        "dev": (True, Reason.HEAD),
        "dangling": (True, Reason.DANGLING),
        "tagged": (True, Reason.ON_HOLD),
    }
    assert {(branch, commit_id) for branch, commit_id, _ in heads(run)} == {
        ("main", history["main"].id), ("main", moved[0].id), ("dev", history["dev"].id),
    }  # fmt: skip
    assert {row["tag"] for row in run.rows("retained_commits", TAGS, "tags")} == {"v1", "v2", "nightly"}
    assert run.decided is not None
    assert run.decided.branches == {"main": moved[0].id}


@pytest.mark.parametrize("when", ["reading the commit graph", "waiting for the server's list"])
def test_rules_that_change_while_commits_are_read_stop_the_mark(
    sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit], when: str
) -> None:
    run = begun(sandbox, before="retained_commits", on_message=acting_at(when, lambda: set_rules(lake, Rules(8))))

    with pytest.raises(Refused, match="retention rules of lake were changed"):
        decided(run)
    assert "retained_commits" not in run.mark.record.steps


def test_rules_that_changed_before_commits_are_read_stop_the_mark(
    sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit]
) -> None:
    """Nothing is then requested from the server."""
    messages: list[str] = []
    run = begun(sandbox, before="retained_commits", on_message=messages.append)
    set_rules(lake, Rules(8))

    with pytest.raises(Refused, match="retention rules of lake were changed"):
        decided(run)
    assert messages == []


def test_holds_that_change_while_commits_are_read_stop_the_mark(
    sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit]
) -> None:
    place = target_of(sandbox.settings, "lake").place
    run = begun(sandbox, before="retained_commits", on_message=acting_at("waiting for", lambda: add_hold(place, HELD)))

    with pytest.raises(Refused, match=r"holds of lake .* were changed"):
        decided(run)


def test_without_rules_no_commit_expires(sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit]) -> None:
    delete_rules(lake)
    messages: list[str] = []

    facts, verdicts = decided(begun(sandbox, before="retained_commits", on_message=messages.append))

    assert messages[-1] == "6 of 6 commits are retained"
    assert all(row["retained"] for row in verdicts.values())
    assert (facts["server_listed"], facts["expired"], facts["all_ranges"]) == (None, 0, False)


@pytest.mark.parametrize(
    ("scope", "rules", "dump", "all_ranges"),
    [
        (Scope.UNIFIED, True, False, False),
        (Scope.UNIFIED, False, False, True),
        (Scope.UNCOMMITTED, True, False, True),
        (Scope.UNCOMMITTED, True, True, False),
        (Scope.COMMITTED, True, True, False),
    ],
)
def test_every_range_counts_as_live_only_if_the_commits_to_expire_are_unknown(
    sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit],
    scope: Scope, rules: bool, dump: bool, all_ranges: bool,
) -> None:  # fmt: skip
    """Without permission to dump references, dangling commits are known only from the server's list, which only
    repositories with rules have."""
    if not rules:
        delete_rules(lake)
    run = begun(sandbox, before="retained_commits", scope=scope)

    facts, verdicts = decided(run if dump else without_dump(run))

    assert (facts["graph"], facts["all_ranges"]) == (dump, all_ranges)
    assert ("dangling" in verdicts) == (dump or rules)


def without_dump(run: MarkRun) -> MarkRun:
    """A run whose credentials don't allow a dump of references."""
    lakefs = LakeFS(run.lakefs.settings)
    lakefs.dump_refs = lambda repository: None  # type: ignore[method-assign]
    return replace(run, lakefs=lakefs)


def test_scope_committed_is_refused_without_the_commit_graph(
    sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit]
) -> None:
    run = begun(sandbox, before="retained_commits", scope=Scope.COMMITTED)

    with pytest.raises(Refused, match="the scope 'committed' needs the commit graph of lake"):
        decided(without_dump(run))


COMMIT_HOLD = CommitHold(id="jobs", owner="us", reason="audits", commits={"job": "*"})


@pytest.mark.parametrize(("rules", "refused"), [(True, True), (False, False)])
def test_holds_on_commits_are_refused_without_the_commit_graph_unless_every_range_counts_as_live(
    sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit], rules: bool, refused: bool
) -> None:
    hold: Hold = COMMIT_HOLD
    add_hold(target_of(sandbox.settings, "lake").place, hold)
    if not rules:
        delete_rules(lake)
    run = without_dump(begun(sandbox, before="retained_commits"))

    if refused:
        with pytest.raises(Refused, match=r"lake has holds on commits or paths \(jobs\)"):
            decided(run)
    else:
        assert decided(run)[0]["holds"] == ["jobs"]


def test_holds_on_commits_are_accepted_with_the_commit_graph(
    sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit]
) -> None:
    add_hold(target_of(sandbox.settings, "lake").place, COMMIT_HOLD)

    assert decided(begun(sandbox, before="retained_commits"))[0]["holds"] == ["jobs"]


def test_a_missing_or_altered_table_of_the_dump_stops_the_mark(
    sandbox: Sandbox, lake: SandboxRepository, history: dict[str, Commit]
) -> None:
    """A shorter list of commits would let live objects expire."""
    run = begun(sandbox, before="retained_commits")
    table = lake.objects.file(f"_lakefs/{dump_refs(lake)['commits_meta_range_id']}")
    data = table.read_bytes()

    def dump_and_damage(change: Callable[[], object]) -> Callable[[str], object]:
        dump = run.lakefs.dump_refs("lake")
        return lambda repository: (change(), dump)[1]

    for change, error, match in (
        (lambda: table.write_bytes(data[:-1] + bytes([data[-1] ^ 1])), DamagedData, table.name),
        (
            table.unlink,
            (DamagedData, NotFound),
            "the dump of references",
        ),
    ):
        with (
            mock.patch.object(LakeFS, "dump_refs", side_effect=dump_and_damage(change)),
            pytest.raises(error, match=match),
        ):
            decided(run)


# --- staged objects -------------------------------------------------------------------------------------------------


def staged(run: MarkRun) -> tuple[Reading, dict[str, list[str]]]:
    """One reading, and the addresses in each of its parts, sorted."""
    reading = read_staged(run, "uncommitted_addresses", "first", "first_diffs")
    return reading, {part: addresses(run, dataset) for part, dataset in reading.datasets.items()}


def addresses(run: MarkRun, dataset: Dataset, schema: pa.Schema = ADDRESSES) -> list[str]:
    return sorted(row["address"] for row in all_rows(run.place, dataset, schema))


@pytest.fixture
def changed(lake: SandboxRepository) -> dict[str, str]:
    """Addresses by path: three are staged on main and one on dev; one is committed and one deleted again."""
    keys = {"committed": lake.put("main", "committed", b"committed").address}
    lake.commit("main", "first")
    lake.create_branch("dev", "main")
    keys |= {path: lake.put("main", path, path.encode()).address for path in ("a", "b", "c", "deleted")}
    lake.delete("main", ["deleted", "committed"])
    keys["d"] = lake.put("dev", "d", b"d").address
    return keys


def test_staged_objects_are_read_from_the_servers_list_and_path_by_path(
    sandbox: Sandbox, lake: SandboxRepository, changed: dict[str, str]
) -> None:
    """Both results have exactly the staged objects of all branches; deleted and committed objects aren't staged."""
    run = begun(sandbox, before="uncommitted_addresses")

    reading, parts = staged(run)

    expected = sorted(changed[path] for path in ("a", "b", "c", "d"))
    assert parts == {"first": expected, "first_diffs": expected}
    assert reading.facts == {
        "first": {"pages": 1, "files": 1, "outside": 0, "addresses": 4},
        "first_diffs": {"asked": 4, "addresses": 4},
    }
    assert {part: dataset.folder for part, dataset in reading.datasets.items()} == {
        part: run.mark.folder("uncommitted_addresses", part) for part in parts
    }


def test_both_readings_of_staged_objects_are_recorded_with_their_parts(
    sandbox: Sandbox, lake: SandboxRepository, changed: dict[str, str]
) -> None:
    """Later steps and sweeps read each part."""
    run = begun(sandbox, before="uncommitted_addresses")

    read_uncommitted(run)

    recorded = run.mark.record.step("uncommitted_addresses")
    expected = sorted(changed[path] for path in ("a", "b", "c", "d"))
    assert [dataset.folder for dataset in datasets(run)] == [
        run.mark.folder("uncommitted_addresses", part) for part in ("first", "second", "first_diffs", "second_diffs")
    ]
    assert all(addresses(run, dataset) == expected for dataset in datasets(run))
    assert recorded.facts["second_diffs"] == {"asked": 4, "addresses": 4}


def test_staged_addresses_outside_the_namespace_are_left_out(
    sandbox: Sandbox, lake: SandboxRepository, changed: dict[str, str]
) -> None:
    """Linked objects in another place are never collected. The server doesn't list them."""
    lake.stage_address("main", "linked", "local://elsewhere/linked", size=1, checksum="a checksum")

    reading, parts = staged(begun(sandbox, before="uncommitted_addresses"))

    expected = sorted(changed[path] for path in ("a", "b", "c", "d"))
    assert parts == {"first": expected, "first_diffs": expected}
    assert reading.facts["first"] == {"pages": 1, "files": 1, "outside": 0, "addresses": 4}
    assert reading.facts["first_diffs"] == {"asked": 5, "addresses": 4}


def test_a_list_that_lacks_objects_shown_by_a_diff_is_requested_again(
    sandbox: Sandbox, lake: SandboxRepository, changed: dict[str, str]
) -> None:
    """Each list counts, and the diffs have the objects that no list has. The number of requests is limited."""
    sandbox.faults.branches_before_deleted = ("dev", "main")
    messages: list[str] = []

    reading, parts = staged(begun(sandbox, before="uncommitted_addresses", on_message=messages.append))

    again = [f"first_again_{number}" for number in range(1, MAX_TRIES)]
    assert set(parts) == {"first", "first_diffs", *again}
    assert parts["first_diffs"] == sorted(changed[path] for path in ("a", "b", "c", "d"))
    assert messages == ["a branch was deleted while the server listed staged addresses: requesting the list again"] * 2
    assert all(reading.facts[part]["addresses"] == len(parts[part]) == 0 for part in ("first", *again))


def test_a_complete_list_is_not_requested_again(
    sandbox: Sandbox, lake: SandboxRepository, changed: dict[str, str]
) -> None:
    """Only the first list failed."""
    messages: list[str] = []

    def mend(message: str) -> None:
        messages.append(message)
        sandbox.faults.branches_before_deleted = ()

    sandbox.faults.branches_before_deleted = ("dev", "main")
    reading, parts = staged(begun(sandbox, before="uncommitted_addresses", on_message=mend))

    assert set(parts) == {"first", "first_diffs", "first_again_1"}
    assert len(messages) == 1
    assert parts["first_again_1"] == parts["first_diffs"]
    assert reading.facts["first_again_1"] == {"pages": 1, "files": 1, "outside": 0, "addresses": 4}


def test_nothing_is_staged_in_a_new_repository(sandbox: Sandbox, lake: SandboxRepository) -> None:
    reading, parts = staged(begun(sandbox, before="uncommitted_addresses"))

    assert parts == {"first": [], "first_diffs": []}
    assert reading.facts["first_diffs"]["addresses"] == 0
