"""Addresses of this namespace to which other repositories refer: they are live here, or the mark stops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from lakegc_assets.asset_checks.invariants import others_read
from spark_resources.errors import Forbidden, Refused
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.model import AddressType, Rules
from spark_resources.sstable import Entry
from tests.support.mark_runs import marked
from tests.support.messages import on_first_message


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path) as running:
        yield running


def garbage(lake: SandboxRepository, name: str) -> Entry:
    """An object that nothing in its own repository refers to."""
    entry = lake.put("main", name, name.encode())
    lake.delete("main", [name])
    return entry


def refer(other: SandboxRepository, path: str, entry: Entry, root: str, kind: AddressType = AddressType.FULL) -> None:
    """Stage an entry with a full address in another repository."""
    there = replace(entry, path=path.encode(), address=f"{root}/{entry.address}", address_type=kind)
    other.stage("main", [there])


def test_objects_that_another_repository_imported_are_kept(sandbox: Sandbox) -> None:
    """Objects of this namespace that another repository has staged or committed are kept, in either spelling, whatever
    the branch or retention there. An import whose object is missing doesn't stop the mark. Each table is read only once
    for this."""
    lake, other = sandbox.create("lake"), sandbox.create("other")
    names, paths = "local://lake", f"local://{sandbox.local_path}/lake"
    set_rules(other, Rules(0))
    lake.put("main", "kept", b"kept")
    committed, by_prefix, dangling, staged, deleted, nobodys = (garbage(lake, f"g{number}") for number in range(6))
    other.create_branch("old", "main")
    refer(other, "dangling", dangling, paths)
    other.commit("main", "soon dangling")
    other.commit("main", "an older head", allow_empty=True)
    refer(other, "committed", committed, names)
    refer(other, "by prefix", by_prefix, names, AddressType.BY_PREFIX)
    refer(other, "gone", deleted, names)
    other.put("main", "its own", b"its own, under the very key of one of the lake's")
    own = other.stat("main", "its own")
    lake.objects.write(own.address, b"the lake's, which nobody refers to")
    other.commit("main", "imports")
    refer(other, "staged", staged, paths)
    lake.objects.file(deleted.address).unlink()

    first = marked(sandbox.settings, "lake", "m1")

    assert first.expired == {nobodys.address, own.address}
    assert first.facts("expired_set")["kept_for_other_repositories"] == 4
    read = first.facts("committed_addresses")["elsewhere"]
    assert (read["repositories"], read["trusted"], read["unread"]) == (["other"], [], {})
    assert read["tables_read"] == read["tables"] > 3

    other.put("main", "something new", b"...")
    other.commit("main", "something new")
    second = marked(sandbox.settings, "lake", "m2")

    assert second.expired == first.expired
    again = second.facts("committed_addresses")["elsewhere"]
    assert 0 < again["tables_read"] < again["tables"] - 1


@pytest.mark.parametrize("is_reset", [False, True], ids=["at a head", "on no branch"])
def test_re_staged_content_moved_and_committed_elsewhere_between_two_readings_is_kept(
    sandbox: Sandbox, is_reset: bool
) -> None:
    """The content is moved before its path is probed, and committed before staged objects are read for the last time.
    Neither probes nor lists show it then, only the new tables there, whatever commit has them."""
    lake, other = sandbox.create("lake"), sandbox.create("other")
    lake.put("main", "kept", b"kept")
    entry, nobodys = garbage(lake, "_SUCCESS"), garbage(lake, "nobody's")
    other.put("main", "_SUCCESS", b"_SUCCESS")
    first = other.commit("main", "a job")
    again = replace(entry, address=f"local://lake/{entry.address}", address_type=AddressType.FULL)
    other.stage("main", [again])

    def move() -> None:
        other.stage("main", [replace(again, path=b"elsewhere/_SUCCESS")])
        other.delete("main", ["_SUCCESS"])

    def commit() -> None:
        other.commit("main", "moved")
        if is_reset:
            other.hard_reset("main", first.id)

    with on_first_message("probing branches", move), on_first_message("probing branches once more", commit):
        mark = marked(sandbox.settings, "lake")

    assert mark.expired == {nobodys.address}
    assert mark.facts("expired_set")["new_tables_elsewhere"] > 0


def test_imports_of_a_repository_that_became_unreadable_are_kept(sandbox: Sandbox) -> None:
    """The mark reports the repository and doesn't stop. It does stop if all repositories are required, and doesn't read
    the repository if it is trusted not to refer to this one."""
    lake, other = sandbox.create("lake"), sandbox.create("other")
    lake.put("main", "kept", b"kept")
    imported, nobodys = garbage(lake, "imported"), garbage(lake, "nobody's")
    refer(other, "imported", imported, "local://lake")
    [imported_range] = other.committed.ranges(other.commit("main", "imports").metarange_id)
    marked(sandbox.settings, "lake", "m1")
    table = other.objects.file(f"_lakefs/{imported_range.id}")
    table.write_bytes(table.read_bytes()[:-1])

    broken = marked(sandbox.settings, "lake", "m2")

    assert broken.expired == {nobodys.address}
    assert imported_range.id in broken.facts("committed_addresses")["elsewhere"]["unread"]["other"]

    trusted = marked({**sandbox.settings, "trusted_repositories": "oth*"}, "lake", "m3")

    assert trusted.expired == {imported.address, nobodys.address}
    assert trusted.facts("committed_addresses")["elsewhere"]["trusted"] == ["other"]

    with pytest.raises(Refused, match=f"repository other .*{imported_range.id}.*LAKEGC_TRUSTED_REPOSITORIES"):
        marked({**sandbox.settings, "require_other_repositories": "true"}, "lake", "m4")


def test_other_repositories_that_are_unreadable_for_lack_of_permission_are_reported(sandbox: Sandbox) -> None:
    """The mark and its check report them if listing repositories, or reading one of them, isn't allowed."""
    lake = sandbox.create("lake")
    lake.put("main", "kept", b"kept")
    sandbox.create("other")
    no, branches = Forbidden("not with these permissions."), LakeFS.branches
    required = {**sandbox.settings, "require_other_repositories": "true"}

    def only_ours(client: LakeFS, repository: str) -> dict[str, str]:
        if repository == "other":
            raise no
        return branches(client, repository)

    with mock.patch.object(LakeFS, "repositories_on", side_effect=no):
        with pytest.raises(Refused, match="aren't permitted to list repositories"):
            marked(required, "lake", "m1")
        unlisted = marked(sandbox.settings, "lake", "m2").record
    with mock.patch.object(LakeFS, "branches", autospec=True, side_effect=only_ours):
        unread = marked(sandbox.settings, "lake", "m3").record
        with pytest.raises(Refused, match=r"repository other .*permissions"):
            marked(required, "lake", "m4")

    assert others_read(unlisted)[0] is False
    assert "aren't permitted to list repositories" in others_read(unlisted)[1]["unread"]
    assert (others_read(unread)[0], others_read(unread)[1]["unread"]) == (False, "other: not with these permissions.")


def test_another_repositorys_address_that_differs_from_one_here_only_in_its_scheme_stops_the_mark(
    sandbox: Sandbox,
) -> None:
    """The address lies in this namespace except for its scheme; the message has the address and the repository."""
    lake, other = sandbox.create("lake"), sandbox.create("other")
    lake.put("main", "kept", b"kept")
    refer(other, "imported", garbage(lake, "imported"), "s3://lake")
    other.commit("main", "imports")

    with pytest.raises(Refused, match=r"repository other .*s3://lake/data/"):
        marked(sandbox.settings, "lake")
