"""Objects that a real server leaves out of its list of staged objects (formats §2) are never deleted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.progress import listening
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.errors import LakegcError
from spark_resources.lakefs_sandbox import Sandbox, StorePlace
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.stores.base import Store
from tests.support.azurite import Azurite
from tests.support.clocks import later
from tests.support.mark_runs import Marked, Marker, Sweeper, target_of
from tests.support.messages import on_first_message
from tests.support.s3_servers import SeaweedFS

STAGED = tuple(f"staged/{number}" for number in range(5))


@dataclass
class Lake:
    """A repository in a store, with five staged objects on main and one garbage object."""

    sandbox: Sandbox
    requests: list[str]
    repository: SandboxRepository
    store: Store
    garbage: set[str] = field(default_factory=set)
    staged: set[str] = field(default_factory=set)

    @property
    def settings(self) -> dict[str, str]:
        return {**self.sandbox.settings, "retry_total_s": "0"}

    def mark(self, mark_id: str = "m1", **options: Any) -> Marked:
        later(self.store, self.store.now())
        chosen = MarkOptions(min_age=timedelta(0), allow_young=True, **options)
        return Marker().mark(self.settings, self.repository.id, mark_id, chosen)

    def link(self, path: str) -> str:
        """Write an object to an address that the server gave out, and link it."""
        location = self.repository.new_location("main", path)
        key = location.removeprefix(self.repository.objects.location(""))
        self.store.write(key, path.encode())
        self.repository.link("main", path, location, size=len(path), checksum="a checksum")
        return key

    def delete(self, branch: str, path: str) -> None:
        self.repository.delete(branch, [path])

    def stage_again(self, address: str) -> None:
        """Stage an object by its address, at a path after all others."""
        location, size = self.repository.objects.location(address), len(self.store.read(address))
        self.repository.stage_address("main", "z/staged again", location, size=size, checksum="a checksum")

    def add_garbage(self, path: str) -> str:
        entry = self.repository.put("main", path, path.encode())
        self.repository.delete("main", [path])
        return entry.address


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with lake_in(tmp_path) as new_lake:
        yield new_lake


@pytest.fixture
def lake_in_s3(seaweedfs: SeaweedFS, tmp_path: Path) -> Iterator[Lake]:
    """A repository in S3, for addresses that only servers with a bucket accept."""
    seaweedfs.make_bucket("staged")
    with lake_in(tmp_path, StorePlace(f"s3://staged/{tmp_path.name}", seaweedfs.settings())) as new_lake:
        yield new_lake


@contextmanager
def lake_in(folder: Path, place: StorePlace | None = None) -> Iterator[Lake]:
    requests: list[str] = []
    with Sandbox(folder, place=place, uncommitted_page_size=3, request_log=requests.append) as sandbox:
        repository = sandbox.create("lake")
        new_lake = Lake(sandbox, requests, repository, target_of(sandbox.settings, "lake").place.store())
        repository.put("main", "committed", b"what is committed")
        repository.commit("main", "first")
        new_lake.garbage.add(new_lake.add_garbage("garbage"))
        new_lake.staged.update(repository.put("main", path, path.encode()).address for path in STAGED)
        yield new_lake


@pytest.mark.parametrize("branch_behind", [True, False], ids=["empty page", "branch not found"])
@pytest.mark.parametrize("objects", [5, 3], ids=["last page", "only page"])
def test_staged_objects_do_not_expire_if_a_page_of_their_list_is_empty_or_fails(
    lake: Lake, objects: int, branch_behind: bool
) -> None:
    """If a branch is deleted during the scan, the server returns an empty page or an error. If the list were used, all
    staged objects that it lacks would be deleted."""
    if branch_behind:
        lake.repository.create_branch("without-changes", "main")
    for path in STAGED[objects:]:  # three are on a page
        lake.garbage.add(lake.repository.stat("main", path).address)
        lake.repository.delete("main", [path])
    lake.sandbox.faults.branches_before_deleted = ("main",)

    mark = lake.mark()

    assert lake.sandbox.faults.injection_counts["pages that were not stored"] or not branch_behind
    assert mark.expired == lake.garbage


def test_an_empty_list_is_rejected_when_a_sweep_re_verifies(lake: Lake) -> None:
    """Otherwise, the re-verification would miss an object that was garbage when it was marked and is now staged."""
    restaged = lake.add_garbage("restaged")
    lake.repository.create_branch("without-changes", "main")
    assert restaged in lake.mark().expired
    Sweeper().approve(lake.settings, "lake", "m1")
    lake.repository.reset("main")
    lake.stage_again(restaged)
    lake.sandbox.faults.branches_before_deleted = ("main",)

    Sweeper().sweep(lake.settings, "lake", "m1", SweepOptions())

    assert lake.repository.read("main", "z/staged again")[1] == b"restaged"
    assert not lake.garbage & {stored.key for page in lake.store.pages("data/") for stored in page.objects}


def test_an_empty_list_is_rejected_by_an_incremental_mark(lake: Lake) -> None:
    """An incremental mark reads staged objects again, and checks them just as carefully."""
    lake.repository.create_branch("without-changes", "main")
    lake.mark()
    lake.sandbox.faults.branches_before_deleted = ("main",)
    lake.staged.add(lake.repository.put("main", "staged/later", b"staged later").address)

    mark = lake.mark("m2", since="m1")

    assert mark.expired == lake.garbage
    assert mark.record.is_incremental


def test_only_objects_staged_on_the_deleted_branch_expire(lake: Lake) -> None:
    """Objects staged on other branches are kept."""
    lake.repository.create_branch("gone", "main")
    on_deleted_branch = lake.repository.put("gone", "staged/on a branch", b"of a branch that is gone").address
    lake.repository.delete_branch("gone")
    lake.sandbox.faults.branches_before_deleted = ("main",)

    assert lake.mark().expired == {*lake.garbage, on_deleted_branch}


def test_an_empty_list_is_accepted_if_nothing_is_staged(lake: Lake) -> None:
    """No branch has changes, so the list is requested once per reading."""
    lake.repository.reset("main")

    mark = lake.mark()

    assert mark.expired == lake.garbage | lake.staged
    assert mark.record.step("uncommitted_addresses").datasets.keys() == {
        "first",
        "first_diffs",
        "second",
        "second_diffs",
    }


def test_reading_staged_objects_takes_only_a_few_requests_per_branch(lake: Lake) -> None:
    """A branch with up to a thousand changes needs only requests for its staged objects and for one page of
    addresses."""
    lake.requests.clear()
    mark = lake.mark()

    readings = 3  # two during the mark, and one at its end
    assert mark.expired == lake.garbage
    assert sum("/diff/" in line for line in lake.requests) <= readings
    assert sum("/refs/main/objects/ls" in line for line in lake.requests) <= readings
    assert not any("/branches/main/diff" in line for line in lake.requests)
    assert not any("/objects/stat" in line for line in lake.requests)


@pytest.mark.parametrize("written", ["s3://user@", "s3://"], ids=["with a user", "escaped"])
def test_staged_addresses_that_the_server_resolves_into_the_namespace_never_expire(
    lake_in_s3: Lake, written: str
) -> None:
    """The server leaves such an address out of its list, or lists it undecoded, but its branch serves the object."""
    lake = lake_in_s3
    key = "a client's file" if written == "s3://" else lake.add_garbage("restaged")
    lake.store.write(key, b"restaged")
    location = quote(lake.repository.objects.location(key).removeprefix("s3://"), safe="/")
    lake.repository.stage_address("main", "linked", written + location, size=len(b"restaged"), checksum="a checksum")
    assert lake.repository.read("main", "linked")[1] == b"restaged"

    # an undecoded address in the list looks like a lost object
    assert key not in lake.mark(accept_missing=(quote(key),)).expired


def test_the_mark_stops_if_neither_the_list_nor_the_diffs_are_complete(lake: Lake) -> None:
    """No object expires."""
    lake.sandbox.faults.branches_before_deleted = ("main",)
    lake.sandbox.faults.unreadable_records = {("main", "staged/2")}

    with pytest.raises(LakegcError, match="some staged objects are unknown"):
        lake.mark()


def test_an_unreadable_staging_record_stops_the_mark(lake: Lake) -> None:
    """The server's list and diff end at the record without an error, so objects staged after it would look like
    garbage."""
    lake.sandbox.faults.unreadable_records = {("main", "staged/2")}

    with pytest.raises(LakegcError, match="some staged objects are unknown"):
        lake.mark()


def test_an_unreadable_staging_record_after_many_unchanged_objects_stops_the_mark(lake: Lake) -> None:
    """The diff omits objects that were rewritten with the same bytes, so it ends long before the record."""
    same = [f"table/{number:03}" for number in range(150)]
    lake.repository.put_many("main", [(path, b"the same") for path in same])
    lake.repository.commit("main", "a table")
    lake.repository.put_many("main", [(path, b"the same") for path in same])
    lake.repository.put("main", "table/broken", b"broken")
    lake.sandbox.faults.unreadable_records = {("main", "table/broken")}
    restaged = lake.add_garbage("restaged")
    lake.stage_again(restaged)

    with pytest.raises(LakegcError, match="some staged objects are unknown"):
        lake.mark()


def test_staged_objects_are_kept_even_if_scans_repeatedly_end_early(lake: Lake) -> None:
    """With a throttled database, the server's lists and diffs end after any number of records, or none."""
    lake.sandbox.faults.early_end_probability = 1.0
    lake.sandbox.faults._random.seed(1)

    mark = lake.mark()

    assert lake.sandbox.faults.injection_counts["scans that ended early"]
    assert mark.expired == lake.garbage


def test_a_reading_that_misses_staged_objects_found_by_an_earlier_one_stops_the_mark(lake: Lake) -> None:
    """A record long after the first page becomes unreadable between two readings. An object re-staged after it is on no
    list."""
    restaged = lake.add_garbage("restaged")

    def break_and_stage() -> None:
        lake.sandbox.faults.unreadable_records = {("main", "staged/4")}
        lake.stage_again(restaged)

    with (
        on_first_message("(second time)", break_and_stage),
        pytest.raises(LakegcError, match="some staged objects are unknown"),
    ):
        lake.mark()


def test_a_sweep_stops_if_its_re_verification_misses_staged_objects_known_to_the_mark(lake: Lake) -> None:
    """A staging record becomes unreadable after the mark, so every listing in the sweep ends before the object that was
    re-staged."""
    restaged = lake.add_garbage("restaged")
    assert restaged in lake.mark().expired
    Sweeper().approve(lake.settings, "lake", "m1")
    lake.stage_again(restaged)
    lake.sandbox.faults.unreadable_records = {("main", "staged/4")}

    with pytest.raises(LakegcError, match="some staged objects are unknown"):
        Sweeper().sweep(lake.settings, "lake", "m1", SweepOptions())
    assert lake.store.read(restaged) == b"restaged"


def test_a_constantly_changing_branch_can_be_marked(lake: Lake) -> None:
    """Diffs that are read page by page to their end explain objects that were overwritten, reset or deleted between two
    readings."""
    numbers, live = itertools.count(), set(STAGED)

    def churn(_: str) -> None:
        number = next(numbers)
        path = STAGED[number % len(STAGED)]
        if path not in live or number % 3 == 0:
            lake.repository.put("main", path, f"{path} {number}".encode())
            live.add(path)
        else:
            forget = lake.repository.reset_path if number % 3 == 1 else lake.delete
            forget("main", path)
            live.discard(path)

    with listening(churn):
        mark = lake.mark()

    assert next(numbers) > len(STAGED)
    assert lake.garbage <= mark.expired
    assert not mark.expired & {lake.repository.stat("main", path).address for path in live}
    assert "second_diffs" in mark.record.step("uncommitted_addresses").datasets


def test_linked_objects_in_a_namespace_with_an_http_uri_never_expire(azurite: Azurite, tmp_path: Path) -> None:
    """The server reports an https:// location and leaves linked objects out of its list. If only the list were
    read, all of them would be deleted."""
    azurite.make_container("staged")
    uri = f"http://{azurite.account}.blob.core.windows.net/staged/{tmp_path.name}"
    with Sandbox(tmp_path, place=StorePlace(uri, azurite.settings())) as sandbox:
        repository = sandbox.create("lake")
        lake = Lake(sandbox, [], repository, target_of(sandbox.settings, "lake").place.store())
        lake.garbage.add(lake.add_garbage("garbage"))
        linked = {lake.link(f"linked {number}") for number in range(3)}
        for path in ("first of all", "the last"):  # listed, so that the list looks complete
            repository.put("main", path, path.encode())
        mark = lake.mark()

    assert repository.objects.location("") == f"https{uri.removeprefix('http')}/lake/"
    assert not linked & mark.expired
    assert mark.expired == lake.garbage
