"""References from other repositories when a sweep re-verifies, and other repositories that it can't read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.mark import other_repository_heads
from lakegc_assets.mark.context import MarkRun
from lakegc_assets.rules.brakes import unread_repositories_in
from lakegc_assets.sweep.other_head_watch import OtherHeads
from lakegc_assets.sweep.preconditions import SweepOptions
from lakegc_assets.sweep.report import Report
from spark_resources.errors import Refused, Unavailable
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.mark_store.mark import mark_folder, verifications_folder
from spark_resources.model import RECEIPTS, AddressType
from spark_resources.spark.datasets import all_rows, open_dataset
from spark_resources.sstable import Entry
from tests.support.mark_runs import ANY_AGE, Marked, Marker, Sweeper, target_of
from tests.support.messages import on_first_message
from tests.support.sandbox_client import client
from tests.support.tampering_proxy import TamperingProxy, tampering_proxy

ONE_SECOND = timedelta(seconds=1)  # the resolution of the server's clock


@pytest.fixture
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("others")) as server:
        yield server


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[TamperingProxy]:
    with tampering_proxy(sandbox.endpoint_url) as tampering:
        yield tampering


@pytest.fixture
def lake(sandbox: Sandbox) -> SandboxRepository:
    """A repository beside two others, `other` and `third`."""
    for name in ("other", "third"):
        sandbox.create(name)
    repository = sandbox.create("lake")
    repository.put("main", "kept", b"kept")
    repository.commit("main", "kept")
    return repository


def garbage(lake: SandboxRepository, data: str) -> Entry:
    """An object with this content to which nothing refers."""
    entry = lake.put("main", "garbage", data.encode())
    lake.delete("main", ["garbage"])
    return entry


def stage_elsewhere(other: SandboxRepository, entry: Entry, path: str, branch: str = "main") -> None:
    """Stage an object of the lake in another repository."""
    there = replace(entry, path=path.encode(), address=f"local://lake/{entry.address}", address_type=AddressType.FULL)
    other.stage(branch, [there])


def mark(sandbox: Sandbox, mark_id: str = "m1") -> Marked:
    return Marker().mark(settings(sandbox), "lake", mark_id, ANY_AGE)


def approve(sandbox: Sandbox, mark_id: str = "m1") -> None:
    """Approve a mark and release each tripped brake."""
    Sweeper().approve(settings(sandbox), "lake", mark_id)


def sweep(sandbox: Sandbox, mark_id: str = "m1") -> Report:
    return Sweeper().sweep(settings(sandbox), "lake", mark_id, SweepOptions())


def settings(sandbox: Sandbox) -> dict[str, str]:
    return {**sandbox.settings, "retry_total_s": "0"}


def is_stored(lake: SandboxRepository, entry: Entry) -> bool:
    return lake.objects.file(entry.address).exists()


def test_a_sweep_stops_if_it_cannot_read_a_repository_that_its_mark_read(
    sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """The repository may now refer to more objects, so no object is deleted until it can be read."""
    imported, nobodys = garbage(lake, "imported"), garbage(lake, "nobody's")
    assert mark(sandbox).expired == {imported.address, nobodys.address}
    approve(sandbox)
    stage_elsewhere(sandbox.repository("other"), imported, "imported")

    for status in (503, 403):
        sandbox.fail("other", status)
        with pytest.raises(Refused, match=r"repository other .*--release 'others/other' --because"):
            sweep(sandbox)
        assert is_stored(lake, imported), status
        assert is_stored(lake, nobodys), status

    sandbox.fail("other", None)
    report = sweep(sandbox)

    assert report.objects == {"deleted": 1, "rescued": 1}
    assert sandbox.repository("other").read("main", "imported")[1] == b"imported"


def test_a_sweep_continues_without_an_unreadable_repository_only_if_the_approval_released_it(
    sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """The mark could not read the repository, and the approval released it by name. Objects that it was known to refer
    to are kept."""
    imported, nobodys = garbage(lake, "imported"), garbage(lake, "nobody's")
    stage_elsewhere(sandbox.repository("other"), imported, "imported")
    mark(sandbox, "m0")
    sandbox.fail("other", 503)
    assert mark(sandbox).expired == {nobodys.address}
    approve(sandbox)
    sandbox.fail("third", 403)

    with pytest.raises(Refused, match="repository third "):
        sweep(sandbox)
    assert is_stored(lake, nobodys)

    sandbox.fail("third", None)
    report = sweep(sandbox)

    assert report.objects == {"deleted": 1}
    assert list(report.unread) == ["other"]
    assert "released: other" in report.sentence()
    assert is_stored(lake, imported)


def created_again(sandbox: Sandbox, name: str, marked: Marked) -> SandboxRepository:
    """Another repository with the name of a deleted one, created after a mark."""
    client(sandbox).repositories_api.delete_repository(name)
    later = marked.record.server_now + timedelta(seconds=2)
    return sandbox.create(name, storage_namespace=f"local://{name}-again", date=later)


@pytest.mark.parametrize("while_deleting", [False, True], ids=["before the sweep", "while it deletes"])
def test_a_release_does_not_cover_a_later_repository_of_the_same_name(
    sandbox: Sandbox, lake: SandboxRepository, monkeypatch: pytest.MonkeyPatch, while_deleting: bool
) -> None:
    """The reason in the approval is about the deleted repository. It is unknown to which objects the later one
    refers."""
    imported = garbage(lake, "imported")
    sandbox.fail("other", 503)
    marked = mark(sandbox)
    approve(sandbox)
    watch = OtherHeads.of

    def create_again() -> None:
        sandbox.fail("other", None)
        stage_elsewhere(created_again(sandbox, "other", marked), imported, "imported")
        sandbox.fail("other", 503)

    def create_again_and_watch(run: MarkRun) -> OtherHeads:
        create_again()
        return watch(run)

    if while_deleting:
        monkeypatch.setattr(OtherHeads, "of", create_again_and_watch)
    else:
        create_again()

    with pytest.raises((Refused, Unavailable), match="repository other may refer to objects of the marked repository"):
        sweep(sandbox)
    assert is_stored(lake, imported)


def test_a_table_swapped_while_it_is_read_is_not_mistaken_for_one_without_references(
    sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """The swapped tables, a range in one repository and a metarange in another, are complete and valid, but not the
    tables of that name. The repositories count as unread. Once the right tables are back, neither the sweep nor a later
    mark mistakes them for tables without references."""
    imported, nobodys, right = dict[str, Entry](), garbage(lake, "nobody's"), dict[Path, bytes]()
    for name, kind in (("other", "range"), ("third", "metarange")):
        other, imported[name] = sandbox.repository(name), garbage(lake, f"imported by {name}")
        other.put("main", "its own", b"its own")
        first = other.commit("main", "its own")
        stage_elsewhere(other, imported[name], "imported")
        swapped, its_own = (
            other.committed.ranges(commit.metarange_id)[0].id for commit in (other.commit("main", "imports"), first)
        )
        other.hard_reset("main", first.id)  # the table of a head is read once more, for path probes
        table = other.objects.file(f"_lakefs/{swapped}")
        right[table] = table.read_bytes()
        instead = its_own if kind == "range" else first.metarange_id
        table.write_bytes(other.objects.file(f"_lakefs/{instead}").read_bytes())

    first_mark = mark(sandbox)
    approve(sandbox)
    for table, data in right.items():
        table.write_bytes(data)

    assert list(unread_repositories_in(first_mark.record)) == ["other", "third"]
    assert mark(sandbox, "m2").expired == {nobodys.address}
    assert sweep(sandbox).objects == {"deleted": 1, "rescued": 2}
    assert all(is_stored(lake, entry) for entry in imported.values())


def leave_by_another_commit(other: SandboxRepository, entry: Entry) -> None:
    take_in_and_drop(other, "main", entry)


def leave_by_empty_commits(other: SandboxRepository, entry: Entry) -> None:
    take_in_and_drop(other, "main", entry)
    for number in range(3):
        other.commit("main", f"empty {number}", allow_empty=True)


def leave_by_a_merge(other: SandboxRepository, entry: Entry) -> None:
    other.create_branch("dev", "main")
    take_in_and_drop(other, "dev", entry)
    other.put("main", "more", b"more")
    other.commit("main", "more")
    other.merge("dev", "main", allow_empty=True)
    other.delete_branch("dev")


def take_in_and_drop(other: SandboxRepository, branch: str, entry: Entry) -> None:
    stage_elsewhere(other, entry, "imported", branch)
    other.commit(branch, "takes it in")
    other.delete(branch, ["imported"])
    other.commit(branch, "drops it")


LEAVE = {"other": leave_by_another_commit, "third": leave_by_empty_commits, "fourth": leave_by_a_merge}


def test_objects_of_a_commit_behind_a_new_head_of_another_repository_are_live(
    sandbox: Sandbox, lake: SandboxRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All commits were made after the re-verification and before heads were listed again. No head has the object."""
    sandbox.create("fourth")
    imported, nobodys = {name: garbage(lake, f"imported by {name}") for name in LEAVE}, garbage(lake, "nobody's")
    for name in LEAVE:
        sandbox.repository(name).put("main", "its own", b"its own")
        sandbox.repository(name).commit("main", "its own")
    assert mark(sandbox).expired == {entry.address for entry in (*imported.values(), nobodys)}
    approve(sandbox)
    watch, watched = OtherHeads.of, list[OtherHeads]()

    def commit_and_watch(run: MarkRun) -> OtherHeads:
        for name, leave in LEAVE.items() if not watched else ():
            leave(sandbox.repository(name), imported[name])
        watched.append(watch(run))
        return watched[-1]

    monkeypatch.setattr(OtherHeads, "of", commit_and_watch)
    report = sweep(sandbox)

    assert {name: is_stored(lake, entry) for name, entry in imported.items()} == dict.fromkeys(LEAVE, True)
    assert report.objects == {"deleted": 1, "rescued": 3}


def test_a_table_damaged_in_one_repository_is_read_from_another_that_has_it(
    sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """Each table is read only once, but if that fails it is read from the other repository."""
    imported = garbage(lake, "imported")
    tables = []
    for other in (sandbox.repository("other"), sandbox.repository("third")):
        first = other.commit("main", "nothing", allow_empty=True)
        stage_elsewhere(other, imported, "imported")
        tables.append(other.committed.ranges(other.commit("main", "imports").metarange_id)[0].id)
        other.hard_reset("main", first.id)
    assert tables[0] == tables[1]
    table = sandbox.repository("other").objects.file(f"_lakefs/{tables[0]}")
    table.write_bytes(table.read_bytes()[:-1])

    marked = mark(sandbox)

    assert list(unread_repositories_in(marked.record)) == ["other"]
    assert marked.expired == set()


def stage_again_elsewhere(other: SandboxRepository, entry: Entry, path: str, data: bytes) -> None:
    """Stage an object of the lake in another repository, at a path whose committed object has the same content."""
    there = replace(other.put("main", path, data), address=f"local://lake/{entry.address}")
    other.commit("main", path)
    other.stage("main", [replace(there, address_type=AddressType.FULL)])


def test_identical_content_re_staged_in_another_repository_is_live(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """No list and no diff of that repository shows the staged address, but its branch serves it. The mark and every
    re-verification therefore probe the path. If the probe has no clear result, the object is also kept."""
    other, third = sandbox.repository("other"), sandbox.repository("third")
    before, later, unclear, free = (garbage(lake, name) for name in ("before", "late", "unclear", "nobody's object"))
    stage_again_elsewhere(other, before, "before", b"before")
    lakefs = LakeFS(LakeFSSettings(sandbox.endpoint_url, sandbox.access_key_id, sandbox.secret_access_key))
    assert list(lakefs.uncommitted_diff("other", "main")) == []
    known = {**settings(sandbox), "endpoint_url": server.endpoint}

    marked = Marker().mark(known, "lake", "m1", ANY_AGE)
    assert marked.expired == {later.address, unclear.address, free.address}

    Sweeper().approve(known, "lake", "m1")
    stage_again_elsewhere(other, later, "later", b"late")
    stage_again_elsewhere(third, unclear, "unclear", b"unclear")
    server.refused = {"/repositories/third/refs/main/objects/stat": 503}
    report = Sweeper().sweep(known, "lake", "m1", SweepOptions())

    assert report.objects == {"deleted": 1, "rescued": 2}
    assert [other.read("main", path)[1] for path in ("before", "later")] == [b"before", b"late"]
    assert third.read("main", "unclear")[1] == b"unclear"
    place = target_of(sandbox.settings, "lake").place
    rows = all_rows(place, open_dataset(place, str(report.dataset["folder"])), RECEIPTS)
    why = {row["address"]: row["why"] for row in rows}
    assert why[later.address] == "branch main of repository other serves it"
    assert "HTTP 503" in why[unclear.address]


def stage_in_both_ways(lake: SandboxRepository, other: SandboxRepository) -> Callable[[], list[Entry]]:
    """Two objects of the lake to which nothing refers, and a function that stages both in another repository: the first
    is found by a list, the second only by a probe."""
    listed, unlisted = (garbage(lake, f"{how} in {other.id}") for how in ("listed", "not listed"))

    def stage() -> list[Entry]:
        stage_elsewhere(other, listed, "imported")
        stage_again_elsewhere(other, unlisted, "again", f"not listed in {other.id}".encode())
        return [listed, unlisted]

    return stage


def test_addresses_that_earlier_marks_found_in_a_now_unreadable_repository_are_live(
    sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """It doesn't matter how a mark found them, or whether the mark in between trusted the repository and therefore
    didn't read it. If one record can't be read, the references in all others still count."""
    nobodys, imported = garbage(lake, "nobody's"), dict[str, list[Entry]]()
    for name in ("other", "third"):
        imported[name] = stage_in_both_ways(lake, sandbox.repository(name))()
    assert mark(sandbox, "m0").expired == {nobodys.address}
    trusting = {**settings(sandbox), "trusted_repositories": "other"}
    trusted = {entry.address for entry in imported["other"]}
    assert Marker().mark(trusting, "lake", "m1", ANY_AGE).expired == trusted | {nobodys.address}
    target_of(sandbox.settings, "lake").place.store().write(mark_folder("damaged") + "mark.json", b"{")
    for name in imported:
        sandbox.fail(name, 503)

    assert mark(sandbox, "m2").expired == {nobodys.address}
    assert mark(sandbox, "m3").expired == {nobodys.address}

    approve(sandbox, "m3")
    assert sweep(sandbox, "m3").objects == {"deleted": 1}
    assert all(is_stored(lake, entry) for entries in imported.values() for entry in entries)


def rescued_by_a_re_verification(sandbox: Sandbox, lake: SandboxRepository) -> list[Entry]:
    """Objects that another repository stages after the mark `m1` and before its sweep, so that no mark finds the
    references."""
    stage, nobodys = stage_in_both_ways(lake, sandbox.repository("other")), garbage(lake, "nobody's")
    expired = mark(sandbox).expired
    approve(sandbox)
    imported = stage()
    assert expired == {entry.address for entry in (*imported, nobodys)}
    assert sweep(sandbox).objects == {"deleted": 1, "rescued": 2}
    return imported


def test_addresses_that_a_re_verification_found_in_a_now_unreadable_repository_are_live(
    sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """No mark found the reference. A damaged record of a different re-verification is no reason to ignore it."""
    imported = rescued_by_a_re_verification(sandbox, lake)
    damaged = verifications_folder("m1") + "9999/mark.json"
    target_of(sandbox.settings, "lake").place.store().write(damaged, b"{")
    sandbox.fail("other", 503)
    nobodys = garbage(lake, "nobody's either")

    assert mark(sandbox, "m2").expired == {nobodys.address}
    approve(sandbox, "m2")
    assert sweep(sandbox, "m2").objects == {"deleted": 1}
    assert mark(sandbox, "m3").expired == set()
    assert all(is_stored(lake, entry) for entry in imported)


def test_addresses_found_in_an_unreadable_repository_are_live_even_if_the_stores_clock_was_set_back(
    sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """By the store's clock, the mark that found no reference is the later one."""
    imported, nobodys = garbage(lake, "imported"), garbage(lake, "nobody's")
    before = mark(sandbox, "m0").record
    assert before.finished is not None
    ahead = replace(before, finished=before.finished + timedelta(hours=1), server_now=before.server_now - ONE_SECOND)
    target_of(sandbox.settings, "lake").place.store().write(mark_folder("m0") + "mark.json", ahead.to_json())
    stage_elsewhere(sandbox.repository("other"), imported, "imported")
    assert mark(sandbox, "m1").expired == {nobodys.address}
    sandbox.fail("other", 503)

    assert mark(sandbox, "m2").expired == {nobodys.address}


def test_addresses_that_a_re_verification_found_are_live_even_if_its_record_is_now_unreadable(
    sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """The datasets of the re-verification still exist. No other record has the objects."""
    rescued_by_a_re_verification(sandbox, lake)
    store = target_of(sandbox.settings, "lake").place.store()
    for key in [stored.key for page in store.pages(verifications_folder("m1")) for stored in page.objects]:
        if key.endswith("/mark.json"):
            store.write(key, store.read(key)[:-1])
    sandbox.fail("other", 503)

    assert mark(sandbox, "m2").expired == set()


def test_addresses_found_elsewhere_only_by_a_mark_and_not_by_a_later_re_verification_are_live(
    sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """By the time of the re-verification no list shows the object, and paths are only probed for the sizes of its
    candidates."""
    other, imported, longer = sandbox.repository("other"), garbage(lake, "imported"), garbage(lake, "nobody's object")
    stage_elsewhere(other, imported, "imported")
    assert mark(sandbox).expired == {longer.address}
    approve(sandbox)
    stage_again_elsewhere(other, imported, "again", b"imported")
    other.delete("main", ["imported"])
    assert sweep(sandbox).objects == {"deleted": 1}
    sandbox.fail("other", 503)

    assert mark(sandbox, "m2").expired == set()


def test_addresses_that_an_earlier_mark_found_are_live_if_the_repository_becomes_unreadable_during_a_mark(
    sandbox: Sandbox, lake: SandboxRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repository's lists were read but don't show the object, and its branches can no longer be probed."""
    imported, nobodys = garbage(lake, "imported"), garbage(lake, "nobody's")
    stage_again_elsewhere(sandbox.repository("other"), imported, "again", b"imported")
    assert mark(sandbox, "m0").expired == {nobodys.address}
    ask = other_repository_heads.paths_to_probe

    def fail_and_ask(*arguments: Any) -> Any:
        sandbox.fail("other", 503)
        return ask(*arguments)

    monkeypatch.setattr(other_repository_heads, "paths_to_probe", fail_and_ask)
    assert mark(sandbox, "m1").expired == {nobodys.address}


def test_content_re_staged_elsewhere_and_moved_during_the_re_verification_is_live(
    sandbox: Sandbox, lake: SandboxRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The diff shows the object only at its new path, and only after the diff was read. The branch is probed at the old
    path."""
    other, entry = sandbox.repository("other"), garbage(lake, "moved")
    nobodys = garbage(lake, "nobody's")
    assert mark(sandbox).expired == {entry.address, nobodys.address}
    approve(sandbox)
    stage_again_elsewhere(other, entry, "here", b"moved")
    ask = other_repository_heads.paths_to_probe

    def move_and_ask(*arguments: Any) -> Any:
        stage_elsewhere(other, entry, "there")
        other.delete("main", ["here"])
        return ask(*arguments)

    monkeypatch.setattr(other_repository_heads, "paths_to_probe", move_and_ask)
    report = sweep(sandbox)

    assert report.objects == {"deleted": 1, "rescued": 1}
    assert other.read("main", "there")[1] == b"moved"


def test_re_staged_content_moved_to_another_repository_while_paths_are_probed_is_live(
    sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """It is committed in one repository, and staged in another one over the same committed content. No list of staged
    objects shows it."""
    other, third, nobodys = sandbox.repository("other"), sandbox.repository("third"), garbage(lake, "nobody's")
    lake.put("main", "longer", b"longer")
    lake.commit("main", "content that can be re-staged")

    def two_objects() -> tuple[Entry, Entry]:
        """One for each path, with the content that is committed there."""
        kept, longer = (replace(garbage(lake, path), path=path.encode()) for path in ("kept", "longer"))
        return kept, longer

    def move(to_commit: Entry, to_stage: Entry, path: str) -> None:
        stage_elsewhere(other, to_commit, path)
        other.commit("main", path)
        stage_again_elsewhere(third, to_stage, path, b"longer")
        lake.delete("main", ["kept", "longer"])

    first, second = two_objects(), two_objects()
    lake.stage("main", first)
    with on_first_message("probing branches", lambda: move(*first, "here")):
        marked = mark(sandbox)
    assert marked.expired == {entry.address for entry in (*second, nobodys)}
    approve(sandbox)
    lake.stage("main", second)
    with on_first_message("probing branches", lambda: move(*second, "there")):
        report = sweep(sandbox)

    assert report.objects == {"deleted": 1, "rescued": 2}
    assert [other.read("main", path)[1] for path in ("here", "there")] == [b"kept", b"kept"]
    assert [third.read("main", path)[1] for path in ("here", "there")] == [b"longer", b"longer"]
