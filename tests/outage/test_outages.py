"""Outages of store and server, and branches created and deleted, in each phase: mark, back up, re-verify, delete.

One flow goes through all phases, with an outage in each. In CI it lasts a second; LAKEGC_LONG_OUTAGES=1 tries ten and
forty seconds as well.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakegc_assets.progress import listening
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.lakefs_sandbox import Sandbox, SandboxRepository, StorePlace
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.model import Rules
from tests.support.breakable_connection import BreakableConnection, breakable_connection
from tests.support.command_line import Lakegc, dagster_home, lakegc
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of
from tests.support.s3_servers import SeaweedFS

__all__ = ["dagster_home", "lakegc"]

BUCKET = "outages"
LONG_AGO = datetime.now(UTC) - timedelta(days=30)
OUTAGES_S = [1, 10, 40] if os.environ.get("LAKEGC_LONG_OUTAGES") else [1]


@dataclass
class Lake:
    """A repository with its own store, with both kinds of garbage, and always with staged objects."""

    sandbox: Sandbox
    repository: SandboxRepository
    garbage: set[str] = field(default_factory=set)
    live: dict[tuple[str, str], bytes] = field(default_factory=dict)  # by branch and path

    def __post_init__(self) -> None:
        repository = self.repository
        set_rules(repository, Rules(7))
        for number in range(8):
            self.garbage.add(repository.put("main", f"a/{number}", b"expired").address)
        repository.commit("main", "old", date=LONG_AGO)
        for number in range(8):
            self.garbage.add(repository.put("main", f"a/{number}", b"overwritten").address)
            self._put("main", f"a/{number}", f"new {number}".encode())
        repository.commit("main", "new", date=LONG_AGO + timedelta(days=1))
        for branch in ("aa-first", "zz-last"):  # they sort before and after the branches that come and go
            repository.create_branch(branch, "main")
            self._put(branch, "staged", branch.encode())

    def _put(self, branch: str, path: str, data: bytes) -> None:
        self.repository.put(branch, path, data)
        self.live[branch, path] = data

    def check_readable(self) -> None:
        """Check that every reader still gets all objects."""
        for (branch, path), data in self.live.items():
            assert self.repository.read(branch, path)[1] == data, (branch, path)

    def stored(self) -> set[str]:
        store = target_of(self.sandbox.settings, self.repository.id).place.store()
        return {stored.key for page in store.pages("data/") for stored in page.objects}


@pytest.fixture
def lake(seaweedfs: SeaweedFS, tmp_path: Path) -> Iterator[Lake]:
    seaweedfs.make_bucket(BUCKET)
    with Sandbox(tmp_path, place=StorePlace(f"s3://{BUCKET}/{tmp_path.name}", seaweedfs.settings())) as sandbox:
        yield Lake(sandbox, sandbox.create("lake"))


@dataclass
class Outages:
    """Takes the store and the server away for a given time, once in each phase. `felt` counts the requests to each in
    that time."""

    store: BreakableConnection
    server: BreakableConnection
    seconds: float
    felt: dict[str, tuple[int, int]] = field(default_factory=dict)
    _triggers: dict[str, str | bytes] = field(default_factory=dict)
    _timers: list[threading.Timer] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def each(self, triggers: Mapping[str, str | bytes]) -> Iterator[None]:
        """The outages by phase. Each begins when a message begins with these words, or when a request to the store that
        contains them was sent."""
        self._triggers = dict(triggers)
        with listening(self.on_message):
            yield
        for timer in self._timers:
            timer.join()
        assert not self._triggers, "never came"

    def on_message(self, sentence: str) -> None:
        self._begin(lambda trigger: isinstance(trigger, str) and sentence.startswith(trigger))

    def sent(self, data: bytes) -> None:
        self._begin(lambda trigger: isinstance(trigger, bytes) and trigger in data)

    def _begin(self, starts: Callable[[str | bytes], bool]) -> None:
        with self._lock:
            phase = next((phase for phase, trigger in self._triggers.items() if starts(trigger)), None)
            if phase is None:
                return
            del self._triggers[phase]
        before = self.store.refused, self.server.refused
        self.store.cut()
        self.server.cut()

        def restore() -> None:
            self.felt[phase] = self.store.refused - before[0], self.server.refused - before[1]
            self.store.restore()
            self.server.restore()

        self._timers.append(threading.Timer(self.seconds, restore))
        self._timers[-1].start()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", OUTAGES_S)
def test_an_outage_in_any_phase_leaves_the_result_unchanged(
    lake: Lake, lakegc: Lakegc, tmp_path: Path, seconds: float
) -> None:
    """A store or server that is away for a moment neither stops a run nor falsifies its counts."""
    sandbox, before = lake.sandbox, lake.stored()
    to = f"s3://{BUCKET}/{tmp_path.name}-backup"
    with ExitStack() as stack:
        store = stack.enter_context(breakable_connection(sandbox.settings["s3_endpoint_url"]))
        server = stack.enter_context(breakable_connection(sandbox.endpoint_url))
        outages = Outages(store, server, seconds)
        store.on_sent = outages.sent
        settings = {**sandbox.settings, "endpoint_url": server.endpoint, "s3_endpoint_url": store.endpoint}

        with outages.each({"listing": "listing ", "staged": "reading staged addresses (second"}):
            marked = Marker().mark(settings, "lake", "m1", ANY_AGE)
        assert marked.expired == lake.garbage
        Sweeper().approve(settings, "lake", "m1")
        with outages.each({"backing up": b"x-amz-copy-source"}):
            backed_up = json.loads(lakegc.output(settings, "backup", "lake", "m1", to, "--format", "json"))
        assert sum(backed_up["objects"].get(status, 0) for status in ("copied", "already there")) == len(lake.garbage)
        with outages.each({"re-verifying": "reading staged addresses", "deleting": b"?delete"}):
            report = Sweeper().sweep(settings, "lake", "m1", SweepOptions())

    assert report.success
    assert lake.stored() == before - lake.garbage
    lake.check_readable()
    for phase in ("listing", "backing up", "deleting"):
        assert outages.felt[phase][0], phase
    for phase in ("staged", "re-verifying"):
        assert outages.felt[phase][1], phase


# --- branches that come and go ----------------------------------------------------------------------------------------


@dataclass
class Churn:
    """Creates and deletes branches all the time, every second one with something staged; a few of them remain."""

    lake: Lake
    turns: int = 0
    staged: set[str] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)
    _errors: list[BaseException] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        assert not self._errors

    @contextmanager
    def felt(self) -> Iterator[None]:
        """Around a phase, in which branches must have been created and deleted."""
        before = self.turns
        yield
        assert self.turns > before + 2

    def _run(self) -> None:
        repository = self.lake.repository
        try:
            while not self._stop.wait(0.08):  # slow enough that the server has time for the mark
                branch, data = f"churn-{self.turns}", f"staged {self.turns}".encode()
                repository.create_branch(branch, "main")
                if self.turns % 2:
                    self.staged.add(repository.put(branch, "staged", data).address)
                if self.turns % 20 == 19:
                    self.lake.live[branch, "staged"] = data
                else:
                    repository.delete_branch(branch)
                self.turns += 1
        except BaseException as error:
            self._errors.append(error)


@pytest.mark.timeout(600)
def test_branches_created_and_deleted_in_any_phase_leave_the_result_unchanged(
    lake: Lake, lakegc: Lakegc, tmp_path: Path
) -> None:
    """A server skips entries of its list if a branch is deleted just before its turn. Staged objects must not be
    deleted because of that."""
    settings, before = lake.sandbox.settings, lake.stored()
    to, churn = f"s3://{BUCKET}/{tmp_path.name}-backup", Churn(lake)
    with churn.running():
        with churn.felt():
            marked = Marker().mark(settings, "lake", "m1", ANY_AGE)
        Sweeper().approve(settings, "lake", "m1")
        with churn.felt():
            backed_up = json.loads(lakegc.output(settings, "backup", "lake", "m1", to, "--format", "json"))
        with churn.felt():
            report = Sweeper().sweep(settings, "lake", "m1", SweepOptions())

    assert lake.garbage <= marked.expired <= lake.garbage | churn.staged
    assert sum(backed_up["objects"].values()) == backed_up["objects"]["copied"] == len(marked.expired)
    assert report.success
    assert lake.stored() & before == before - lake.garbage
    lake.check_readable()
