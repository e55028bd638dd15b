"""Marks of repositories that change, or are damaged, while they are marked: live objects never expire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest

from lakegc_assets.mark.missing_objects import normalized
from spark_resources.errors import DamagedData, Refused
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import dump_refs, set_rules
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.model import Rules
from tests.support.changing_repository import frequent_faults
from tests.support.mark_runs import NO_MINIMUM_AGE, marked
from tests.support.messages import on_first_message

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path, faults=frequent_faults()) as running:
        yield running


@contextmanager
def no_dump() -> Iterator[None]:
    """Refuse dumps of references, as a server does if the credentials lack the permission."""
    with mock.patch.object(LakeFS, "dump_refs", return_value=None):
        yield


def days_ago(days: int) -> datetime:
    return NOW - timedelta(days=days)


def with_garbage(repository: SandboxRepository) -> str:
    """The address of an object that is garbage in any case, so that a mark has work to do."""
    address = repository.put("main", "garbage", b"nobody wants this").address
    repository.delete("main", ["garbage"])
    return address


def test_re_staged_content_that_is_moved_between_lists_and_path_probes_is_kept(sandbox: Sandbox) -> None:
    """Re-staged identical content is on no list. If it is moved before its path is probed, it is on the last list."""
    lake = sandbox.create("lake")
    garbage = with_garbage(lake)
    lake.put("main", "_SUCCESS", b"done")
    lake.commit("main", "a job")
    again = lake.put("main", "_SUCCESS", b"done")

    def move() -> None:
        lake.stage("main", [replace(again, path=b"elsewhere/_SUCCESS")])
        lake.delete("main", ["_SUCCESS"])

    with on_first_message("reading the commit graph", move):
        mark = marked(sandbox.settings, "lake")

    assert lake.stat("main", "elsewhere/_SUCCESS").address == again.address
    assert mark.expired == {garbage}


def test_a_branch_created_at_an_expired_commit_during_the_mark_keeps_its_objects(sandbox: Sandbox) -> None:
    """The commit becomes a head after heads were read, and is live again when the mark ends."""
    lake = sandbox.create("lake")
    set_rules(lake, Rules(1, {}))
    garbage = with_garbage(lake)
    old = lake.put("main", "a", b"old")
    expired = lake.commit("main", "old", date=days_ago(30))
    lake.put("main", "a", b"newer")
    lake.commit("main", "newer", date=days_ago(20))

    with on_first_message("probing branches", lambda: lake.create_branch("rescue", expired.id)):
        lake.put("main", "staged", b"...")  # of the old object's size, so that its path is probed
        lake.commit("main", "a question", date=days_ago(10))
        lake.put("main", "staged", b"+++")
        mark = marked(sandbox.settings, "lake")

    assert lake.stat("rescue", "a").address == old.address
    assert mark.expired == {garbage}


def test_an_object_whose_commit_is_created_and_becomes_dangling_during_a_mark_is_live(sandbox: Sandbox) -> None:
    """The commit's object was on no list while it was staged. The commit is young, like any new one."""
    lake = sandbox.create("lake")
    garbage = with_garbage(lake)
    lake.put("main", "_SUCCESS", b"done")
    first = lake.commit("main", "a job")
    again = lake.put("main", "_SUCCESS", b"done")

    def commit_elsewhere_and_leave() -> None:
        lake.stage("main", [replace(again, path=b"elsewhere/_SUCCESS")])
        lake.commit("main", "moved")
        lake.hard_reset("main", first.id)

    with on_first_message("probing branches", commit_elsewhere_and_leave):
        mark = marked(sandbox.settings, "lake")

    assert mark.expired == {garbage}


def test_without_rules_or_a_dump_the_objects_of_every_range_are_live(sandbox: Sandbox) -> None:
    """Old ranges count as well. Tables of an earlier dump of references are not mistaken for ranges."""
    lake = sandbox.create("lake")
    garbage = with_garbage(lake)
    live = {lake.put("main", "a", b"one").address}
    lake.commit("main", "one", date=days_ago(400))
    live.add(lake.put("main", "a", b"two").address)
    lake.commit("main", "two", date=days_ago(300))
    lake.create_branch("dev", "main")
    live.add(lake.put("dev", "b", b"three").address)
    lake.commit("dev", "dangling soon")
    lake.delete_branch("dev")
    dump_refs(lake)

    with no_dump():
        mark = marked(sandbox.settings, "lake")

    assert mark.expired == {garbage}
    assert not live & mark.expired


def test_without_a_dump_a_range_replaced_by_a_metarange_stops_the_mark(sandbox: Sandbox) -> None:
    """The metarange is intact and valid, but isn't the table of that name. It must not hide a range with live
    entries."""
    lake = sandbox.create("lake")
    with_garbage(lake)
    lake.put("main", "a", b"one")
    lake.commit("main", "one", date=days_ago(400))
    lake.create_branch("dev", "main")
    lake.put("dev", "a", b"two")
    dangling = lake.commit("dev", "dangling soon")
    lake.delete_branch("dev")
    (table,) = lake.committed.ranges(dangling.metarange_id)
    metarange = lake.objects.file(f"_lakefs/{dangling.metarange_id}").read_bytes()
    lake.objects.file(f"_lakefs/{table.id}").write_bytes(metarange)

    with no_dump(), pytest.raises(DamagedData, match=f"{table.id}.*{dangling.metarange_id}"):
        marked(sandbox.settings, "lake")


def test_a_lost_range_of_an_old_commit_stops_a_mark_without_a_dump(sandbox: Sandbox) -> None:
    """Reading all existing ranges isn't enough, because a known commit refers to the lost one."""
    lake = sandbox.create("lake")
    with_garbage(lake)
    lake.put("main", "a", b"one")
    first = lake.commit("main", "one", date=days_ago(400))
    lake.put("main", "a", b"two")
    lake.commit("main", "two", date=days_ago(300))
    (table,) = lake.committed.ranges(first.metarange_id)
    range_id = table.id
    lake.objects.file(f"_lakefs/{range_id}").unlink()

    with no_dump(), pytest.raises(DamagedData, match=range_id):
        marked(sandbox.settings, "lake")


def test_without_a_dump_the_parents_of_listed_dangling_commits_are_live(sandbox: Sandbox) -> None:
    """The rule retains the parent of a young commit. The server's list has each of the young commits, but not always
    its parent: that depends on the ids of commits."""
    lake = sandbox.create("lake")
    set_rules(lake, Rules(7))
    garbage = with_garbage(lake)
    live: set[str] = set()
    for number in range(6):
        live.add(lake.put("main", "a", f"live {number}".encode()).address)
        lake.commit("main", f"parent {number}", date=days_ago(30))
        lake.create_branch("dev", "main")
        lake.put("main", "a", f"newer {number}".encode())
        lake.commit("main", f"long ago {number}", date=days_ago(30))
        lake.put("dev", "a", f"another {number}".encode())
        lake.commit("dev", f"lately {number}")
        lake.delete_branch("dev")

    with no_dump():
        mark = marked(sandbox.settings, "lake")

    assert not live & mark.expired
    assert garbage in mark.expired


NORMALIZED = {  # addresses, and the keys under which a store that normalizes them has their objects
    "./data/s/dot": "data/s/dot",
    "/data/s/root": "data/s/root",
    "data/s//empty": "data/s/empty",
    "data/s/slash/": "data/s/slash",
    "data/s/./here": "data/s/here",
    "data/../data/s/above": "data/s/above",
    "data/s\\backslash": "data/s/backslash",
}


def test_live_addresses_that_the_store_would_change_stop_the_mark(sandbox: Sandbox) -> None:
    """The objects are stored under different keys, and would look like garbage. The addresses can't be accepted as
    lost."""
    lake = sandbox.create("lake")
    with_garbage(lake)
    lake.put("main", "fine", b"fine")
    live = lake.put("main", "a", b"live")
    for number, (address, key) in enumerate(NORMALIZED.items()):
        lake.objects.write(key, b"live")
        lake.stage("main", [replace(live, path=f"b/{number}".encode(), address=address)])
    lake.commit("main", "normalized")

    with pytest.raises(Refused, match=f"{len(NORMALIZED)} of 9 live addresses"):
        marked(sandbox.settings, "lake")
    assert {address: normalized(address) for address in NORMALIZED} == NORMALIZED
    first, key = min(NORMALIZED.items())
    with pytest.raises(Refused, match=f"'{first}' of lake was accepted as lost, but '{key}' is in"):
        marked(sandbox.settings, "lake", "m2", {**NO_MINIMUM_AGE, "accept_missing": [first]})
    with pytest.raises(Refused, match=f"live and not listed, but '({'|'.join(NORMALIZED.values())})' is in"):
        marked({**sandbox.settings, "max_missing": "7"}, "lake", "m3")
