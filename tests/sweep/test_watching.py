"""A lease that other processes rely on: it isn't another's before each of them has stopped (invariant 11)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from spark_resources.errors import Refused
from spark_resources.lease import WATCH_S, LeaseWatch
from tests.unit.test_lease import Lake

REQUEST = timedelta(seconds=75)
LAST_LOOK = timedelta(seconds=WATCH_S)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with ExitStack() as stack:
        yield Lake(tmp_path, stack)


def test_a_task_deletes_under_a_lease_that_is_anothers(lake: Lake) -> None:
    """After work that failed, the lease is given to another run only when no task relies on it any more."""
    lease = lake.take("Ada")
    watch = LeaseWatch(lake.store, lease.token, lake.clock)
    watch.check(at_least=REQUEST)
    with pytest.raises(ValueError, match="a task failed"), lease.watched(REQUEST, lambda: False):
        raise ValueError("a task failed")
    lease.release()

    with pytest.raises(Refused, match="Ada is working on"):
        lake.take("Grace")
    lake.pass_time(LAST_LOOK)
    with pytest.raises(Refused, match="runs out"):
        watch.check(at_least=REQUEST)
    with pytest.raises(Refused, match="Ada is working on"):  # what was sent at the last moment may be under way
        lake.take("Grace")
    lake.pass_time(REQUEST)
    lake.take("Grace")


@pytest.mark.parametrize("fails", [False, True])
def test_a_lease_that_nobody_relies_on_is_waited_for(lake: Lake, fails: bool) -> None:
    """Work that ended well, or whose tasks have all stopped, leaves a lease that is free as soon as it is released."""
    lease = lake.take("Ada")
    with ExitStack() as failing:
        if fails:
            failing.enter_context(pytest.raises(ValueError, match="a task failed"))
        with lease.watched(REQUEST, lambda: True):
            if fails:
                raise ValueError("a task failed")
    lease.release()

    lake.take("Grace")


def test_a_watch_believes_a_lease_that_was_taken_over(lake: Lake) -> None:
    """A task notices within its watching time that the lease is another's, or gone."""
    lease = lake.take("Ada")
    watch = LeaseWatch(lake.store, lease.token, lake.clock)
    watch.check(at_least=REQUEST)
    lease.release()
    lake.take("Grace")
    lake.pass_time(LAST_LOOK)

    with pytest.raises(Refused, match="is Grace's now"):
        watch.check(at_least=REQUEST)


def test_a_renewed_lease_stops_its_tasks(lake: Lake) -> None:
    """A task goes on under a lease that is renewed, and stops before one that isn't runs out."""
    lease = lake.take("Ada")
    watch = LeaseWatch(lake.store, lease.token, lake.clock)
    for _ in range(4):
        watch.check(at_least=REQUEST)
        lake.pass_time(timedelta(minutes=5))
        lease.renew()
    watch.check(at_least=REQUEST)
    lake.pass_time(timedelta(minutes=10) - REQUEST)

    with pytest.raises(Refused, match="runs out"):
        watch.check(at_least=REQUEST)
