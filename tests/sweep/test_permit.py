"""The permit to delete lasts for seconds, ends if it is stopped or not renewed, and never covers live objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_resources.deleting.permit import (
    PERMIT_WAIT_S,
    Permit,
    PermitIssuer,
    PermitWatch,
    became_live_key,
    permit_key,
)
from spark_resources.deleting.sweep_task import Action, store_clock
from spark_resources.errors import DamagedData, LakegcError, Refused
from spark_resources.mark_store.lease import REREAD_INTERVAL_S, LeaseWatch
from spark_resources.model import ADDRESSES
from spark_resources.spark.datasets import parquet_bytes
from spark_resources.stores.local.client import CLOCK_FILE
from tests.support.clocks import later
from tests.support.sweep_tasks import SECRET, Task, task

__all__ = ["task"]

EVERY_S = 3.0
REMOVALS = [Action.DELETE, Action.QUARANTINE, Action.PURGE]


class Time:
    """The clocks of a task. Only the task's waits advance them."""

    def __init__(self, began: datetime) -> None:
        self.began, self.seconds = began, 0.0
        self.at: dict[float, Callable[[], None]] = {}

    def now(self) -> datetime:
        return self.began + timedelta(seconds=self.seconds)

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        for moment in [moment for moment in self.at if moment <= self.seconds]:
            self.at.pop(moment)()


def watching(task: Task) -> tuple[PermitWatch, PermitIssuer, Time]:
    time = Time(task.store.now())
    watch = PermitWatch(
        task.receipts, 1, SECRET, interval_s=EVERY_S, now=time.now, clock=lambda: time.seconds, sleep=time.wait
    )
    return watch, task.permit(), time


def test_a_permit_that_is_not_renewed_expires(task: Task) -> None:
    """Even if the driver is dead, disconnected or unable to list heads, deletes stop by themselves."""
    watch, permit, time = watching(task)
    permit.grant(time.now() + timedelta(seconds=10))
    watch.check()
    time.seconds = 10.0

    with pytest.raises(Refused, match="did not renew the permit in time") as refused:
        watch.check()
    assert refused.value.invariant == 1
    assert PERMIT_WAIT_S <= time.seconds - 10.0 <= PERMIT_WAIT_S + EVERY_S


def test_after_a_failed_wait_for_a_permit_later_checks_are_refused_without_waiting(task: Task) -> None:
    watch, _, time = watching(task)
    task.permit().pause()
    with pytest.raises(Refused):
        watch.check()
    before = time.seconds

    with pytest.raises(Refused):
        watch.check()
    assert time.seconds == before


def test_deletes_resume_when_a_paused_permit_is_renewed(task: Task) -> None:
    """Listing the heads may take a long time, which delays the round but doesn't end it."""
    watch, permit, time = watching(task)
    permit.pause()
    time.at[20.0] = lambda: permit.grant(time.now() + timedelta(seconds=10))

    watch.check()
    assert 20.0 <= time.seconds <= 20.0 + EVERY_S


def test_a_task_stops_within_seconds_of_its_permit_being_stopped(task: Task) -> None:
    """Even a valid permit is read again every few seconds."""
    watch, permit, time = watching(task)
    permit.grant(time.now() + timedelta(minutes=10))
    watch.check()
    permit.stop("branch 'x' has a new head")
    permit.grant(time.now() + timedelta(minutes=10))
    time.seconds += EVERY_S

    with pytest.raises(Refused, match="branch 'x' has a new head"):
        watch.check()


@pytest.mark.parametrize("action", REMOVALS)
def test_a_task_deletes_nothing_without_a_permit(task: Task, action: Action) -> None:
    """If the round was stopped or never permitted, every key stays where it is."""
    rows = task.write("a")
    task.store.copy("data/s/a", "_lakefs/retention/gc/quarantine/m1/data/s/a")
    config = task.config(action)
    task.permit().stop("as planned")

    assert task.run(rows, config) == {"unprocessed": 1}
    task.store.delete_many([permit_key(task.receipts, 1)])
    assert task.run(rows, config, attempt=1) == {"unprocessed": 1}
    task.store.write(permit_key(task.receipts, 1), b"{}")
    assert task.run(rows, config, attempt=2) == {"unprocessed": 1}
    assert task.remaining() == {"a"}
    assert task.remaining("_lakefs/retention/gc/quarantine/m1/") == {"_lakefs/retention/gc/quarantine/m1/data/s/a"}


def altered(data: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(data), **changes}).encode()


FORGERIES: dict[str, Callable[[Task, bytes, datetime], bytes]] = {
    "no stop": lambda task, given, until: altered(given, until=until.isoformat(), stopped=""),
    "no HMAC": lambda task, given, until: json.dumps(
        {"format": 1, "until": until.isoformat(), "became_live": [], "stopped": ""}
    ).encode(),
    "an empty HMAC": lambda task, given, until: altered(given, until=until.isoformat(), stopped="", hmac=None),
    "another alphabet": lambda task, given, until: altered(given, until=until.isoformat(), stopped="", hmac="é"),
    "another secret": lambda task, given, until: Permit(until).to_json(b"guessed", permit_key(task.receipts, 1)),
    "another round": lambda task, given, until: Permit(until).to_json(SECRET, permit_key(task.receipts, 2)),
}


@pytest.mark.parametrize("action", REMOVALS)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_permit_permits_nothing(task: Task, action: Action, forgery: str) -> None:
    """Only the round's driver and its tasks know its secret; others who can write to the namespace don't."""
    rows, config = task.write("a"), task.config(action)
    task.store.copy("data/s/a", "_lakefs/retention/gc/quarantine/m1/data/s/a")
    task.permit().stop("branch 'x' has a new head")
    key, until = permit_key(task.receipts, 1), task.store.now() + timedelta(minutes=30)
    task.store.write(key, FORGERIES[forgery](task, task.store.read(key), until))

    assert task.run(rows, config) == {"unprocessed": 1}
    assert task.remaining() == {"a"}
    assert task.remaining("_lakefs/retention/gc/quarantine/m1/") == {"_lakefs/retention/gc/quarantine/m1/data/s/a"}
    task.permit().grant(until)
    assert "unprocessed" not in task.run(rows, config, attempt=1)


def test_a_forged_list_of_keys_that_became_live_stops_the_task(task: Task) -> None:
    """If an empty list were accepted, the task would delete objects that a new head reaches."""
    rows, config = task.write("a"), task.config()
    permit = task.permit()
    permit.exclude(pa.array(["data/s/a"]))
    permit.grant(task.store.now() + timedelta(minutes=30))
    task.store.write(became_live_key(task.receipts, 1, 0), parquet_bytes(ADDRESSES.empty_table()))

    assert task.run(rows, config) == {"unprocessed": 1}
    assert task.remaining() == {"a"}


def test_an_older_permit_that_is_restored_expires_at_its_original_time(task: Task) -> None:
    """The older permit is genuine, so it is valid for its few seconds. A task doesn't forget keys that it knows to be
    live."""
    watch, permit, time = watching(task)
    permit.grant(time.now() + timedelta(seconds=13))
    older, key = task.store.read(permit_key(task.receipts, 1)), permit_key(task.receipts, 1)
    permit.exclude(pa.array(["data/s/a"]))
    watch.check()
    permit.stop("branch 'x' has a new head")
    task.store.write(key, older)
    time.seconds += EVERY_S
    watch.check()

    assert watch.became_live("data/s/a")
    time.seconds = 13.0
    with pytest.raises(Refused, match="did not renew the permit in time"):
        watch.check()


def test_keys_that_became_live_during_the_round_are_not_deleted(task: Task) -> None:
    """A new head reaches these keys. They get no outcome, and all other keys are deleted."""
    rows, config = task.write("a", "b", "c"), task.config()
    permit = task.permit()
    permit.exclude(pa.array(["data/s/a"]))
    permit.exclude(pa.array(["data/s/c", "data/s/other"]))
    permit.grant(task.store.now() + timedelta(minutes=30))

    assert task.run(rows, config) == {"deleted": 1, "unprocessed": 2}
    assert task.remaining() == {"a", "c"}


def test_no_permit_is_given_before_the_keys_that_became_live_are_recorded(task: Task) -> None:
    """The first attempt to write the keys may fail, and the watch doesn't find them a second time."""
    rows, config = task.write("a", "b"), task.config()
    permit, key = task.permit(), became_live_key(task.receipts, 1, 0)
    task.store.write(f"{key}/in the way", b"")
    for attempt in (lambda: permit.exclude(pa.array(["data/s/a"])), lambda: permit.grant(task.store.now())):
        with pytest.raises(LakegcError):
            attempt()
    task.store.delete_many([f"{key}/in the way"])
    permit.grant(task.store.now() + timedelta(minutes=30))

    assert task.run(rows, config) == {"deleted": 1, "unprocessed": 1}
    assert task.remaining() == {"a"}


def test_keys_that_became_live_during_a_purge_keep_their_quarantined_copies(task: Task) -> None:
    """A new head reaches the object's key, but the quarantined copy, at another key, is all that is left of it."""
    folder, rows, config = "_lakefs/retention/gc/quarantine/m1/data/s/", task.write("a", "b"), task.config(Action.PURGE)
    for name in ("a", "b"):
        task.store.copy(f"data/s/{name}", folder + name)
    task.store.delete_many(["data/s/a", "data/s/b"])
    permit = task.permit()
    permit.exclude(pa.array(["data/s/a"]))
    permit.grant(task.store.now() + timedelta(minutes=30))

    assert task.run(rows, config) == {"purged": 1, "unprocessed": 1}
    assert task.remaining(folder) == {folder + "a"}


def test_a_permit_that_expired_while_the_lease_was_read_permits_nothing(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may be unreachable for a minute while a task reads the lease. The heads haven't been listed in that
    time."""
    rows, config = task.write("a"), task.config()
    permit, now = task.permit(), task.store.now()
    permit.grant(now + timedelta(seconds=2))

    def read_slowly(watch: LeaseWatch, *, at_least: timedelta) -> None:
        permit.stop("branch 'x' has a new head")
        later(task.store, now + timedelta(seconds=2))

    monkeypatch.setattr(LeaseWatch, "check", read_slowly)

    assert task.run(rows, config) == {"unprocessed": 1}
    assert task.remaining() == {"a"}


def test_a_damaged_or_missing_list_of_keys_that_became_live_stops_the_task(task: Task) -> None:
    """A missing list is never an empty one."""
    watch, permit, time = watching(task)
    permit.exclude(pa.array(["data/s/a"]))
    permit.grant(time.now() + timedelta(seconds=10))
    [key] = [
        stored.key
        for page in task.store.pages(task.receipts.folder)
        for stored in page.objects
        if "became-live" in stored.key
    ]
    task.store.write(key, b"PAR1")

    with pytest.raises(DamagedData, match="became-live"):
        watch.check()
    task.store.delete_many([key])
    with pytest.raises(Refused, match="is gone"):
        watch.check()


def test_the_stores_clock_is_read_again_after_the_machine_was_suspended(task: Task, tmp_path: Path) -> None:
    """The machine's own clock may pause during that time. By that clock, an old re-verification and an old permit would
    seem young.

    The store's times are rounded up, so its clock never seems earlier than it is.
    """
    seconds, began, hour = [1000.0], task.store.now(), timedelta(hours=1)
    now = store_clock(task.store, lambda: seconds[0])
    seconds[0] += REREAD_INTERVAL_S
    assert timedelta() <= now() - began - timedelta(seconds=REREAD_INTERVAL_S) < timedelta(seconds=30)
    (tmp_path / CLOCK_FILE).write_text(json.dumps({"offset_seconds": hour.total_seconds()}))
    seconds[0] += 1

    assert now() >= began + hour
    first = now()
    seconds[0] += 5
    assert now() == first + timedelta(seconds=5)  # without a request
