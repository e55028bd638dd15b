"""Path probes of marks and sweeps if branches are deleted at the same time, and if the server gives no clear
response."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.mark_store.mark import Mark, mark_folder
from spark_resources.model import RECEIPTS
from spark_resources.spark.datasets import all_rows, open_dataset
from spark_resources.sstable import Entry
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, on_executors, target_of
from tests.support.messages import on_first_message
from tests.support.tampering_proxy import TamperingProxy, tampering_proxy

BRANCHES = ("branch-0", "branch-1", "branch-2")
PROBES = "probing branches"


@pytest.fixture
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("probes")) as server:
        yield server


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[TamperingProxy]:
    with tampering_proxy(sandbox.endpoint_url) as tampering:
        yield tampering


@pytest.fixture
def lake(sandbox: Sandbox) -> SandboxRepository:
    """Branches whose heads each have an object of four bytes and one of five. No changes are staged."""
    repository = sandbox.create("lake")
    for branch in BRANCHES:
        repository.create_branch(branch, "main")
        repository.put_many(branch, [(f"{branch}/four", b"four"), (f"{branch}/five", b"5 5 5")])
        repository.commit(branch, "two objects")
    return repository


def garbage(lake: SandboxRepository, data: bytes) -> str:
    return unstaged(lake, data).address


def unstaged(lake: SandboxRepository, data: bytes) -> Entry:
    """An object that is stored, but staged nowhere."""
    entry = lake.put("main", "garbage", data)
    lake.delete("main", ["garbage"])
    return entry


def settings(sandbox: Sandbox, server: TamperingProxy) -> dict[str, str]:
    return {**sandbox.settings, "endpoint_url": server.endpoint, "retry_total_s": "0"}


def test_a_branch_deleted_while_paths_are_probed_keeps_no_objects_from_expiring(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """Only the probes of that branch are dropped. The mark and the sweep collect all garbage."""
    free = {garbage(lake, data) for data in (b"four", b"FOUR", b"5 5 5")}
    known = settings(sandbox, server)

    with on_first_message(PROBES, lambda: lake.delete_branch(BRANCHES[0])):
        marked = Marker().mark(known, "lake", "m1", ANY_AGE)

    assert (marked.facts("expired_set")["probes"], marked.facts("expired_set")["probes_failed"]) == (
        2 * len(BRANCHES),
        0,
    )
    assert marked.expired == free

    Sweeper().approve(known, "lake", "m1")
    with on_first_message(PROBES, lambda: lake.delete_branch(BRANCHES[1])):
        report = Sweeper().sweep(known, "lake", "m1", SweepOptions())

    assert report.objects == {"deleted": len(free)}


def test_a_path_probe_without_a_clear_result_keeps_its_candidates(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """A branch may serve the candidates, so the mark and the sweep keep them and say why."""
    candidates, free = garbage(lake, b"four"), garbage(lake, b"no branch has this size")
    known = settings(sandbox, server)
    server.refused = {"/objects/stat": 503}

    marked = Marker().mark(known, "lake", "m1", ANY_AGE)

    facts = marked.facts("expired_set")
    assert marked.expired == {free}
    assert facts["probes_failed"] == facts["probes"] == len(BRANCHES)
    assert "HTTP 503" in facts["unclear"][0]

    server.refused = {}
    assert Marker().mark(known, "lake", "m2", ANY_AGE).expired == {candidates, free}
    Sweeper().approve(known, "lake", "m2")
    server.refused = {"/objects/stat": 503}
    report = Sweeper().sweep(known, "lake", "m2", SweepOptions())

    assert report.objects == {"deleted": 1, "rescued": 1}
    place = target_of(sandbox.settings, "lake").place
    rows = all_rows(place, open_dataset(place, str(report.dataset["folder"])), RECEIPTS)
    [rescued] = [row for row in rows if row["outcome"] == "rescued"]
    assert rescued["address"] == candidates
    assert "inconclusive" in rescued["why"]
    assert "HTTP 503" in rescued["why"]
    assert lake.objects.file(candidates).exists()


@pytest.mark.parametrize("executors", [False, True], ids=["on the driver", "on executors"])
def test_paths_beyond_the_limit_are_not_probed_and_keep_their_candidates(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository, executors: bool
) -> None:
    """Every size is probed on all branches or on none."""
    probed, _ = garbage(lake, b"FOUR"), garbage(lake, b"five!")
    known = {**settings(sandbox, server), "max_probes": str(len(BRANCHES))}

    with on_executors(executors):
        marked = Marker().mark(known, "lake", "m1", ANY_AGE)

    facts = marked.facts("expired_set")
    assert marked.expired == {probed}
    assert (facts["probes"], facts["not_probed"], facts["probes_failed"]) == (2 * len(BRANCHES), len(BRANCHES), 0)


def test_a_404_from_a_gateway_does_not_hide_a_served_object(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """The gateway answers a path probe in place of the server. The listing of the branch has the object."""
    again = lake.put(BRANCHES[0], f"{BRANCHES[0]}/four", b"four")  # the same content is committed, so no list has it
    free = {garbage(lake, data) for data in (b"FOUR", b"no branch has this size")}
    server.refused = {"/objects/stat": 404}

    marked = Marker().mark(settings(sandbox, server), "lake", "m1", ANY_AGE)

    assert marked.expired == free
    assert lake.stat(BRANCHES[0], f"{BRANCHES[0]}/four").address == again.address


def test_content_that_is_re_staged_on_one_of_many_branches_is_live(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """There are so many heads that several tasks read them."""
    for number in range(12):
        lake.create_branch(name := f"more-{number}", "main")
        lake.put_many(name, [(f"{name}/four", b"four"), (f"{name}/five", b"5 5 5")])
        lake.commit(name, "two objects")
    again, free = unstaged(lake, b"four"), unstaged(lake, b"five!")
    known = settings(sandbox, server)
    assert Marker().mark(known, "lake", "m1", ANY_AGE).expired == {again.address, free.address}

    Sweeper().approve(known, "lake", "m1")
    stage_again(lake, "more-11", again, "more-11/four")
    report = Sweeper().sweep(known, "lake", "m1", SweepOptions())

    assert report.objects == {"deleted": 1, "rescued": 1}
    assert lake.read("more-11", "more-11/four")[1] == b"four"


def test_a_sweep_reuses_what_its_mark_recorded_about_metaranges_and_ranges(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """The sweep reads only those of new commits, and probes paths at old and at new heads."""
    at_old_head, at_new_head, free = unstaged(lake, b"four"), unstaged(lake, b"FOUR"), unstaged(lake, b"5 5 5")
    known = settings(sandbox, server)
    Marker().mark(known, "lake", "m1", ANY_AGE)
    Sweeper().approve(known, "lake", "m1")
    lake.put(FIRST, "new", b"FOUR")
    lake.commit(FIRST, "one more")
    stage_again(lake, LAST, at_old_head, four(LAST))
    stage_again(lake, FIRST, at_new_head, "new")

    report = Sweeper().sweep(known, "lake", "m1", SweepOptions())

    assert report.objects == {"deleted": 1, "rescued": 2}
    assert not lake.objects.file(free.address).exists()
    place = target_of(known, "lake").place
    first, last = (
        Mark.open(place, "m1", root=f"{mark_folder('m1')}verifications/{number}/").record.step("committed_addresses")
        for number in ("0001", "0002")
    )
    assert (first.facts["metaranges"], first.facts["metaranges_read"]) == (len(BRANCHES) + 1, 1)
    assert (last.facts["metaranges"], last.facts["metaranges_read"]) == (len(BRANCHES) + 1, 1)


# --- identical content that is moved while paths are probed -----------------------------------------------------------

FIRST, LAST = BRANCHES[0], BRANCHES[-1]  # each has the same content at its own path


def four(branch: str) -> str:
    return f"{branch}/four"


def stage_again(lake: SandboxRepository, branch: str, entry: Entry, path: str) -> None:
    """Stage an object at a path where the branch has the same content committed, so that no list shows it."""
    lake.stage(branch, [replace(entry, path=path.encode())])


def test_re_staged_content_moved_to_a_new_branch_while_paths_are_probed_is_live(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """The branch was created after heads were read, so it is on no list. Its paths are still probed."""
    moved, later, free = (unstaged(lake, data) for data in (b"four", b"four", b"five!"))
    known = settings(sandbox, server)

    def move(entry: Entry, name: str) -> None:
        lake.create_branch(name, LAST)
        stage_again(lake, name, entry, four(LAST))
        lake.delete(LAST, [four(LAST)])

    stage_again(lake, LAST, moved, four(LAST))
    with on_first_message(PROBES, lambda: move(moved, "new")):
        marked = Marker().mark(known, "lake", "m1", ANY_AGE)
    assert lake.stat("new", four(LAST)).address == moved.address
    assert marked.expired == {later.address, free.address}

    Sweeper().approve(known, "lake", "m1")
    stage_again(lake, LAST, later, four(LAST))
    with on_first_message(PROBES, lambda: move(later, "newer")):
        report = Sweeper().sweep(known, "lake", "m1", SweepOptions())

    assert report.objects == {"deleted": 1, "rescued": 1}
    assert lake.read("newer", four(LAST))[1] == b"four"


def test_re_staged_content_moved_to_a_new_head_or_committed_at_a_new_path_while_paths_are_probed_is_live(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """One object is staged over the same content, which a new head has at a path that no branch had when heads were
    read. The other is committed, and not staged at any time at which staged objects are listed."""
    moved, committed, free = unstaged(lake, b"four"), unstaged(lake, b"5 5 5"), unstaged(lake, b"five!")
    stage_again(lake, LAST, moved, four(LAST))
    stage_again(lake, LAST, committed, f"{LAST}/five")

    def move() -> None:
        lake.put(FIRST, "copy of four", b"four")
        lake.stage(FIRST, [replace(committed, path=b"five")])
        lake.commit(FIRST, "a copy and another object")
        stage_again(lake, FIRST, moved, "copy of four")
        lake.delete(LAST, [four(LAST), f"{LAST}/five"])

    with on_first_message(PROBES, move):
        marked = Marker().mark(settings(sandbox, server), "lake", "m1", ANY_AGE)

    assert lake.stat(FIRST, "copy of four").address == moved.address
    assert lake.stat(FIRST, "five").address == committed.address
    assert marked.expired == {free.address}


def test_re_staged_content_moved_from_the_only_probed_path_to_a_new_head_is_live(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """The first pass finds no object, so the same sizes are probed again at the current heads."""
    lake.put(LAST, "unique", b"a size of its own")
    lake.commit(LAST, "unique")
    moved, free = unstaged(lake, b"a size of its own"), unstaged(lake, b"no branch has this size")
    stage_again(lake, LAST, moved, "unique")

    def move() -> None:
        lake.put(FIRST, "copy", b"a size of its own")
        lake.commit(FIRST, "a copy")
        stage_again(lake, FIRST, moved, "copy")
        lake.delete(LAST, ["unique"])

    with on_first_message(PROBES, move):
        marked = Marker().mark(settings(sandbox, server), "lake", "m1", ANY_AGE)

    facts = marked.facts("expired_set")
    assert (facts["probes"], facts["probed_again"]) == (1, 2)
    assert lake.stat(FIRST, "copy").address == moved.address
    assert marked.expired == {free.address}


@dataclass
class Rename:
    """Moves an object from the last probed path to the first one, after the first probe was answered and before the
    last one is sent.

    With `in_second_pass`, it does so in the second pass. `begin` must then be called when that pass begins.
    """

    server: TamperingProxy
    lake: SandboxRepository
    entry: Entry
    branch: str = LAST
    in_second_pass: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    _begun: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if not self.in_second_pass:
            self.begin()
        stage_again(self.lake, self.branch, self.entry, four(LAST))
        self.server.before("/objects/stat", self._asked)
        self.server.after("/objects/stat", self._answered)

    def _asked(self, query: Mapping[str, str]) -> None:
        if query["path"] == four(LAST) and self._begun.is_set():
            assert self.done.wait(60)

    def _answered(self, response: dict[str, Any]) -> None:
        if response["path"] == four(FIRST) and self._begun.is_set() and not self.done.is_set():
            stage_again(self.lake, FIRST, self.entry, four(FIRST))
            self.lake.delete(self.branch, [four(LAST)])
            self.done.set()

    def begin(self) -> None:
        self._begun.set()


def test_re_staged_content_renamed_to_an_already_probed_path_is_live(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """The first pass finds it at neither path, but the second pass does, both in a mark and in a re-verification."""
    renamed, later, free = (unstaged(lake, data) for data in (b"four", b"four", b"five!"))
    known = settings(sandbox, server)

    Rename(server, lake, renamed)
    marked = Marker().mark(known, "lake", "m1", ANY_AGE)
    assert lake.stat(FIRST, four(FIRST)).address == renamed.address
    assert marked.expired == {later.address, free.address}

    Sweeper().approve(known, "lake", "m1")
    Rename(server, lake, later)
    report = Sweeper().sweep(known, "lake", "m1", SweepOptions())

    assert report.objects == {"deleted": 1, "rescued": 1}
    assert lake.read(FIRST, four(FIRST))[1] == b"four"


def test_re_staged_content_renamed_on_a_branch_created_after_heads_were_read_is_live(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """The rename hides the object from the second pass, so the first pass has to probe the branch."""
    renamed, free, new, renames = unstaged(lake, b"four"), unstaged(lake, b"four"), "new", list[Rename]()

    def stage_on_new_branch() -> None:
        lake.create_branch(new, LAST)
        renames.append(Rename(server, lake, renamed, new, in_second_pass=True))

    def rename() -> None:
        renames[0].begin()

    with (
        on_first_message("comparing stored objects", stage_on_new_branch),
        on_first_message("probing branches once more", rename),
    ):
        marked = Marker().mark(settings(sandbox, server), "lake", "m1", ANY_AGE)

    assert renames[0].done.is_set()
    assert lake.stat(FIRST, four(FIRST)).address == renamed.address
    assert marked.expired == {free.address}


def test_paths_are_probed_again_only_for_objects_that_would_still_expire(
    sandbox: Sandbox, server: TamperingProxy, lake: SandboxRepository
) -> None:
    """The second pass leaves out a size if the first pass found all of its objects."""
    free, again = garbage(lake, b"5 5 5"), lake.put(LAST, four(LAST), b"four")

    marked = Marker().mark(settings(sandbox, server), "lake", "m1", ANY_AGE)

    facts = marked.facts("expired_set")
    assert again.address not in marked.expired
    assert marked.expired == {free}
    assert (facts["probes"], facts["probed_again"]) == (2 * len(BRANCHES), len(BRANCHES))
