"""Objects that become live during a round, through a new branch, tag, hold or rule: only objects deleted within a few
seconds are lost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.progress import listening
from lakegc_assets.sweep import head_watch, other_head_watch, round_loop
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.mark_store.hold_file import Hold, parse_hold
from spark_resources.mark_store.holds import add_hold
from spark_resources.mark_store.mark import mark_folder
from spark_resources.model import AddressType, Rules
from spark_resources.sstable import Entry
from spark_resources.stores.base import Store
from spark_resources.stores.place import Place
from tests.support.clocks import later
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of
from tests.support.messages import on_first_message
from tests.support.tampering_proxy import tampering_proxy

LONG_AGO = datetime.now(UTC) - timedelta(days=30)
OBJECTS, OTHERS, RATE = 60, 20, 10.0  # objects of the expired commit, other garbage, and deletes per second
INTERVAL_S = 0.4
LIMIT_S = 150
SEEN_LATE = 30  # of 60 objects: those deleted before a task learns of the branch, in 3 s on a busy machine


@pytest.fixture
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("live")) as server:
        yield server


def expired_commit(lake: SandboxRepository) -> tuple[str, dict[str, str]]:
    """An expired commit, and the addresses, by path, that only this commit reaches. Its child, the head of `trunk`,
    deletes them."""
    set_rules(lake, Rules(1, {"long-branch": 60}))
    lake.create_branch("trunk", "main")
    entries = {f"old/{number:03}": lake.put("trunk", f"old/{number:03}", b"x") for number in range(OBJECTS)}
    commit = lake.commit("trunk", "with them", date=LONG_AGO).id
    lake.delete("trunk", list(entries))
    lake.commit("trunk", "without them", date=LONG_AGO)
    return commit, {path: entry.address for path, entry in entries.items()}


def stored(store: Store) -> set[str]:
    return {stored.key for page in store.pages("data/") for stored in page.objects}


def wait_for_some_deletes(store: Store, addresses: set[str]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while len(addresses - stored(store)) < 5:
        assert time.monotonic() < give_up, "nothing is deleted"
        time.sleep(0.05)  # the step of a poll with a limit


@dataclass(frozen=True)
class Change:
    """A change that makes the expired commit live while its objects are deleted, and the ref at which the commit can be
    read afterwards."""

    make: Callable[[SandboxRepository, Place, str], object]
    read_at: Callable[[str], str] = lambda commit: commit


CHANGES = {
    "a branch at the commit": Change(
        lambda lake, place, commit: lake.create_branch("again", commit), lambda commit: "again"
    ),
    "a branch at its child, with a rule of 60 days": Change(
        lambda lake, place, commit: lake.create_branch("long-branch", "trunk")
    ),
    "a tag that a hold names": Change(lambda lake, place, commit: lake.create_tag("keep-it", commit)),
    "a hold on a tag": Change(lambda lake, place, commit: add_hold(place, tag_hold("other-*"))),
    "a longer rule": Change(lambda lake, place, commit: set_rules(lake, Rules(60, {}))),
}


def tag_hold(tags: str) -> Hold:
    return parse_hold({"id": f"hold-{tags[:4]}", "owner": "ada", "reason": "audit", "tags": tags})


def change_after_some_deletes(
    lake: SandboxRepository, place: Place, commit: str, addresses: set[str], change: Change
) -> set[str]:
    """Make the change once some of the commit's objects are gone. Returns the objects that existed right afterwards."""
    wait_for_some_deletes(place.store(), addresses)
    change.make(lake, place, commit)
    return addresses & stored(place.store())


@pytest.mark.parametrize(
    ("change", "most_entries", "quarantine"),
    [*((name, 500_000, False) for name in CHANGES), ("a branch at the commit", 0, True)],
    ids=[*CHANGES, "a branch that reaches too much to hand to every task"],
)
def test_an_expired_commit_that_becomes_live_during_a_sweep_loses_only_objects_deleted_within_seconds(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, change: str, most_entries: int, quarantine: bool
) -> None:
    """A reader of the commit finds the objects that existed when it became live, except for a few that the report
    names. The other garbage is deleted under the same approval."""
    monkeypatch.setattr(head_watch, "MAX_ENTRIES", most_entries)
    lake = sandbox.create("lake")
    commit, paths = expired_commit(lake)
    others = {lake.put("main", f"z/{number:03}", b"y").address for number in range(OTHERS)}
    lake.delete("main", [f"z/{number:03}" for number in range(OTHERS)])
    lake.create_tag("other-tag", commit)
    settings = {**sandbox.settings, "head_check_interval_s": str(INTERVAL_S)}
    place, addresses = target_of(settings, "lake").place, set(paths.values())
    add_hold(place, tag_hold("keep-*"))
    store = place.store()
    later(store, store.now())
    marked = Marker().mark(settings, "lake", "m1", ANY_AGE)
    assert marked.expired == addresses | others
    Sweeper().approve(settings, "lake", "m1")
    there: list[set[str]] = []
    writer = threading.Thread(
        target=lambda: there.append(change_after_some_deletes(lake, place, commit, addresses, CHANGES[change])),
        daemon=True,
    )
    writer.start()
    report = Sweeper().sweep(settings, "lake", "m1", SweepOptions(rate=RATE, quarantine=quarantine))
    writer.join(LIMIT_S)
    remaining = stored(store)

    assert len(there[0]) > SEEN_LATE, "the change came too late to tell anything"
    assert len(there[0] - remaining) <= SEEN_LATE
    assert not others & remaining
    assert set(report.late) == addresses - remaining
    assert report.objects["rescued"] == len(addresses & remaining)
    for path, address in paths.items():
        if address in remaining:
            assert lake.read(CHANGES[change].read_at(commit), path)[1] == b"x"


def test_a_commit_made_in_another_repository_during_a_sweep_loses_only_objects_deleted_within_seconds(
    sandbox: Sandbox,
) -> None:
    """Another repository imports objects of the lake while they are deleted. It keeps those that existed then, except
    for a few that the report names. The other garbage is deleted."""
    lake, other = sandbox.create("lake"), sandbox.create("other")
    entries = [lake.put("main", f"old/{number:03}", b"x") for number in range(OBJECTS)]
    others = {lake.put("main", f"z/{number:03}", b"y").address for number in range(OTHERS)}
    lake.delete("main", [entry.path.decode() for entry in entries])
    lake.delete("main", [f"z/{number:03}" for number in range(OTHERS)])
    settings = {**sandbox.settings, "head_check_interval_s": str(INTERVAL_S)}
    store, addresses = target_of(settings, "lake").place.store(), {entry.address for entry in entries}
    later(store, store.now())
    marked = Marker().mark(settings, "lake", "m1", ANY_AGE)
    assert marked.expired == addresses | others
    Sweeper().approve(settings, "lake", "m1")
    there: list[set[str]] = []

    def take_in() -> None:
        wait_for_some_deletes(store, addresses)
        take_in_at(other, "main", entries)
        there.append(addresses & stored(store))

    writer = threading.Thread(target=take_in, daemon=True)
    writer.start()
    report = Sweeper().sweep(settings, "lake", "m1", SweepOptions(rate=RATE))
    writer.join(LIMIT_S)
    remaining = stored(store)

    assert len(there[0]) > SEEN_LATE, "the commit came too late to tell anything"
    assert len(there[0] - remaining) <= SEEN_LATE
    assert not others & remaining
    assert set(report.late) == addresses - remaining
    assert report.objects["rescued"] == len(addresses & remaining)


def merged(lake: SandboxRepository, commit: str) -> str:
    """A merged repair of an old commit. The old commit stays readable in the history of the merge."""
    fix = committed_on_a_branch(lake, commit)
    lake.merge("x", "main")
    lake.delete_branch("x")
    return fix


def squashed(lake: SandboxRepository, commit: str) -> str:
    fix = committed_on_a_branch(lake, commit)
    lake.merge("x", "main", squash=True)
    lake.delete_branch("x")
    return fix


def deleted(lake: SandboxRepository, commit: str) -> str:
    fix = committed_on_a_branch(lake, commit)
    lake.delete_branch("x")
    return fix


def taken_back(lake: SandboxRepository, commit: str) -> str:
    """A commit on a branch that is reset at once."""
    fix = committed_on_a_branch(lake, commit)
    lake.hard_reset("x", "main")
    return fix


def committed_on_a_branch(lake: SandboxRepository, commit: str) -> str:
    """A new commit on a branch, without the old commit's objects."""
    lake.create_branch("x", commit)
    lake.put("x", "fix", b"fixed")
    lake.delete("x", [f"old/{number:03}" for number in range(OBJECTS)])
    return lake.commit("x", "fix").id


ABANDONED = [merged, squashed, deleted, taken_back]


@pytest.mark.parametrize("abandon", ABANDONED, ids=lambda abandon: abandon.__name__)
def test_a_commit_that_lost_its_branch_before_the_first_delete_loses_no_objects(
    sandbox: Sandbox, abandon: Callable[[SandboxRepository, str], str]
) -> None:
    """A young commit without a branch is retained, and so is the old commit in its history. It was made after the
    re-verification, and its branch was gone before the first listing of heads."""
    lake = sandbox.create("lake")
    commit, paths = expired_commit(lake)
    approved = approved_mark(sandbox, set(paths.values()))
    fixes: list[str] = []
    with on_first_message("re-verified:", lambda: fixes.append(abandon(lake, commit))):
        report = Sweeper().sweep(sandbox.settings, "lake", "m1", SweepOptions())

    assert stored(approved) >= set(paths.values())
    assert report.late == ()
    assert all(lake.read(f"{fixes[0]}~1", path)[1] == b"x" for path in paths)


def test_a_purge_spares_objects_that_a_dangling_commit_retains(sandbox: Sandbox) -> None:
    """A purge can't be undone."""
    lake = sandbox.create("lake")
    commit, paths = expired_commit(lake)
    store = approved_mark(sandbox, set(paths.values()))
    Sweeper().sweep(sandbox.settings, "lake", "m1", SweepOptions(quarantine=True))
    with on_first_message("re-verified:", lambda: deleted(lake, commit)):
        Sweeper().purge(sandbox.settings, "lake", "m1")

    assert stored(store) >= set(paths.values())


def test_objects_kept_during_the_first_delete_are_kept_afterwards(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch that showed the commit is gone when the other deletes begin, and the server doesn't allow a dump of
    commits."""
    lake = sandbox.create("lake")
    commit, paths = expired_commit(lake)
    store = approved_mark(sandbox, set(paths.values()))
    first = round_loop.delete_first

    def delete_first(*arguments: Any) -> Any:
        result = first(*arguments)
        lake.delete_branch("x")
        return result

    monkeypatch.setattr(round_loop, "delete_first", delete_first)
    monkeypatch.setattr(head_watch, "dumped_graph", lambda _: None)
    with on_first_message("re-verified:", lambda: committed_on_a_branch(lake, commit)):
        report = Sweeper().sweep(sandbox.settings, "lake", "m1", SweepOptions())

    assert stored(store) >= set(paths.values())
    assert report.late == ()


def approved_mark(sandbox: Sandbox, wanted: set[str]) -> Store:
    """The store of `lake`, whose approved mark `m1` has exactly the wanted expired set."""
    store = target_of(sandbox.settings, "lake").place.store()
    later(store, store.now())
    assert Marker().mark(sandbox.settings, "lake", "m1", ANY_AGE).expired == wanted
    Sweeper().approve(sandbox.settings, "lake", "m1")
    return store


def take_in_at(other: SandboxRepository, branch: str, entries: Sequence[Entry], date: datetime | None = None) -> str:
    """A commit of another repository with these objects of the lake."""
    there = [
        replace(entry, address=f"local://lake/{entry.address}", address_type=AddressType.FULL) for entry in entries
    ]
    other.stage(branch, there)
    return other.commit(branch, "takes them in", date=date).id


def take_in_and_drop_long_ago(other: SandboxRepository, entries: Sequence[Entry]) -> str:
    commit = take_in_at(other, "main", entries, LONG_AGO)
    other.delete("main", [entry.path.decode() for entry in entries])
    other.commit("main", "drops them", date=LONG_AGO)
    return commit


def take_in_on_a_temporary_branch(other: SandboxRepository, entries: Sequence[Entry]) -> str:
    other.create_branch("temporary", "main")
    commit = take_in_at(other, "temporary", entries)
    other.delete_branch("temporary")
    return commit


@pytest.mark.parametrize(
    "take_in",
    [take_in_and_drop_long_ago, take_in_on_a_temporary_branch],
    ids=["behind a head with an old date", "without a branch"],
)
def test_a_commit_made_in_another_repository_before_a_round_loses_no_objects_although_no_head_has_them(
    sandbox: Sandbox, take_in: Callable[[SandboxRepository, Sequence[Entry]], str]
) -> None:
    """The commit is made after the re-verification listed that repository's tables. Before its heads are listed again,
    the commit is behind a newer head, or its branch is deleted."""
    lake, other = sandbox.create("lake"), sandbox.create("other")
    other.put("main", "own", b"own")
    other.commit("main", "own", date=LONG_AGO)
    entries = [lake.put("main", f"old/{number:03}", b"x") for number in range(OBJECTS)]
    lake.delete("main", [entry.path.decode() for entry in entries])
    nobodys = lake.put("main", "nobody's", b"y").address
    lake.delete("main", ["nobody's"])
    settings = {**sandbox.settings, "head_check_interval_s": str(INTERVAL_S)}
    store, addresses = target_of(settings, "lake").place.store(), {entry.address for entry in entries}
    later(store, store.now())
    marked = Marker().mark(settings, "lake", "m1", ANY_AGE)
    assert marked.expired == addresses | {nobodys}
    Sweeper().approve(settings, "lake", "m1")
    commits: list[str] = []

    with on_first_message("re-verified:", lambda: commits.append(take_in(other, entries))):
        report = Sweeper().sweep(settings, "lake", "m1", SweepOptions())

    assert stored(store) == addresses
    assert report.objects == {"deleted": 1, "rescued": OBJECTS}
    assert all(other.read(commits[0], entry.path.decode())[1] == b"x" for entry in entries)


def test_all_other_repositories_are_listed_before_the_first_delete(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed even if repositories take turns. The last one takes in objects after the re-verification listed
    its tables."""
    monkeypatch.setattr(other_head_watch, "REPOSITORIES_PER_TURN", 1)
    lake, others = sandbox.create("lake"), [sandbox.create(f"other-{number}") for number in range(3)]
    entries = [lake.put("main", f"old/{number}", b"x") for number in range(5)]
    lake.delete("main", [entry.path.decode() for entry in entries])
    store = approved_mark(sandbox, {entry.address for entry in entries})

    with on_first_message("re-verified:", lambda: take_in_on_a_temporary_branch(others[-1], entries)):
        report = Sweeper().sweep(sandbox.settings, "lake", "m1", SweepOptions())

    assert stored(store) == {entry.address for entry in entries}
    assert report.late == ()


@dataclass
class SlowSweep:
    """An approved mark of objects of `lake`. A sweep deletes them slowly, while a thread acts after the first deletes.
    `there` are the objects that existed after it had acted."""

    lake: SandboxRepository
    settings: dict[str, str]
    addresses: set[str]
    there: set[str] = field(default_factory=set)

    @property
    def store(self) -> Store:
        return target_of(self.settings, "lake").place.store()

    def sweep(
        self, act: Callable[[], object], undo: Callable[[], object], until: Callable[[], bool] | None = None
    ) -> set[str]:
        """Run the sweep and act. Undo the action once `until` is true: by default once there is no permit or no object
        left, and at the latest when the objects are re-verified again. Returns the objects that exist in the end."""
        stopped, lock = until or self.without_permit, threading.Lock()
        acted, undone = threading.Event(), threading.Event()

        def undo_once() -> None:
            with lock:
                if not undone.is_set():
                    undo()
                    undone.set()

        def work() -> None:
            wait_for_some_deletes(self.store, self.addresses)
            act()
            self.there = self.addresses & stored(self.store)
            acted.set()
            give_up = time.monotonic() + LIMIT_S
            while self.addresses & stored(self.store) and not stopped():
                assert time.monotonic() < give_up, "deletes neither stop nor end"
                time.sleep(0.1)  # the step of a poll with a limit
            undo_once()

        def at_next_re_verification(message: str) -> None:
            if message.startswith("reading staged addresses (first") and acted.is_set():
                undo_once()

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        with listening(at_next_re_verification):
            Sweeper().sweep(self.settings, "lake", "m1", SweepOptions(rate=RATE))
        worker.join(LIMIT_S)
        assert len(self.there) > SEEN_LATE, "it came too late to tell anything"
        return stored(self.store)

    def without_permit(self) -> bool:
        permit = json.loads(self.store.read(mark_folder("m1") + "receipts/0002/permit.json"))
        return bool(permit["stopped"]) or datetime.fromisoformat(permit["until"]) <= self.store.now()


def slow_sweep(sandbox: Sandbox) -> tuple[SlowSweep, list[Entry]]:
    lake = sandbox.create("lake")
    entries = [lake.put("main", f"old/{number:03}", b"x") for number in range(OBJECTS)]
    lake.delete("main", [entry.path.decode() for entry in entries])
    addresses = {entry.address for entry in entries}
    approved_mark(sandbox, addresses)
    return SlowSweep(lake, quickly(sandbox.settings), addresses), entries


def quickly(settings: dict[str, str]) -> dict[str, str]:
    """Settings for watching heads at short intervals and without retries."""
    return {**settings, "head_check_interval_s": str(INTERVAL_S), "retry_total_s": "0"}


def test_an_unreadable_repository_does_not_hide_new_commits_in_another_one_during_a_round(
    sandbox: Sandbox,
) -> None:
    """The two repositories share a turn. Without the unreadable one, deletes continue for a minute."""
    other, _ = sandbox.create("other"), sandbox.create("third")
    swept, entries = slow_sweep(sandbox)

    def take_in() -> None:
        sandbox.fail("third", 503)
        take_in_at(other, "main", entries)

    remaining = swept.sweep(take_in, lambda: sandbox.fail("third", None))

    assert len(swept.there - remaining) <= SEEN_LATE


def test_objects_that_became_live_are_kept_even_if_recording_them_failed_at_first(sandbox: Sandbox) -> None:
    """Tasks get no permit to delete until the objects that another repository took in are recorded."""
    other = sandbox.create("other")
    swept, entries = slow_sweep(sandbox)
    in_the_way = swept.lake.objects.file(mark_folder("m1") + "receipts/0002/became-live-0000.parquet")

    def take_in() -> None:
        in_the_way.mkdir()
        take_in_at(other, "main", entries)

    remaining = swept.sweep(take_in, in_the_way.rmdir)

    assert remaining, "deletes went on without the list"


def test_deletes_stop_while_a_commit_from_a_dump_is_unreadable(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit's branch isn't in any listing of heads, and its metarange can't be read for a while."""
    monkeypatch.setattr(head_watch, "DUMP_INTERVAL_S", INTERVAL_S)
    monkeypatch.setattr(head_watch, "DUMP_PAUSE_FACTOR", 0.0)
    with tampering_proxy(sandbox.endpoint_url) as server:
        lake = sandbox.create("lake")
        commit, paths = expired_commit(lake)
        approved_mark(sandbox, set(paths.values()))
        server.after("/repositories/lake/branches", without_branch_x)
        settings = quickly({**sandbox.settings, "endpoint_url": server.endpoint})
        swept = SlowSweep(lake, settings, set(paths.values()))
        moved: list[tuple[Path, Path]] = []
        dumps: list[object] = []
        server.before("/refs/dump", dumps.append)

        def commit_unreadably() -> None:
            server.refused = {"/refs/dump": 503}
            fix = lake.commit_of(committed_on_a_branch(lake, commit))
            table = lake.objects.file(f"_lakefs/{fix.metarange_id}")
            moved.append((table, table.rename(table.with_name("moved"))))
            server.refused = {}
            dumps.clear()

        remaining = swept.sweep(commit_unreadably, lambda: moved[0][1].rename(moved[0][0]), lambda: len(dumps) > 15)

    assert len(swept.there - remaining) <= SEEN_LATE


def without_branch_x(listed: Any) -> None:
    listed["results"] = [branch for branch in listed["results"] if branch["id"] != "x"]
    listed["pagination"]["results"] = len(listed["results"])
