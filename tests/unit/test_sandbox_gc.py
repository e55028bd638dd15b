"""The lists that the sandbox prepares for collectors, requested with the real `lakefs-sdk` (formats §2, §5, §6)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from lakefs_sdk import ApiException, Configuration, models
from lakefs_sdk.client import LakeFSClient

from spark_resources.lakefs_sandbox import ALL_OVERSIGHTS, Oversight, Sandbox, SandboxRepository
from spark_resources.lakefs_sandbox.gc_api import listed_commits
from spark_resources.lakefs_sandbox.state import BranchRecord
from spark_resources.model import AddressType, Commit, Rules
from spark_resources.sstable import Entry, read_branches, read_commits, read_ranges, read_tags, verify_table
from tests.support.recording_folders import recording_folders

RECORDINGS = recording_folders()
NOW = datetime(2022, 3, 31, 12, tzinfo=UTC)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "sandbox", uncommitted_page_size=2) as running:
        running.create("lake")
        yield running


@pytest.fixture
def lake(sandbox: Sandbox) -> SandboxRepository:
    return sandbox.repository("lake")


def client(sandbox: Sandbox) -> Any:
    login = {"username": sandbox.access_key_id, "password": sandbox.secret_access_key}
    return LakeFSClient(Configuration(host=f"{sandbox.endpoint_url}/api/v1", **login))


@pytest.fixture
def api(sandbox: Sandbox) -> Any:
    return client(sandbox)


def refused(status: int, message: str = "") -> Any:
    return pytest.raises(ApiException, check=lambda e: e.status == status and message in str(e.body))


def set_rules(api: Any, default_days: int, **branches: int) -> None:
    rules = [models.GarbageCollectionRule(branch_id=name, retention_days=days) for name, days in branches.items()]
    api.repositories_api.set_gc_rules(
        "lake", models.GarbageCollectionRules(default_retention_days=default_days, branches=rules)
    )


def announced(location: str) -> Path:
    """The file or folder at an announced location, which the local adapter writes with three slashes."""
    assert location.startswith("local:///")
    return Path(location.removeprefix("local://"))


# --- rules ------------------------------------------------------------------------------------------------------------


def test_rules_are_read_back_as_set(api: Any, lake: SandboxRepository) -> None:
    """Both calls return the rules, and the file in the namespace is the one that a server writes."""
    with refused(404, "not found"):
        api.repositories_api.get_gc_rules("lake")
    set_rules(api, 21, main=21, dev=7)
    for ask in (api.repositories_api.get_gc_rules, api.internal_api.internal_get_garbage_collection_rules):
        rules = ask("lake")
        assert rules.default_retention_days == 21
        assert {rule.branch_id: rule.retention_days for rule in rules.branches} == {"main": 21, "dev": 7}
    stored = (lake.objects.file("_lakefs/retention/gc/rules") / "config.json").read_bytes()
    assert stored == bytes.fromhex("081512080a046d61696e101512070a036465761007")
    api.repositories_api.delete_gc_rules("lake")
    with refused(404):
        api.internal_api.internal_get_garbage_collection_rules("lake")


def test_without_rules_a_request_for_the_list_of_commits_gets_a_404(api: Any) -> None:
    """The asynchronous call reports this in its status."""
    with refused(404, "get gc rules: not found"):
        api.internal_api.prepare_garbage_collection_commits("lake")
    task = api.internal_api.prepare_garbage_collection_commits_async("lake")
    status = api.internal_api.prepare_garbage_collection_commits_status("lake", task.id)
    assert (status.completed, status.result, status.error.message) == (True, None, "get gc rules: not found")
    with refused(404):
        api.internal_api.prepare_garbage_collection_commits_status("lake", "GCPCnever")


# --- commits ----------------------------------------------------------------------------------------------------------


def rows(location: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(announced(location).read_text())))


def worked_example(sandbox: Sandbox) -> dict[str, Commit]:
    """The history of lakeFS's documentation (formats §6): each commit by its branch and day."""
    lake = sandbox.repository("lake")
    commits: dict[str, Commit] = {}

    def commit(branch: str, day: datetime) -> None:
        lake.put(branch, "file", f"{branch} {day}".encode())
        commits[f"{branch} {day:%m-%d}"] = lake.commit(branch, "m", date=day)

    for month, day in ((2, 27), (3, 1), (3, 9)):
        commit("main", datetime(2022, month, day, tzinfo=UTC))
    lake.create_branch("dev", "main")
    for branch, day in (("main", 12), ("dev", 14), ("dev", 16), ("main", 18), ("dev", 20), ("dev", 23)):
        commit(branch, datetime(2022, 3, day, tzinfo=UTC))
    sandbox.set_clock(datetime(2022, 3, 24, tzinfo=UTC))
    commits["merge"] = lake.merge("dev~1", "main", strategy="source-wins")
    commit("main", datetime(2022, 3, 26, tzinfo=UTC))
    sandbox.set_clock(NOW)
    return commits


def test_the_documented_example_has_the_documented_list_of_commits(sandbox: Sandbox, api: Any) -> None:
    """The synchronous and the asynchronous call return it, with metaranges."""
    commits = worked_example(sandbox)
    set_rules(api, 21, main=21, dev=7)
    expected = {"main 03-09", "main 03-12", "main 03-18", "merge", "main 03-26", "dev 03-23"}
    plain = api.internal_api.prepare_garbage_collection_commits("lake")
    task = api.internal_api.prepare_garbage_collection_commits_async("lake")
    status = api.internal_api.prepare_garbage_collection_commits_status("lake", task.id)
    assert plain.run_id != status.result.run_id
    for prepared in (plain, status.result):
        listed = rows(prepared.gc_commits_location)
        assert {row["commit_id"]: row["metarange_id"] for row in listed} == {
            commits[name].id: commits[name].metarange_id for name in expected
        }
        assert {row["expired"] for row in listed} == {"false"}
        key = f"_lakefs/retention/gc/commits/run_id={prepared.run_id}/commits.csv"
        assert prepared.gc_commits_location == f"local://{sandbox.local_path}/lake/{key}"


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name)
def test_the_sandbox_lists_the_commits_that_a_real_server_listed(recording: Path) -> None:
    """Every recorded history gives the recorded list if the sandbox imitates the server's oversights."""
    meta = json.loads((recording / "meta.json").read_text())
    folder = recording / "namespace/_lakefs"
    if meta["rules"] is None:
        assert not list(folder.glob("retention/gc/commits/*/commits.csv"))
        return
    dump = json.loads((recording / "api/refs_dump.json").read_text())["body"]

    def dumped(entity: str, name: str, read: Any) -> list[Any]:
        refs = read_ranges((folder / name).read_bytes(), name=name, entity=entity)
        return [record for ref in refs for record in read((folder / ref.id).read_bytes(), name=ref.id)]

    commits = {commit.id: commit for commit in dumped("commit", dump["commits_meta_range_id"], read_commits)}
    branches = [
        BranchRecord(b.id, b.commit_id) for b in dumped("branch", dump["branches_meta_range_id"], read_branches)
    ]
    days = {rule["branch_id"]: rule["retention_days"] for rule in meta["rules"]["branches"]}
    listed = listed_commits(
        commits, branches, Rules(meta["rules"]["default_retention_days"], days),
        now=datetime.fromtimestamp(meta["recorded_at"], UTC), oversights=ALL_OVERSIGHTS,
    )  # fmt: skip
    recorded = list(folder.glob("retention/gc/commits/*/commits.csv"))
    assert recorded
    for path in recorded:
        assert {row["commit_id"] for row in rows(f"local://{path.absolute()}")} == listed


def shared_parent(first: str, second: str) -> tuple[dict[str, Commit], list[BranchRecord], Rules]:
    """A parent that only the young child on the branch with the shorter rule retains. The child on the other branch is
    too old."""
    commits = {
        "parent": Commit("parent", (), NOW - timedelta(days=90), ""),
        first: Commit(first, ("parent",), NOW - timedelta(days=30), ""),
        second: Commit(second, ("parent",), NOW - timedelta(days=3), ""),
    }
    return commits, [BranchRecord("long", first), BranchRecord("short", second)], Rules(5, {"long": 21, "short": 7})


def test_the_order_of_ids_matters_only_with_the_servers_oversight() -> None:
    """With the oversight, a parent is missing from the list if the longer walk comes first."""
    for first, second, listed in (("1", "2", False), ("2", "1", True)):
        commits, branches, rules = shared_parent(first, second)
        faulty = listed_commits(commits, branches, rules, now=NOW, oversights=ALL_OVERSIGHTS)
        assert faulty == {first, second} | ({"parent"} if listed else set())
        assert listed_commits(commits, branches, rules, now=NOW, oversights=()) == {first, second, "parent"}


def test_dangling_commits_younger_than_the_default_rule_are_listed() -> None:
    """A parent of a dangling commit is listed by the date of its child."""
    for age, expected in ((3, {"child", "parent", "head"}), (8, {"head"})):
        commits = {
            "parent": Commit("parent", (), NOW - timedelta(days=90), ""),
            "child": Commit("child", ("parent",), NOW - timedelta(days=age), ""),
            "head": Commit("head", (), NOW - timedelta(days=90), ""),
        }
        listed = listed_commits(commits, [BranchRecord("main", "head")], Rules(5), now=NOW, oversights=())
        assert listed == expected


# --- uncommitted ------------------------------------------------------------------------------------------------------


def prepared(api: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """Every page of one run, and the rows of the files that the pages announce."""
    pages = [api.internal_api.prepare_garbage_collection_uncommitted("lake")]
    while token := pages[-1].continuation_token:
        request = models.PrepareGCUncommittedRequest(continuation_token=token)
        pages.append(
            api.internal_api.prepare_garbage_collection_uncommitted("lake", prepare_gc_uncommitted_request=request)
        )
    folders = {page.gc_uncommitted_location for page in pages} - {""}
    files = [file for folder in folders for file in announced(folder).iterdir()]
    assert len(files) == sum(page.gc_uncommitted_location != "" for page in pages)
    return pages, [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def test_the_returned_location_is_empty_if_nothing_is_staged(api: Any) -> None:
    """There is only one page."""
    [page], staged = prepared(api)
    assert (page.gc_uncommitted_location, page.continuation_token, staged) == ("", None, [])


def test_pages_list_every_staged_address_of_every_branch_once(api: Any, lake: SandboxRepository) -> None:
    """Hidden branches are included; all pages share one run and one folder."""
    lake.put("main", "committed", b"1")
    lake.commit("main", "m")
    lake.create_branch("dev", "main")
    lake.create_branch("quiet", "main", hidden=True)
    entries = [lake.put(branch, f"k{n}", b"%d" % n) for branch in ("main", "dev", "quiet") for n in range(3)]
    lake.delete("main", ["committed"])
    pages, staged = prepared(api)
    assert len(pages) == 5
    assert {page.run_id for page in pages} == {pages[0].run_id}
    folder = f"_lakefs/retention/gc/uncommitted/{pages[0].run_id}/uncommitted"
    assert {page.gc_uncommitted_location for page in pages} == {f"local://{lake.objects.file(folder)}"}
    assert sorted(row["physical_address"] for row in staged) == sorted(entry.address for entry in entries)
    assert all(row["physical_address"].startswith("data/") for row in staged)
    now = datetime.now(UTC).timestamp()
    assert all(now - 60 < row["creation_date"] <= now for row in staged)


def test_deleting_a_branch_while_the_list_is_written_loses_the_page_of_other_branches(
    sandbox: Sandbox, api: Any
) -> None:
    """The sandbox behaves like the server: the page isn't lost if a later branch has changes, and the call gets a 404
    if the deleted branch is the last one (formats §2)."""
    lake, prepare = sandbox.repository("lake"), api.internal_api.prepare_garbage_collection_uncommitted
    lake.create_branch("z", "main")
    lake.put("main", "a", b"a")
    sandbox.faults.branches_before_deleted = ("main",)
    assert not prepare("lake").gc_uncommitted_location

    lake.put("z", "b", b"b")
    assert prepare("lake").gc_uncommitted_location

    sandbox.faults.branches_before_deleted = ("z",)
    with refused(404, "branch not found"):
        prepare("lake")


def test_a_staging_record_that_cannot_be_read_ends_the_diff_without_an_error(sandbox: Sandbox, api: Any) -> None:
    """The sandbox behaves like the server: listing the branch and reading that path do fail (formats §2)."""
    lake = sandbox.repository("lake")
    for path in "abc":
        lake.put("main", path, path.encode())
    sandbox.faults.unreadable_records = {("main", "b")}

    assert [change.path for change in api.branches_api.diff_branch("lake", "main").results] == ["a"]
    with refused(500):
        api.objects_api.list_objects("lake", "main", after="a")
    with refused(500):
        api.objects_api.stat_object("lake", "main", "b")
    assert api.objects_api.stat_object("lake", "main", "c").size_bytes == 1


def test_a_request_with_an_unknown_continuation_token_gets_a_400(api: Any) -> None:
    request = models.PrepareGCUncommittedRequest(continuation_token="made-up")
    with refused(400, "invalid continuation token"):
        api.internal_api.prepare_garbage_collection_uncommitted("lake", prepare_gc_uncommitted_request=request)


@pytest.mark.parametrize(("oversights", "seen"), [(ALL_OVERSIGHTS, False), (frozenset[Oversight](), True)])
def test_restaged_identical_content_is_listed_only_without_the_servers_oversight(
    tmp_path: Path, oversights: frozenset[Oversight], seen: bool
) -> None:
    """The content is served from its new address with or without the oversight."""
    with Sandbox(tmp_path / "sandbox", oversights=oversights) as sandbox:
        lake, api = sandbox.create("lake"), client(sandbox)
        old = lake.put("main", "_SUCCESS", b"")
        lake.commit("main", "m")
        new = lake.put("main", "_SUCCESS", b"")
        other = lake.put("main", "other", b"")
        served = api.objects_api.stat_object("lake", "main", "_SUCCESS").physical_address
        assert served.endswith(new.address)
        _, staged = prepared(api)
        assert {row["physical_address"] for row in staged} == {other.address} | ({new.address} if seen else set())
        assert old.address != new.address
        assert [change.path for change in api.branches_api.diff_branch("lake", "main").results] == ["other"]


def test_restaged_content_with_a_different_content_type_or_metadata_is_listed_as_uncommitted(
    api: Any, lake: SandboxRepository
) -> None:
    """The server counts such content as changed."""
    for path in ("type", "metadata"):
        lake.put("main", path, b"1")
    lake.commit("main", "m")
    staged = [
        lake.put("main", "type", b"1", content_type="text/csv"),
        lake.put("main", "metadata", b"1", metadata={"team": "ml"}),
    ]
    _, listed = prepared(api)
    assert {row["physical_address"] for row in listed} == {entry.address for entry in staged}


@pytest.mark.parametrize(("oversights", "seen"), [(ALL_OVERSIGHTS, False), (frozenset[Oversight](), True)])
def test_full_addresses_are_listed_only_without_the_servers_oversight(
    tmp_path: Path, oversights: frozenset[Oversight], seen: bool
) -> None:
    """The server takes an address with the local adapter's three slashes for one outside the namespace."""
    with Sandbox(tmp_path / "sandbox", oversights=oversights) as sandbox:
        lake = sandbox.create("lake")
        lake.objects.write("data/linked", b"1")
        entry = Entry(
            b"linked", lake.objects.location("data/linked"), AddressType.FULL, size=1, last_modified=sandbox.now()
        )
        outside = Entry(b"outside", "local:///elsewhere/data/x", AddressType.FULL, size=1, last_modified=sandbox.now())
        lake.stage("main", [entry, outside])
        assert lake.read("main", "linked")[1] == b"1"
        _, staged = prepared(client(sandbox))
        assert [row["physical_address"] for row in staged] == (["data/linked"] if seen else [])


def test_pages_of_a_diff_list_every_change_once(api: Any, lake: SandboxRepository) -> None:
    """Each change has its kind. An unknown branch gets a 404."""
    lake.put_many("main", [(path, b"old") for path in ("a", "b", "c")])
    lake.commit("main", "m")
    lake.put("main", "a", b"new")
    lake.delete("main", ["b"])
    lake.put("main", "d/1", b"added")
    changes, after = [], ""
    while True:
        page = api.branches_api.diff_branch("lake", "main", amount=1, after=after)
        changes += [(change.path, change.type) for change in page.results]
        if not page.pagination.has_more:
            break
        after = page.pagination.next_offset
    assert changes == [("a", "changed"), ("b", "removed"), ("d/1", "added")]
    assert [change.path for change in api.branches_api.diff_branch("lake", "main", prefix="d/").results] == ["d/1"]
    with refused(404, "branch not found"):
        api.branches_api.diff_branch("lake", "gone")


# --- refs dump --------------------------------------------------------------------------------------------------------


def test_a_dump_has_every_commit_branch_and_tag(sandbox: Sandbox, api: Any, lake: SandboxRepository) -> None:
    """The dump includes dangling commits and hidden branches. Each table has the id of its content."""
    lake.create_branch("dev", "main", hidden=True)
    lake.put("dev", "a", b"1")
    lake.commit("dev", "dangling")
    lake.delete_branch("dev")
    lake.create_branch("quiet", "main", hidden=True)
    lake.create_tag("v1", "main")
    plain = api.internal_api.dump_refs("lake")
    status = api.repositories_api.dump_status("lake", api.repositories_api.dump_submit("lake").id)
    assert (status.done, status.refs) == (True, plain)
    folder = lake.objects.file("_lakefs")

    def dumped(entity: str, name: str, read: Any) -> list[Any]:
        verify_table((folder / name).read_bytes(), name=name)
        refs = read_ranges((folder / name).read_bytes(), name=name, entity=entity)
        return [record for ref in refs for record in read((folder / ref.id).read_bytes(), name=ref.id)]

    assert dumped("commit", plain.commits_meta_range_id, read_commits) == lake.commits()
    assert len(lake.commits()) == 2
    branches = dumped("branch", plain.branches_meta_range_id, read_branches)
    assert [(branch.id, branch.hidden) for branch in branches] == [("main", False), ("quiet", True)]
    assert [tag.id for tag in dumped("tag", plain.tags_meta_range_id, read_tags)] == ["v1"]
    assert json.loads((folder / "refs_manifest.json").read_text()) == plain.to_dict()
