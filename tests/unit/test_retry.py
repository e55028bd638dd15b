"""The retry policy: which errors are retried, and for how long. Conditional writes whose response was lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark import cloudpickle

from spark_resources.errors import Forbidden, LakegcError, NotFound, StillUnavailable, Transient, Unavailable
from spark_resources.stores.base import AlreadyExists, Changed
from spark_resources.stores.retry import NO_RETRIES, RetryPolicy, retried, write_conditionally

SOON = RetryPolicy(first_wait_s=0, attempts=3)


class Clock:
    """A clock that only advances when something sleeps."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, [0.0][:0]

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def failing(*errors: Exception) -> Callable[[], str]:
    """A function that raises these errors one after another, and then succeeds."""
    remaining = list(errors)

    def act() -> str:
        if remaining:
            raise remaining.pop(0)
        return "done"

    return act


def away_until(clock: Clock, end: float) -> Callable[[], str]:
    def act() -> str:
        if clock.now < end:
            raise Transient("away")
        return "done"

    return act


@pytest.mark.parametrize("outage_s", [1, 10, 40, 59.9])
def test_requests_succeed_after_an_outage_shorter_than_the_policys_time_limit(outage_s: float) -> None:
    """A store that is unreachable for a second must not fail a mark."""
    clock = Clock()
    assert RetryPolicy().call(away_until(clock, outage_s), sleep=clock.sleep) == "done"
    assert clock.now <= 60.001


def test_the_policy_gives_up_at_its_time_limit_and_says_how_long_it_tried() -> None:
    clock = Clock()
    with pytest.raises(Unavailable, match=r"^away Tried \d+ times in 60 seconds\.$") as raised:
        RetryPolicy().call(away_until(clock, 1e9), sleep=clock.sleep)
    assert type(raised.value) is StillUnavailable
    assert clock.now == pytest.approx(60)


def test_waits_grow_with_jitter_up_to_a_bound() -> None:
    waits = []
    for _ in range(50):
        clock = Clock()
        with pytest.raises(Unavailable):
            RetryPolicy().call(away_until(clock, 1e9), sleep=clock.sleep)
        waits.append(clock.waits)
    assert all(run[number] <= 0.5 * 2**number for run in waits for number in range(4))
    assert all(max(run) <= 8 for run in waits)
    assert len({run[0] for run in waits}) > 40
    assert max(max(run) for run in waits) > 4


def test_a_wait_that_the_server_requests_is_respected() -> None:
    clock = Clock()
    assert RetryPolicy().call(failing(Transient("busy", after_s=20)), sleep=clock.sleep) == "done"
    assert clock.waits == [20]


@pytest.mark.parametrize(
    "error", [Unavailable("no"), Forbidden("no"), NotFound("no"), LakegcError("no"), OSError("no")]
)
def test_an_error_that_is_not_transient_is_not_retried(error: Exception) -> None:
    with pytest.raises(type(error)):
        SOON.call(failing(error))


def test_a_policy_without_retries_sends_one_request() -> None:
    with pytest.raises(Unavailable, match=r"^away$"):
        NO_RETRIES.call(failing(Transient("away")))


def test_nested_policies_do_not_multiply_their_attempts() -> None:
    attempts = 0

    def act() -> str:
        nonlocal attempts
        attempts += 1
        raise Transient("away")

    with pytest.raises(Unavailable):
        SOON.call(lambda: SOON.call(act))
    assert attempts == 3


def test_a_retried_method_uses_the_policy_of_its_object() -> None:
    class Asker:
        retry = SOON

        def __init__(self) -> None:
            self.act = failing(Transient("away"), Transient("away"))

        @retried
        def ask(self, what: str) -> str:
            return what + self.act()

    assert Asker().ask("it is ") == "it is done"


def test_a_transient_error_can_be_pickled() -> None:
    assert str(cloudpickle.loads(cloudpickle.dumps(Transient("away")))) == "away"


# --- conditional writes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [AlreadyExists("there"), Changed("changed")])
def test_a_conditional_write_whose_response_was_lost_is_recognized_by_its_bytes(refused: Unavailable) -> None:
    """Otherwise, a run that holds the lease would lock itself out."""
    act = failing(Transient("the response was lost"), refused)
    assert write_conditionally(SOON, act, lambda: (b"mine", "tag"), b"mine") == "tag"


@pytest.mark.parametrize("refused", [AlreadyExists("there"), Changed("changed")])
def test_a_write_of_another_run_is_never_mistaken_for_this_runs_own(refused: Unavailable) -> None:
    act = failing(Transient("the response was lost"), refused)
    with pytest.raises(type(refused)):
        write_conditionally(SOON, act, lambda: (b"another's", "tag"), b"mine")


def test_equal_bytes_are_a_conflict_if_no_response_was_lost() -> None:
    """Two runs wrote the same bytes, but only one of them created the object."""
    with pytest.raises(AlreadyExists):
        write_conditionally(SOON, failing(AlreadyExists("there")), lambda: (b"mine", "tag"), b"mine")


def test_an_object_that_vanished_after_a_lost_response_is_a_conflict() -> None:
    def gone() -> tuple[bytes, str]:
        raise NotFound("gone")

    with pytest.raises(Changed):
        write_conditionally(SOON, failing(Transient("lost"), Changed("changed")), gone, b"mine")
