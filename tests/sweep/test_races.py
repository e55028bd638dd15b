"""Objects that become live again between any two steps of a sweep, in each way that lakeFS allows.

A moment is anything the sweep does that is visible from outside: every fiftieth response of the server, every
sentence, and every intent, delete and receipt. At every moment of one sweep another object becomes live, in the next of
the six ways. With LAKEGC_ALL_RACES=1 every twentieth response counts, and there are six sweeps, so that each way is
tried at every moment; every second sweep deletes for good.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakegc_assets.progress import listening
from lakegc_assets.sweep.preconditions import SweepOptions
from lakegc_assets.sweep.report import Report
from spark_resources.lakefs_sandbox import Sandbox, StorePlace
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.model import Rules
from spark_resources.stores.base import Store
from tests.support.changing_repository import ProxyWithMoments, frequent_faults
from tests.support.clocks import later
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of
from tests.support.replay_server import serving
from tests.support.s3_servers import SeaweedFS
from tests.support.store_proxy import store_proxy

WAYS = ("commit", "revert", "branch from an old commit", "merge", "link", "restage")
ALL = bool(os.environ.get("LAKEGC_ALL_RACES"))
RACES = 150 if ALL else 80  # more than a sweep has moments
RESPONSES_A_RACE = 20 if ALL else 50
FIRST_OF_ALL, CLOSING = "reading staged addresses (first", "re-verifying deleted objects"
EFFECTS = ("intent", "delete", "receipt")
LONG_AGO = datetime.now(UTC) - timedelta(days=30)


@dataclass
class Race:
    """A garbage object, how it becomes live, and where a reader then finds it."""

    act: Callable[[], object]
    address: str
    path: str
    data: bytes
    ref: str = "main"
    reverified: bool = False  # it became live during or after a re-verification
    closing: bool = False  # it became live during the closing re-verification


@dataclass
class Moments:
    """Starts the next race at each moment."""

    races: list[Race]
    seen: int = 0
    responses: int = 0
    sentences: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sentence(self, message: str) -> None:
        self.sentences.append(message)
        self.moment()

    def on_response(self) -> None:
        """A response of the server. There are many, because paths that keep changing are probed one by one."""
        self.responses += 1
        if self.responses % RESPONSES_A_RACE == 0:
            self.moment()

    def moment(self) -> None:
        with self._lock:
            if self.seen == len(self.races):  # an error raised here would become the server's
                return
            race = self.races[self.seen]
            race.reverified = any(message.startswith(FIRST_OF_ALL) for message in self.sentences)
            race.closing = any(message.startswith(CLOSING) for message in self.sentences)
            race.act()
            self.seen += 1


class Lake:
    """A repository with garbage of each kind. Commits are made on `trunk`, where no changes are staged."""

    def __init__(self, lake: SandboxRepository, store: Store) -> None:
        self.lake, self.store = lake, store
        set_rules(lake, Rules(1, {}))
        lake.create_branch("trunk", "main")
        self._commit()

    def _commit(self) -> str:
        return self.lake.commit("trunk", "long ago", date=LONG_AGO, allow_empty=True).id

    def race(self, way: str, number: int) -> Race:
        data, path = f"{way} {number}".encode(), f"{way}/{number}"
        match way:
            case "commit" | "restage":
                return self._staged(data, path, commit=way == "commit")
            case "link":
                return self._linked(data, path)
            case "revert" | "branch from an old commit":
                return self._deleted(data, path, way, number)
            case _:
                return self._left(data, path, number)

    def _staged(self, data: bytes, path: str, *, commit: bool) -> Race:
        lake, entry = self.lake, self.lake.put("main", path, data)
        lake.put("main", path, b"instead")

        def act() -> None:
            location = lake.objects.location(entry.address)
            lake.stage_address("main", f"again/{path}", location, size=len(data), checksum=entry.checksum)
            if commit:
                lake.commit("main", "with it")

        return Race(act, entry.address, f"again/{path}", data)

    def _linked(self, data: bytes, path: str) -> Race:
        location = self.lake.new_location("main", path)
        address = location.removeprefix(self.lake.objects.location(""))
        self.store.write(address, data)
        return Race(
            lambda: self.lake.link("main", path, location, size=len(data), checksum="it is"), address, path, data
        )

    def _deleted(self, data: bytes, path: str, way: str, number: int) -> Race:
        entry = self.lake.put("trunk", path, data)
        with_it = self._commit()
        self.lake.delete("trunk", [path])
        without = self._commit()
        if way == "revert":
            return Race(lambda: self.lake.revert("trunk", without), entry.address, path, data, "trunk")
        name = f"old-{number}"
        return Race(lambda: self.lake.create_branch(name, with_it), entry.address, path, data, name)

    def _left(self, data: bytes, path: str, number: int) -> Race:
        side = self.lake
        side.create_branch(f"side-{number}", "trunk")
        entry = side.put(f"side-{number}", path, data)
        commit_id = side.commit(f"side-{number}", "long ago", date=LONG_AGO).id
        side.delete_branch(f"side-{number}")
        return Race(lambda: side.merge(commit_id, "trunk"), entry.address, path, data, "trunk")


@pytest.fixture
def lake(seaweedfs: SeaweedFS, tmp_path: Path) -> Iterator[tuple[Sandbox, SandboxRepository]]:
    seaweedfs.make_bucket("races")
    place = StorePlace(f"s3://races/{tmp_path.name}", seaweedfs.settings())
    with Sandbox(tmp_path, place=place, faults=frequent_faults()) as sandbox:
        yield sandbox, sandbox.create("lake")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("offset", range(len(WAYS)) if ALL else [0])
def test_objects_that_become_live_between_two_steps_are_kept_or_reported_and_restorable(
    lake: tuple[Sandbox, SandboxRepository], offset: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Objects that become live before a re-verification are kept. Later ones are reported by the closing
    re-verification at the latest, and if they were quarantined, an undo restores them."""
    sandbox, repository = lake
    store = target_of(sandbox.settings, "lake").place.store()
    prepared = Lake(repository, store)
    races = [prepared.race(WAYS[(number + offset) % len(WAYS)], number) for number in range(RACES)]
    repository.commit("main", "what was put instead")
    later(store, store.now())
    marked = Marker().mark(sandbox.settings, "lake", "m1", ANY_AGE)
    assert marked.expired == {race.address for race in races}
    Sweeper().approve(sandbox.settings, "lake", "m1")
    moments = Moments(races)
    quarantine = offset % 2 == 0
    report = swept(sandbox, moments, SweepOptions(quarantine=quarantine))
    assert moments.seen < RACES, f"{moments.responses} responses are too many for so few races"
    run, still = races[: moments.seen], {stored.key for page in store.pages("data/") for stored in page.objects}
    deleted = {race.address for race in run if race.address not in still}
    late = [race for race in run if race.address in deleted]

    with capsys.disabled():
        print(f"\n{moments.seen} moments, {len(run) - len(deleted)} objects stayed, {len(deleted)} came back too late")
    assert not [race for race in late if not race.reverified], "gone though it was back before anything was re-verified"
    assert not [race for race in late if not race.closing and race.address not in report.late], "gone and not named"
    assert deleted, "no race was after the re-verification"
    assert len(deleted) < len(run)
    assert not still & {race.address for race in races[moments.seen :]}, "garbage that stays"
    if quarantine:
        Sweeper().undo(sandbox.settings, "lake", "m1")
    for race in run:
        if quarantine or race.address not in deleted:
            assert repository.read(race.ref, race.path)[1] == race.data


def swept(sandbox: Sandbox, moments: Moments, options: SweepOptions) -> Report:
    """A sweep that is observed at every moment."""
    with ExitStack() as stack:
        between = ProxyWithMoments(sandbox.endpoint_url)
        proxy = stack.enter_context(store_proxy(sandbox.settings["s3_endpoint_url"]))
        settings = {
            **sandbox.settings,
            "endpoint_url": stack.enter_context(serving(between)),
            "s3_endpoint_url": proxy.endpoint,
        }
        proxy.done = lambda kind: moments.moment() if kind in EFFECTS else None
        between.moment = moments.on_response
        with listening(moments.sentence):
            return Sweeper().sweep(settings, "lake", "m1", options)
