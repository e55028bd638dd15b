"""What a real server's list of staged objects lacks (formats §2), and that nothing staged is lost by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.marking.resource import MarkOptions
from lakegc_assets.sweeping.opening import SweepOptions
from spark_resources.errors import LakegcError
from spark_resources.sandbox import Sandbox, StorePlace
from spark_resources.sandbox.repository import SandboxRepository
from spark_resources.stores.base import Store
from tests.marking import Marked, Marker, Sweeper, later, target_of
from tests.servers import SeaweedFS

STAGED = tuple(f"staged/{number}" for number in range(5))


@dataclass
class Lake:
    """A repository in a store whose lists name all that is staged, unless they are wrong: five staged objects on main,
    and one object of garbage."""

    sandbox: Sandbox
    requests: list[str]
    repository: SandboxRepository
    store: Store
    garbage: set[str] = field(default_factory=set)
    staged: set[str] = field(default_factory=set)

    @property
    def settings(self) -> dict[str, str]:
        return {**self.sandbox.settings, "attempts": "1"}

    def mark(self, mark_id: str = "m1", **options: Any) -> Marked:
        later(self.store, self.store.now())
        chosen = MarkOptions(min_age=timedelta(0), allow_young=True, **options)
        return Marker().mark(self.settings, self.repository.id, mark_id, chosen)

    def add_garbage(self, path: str) -> str:
        entry = self.repository.put("main", path, path.encode())
        self.repository.delete("main", [path])
        return entry.address


@pytest.fixture
def lake(seaweedfs: SeaweedFS, tmp_path: Path) -> Iterator[Lake]:
    seaweedfs.make_bucket("staged")
    place, requests = StorePlace(f"s3://staged/{tmp_path.name}", seaweedfs.settings()), list[str]()
    with Sandbox(tmp_path, place=place, uncommitted_page=3, request_log=requests.append) as sandbox:
        repository = sandbox.create("lake")
        made = Lake(sandbox, requests, repository, target_of(sandbox.settings, "lake").place.store())
        repository.put("main", "committed", b"what is committed")
        repository.commit("main", "first")
        made.garbage.add(made.add_garbage("garbage"))
        made.staged.update(repository.put("main", path, path.encode()).address for path in STAGED)
        yield made


@pytest.mark.parametrize("branch_behind", [True, False], ids=["empty page", "branch not found"])
@pytest.mark.parametrize("objects", [5, 3], ids=["last page", "only page"])
def test_an_empty_list_is_not_believed_while_objects_are_staged(lake: Lake, objects: int, branch_behind: bool) -> None:
    """A branch that is deleted during the scan empties the list, or fails it: five of five objects were deleted."""
    if branch_behind:
        lake.repository.create_branch("without-changes", "main")
    for path in STAGED[objects:]:  # three are on a page
        lake.garbage.add(lake.repository.stat("main", path).address)
        lake.repository.delete("main", [path])
    lake.sandbox.faults.deleted_behind = ("main",)

    mark = lake.mark()

    assert lake.sandbox.faults.happened["pages that were not stored"] or not branch_behind
    assert mark.expired == lake.garbage


def test_an_empty_list_is_not_believed_when_a_sweep_re_verifies(lake: Lake) -> None:
    """What was garbage when it was marked, and is staged by now, is on no list of the re-verification."""
    came_back = lake.add_garbage("came back")
    entry = lake.repository.put("main", "same size", b"came back")
    lake.repository.create_branch("without-changes", "main")
    assert came_back in lake.mark().expired
    Sweeper().approve(lake.settings, "lake", "m1")
    location = lake.repository.objects.location(came_back)
    lake.repository.reset("main")
    lake.repository.stage_address("main", "back", location, size=entry.size, checksum=entry.checksum)
    lake.sandbox.faults.deleted_behind = ("main",)

    Sweeper().sweep(lake.settings, "lake", "m1", SweepOptions())

    assert lake.repository.read("main", "back")[1] == b"came back"
    assert not lake.garbage & {one.key for each in lake.store.pages("data/") for one in each.objects}


def test_an_empty_list_is_not_believed_by_an_incremental_mark(lake: Lake) -> None:
    """A mark since another one reads what is staged anew, and compares it as carefully."""
    lake.repository.create_branch("without-changes", "main")
    lake.mark()
    lake.sandbox.faults.deleted_behind = ("main",)
    lake.staged.add(lake.repository.put("main", "staged/later", b"staged later").address)

    mark = lake.mark("m2", since="m1")

    assert mark.expired == lake.garbage
    assert mark.record.optimized


def test_a_branch_that_is_gone_takes_only_its_own_addresses_with_it(lake: Lake) -> None:
    """Objects that were staged on a deleted branch are garbage; what other branches have staged stays."""
    lake.repository.create_branch("gone", "main")
    gone = lake.repository.put("gone", "staged/on a branch", b"of a branch that is gone").address
    lake.repository.delete_branch("gone")
    lake.sandbox.faults.deleted_behind = ("main",)

    assert lake.mark().expired == {*lake.garbage, gone}


def test_an_empty_list_is_believed_where_nothing_is_staged(lake: Lake) -> None:
    """No branch has changes: one look at each is enough, and no diff is paged."""
    lake.repository.reset("main")

    mark = lake.mark()

    assert mark.expired == lake.garbage | lake.staged
    assert not any("path by path" in one for one in mark.facts("uncommitted_addresses"))
    assert "first_spellings" not in mark.record.step("uncommitted_addresses").datasets


def test_a_complete_list_costs_a_few_requests_a_branch(lake: Lake) -> None:
    """A list that holds the first and last change of a branch's first page is believed: no diff is paged to its end."""
    lake.requests.clear()
    mark = lake.mark()

    readings = 3  # two, and one at the end of the mark
    assert mark.expired == lake.garbage
    assert sum("/branches/main/diff" in line for line in lake.requests) <= 2 * readings
    assert sum("/objects/stat" in line for line in lake.requests) <= 2 * readings
    assert mark.record.step("uncommitted_addresses").datasets.keys() == {"first", "second"}


def test_a_list_that_can_t_be_had_in_any_way_stops_the_mark(lake: Lake) -> None:
    """Where neither the list nor the diffs tell what is staged, nothing is collected."""
    lake.sandbox.faults.deleted_behind = ("main",)
    lake.sandbox.faults.broken = {("main", "staged/2")}

    with pytest.raises(LakegcError, match="may not be all that is staged"):
        lake.mark()
