"""One mark or sweep at a time: who gets the lease, for how long, and who doesn't (invariant 11)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from spark_resources.errors import LakegcError, Refused, Unavailable
from spark_resources.lease import LEASE_KEY, LEASE_TIME, Holder, Lease, current_holder, take_lease
from spark_resources.model import Namespace
from spark_resources.stores import open_store
from spark_resources.stores.base import Quirks, Store
from spark_resources.stores.local import CLOCK_FILE
from spark_resources.stores.settings import StoreSettings
from tests.servers import MotoServer


class Clock:
    """A monotonic clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def no_waiting(seconds: float) -> None:
    raise AssertionError(f"nobody has to wait, least of all {seconds} s")


class Lake:
    """A namespace in a folder, whose store's clock a test can move, and those who want to work on it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        (folder / "lake").mkdir()
        self.store: Store = open_store(Namespace.parse("local://lake"), StoreSettings(local_path=str(folder)))
        self.clock = Clock()

    def pass_time(self, span: timedelta) -> None:
        """Let time go on, for the store and for the process alike."""
        offset = (self.store.clock_offset + span).total_seconds()
        (self._folder / CLOCK_FILE).write_text(json.dumps({"offset_seconds": offset}))
        self.clock.seconds += span.total_seconds()

    def take(
        self, who: str, *, token: str = "", mark_id: str = "m1", wait: Callable[[float], None] = no_waiting
    ) -> Lease:
        lease = take_lease(
            self.store, who=who, mark_id=mark_id, token=token or who, single_deployment=False, clock=self.clock,
            wait=wait,
        )  # fmt: skip
        self._stack.callback(lease.release)
        return lease

    def write(self, data: bytes) -> None:
        self.store.write(LEASE_KEY, data)

    def holder(self) -> str | None:
        found = current_holder(self.store)
        return None if found is None else found.who


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A namespace that nobody works on; leases are given back when the test ends."""
    with ExitStack() as stack:
        yield Lake(tmp_path, stack)


# --- taking ---------------------------------------------------------------------------------------------------------


def test_a_free_lease_is_not_got(lake: Lake) -> None:
    """Who takes a free lease has it for ten minutes, and everybody can see who it is, for which mark, until when."""
    assert current_holder(lake.store) is None
    before = lake.store.now()

    lease = lake.take("ann", mark_id="m7")

    found = current_holder(lake.store)
    assert found is not None
    assert (found.who, found.mark_id, found.token, lease.mark_id) == ("ann", "m7", "ann", "m7")
    assert before + LEASE_TIME <= found.until <= lake.store.now() + LEASE_TIME
    assert lease.left() == LEASE_TIME
    lease.check()


def test_two_take_one_lease(lake: Lake) -> None:
    """The second is refused, and told who holds it, for which mark and until when; the first keeps it."""
    first = lake.take("ann", mark_id="m7")
    held = lake.store.read(LEASE_KEY)

    with pytest.raises(Refused, match=r"ann is working on .*lake \(mark m7\) and holds it until 20.* UTC") as refused:
        lake.take("ben")

    assert refused.value.invariant == 11
    assert lake.store.read(LEASE_KEY) == held
    first.renew()


def test_many_take_a_free_lease_at_once(lake: Lake) -> None:
    """Of many who try in one moment exactly one gets it."""
    assert _winners(lake) == 1


def test_many_take_an_expired_lease_at_once(lake: Lake) -> None:
    """Of many who take over in one moment exactly one gets it."""
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


def test_a_second_run_of_one_person_shares_the_lease(lake: Lake) -> None:
    """Two runs of the same name for the same mark are two: the token tells them apart."""
    lake.take("ann", token="one")

    with pytest.raises(Refused, match="ann is working on"):
        lake.take("ann", token="two")


def test_a_lost_answer_locks_its_own_run_out(lake: Lake) -> None:
    """A write that arrived though its answer was lost, and was then repeated, is known by its token."""
    lake.write(Holder("ann", "m1", "mine", lake.store.now() + LEASE_TIME).to_json())

    lease = lake.take("ann", token="mine")

    lease.renew()
    assert lake.holder() == "ann"


# --- time -----------------------------------------------------------------------------------------------------------


def test_a_dead_run_holds_its_lease_for_ever(lake: Lake) -> None:
    """A lease that nobody renewed is taken over once its time is up by the store's clock, and not a moment before."""
    until = lake.store.now() + timedelta(hours=1)
    lake.write(Holder("ann", "m1", "dead", until).to_json())

    lake.pass_time(until - lake.store.now() - timedelta(seconds=30))
    with pytest.raises(Refused, match="ann is working on"):
        lake.take("ben")
    lake.pass_time(timedelta(seconds=30))

    assert lake.holder() is None
    lake.take("ben")
    assert lake.holder() == "ben"


def test_a_lease_is_believed_longer_than_it_lasts(lake: Lake) -> None:
    """No work begins with less of the lease left than a request may take."""
    lease = lake.take("ann")

    lake.clock.seconds += LEASE_TIME.total_seconds() - 30
    lease.check()
    lake.clock.seconds += 0.001
    with pytest.raises(Refused, match=r"lost \(it could not be renewed in time") as refused:
        lease.check()
    lease.check(at_least=timedelta(seconds=29))
    lake.clock.seconds += 60

    assert refused.value.invariant == 11
    assert lease.left() < timedelta(0)


def test_a_renewed_lease_ends_at_its_first_time(lake: Lake) -> None:
    """Renewing gives the whole time again, from before the request on, here and in the store."""
    lease = lake.take("ann")
    lake.pass_time(timedelta(minutes=9))

    lease.renew()

    found = current_holder(lake.store)
    assert found is not None
    assert lease.left() == LEASE_TIME
    assert lake.store.now() + timedelta(minutes=9) < found.until <= lake.store.now() + LEASE_TIME
    lake.pass_time(timedelta(minutes=9))
    with pytest.raises(Refused, match="ann is working on"):
        lake.take("ben")


def test_the_time_that_a_slow_store_takes_is_counted_as_left(tmp_path: Path) -> None:
    """What is left of a lease counts from before it was asked for, so it never ends later than in the store."""
    with ExitStack() as stack:
        lake = Lake(tmp_path, stack)
        readings = iter([1000.0, *[1007.0] * 1000])
        lease = take_lease(
            lake.store, who="ann", mark_id="m", token="t", single_deployment=False, clock=lambda: next(readings)
        )
        stack.callback(lease.release)

        assert lease.left() == LEASE_TIME - timedelta(seconds=7)


# --- losing it ------------------------------------------------------------------------------------------------------


def test_work_goes_on_under_a_lease_that_another_took_over(lake: Lake) -> None:
    """Who slept through its time and was succeeded can't renew, and from then on can't do anything."""
    sleeper = lake.take("ann")
    lake.pass_time(LEASE_TIME)
    lake.take("ben")
    lake.clock.seconds = 1000.0  # ann's process was stopped: its own clock says that all is well

    sleeper.check()
    with pytest.raises(Refused, match="taken over by another run") as refused:
        sleeper.renew()
    with pytest.raises(Refused, match=r"lost \(another run took it over"):
        sleeper.check()

    assert refused.value.invariant == 11
    assert lake.holder() == "ben"


def test_a_deleted_lease_is_renewed_into_being(lake: Lake) -> None:
    """A lease that somebody deleted is lost: another may have taken and given back one meanwhile."""
    lease = lake.take("ann")
    lake.store.delete_many([LEASE_KEY])

    with pytest.raises(Refused, match="taken over"):
        lease.renew()

    assert current_holder(lake.store) is None


def test_a_stranger_gives_back_the_lease(lake: Lake) -> None:
    """Who lost its lease can't give back the one of its successor."""
    sleeper = lake.take("ann")
    lake.pass_time(LEASE_TIME)
    lake.take("ben")

    sleeper.release()

    assert lake.holder() == "ben"


def test_a_lease_that_was_given_back_is_waited_for(lake: Lake) -> None:
    """A lease that was given back is free at once, also after it was renewed, and giving back twice harms nobody."""
    lease = lake.take("ann")
    lease.renew()
    lease.release()

    assert lake.holder() is None
    lake.take("ben")
    lease.release()
    assert lake.holder() == "ben"


def test_a_lease_whose_renewal_was_not_heard_of_is_given_back_all_the_same(lake: Lake) -> None:
    """A renewal that was done though its answer was lost leaves another tag: the lease doesn't stay for ten minutes."""
    lease = lake.take("ann")
    held = Holder.from_json(lake.store.read(LEASE_KEY), "here")
    lake.write(replace(held, until=held.until + timedelta(seconds=1)).to_json())

    lease.release()

    assert lake.holder() is None


def test_giving_back_hides_the_error_of_the_work(lake: Lake, tmp_path: Path) -> None:
    """Where the store is away, giving back is silent: the lease ends by itself."""
    lease = lake.take("ann")
    (tmp_path / "lake").rename(tmp_path / "away")

    lease.release()

    assert not (tmp_path / "lake").exists()


# --- what can't be judged -------------------------------------------------------------------------------------------


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
    ],
)
def test_an_unreadable_lease_is_a_free_one(lake: Lake, data: bytes) -> None:
    """A lease that can't be read is refused, with what to do, and is left as it is."""
    lake.write(data)

    for use in (lambda: lake.take("ann"), lambda: current_holder(lake.store)):
        with pytest.raises(Refused, match=r"can't be read\. If no other lakegc runs .* delete it") as refused:
            use()
        assert refused.value.invariant == 11
    assert lake.store.read(LEASE_KEY) == data


def test_a_namespace_that_cannot_be_reached_has_no_holder(tmp_path: Path) -> None:
    """That nobody can be seen to hold a lease isn't read as nobody holding it."""
    store = open_store(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path / "gone")))

    with pytest.raises(Unavailable):
        take_lease(store, who="ann", mark_id="m1", token="t", single_deployment=True)


def test_a_holder_is_read_as_another() -> None:
    """What is written into a lease is what is read out of it, to the microsecond."""
    holder = Holder('"ann"\n', "m1", "t", datetime(2026, 11, 21, 8, 50, 1, 5, tzinfo=UTC))

    assert Holder.from_json(holder.to_json(), "x") == holder


# --- stores that can't keep two apart -------------------------------------------------------------------------------


def s3(server: MotoServer, bucket: str, quirks: Quirks) -> Any:
    login = {"aws_access_key_id": "a", "aws_secret_access_key": "s"}
    boto3.client("s3", endpoint_url=server.endpoint_url, region_name="us-east-1", **login).create_bucket(Bucket=bucket)
    settings = StoreSettings(
        s3_endpoint_url=server.endpoint_url, s3_region="us-east-1", s3_access_key_id="a", s3_secret_access_key="s"
    )
    return open_store(Namespace.parse(f"s3://{bucket}/lake"), settings, quirks=quirks)


def test_a_store_without_conditional_writes_is_trusted(moto_server: MotoServer) -> None:
    """Such a store is refused before anything is written; who says that there is one deployment gets the lease."""
    store = s3(moto_server, "unconditional", Quirks(conditional_writes=False))

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
