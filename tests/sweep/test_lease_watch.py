"""A lease that other processes rely on: no other run gets it until all of them have stopped (invariant 11)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from spark_resources.errors import Refused
from spark_resources.host.processes import ProcessIdentity, this_process
from spark_resources.mark_store.lease import LEASE_KEY, LEASE_TIME, REREAD_INTERVAL_S, Holder, LeaseWatch
from tests.unit.test_lease import Lake
from tests.unit.test_processes import SHOW

REQUEST = timedelta(seconds=75)
LAST_LOOK = timedelta(seconds=REREAD_INTERVAL_S)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with ExitStack() as stack:
        yield Lake(tmp_path, stack)


def test_the_lease_of_a_failed_run_stays_taken_while_the_runs_tasks_rely_on_it(lake: Lake) -> None:
    """If it were free, one of them could delete under another run's lease."""
    lease = lake.take("Ada")
    watch = LeaseWatch(lake.store, lease.token, lake.clock)
    watch.check(at_least=REQUEST)
    with pytest.raises(ValueError, match="a task failed"), lease.watched(REQUEST, lambda: False):
        raise ValueError("a task failed")
    lease.release()

    with pytest.raises(Refused, match="Ada is working on"):
        lake.take("Grace")
    lake.pass_time(LAST_LOOK)
    with pytest.raises(Refused, match="expire before"):
        watch.check(at_least=REQUEST)
    with pytest.raises(Refused, match="Ada is working on"):  # a request sent at the last moment may be in flight
        lake.take("Grace")
    lake.pass_time(REQUEST)
    lake.take("Grace")


@pytest.mark.parametrize("fails", [False, True])
def test_a_lease_without_running_tasks_is_free_once_released(lake: Lake, fails: bool) -> None:
    """Either the work succeeded, or all of its tasks have stopped."""
    lease = lake.take("Ada")
    with ExitStack() as failing:
        if fails:
            failing.enter_context(pytest.raises(ValueError, match="a task failed"))
        with lease.watched(REQUEST, lambda: True):
            if fails:
                raise ValueError("a task failed")
    lease.release()

    lake.take("Grace")


def test_a_lease_stays_taken_until_workers_of_lost_tasks_have_stopped(lake: Lake) -> None:
    """Work may succeed while such a worker is still quarantining under the lease as it last read it. No other run gets
    the lease before that worker has read it again, even if further work succeeds."""
    lease = lake.take("Ada")
    watch = LeaseWatch(lake.store, lease.token, lake.clock)
    with lease.watched(REQUEST, lambda: False):
        watch.check(at_least=REQUEST)
    with lease.watched(REQUEST, lambda: True):
        pass
    lease.release()

    with pytest.raises(Refused, match="Ada is working on"):
        lake.take("Grace")
    lake.pass_time(LAST_LOOK)
    with pytest.raises(Refused, match="expire before"):
        watch.check(at_least=REQUEST)
    lake.pass_time(REQUEST)
    lake.take("Grace")


def test_a_lease_stays_taken_until_tasks_of_an_interrupted_run_have_stopped(lake: Lake) -> None:
    """Ctrl-C or a signal ends the driver, but doesn't end its tasks at once."""
    lease = lake.take("Ada")
    with pytest.raises(KeyboardInterrupt), lease.watched(REQUEST, lambda: True):
        raise KeyboardInterrupt
    lease.release()

    with pytest.raises(Refused, match="Ada is working on"):
        lake.take("Grace")
    lake.pass_time(LAST_LOOK + REQUEST)
    lake.take("Grace")


# --- a holder that is dead ------------------------------------------------------------------------------------------


def leave_dead(lake: Lake, *, tasks_stop_after: timedelta) -> Holder:
    """A lease that a process of this machine held when it was killed."""
    with subprocess.Popen([sys.executable, "-c", SHOW], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.read()
    dead = Holder(
        "Ada", "m1", "dead", lake.store.now() + LEASE_TIME, ProcessIdentity(**json.loads(line)),
        tasks_stop_after.total_seconds(),
    )  # fmt: skip
    lake.write(dead.to_json())
    return dead


def test_the_lease_of_a_dead_process_without_tasks_is_taken_over_at_once(lake: Lake) -> None:
    """A run that was killed doesn't block the next one for ten minutes."""
    leave_dead(lake, tasks_stop_after=timedelta(0))

    assert lake.take("Grace").token == "Grace"
    assert lake.clock.seconds == 1000.0


def test_no_task_of_a_dead_process_can_delete_once_its_lease_is_taken_over(lake: Lake) -> None:
    """The new holder waits until each task of the dead process has seen the takeover and has no request left."""
    dead = leave_dead(lake, tasks_stop_after=LAST_LOOK + REQUEST)
    watch = LeaseWatch(lake.store, dead.token, lake.clock)
    watch.check(at_least=REQUEST)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        assert lake.holder() == "Grace", "the dead one's tasks can't see yet that the lease is another's"
        watch.check(at_least=REQUEST)  # the lease that it read before is still valid
        lake.pass_time(LAST_LOOK)
        with pytest.raises(Refused, match="is now held by Grace"):
            watch.check(at_least=REQUEST)
        lake.pass_time(timedelta(seconds=seconds) - LAST_LOOK)
        waited.append(seconds)

    lake.take("Grace", sleep=wait).check()

    assert waited == [(LAST_LOOK + REQUEST).total_seconds()]


def test_an_interrupted_takeover_keeps_the_lease_taken_until_the_dead_processs_tasks_have_stopped(lake: Lake) -> None:
    """The lease still informs the next process about these tasks."""
    leave_dead(lake, tasks_stop_after=LAST_LOOK + REQUEST)

    def wait(_: float) -> None:
        lake.pass_time(LAST_LOOK)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.take("Grace", sleep=wait)
    with pytest.raises(Refused, match="Grace is working on"):
        lake.take("Alan")
    lake.pass_time(REQUEST)
    lake.take("Alan")


def test_a_takeover_after_a_killed_takeover_still_waits_for_the_first_processs_tasks(lake: Lake) -> None:
    """The third process waits for the tasks of the first one, just as the second one did before it was killed."""
    first = leave_dead(lake, tasks_stop_after=LAST_LOOK + REQUEST)
    watch = LeaseWatch(lake.store, first.token, lake.clock)
    watch.check(at_least=REQUEST)
    holders: list[Holder] = []

    def killed(_: float) -> None:
        holders.append(Holder.from_json(lake.store.read(LEASE_KEY), "here"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.take("Grace", sleep=killed)
    lake.write(replace(holders[0], process=first.process).to_json())  # as if none of her processes could stop
    waited: list[float] = []
    lake.take("Alan", sleep=waited.append)

    watch.check(at_least=REQUEST)  # the first process's task still relies on the lease that it read
    assert waited == [(LAST_LOOK + REQUEST).total_seconds()]


def test_the_lease_of_a_process_that_may_be_alive_is_not_taken_over(lake: Lake) -> None:
    """A process can't be known to be dead if it runs on another machine, or if its version doesn't record processes."""
    dead = leave_dead(lake, tasks_stop_after=timedelta(0))
    assert dead.process is not None
    for process in (replace(dead.process, boot="another"), this_process(), None):
        lake.write(replace(dead, process=process).to_json())

        with pytest.raises(Refused, match="Ada is working on"):
            lake.take("Grace")


def test_a_round_records_in_the_lease_how_long_its_tasks_may_continue(lake: Lake) -> None:
    """The round records this before its tasks start, so a process that takes over after a kill knows how long to
    wait."""
    lease = lake.take("Ada")
    with lease.watched(REQUEST, lambda: True):
        holder = Holder.from_json(lake.store.read(LEASE_KEY), "here")
        lease.renew()
        renewed = Holder.from_json(lake.store.read(LEASE_KEY), "here")

    assert holder.process == this_process()
    assert holder.tasks_stop_after_s == renewed.tasks_stop_after_s == (LAST_LOOK + REQUEST).total_seconds()


def test_a_watch_notices_a_takeover_of_the_lease_within_its_interval(lake: Lake) -> None:
    """If it noticed later, a task would delete while another run holds the lease."""
    lease = lake.take("Ada")
    watch = LeaseWatch(lake.store, lease.token, lake.clock)
    watch.check(at_least=REQUEST)
    lease.release()
    lake.take("Grace")
    lake.pass_time(LAST_LOOK)

    with pytest.raises(Refused, match="is now held by Grace"):
        watch.check(at_least=REQUEST)


def test_tasks_continue_under_a_renewed_lease_and_stop_before_their_lease_expires(lake: Lake) -> None:
    """A lease that isn't renewed may expire while requests are in flight."""
    lease = lake.take("Ada")
    watch = LeaseWatch(lake.store, lease.token, lake.clock)
    for _ in range(4):
        watch.check(at_least=REQUEST)
        lake.pass_time(timedelta(minutes=5))
        lease.renew()
    watch.check(at_least=REQUEST)
    lake.pass_time(timedelta(minutes=10) - REQUEST)

    with pytest.raises(Refused, match="expire before"):
        watch.check(at_least=REQUEST)
