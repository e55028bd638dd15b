"""The sandbox's clock, object names, restarts and commit calls, and lakegc's own client and store with it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from lakefs_sdk import models

from spark_resources.errors import LakegcError, Unavailable, WrongUsage
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs_sandbox import Problem, Sandbox, SandboxRepository
from spark_resources.lakefs_sandbox.xids import SLICE_OBJECTS, AddressGenerator, Xids
from spark_resources.model import Namespace
from spark_resources.settings import Settings
from spark_resources.stores import open_store
from tests.support.sandbox_client import client, refused

THEN = datetime(2022, 3, 31, 12, tzinfo=UTC)
NEAR = timedelta(seconds=60)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "sandbox") as running:
        running.create("lake")
        yield running


def xid_time(xid: str) -> int:
    """The time in an xid (formats §1): its first four bytes, in base32hex."""
    alphabet = "0123456789abcdefghijklmnopqrstuv"
    number = 0
    for letter in xid:
        number = number << 5 | alphabet.index(letter)
    return number >> (20 * 5 - 32)


# --- clock ------------------------------------------------------------------------------------------------------------


def test_server_store_and_files_use_the_clock_that_was_set(sandbox: Sandbox) -> None:
    """Entries, names and commits also use it."""
    sandbox.set_clock(THEN)
    lake = sandbox.repository("lake")
    settings = Settings.load({}, Path("/nowhere"), **sandbox.settings)
    store = open_store(Namespace.parse("local://lake"), settings.store_settings())
    entry = lake.put("main", "a", b"1")
    _, data_slice, name = entry.address.split("/")
    assert entry.last_modified is not None
    commit = lake.commit("main", "m")
    headers = client(sandbox).repositories_api.get_repository_with_http_info("lake").headers
    for moment in (
        sandbox.now(),
        store.now(),
        parsedate_to_datetime(headers["Date"]),
        LakeFS(*LakeFSSettings.of(settings)).server_time(),
        store.stat(entry.address).modified,
        store.stat(f"_lakefs/{commit.metarange_id}").modified,
        entry.last_modified,
        commit.created,
        datetime.fromtimestamp(xid_time(name), UTC),
        datetime.fromtimestamp((64_060_588_800 - xid_time(data_slice)) % 2**32, UTC),
        sandbox.create("late").record.created,
    ):
        assert abs(moment - THEN) < NEAR, moment


def test_a_set_clock_advances_and_leaves_earlier_files_unchanged(sandbox: Sandbox) -> None:
    """Setting the clock to None restores the machine's time."""
    lake = sandbox.repository("lake")
    sandbox.set_clock(THEN)
    file = lake.objects.file(lake.put("main", "a", b"1").address)
    before = file.stat().st_mtime_ns
    first = sandbox.now()
    assert sandbox.now() > first
    sandbox.set_clock(THEN + timedelta(days=30))
    assert (file.stat().st_mtime_ns, sandbox.now() - THEN > timedelta(days=30)) == (before, True)
    sandbox.set_clock(None)
    assert abs(sandbox.now() - datetime.now(UTC)) < NEAR
    with pytest.raises(WrongUsage, match="time zone"):
        sandbox.set_clock(datetime(2022, 3, 31))


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_of_objects_sort_oldest_first_and_those_of_slices_newest_first() -> None:
    """A slice is open for one hour or 50,000 names."""
    now = [THEN]
    xids = Xids(7, lambda: now[0])
    addresses = AddressGenerator(xids, lambda: now[0])
    slices: list[str] = []
    issued: list[str] = []
    for step in range(3):
        now[0] = THEN + timedelta(minutes=61 * step)
        slices.append(addresses.new_address().split("/")[1])
        issued.append(addresses.new_address().split("/")[2])
    assert (slices, issued) == (sorted(set(slices), reverse=True), sorted(set(issued)))
    assert all(len(name) == 20 for name in slices + issued)
    now[0] += timedelta(minutes=59)
    assert addresses.new_address().split("/")[1] == slices[-1]
    rest = {addresses.new_address().split("/")[1] for _ in range(SLICE_OBJECTS - 3)}
    assert rest == {slices[-1]}
    assert addresses.new_address().split("/")[1] not in slices


def test_no_address_is_issued_twice_after_a_restart(tmp_path: Path) -> None:
    """Several sandboxes use the same folder one after another within a second."""
    addresses: list[str] = []
    for start in range(3):
        sandbox = Sandbox(tmp_path / "sandbox")
        sandbox.set_clock(THEN)
        lake = sandbox.repository("lake") if start else sandbox.create("lake")
        addresses += [lake.put("main", f"{start}/{number}", b"").address for number in range(5)]
        sandbox.stop()
    assert len(set(addresses)) == 15


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_a_restarted_sandbox_serves_the_same_repository(tmp_path: Path) -> None:
    """The restarted sandbox has the same commits, branches, tags, staged entries, rules, tasks and clock."""

    def served(sandbox: Sandbox) -> list[Any]:
        api = client(sandbox)
        return [
            api.repositories_api.list_repositories(),
            api.branches_api.list_branches("lake", show_hidden=True),
            api.tags_api.list_tags("lake"),
            api.refs_api.log_commits("lake", "main"),
            api.objects_api.list_objects("lake", "main"),
            api.branches_api.diff_branch("lake", "main"),
            bytes(api.objects_api.get_object("lake", "main", "staged")),
            api.repositories_api.get_gc_rules("lake"),
            api.repositories_api.dump_status("lake", task),
        ]

    with Sandbox(tmp_path / "sandbox") as sandbox:
        sandbox.set_clock(THEN)
        lake, api = sandbox.create("lake"), client(sandbox)
        lake.put("main", "a", b"1")
        lake.commit("main", "m", metadata={"team": "ml"})
        lake.create_branch("quiet", "main", hidden=True)
        lake.create_tag("v1", "main")
        lake.put("main", "staged", b"2")
        lake.delete("main", ["a"])
        rule = models.GarbageCollectionRule(branch_id="main", retention_days=3)
        api.repositories_api.set_gc_rules(
            "lake", models.GarbageCollectionRules(default_retention_days=1, branches=[rule])
        )
        task = api.repositories_api.dump_submit("lake").id
        before = served(sandbox)
    with Sandbox(tmp_path / "sandbox") as again:
        assert served(again) == before
        assert abs(again.now() - THEN) < NEAR


def test_a_stopped_sandbox_frees_its_port_and_can_be_started_again(sandbox: Sandbox) -> None:
    """While the sandbox is stopped, asking for its address is an error."""
    address = sandbox.endpoint_url
    port = int(address.rpartition(":")[2])
    with pytest.raises(Unavailable, match="can't listen"):
        Sandbox(sandbox.root, port=port).start()
    sandbox.stop()
    with pytest.raises(LakegcError, match="not running"):
        _ = sandbox.endpoint_url
    with Sandbox(sandbox.root, port=port) as again:
        assert again.endpoint_url == address
    sandbox.start()
    assert client(sandbox).repositories_api.get_repository("lake").id == "lake"


def test_options_and_environment_variables_of_the_sandbox_give_the_same_settings(sandbox: Sandbox) -> None:
    """lakegc connects to the sandbox with either of them."""
    by_options = Settings.load({}, Path("/nowhere"), **sandbox.settings)
    by_variables = Settings.load(sandbox.environment, Path("/nowhere"))
    assert by_options.model_dump() == by_variables.model_dump()
    assert (by_options.endpoint_url, by_options.local_path) == (sandbox.endpoint_url, str(sandbox.local_path))


# --- commits and merges over HTTP -------------------------------------------------------------------------------------


def test_a_commit_has_the_message_metadata_and_date_of_its_request(sandbox: Sandbox) -> None:
    """The response, `get commit` and the log agree. Errors have their own statuses."""
    api, lake = client(sandbox), sandbox.repository("lake")
    creation = models.CommitCreation(message="m", metadata={"team": "ml"}, date=1_700_000_000)
    with refused(400, "commit: no changes"):
        api.commits_api.commit("lake", "main", creation)
    with refused(404, "branch not found"):
        api.commits_api.commit("lake", "gone", creation)
    lake.put("main", "a", b"1")
    commit = api.commits_api.commit("lake", "main", creation)
    assert (commit.message, commit.metadata, commit.creation_date) == ("m", {"team": "ml"}, 1_700_000_000)
    assert (commit.committer, commit.generation, commit.version) == ("admin", 2, 1)
    assert api.commits_api.get_commit("lake", commit.id) == commit
    assert api.refs_api.log_commits("lake", commit.id).results[0] == commit
    with refused(404, "commit not found"):
        api.commits_api.get_commit("lake", "0" * 64)


@pytest.mark.parametrize("amount", [1, 2, 100])
def test_pages_of_the_log_list_every_commit_once_and_in_order(sandbox: Sandbox, amount: int) -> None:
    """An unknown ref gets a 404."""
    api, lake = client(sandbox), sandbox.repository("lake")
    for number in range(4):
        lake.put("main", "a", b"%d" % number)
        lake.commit("main", f"{number}")
    ids, after = [], ""
    while True:
        page = api.refs_api.log_commits("lake", "main", amount=amount, after=after)
        ids += [commit.message for commit in page.results]
        if not page.pagination.has_more:
            break
        after = page.pagination.next_offset
    assert ids == ["3", "2", "1", "0", "Repository created"]
    with refused(404):
        api.refs_api.log_commits("lake", "gone")


def test_a_merge_with_a_conflict_gets_a_409_unless_a_strategy_is_given(sandbox: Sandbox) -> None:
    """Without a conflict, the response names the merge commit."""
    api, lake = client(sandbox), sandbox.repository("lake")
    lake.create_branch("dev", "main")
    for branch in ("main", "dev"):
        lake.put(branch, "a", branch.encode())
        lake.commit(branch, "m")
    head = lake.branch("main").commit_id
    with refused(409, "conflict found"):
        api.refs_api.merge_into_branch("lake", "dev", "main")
    assert api.branches_api.get_branch("lake", "main").commit_id == head
    merged = api.refs_api.merge_into_branch("lake", "dev", "main", merge=models.Merge(strategy="source-wins"))
    assert api.branches_api.get_branch("lake", "main").commit_id == merged.reference
    assert bytes(api.objects_api.get_object("lake", "main", "a")) == b"dev"
    with refused(400, "no changes"):
        api.refs_api.merge_into_branch("lake", "dev", "main")


def test_direct_calls_and_http_see_the_same_repository(sandbox: Sandbox) -> None:
    """Each sees the other's changes at once, and both refuse the same requests."""
    api, lake = client(sandbox), sandbox.repository("lake")
    assert isinstance(lake, SandboxRepository)
    assert lake.put_many("main", ((f"k{number}", b"") for number in range(1500))) == 1500
    assert len(api.objects_api.list_objects("lake", "main", amount=1000).results) == 1000
    commit = api.commits_api.commit("lake", "main", models.CommitCreation(message="m"))
    assert lake.branch("main").commit_id == commit.id
    with pytest.raises(Problem, match="not unique"):
        sandbox.create("lake")
