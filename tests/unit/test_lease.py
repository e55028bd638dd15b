"""Only one mark or sweep runs at a time: which run gets the lease, for how long, and which is refused (invariant
11)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from spark_resources.errors import LakegcError, Refused, Unavailable
from spark_resources.mark_store import lease as lease_module
from spark_resources.mark_store.lease import (
    LEASE_KEY,
    LEASE_TIME,
    Holder,
    Lease,
    boottime_s,
    current_holder,
    take_lease,
)
from spark_resources.model import Namespace
from spark_resources.stores import open_store
from spark_resources.stores.base import Capabilities, Store
from spark_resources.stores.local.client import CLOCK_FILE
from spark_resources.stores.settings import StoreSettings
from tests.support.s3_servers import MotoServer


class Clock:
    """A monotonic clock that is paused until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def no_waiting(seconds: float) -> None:
    raise AssertionError(f"unexpected wait of {seconds} s")


class Lake:
    """A namespace in a folder whose clock a test can move, and the runs that take its lease."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        (folder / "lake").mkdir()
        self.store: Store = open_store(Namespace.parse("local://lake"), StoreSettings(local_path=str(folder)))
        self.clock = Clock()

    def pass_time(self, span: timedelta) -> None:
        """Let time pass, for the store and for the process alike."""
        offset = (self.store.clock_offset + span).total_seconds()
        (self._folder / CLOCK_FILE).write_text(json.dumps({"offset_seconds": offset}))
        self.clock.seconds += span.total_seconds()

    def take(
        self, who: str, *, token: str = "", mark_id: str = "m1", sleep: Callable[[float], None] = no_waiting
    ) -> Lease:
        lease = take_lease(
            self.store, who=who, mark_id=mark_id, token=token or who, single_deployment=False, clock=self.clock,
            sleep=sleep,
        )  # fmt: skip
        self._stack.callback(lease.release)
        return lease

    def write(self, data: bytes) -> None:
        self.store.write(LEASE_KEY, data)

    def holder(self) -> str | None:
        current = current_holder(self.store)
        return None if current is None else current.who


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A namespace with a free lease; leases are released when the test ends."""
    with ExitStack() as stack:
        yield Lake(tmp_path, stack)


# --- taking -----------------------------------------------------------------------------------------------------------


def test_a_free_lease_is_taken_for_ten_minutes(lake: Lake) -> None:
    """Anyone can see who holds the lease, for which mark, and until when."""
    assert current_holder(lake.store) is None
    before = lake.store.now()

    lease = lake.take("ann", mark_id="m7")

    holder = current_holder(lake.store)
    assert holder is not None
    assert (holder.who, holder.mark_id, holder.token, lease.mark_id) == ("ann", "m7", "ann", "m7")
    assert before + LEASE_TIME <= holder.until <= lake.store.now() + LEASE_TIME
    assert lease.time_left() == LEASE_TIME
    lease.check()


def test_a_second_run_is_refused_with_the_name_of_the_holder(lake: Lake) -> None:
    """The message says for which mark and until when the lease is taken. The first run keeps the lease."""
    first = lake.take("ann", mark_id="m7")
    before = lake.store.read(LEASE_KEY)

    with pytest.raises(
        Refused, match=r"ann is working on .*lake \(mark m7\) and holds the lease until 20.* UTC"
    ) as refused:
        lake.take("ben")

    assert refused.value.invariant == 11
    assert lake.store.read(LEASE_KEY) == before
    first.renew()


def test_exactly_one_of_many_runs_takes_a_free_lease(lake: Lake) -> None:
    """All runs try at the same moment."""
    assert _winners(lake) == 1


def test_exactly_one_of_many_runs_takes_over_an_expired_lease(lake: Lake) -> None:
    """All runs try at the same moment."""
    lake.take("ann")
    lake.pass_time(LEASE_TIME)

    assert _winners(lake) == 1


def _winners(lake: Lake) -> int:
    together = threading.Barrier(8)

    def attempt(number: int) -> bool:
        together.wait(30)
        try:
            lake.take(f"taker {number}")
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(attempt, range(8)))


def test_a_second_run_of_the_same_person_and_mark_is_refused(lake: Lake) -> None:
    """The token tells the two runs apart."""
    lake.take("ann", token="one")

    with pytest.raises(Refused, match="ann is working on"):
        lake.take("ann", token="two")


def test_a_run_recognizes_its_own_lease_by_the_token(lake: Lake) -> None:
    """The response to the run's write was lost. The retried write found the lease taken."""
    lake.write(Holder("ann", "m1", "mine", lake.store.now() + LEASE_TIME).to_json())

    lease = lake.take("ann", token="mine")

    lease.renew()
    assert lake.holder() == "ann"


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_lease_that_was_not_renewed_is_taken_over_once_it_expires(lake: Lake) -> None:
    """The store's clock decides when the lease expires."""
    until = lake.store.now() + timedelta(hours=1)
    lake.write(Holder("ann", "m1", "dead", until).to_json())

    lake.pass_time(until - lake.store.now() - timedelta(seconds=30))
    with pytest.raises(Refused, match="ann is working on"):
        lake.take("ben")
    lake.pass_time(timedelta(seconds=30))

    assert lake.holder() is None
    lake.take("ben")
    assert lake.holder() == "ben"


def test_no_work_begins_if_the_lease_may_expire_during_a_request(lake: Lake) -> None:
    """The remaining time must be at least as long as a request may take."""
    lease = lake.take("ann")

    lake.clock.seconds += LEASE_TIME.total_seconds() - 30
    lease.check()
    lake.clock.seconds += 0.001
    with pytest.raises(Refused, match=r"lost \(it could not be renewed in time") as refused:
        lease.check()
    lease.check(at_least=timedelta(seconds=29))
    lake.clock.seconds += 60

    assert refused.value.invariant == 11
    assert lease.time_left() < timedelta(0)


def test_a_renewed_lease_lasts_for_the_full_lease_time(lake: Lake) -> None:
    """The lease time starts before the request, both in the process and in the store."""
    lease = lake.take("ann")
    lake.pass_time(timedelta(minutes=9))

    lease.renew()

    holder = current_holder(lake.store)
    assert holder is not None
    assert lease.time_left() == LEASE_TIME
    assert lake.store.now() + timedelta(minutes=9) < holder.until <= lake.store.now() + LEASE_TIME
    lake.pass_time(timedelta(minutes=9))
    with pytest.raises(Refused, match="ann is working on"):
        lake.take("ben")


def test_the_lease_time_counts_from_before_the_request(tmp_path: Path) -> None:
    """Even if the store is slow, the process never relies on a lease that has already expired in the store."""
    with ExitStack() as stack:
        lake = Lake(tmp_path, stack)
        readings = iter([1000.0, *[1007.0] * 1000])
        lease = take_lease(
            lake.store, who="ann", mark_id="m", token="t", single_deployment=False, clock=lambda: next(readings)
        )
        stack.callback(lease.release)

        assert lease.time_left() == LEASE_TIME - timedelta(seconds=7)


# --- losing it --------------------------------------------------------------------------------------------------------


def test_a_lease_that_another_run_took_over_cannot_be_renewed_or_used(lake: Lake) -> None:
    """A run that was suspended for longer than its lease may believe that it still holds it."""
    sleeper = lake.take("ann")
    lake.pass_time(LEASE_TIME)
    lake.take("ben")
    lake.clock.seconds = 1000.0  # ann's process was suspended, so by its own clock the lease is still valid

    sleeper.check()
    with pytest.raises(Refused, match="taken over by another run") as refused:
        sleeper.renew()
    with pytest.raises(Refused, match=r"lost \(another run took it over"):
        sleeper.check()

    assert refused.value.invariant == 11
    assert lake.holder() == "ben"


def test_a_deleted_lease_cannot_be_renewed(lake: Lake) -> None:
    """In the meantime, another run may have taken and released the lease."""
    lease = lake.take("ann")
    lake.store.delete_many([LEASE_KEY])

    with pytest.raises(Refused, match="taken over"):
        lease.renew()

    assert current_holder(lake.store) is None


def test_releasing_a_lost_lease_leaves_the_successors_lease_unchanged(lake: Lake) -> None:
    """The file of the lease now belongs to another run."""
    sleeper = lake.take("ann")
    lake.pass_time(LEASE_TIME)
    lake.take("ben")

    sleeper.release()

    assert lake.holder() == "ben"


def test_a_released_lease_is_free_at_once(lake: Lake) -> None:
    """A renewed lease is also free at once. Releasing a lease twice is harmless."""
    lease = lake.take("ann")
    lease.renew()
    lease.release()

    assert lake.holder() is None
    lake.take("ben")
    lease.release()
    assert lake.holder() == "ben"


def test_a_lease_is_released_even_if_the_response_to_its_renewal_was_lost(lake: Lake) -> None:
    """The renewal changed the file's tag in the store. Otherwise the lease would stay for ten minutes."""
    lease = lake.take("ann")
    holder = Holder.from_json(lake.store.read(LEASE_KEY), "here")
    lake.write(replace(holder, until=holder.until + timedelta(seconds=1)).to_json())

    lease.release()

    assert lake.holder() is None


def test_releasing_is_silent_if_the_store_is_unreachable(lake: Lake, tmp_path: Path) -> None:
    """An error would hide the error of the work. The lease expires by itself."""
    lease = lake.take("ann")
    (tmp_path / "lake").rename(tmp_path / "away")

    lease.release()

    assert not (tmp_path / "lake").exists()


# --- unreadable leases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b'{"who": "a", "mark_id": "m", "token": "t", "until": "soon"}',
        b'{"who": "a", "mark_id": "m", "token": "t", "until": null}',
        b'{"who": "a", "mark_id": "m", "token": "t", "until": "2026-11-21T08:50:00"}',
        b'{"who": "a", "mark_id": "m", "token": "t", "until": "0001-01-01T00:00:00+14:00"}',
        *(
            b'{"who": "a", "mark_id": "m", "token": "t", "until": "2026-11-21T08:50:00Z", "tasks_stop_after_s": %b}'
            % seconds
            for seconds in (b"NaN", b'"NaN"', b"Infinity", b"1e999", b"-1", b"-Infinity")
        ),
    ],
)
def test_an_unreadable_lease_blocks_every_run_and_is_left_as_it_is(lake: Lake, data: bytes) -> None:
    """The message says what to do."""
    lake.write(data)

    advice = r"can't be read \(.*\)\. If no other lakegc is running .* delete the lease"
    for use in (lambda: lake.take("ann"), lambda: current_holder(lake.store)):
        with pytest.raises(Refused, match=advice) as refused:
            use()
        assert refused.value.invariant == 11
    assert lake.store.read(LEASE_KEY) == data


def test_an_unreachable_namespace_raises_an_error_and_does_not_count_as_a_free_lease(tmp_path: Path) -> None:
    """Another run may hold the lease, although it can't be seen."""
    store = open_store(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path / "gone")))

    with pytest.raises(Unavailable):
        take_lease(store, who="ann", mark_id="m1", token="t", single_deployment=True)


def test_a_holder_is_read_back_as_written() -> None:
    """The holder's time is exact to the microsecond."""
    holder = Holder('"ann"\n', "m1", "t", datetime(2026, 11, 21, 8, 50, 1, 5, tzinfo=UTC))

    assert Holder.from_json(holder.to_json(), "x") == holder


# --- stores without conditional writes ------------------------------------------------------------------------------


def s3(server: MotoServer, bucket: str, capabilities: Capabilities) -> Any:
    login = {"aws_access_key_id": "a", "aws_secret_access_key": "s"}
    boto3.client("s3", endpoint_url=server.endpoint_url, region_name="us-east-1", **login).create_bucket(Bucket=bucket)
    settings = StoreSettings(
        s3_endpoint_url=server.endpoint_url, s3_region="us-east-1", s3_access_key_id="a", s3_secret_access_key="s"
    )
    return open_store(Namespace.parse(f"s3://{bucket}/lake"), settings, capabilities=capabilities)


def test_a_store_without_conditional_writes_is_used_only_by_a_single_deployment(moto_server: MotoServer) -> None:
    """The run is refused before anything is written, unless the settings declare that there is only one deployment."""
    store = s3(moto_server, "unconditional", Capabilities(conditional_writes=False))

    with pytest.raises(Refused, match="LAKEGC_SINGLE_DEPLOYMENT=true") as refused:
        take_lease(store, who="ann", mark_id="m1", token="t", single_deployment=False)
    assert refused.value.invariant == 11
    assert [page for page in store.pages("") if page.objects] == []

    lease = take_lease(store, who="ann", mark_id="m1", token="t", single_deployment=True)
    try:
        with pytest.raises(LakegcError, match="ann is working on"):
            take_lease(store, who="ben", mark_id="m2", token="u", single_deployment=True)
        lease.renew()
    finally:
        lease.release()
    assert current_holder(store) is None


# --- the clock of a process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "clocks", "read"),
    [
        ("linux", ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"), "CLOCK_BOOTTIME"),
        ("darwin", ("CLOCK_MONOTONIC",), "CLOCK_MONOTONIC"),
        ("win32", (), "monotonic"),
    ],
)
def test_the_clock_keeps_running_while_the_machine_sleeps(
    monkeypatch: pytest.MonkeyPatch, platform: str, clocks: tuple[str, ...], read: str
) -> None:
    """CLOCK_MONOTONIC pauses during sleep on Linux but keeps running on macOS. `time.monotonic` pauses on macOS but
    keeps running on Windows. With a paused clock, a lease would seem to last longer than it does."""
    times = {"clock_gettime": lambda name: name, "monotonic": lambda: "monotonic", **{name: name for name in clocks}}
    monkeypatch.setattr(lease_module, "time", SimpleNamespace(**times))
    monkeypatch.setattr(lease_module, "sys", SimpleNamespace(platform=platform))

    assert boottime_s() == read
