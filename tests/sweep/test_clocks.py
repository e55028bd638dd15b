"""Clocks that jump before or during a sweep make it stop, and never make it delete a live object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lakegc_assets.sweep.head_watch import HeadWatch
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.deleting.sweep_task import store_clock
from spark_resources.errors import Refused
from spark_resources.lakefs import LakeFSSettings
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.clock import SandboxClock
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.mark_store.lease import REREAD_INTERVAL_S, boottime_s
from spark_resources.model import Rules
from spark_resources.settings import Settings
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of
from tests.support.sweep_tasks import Task, task
from tests.support.sweep_without_lakefs import UNREACHABLE, OneBranch
from tests.support.tampering_proxy import TamperingProxy, tampering_proxy

__all__ = ["task"]

DAY = timedelta(days=1)
LONG_AGO = datetime.now(UTC) - 10 * DAY


@dataclass
class Lake:
    """A repository with two expired objects, in an approved mark: one was only in a commit whose child is ten days old,
    the other was never committed."""

    repository: SandboxRepository
    server: TamperingProxy
    settings: dict[str, str]
    committed: str
    never_committed: str

    def stored(self) -> set[str]:
        store = target_of(self.settings, "lake").place.store()
        return {stored.key for page in store.pages("data/") for stored in page.objects}

    def sweep(self) -> dict[str, int]:
        """Sweep the mark. Returns the number of objects by outcome."""
        return dict(Sweeper().sweep(self.settings, "lake", "m1", SweepOptions()).objects)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Sandbox(tmp_path) as sandbox, tampering_proxy(sandbox.endpoint_url) as server:
        repository = sandbox.create("lake")
        set_rules(repository, Rules(7, {"long-branch": 60}))
        committed = repository.put("main", "a", b"first").address
        repository.commit("main", "with the object", date=LONG_AGO - DAY)
        repository.put("main", "a", b"second")
        repository.commit("main", "without it", date=LONG_AGO)
        never_committed = repository.put("main", "b", b"staged").address
        repository.delete("main", ["b"])
        settings = {**sandbox.settings, "endpoint_url": server.endpoint}
        assert Marker().mark(settings, "lake", "m1", ANY_AGE).expired == {committed, never_committed}
        Sweeper().approve(settings, "lake", "m1")
        yield Lake(repository, server, settings, committed, never_committed)


def test_a_sweep_is_refused_while_the_servers_clock_differs_and_resumes_afterwards(lake: Lake) -> None:
    """A new branch retains an approved object for 60 days. By a clock that is a year ahead, this time is over, and the
    sweep would delete a live object."""
    lake.repository.create_branch("long-branch", "main")
    before = lake.stored()

    for jump in (400 * DAY, timedelta(minutes=6), -400 * DAY):
        lake.server.date_offset = jump
        with pytest.raises(Refused, match=r"the clocks used for lake differ .* Synchronize the clocks") as refused:
            lake.sweep()
        assert refused.value.invariant == 6, jump
        assert lake.stored() == before, jump

    lake.server.date_offset = timedelta(0)
    assert lake.sweep() == {"rescued": 1, "deleted": 1}
    assert before - lake.stored() == {lake.never_committed}


def test_a_tasks_clock_keeps_advancing_if_the_stores_clock_is_set_back(task: Task) -> None:
    """If it went back, a task would delete for another hour under an old permit and an old re-verification."""
    seconds, began, hour = [1000.0], task.store.now(), timedelta(hours=1)
    now = store_clock(task.store, lambda: seconds[0])
    SandboxClock(Path(task.place.settings.local_path or "")).set(began - hour)
    seconds[0] += REREAD_INTERVAL_S + 1

    assert began + timedelta(seconds=20) < now() < began + timedelta(seconds=30)
    seconds[0] += 2 * hour.total_seconds()
    assert began + hour < now()


def test_no_permit_is_granted_once_the_re_verification_is_too_old_by_the_machines_clock(task: Task) -> None:
    """The store's clock may have been set back since the re-verification, which would then seem young."""
    config = task.config()
    heads = HeadWatch(
        "lake", task.place, OneBranch(*LakeFSSettings.of(Settings.model_validate(UNREACHABLE))),
        pa.array([], pa.string()), timedelta(seconds=3), lambda _: None,
    )  # fmt: skip

    with heads.during(task.permit()):
        assert task.run(task.write("a"), config) == {"deleted": 1}
    heads.expires_s = boottime_s()
    with heads.during(task.permit(2)):
        assert task.run(task.write("b"), replace(config, round=2)) == {"unprocessed": 1}
    assert task.remaining() == {"b"}
