"""Paths that are not UTF-8 can't be probed. Marks still finish, and keep every object that may be served at one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

from lakegc_assets.mark.uncommitted_readings import staged_addresses
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.model import AddressType
from spark_resources.settings import Settings
from tests.fault.conftest import NO_AGE, Lake, Lakegc
from tests.support.mark_runs import Sweeper, marked


def garbage(lake: Lake, data: bytes) -> str:
    entry = lake.repository.put("main", "garbage", data)
    lake.repository.delete("main", ["garbage"])
    return entry.address


def test_objects_of_the_same_size_as_one_served_at_a_non_utf8_path_are_kept(lake: Lake, lakegc: Lakegc) -> None:
    """The mark doesn't stop: all objects of that size are kept, since any of them may be served there."""
    repository = lake.repository
    entry = repository.put("main", "moved", b"size of 10")
    repository.delete("main", ["moved"])
    staged = repository.put("main", "staged too", b"staged at a path that nobody can ask for")
    repository.delete("main", ["staged too"])
    repository.stage("main", [replace(entry, path=b"a\xff")])
    repository.commit("main", "a path that is not UTF-8")
    again = repository.put("main", "elsewhere", b"SIZE OF 10")
    repository.delete("main", ["elsewhere"])
    repository.stage("main", [replace(staged, path=b"\xfe"), replace(again, path=b"a\xff")])
    equal_size, free = garbage(lake, b"0123456789"), garbage(lake, b"no entry has this size")

    output = lakegc.output(lake.settings, "mark", lake.name, "--mark-id", "m1", *NO_AGE)
    mark = marked(lake.settings, lake.name, "m2")
    Sweeper().approve(lake.settings, lake.name, "m2")
    report = Sweeper().sweep(lake.settings, lake.name, "m2", SweepOptions())

    assert free in mark.expired
    assert not {equal_size, entry.address, staged.address, again.address} & mark.expired
    assert mark.facts("expired_set")["probes_failed"] == 1
    assert "not UTF-8" in output
    assert report.objects == {"deleted": len(mark.expired)}
    for address in (equal_size, entry.address, staged.address, again.address):
        assert repository.objects.file(address).exists()


def test_the_repository_and_branch_of_a_non_utf8_path_are_reported(tmp_path: Path) -> None:
    """Such a path protects objects in all repositories, so an operator has to know where to rename it."""
    with Sandbox(tmp_path) as sandbox:
        lake, neighbor = sandbox.create("lake"), sandbox.create("neighbor")
        entry = neighbor.put("main", "moved", b"size of 10")
        neighbor.stage("main", [replace(entry, path=b"a\xff")])
        neighbor.commit("main", "a path that is not UTF-8")
        equal_size = lake.put("main", "over", b"0123456789").address
        lake.put("main", "over", b"overwritten")

        mark = marked(sandbox.settings, "lake")

    assert equal_size not in mark.expired
    (why,) = mark.facts("expired_set")["unclear"]
    assert "branch 'main' of repository 'neighbor'" in why


def test_all_changes_after_a_non_utf8_path_are_read(lake: Lake) -> None:
    """If a page of changes ends at such a path, its escaped form sorts after other paths. If those were skipped, their
    objects would be deleted."""
    repository = lake.repository
    paths = [b"a", b"ab", b"a\x80", "aé".encode(), b"b\xff", b"c\x80", b"d", b"d\xff"]
    wanted = set()
    for number, path in enumerate(paths):
        entry = repository.put("main", "moved", b"%d" % number)
        repository.delete("main", ["moved"])
        address = f"{repository.objects.storage_namespace}/{entry.address}"
        repository.stage("main", [replace(entry, path=path, address=address, address_type=AddressType.FULL)])
        wanted.add(address)
    lakefs = LakeFS(*LakeFSSettings.of(Settings.model_validate(lake.sandbox.settings)))

    with (
        mock.patch("spark_resources.lakefs.client.MAX_PAGE_SIZE", 3),
        mock.patch("lakegc_assets.mark.path_probes.PATHS_PER_BATCH", 3),
    ):
        addresses = set(staged_addresses(lakefs, lake.name, "main"))

    assert wanted <= addresses
