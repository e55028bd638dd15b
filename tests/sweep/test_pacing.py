"""The rate at which keys are sent, measured with a clock that only waiting advances."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from spark_resources.deleting.pacing import INITIAL_RATE, MIN_RATE, RAMP_DOUBLING_S, RATE_STEP, Pace

BATCH = 1000
ONE = ("data/s/",)


@dataclass
class Clock:
    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds


def measured_rate(
    pace: Pace, clock: Clock, keys: int, *, prefixes: tuple[str, ...] = ONE, response_s: float = 0.0
) -> float:
    """The rate in keys per second if this many keys are sent in batches, each of which succeeds after this many
    seconds."""
    began, remaining, number = clock.seconds, keys, 0
    while remaining:
        batch = min(remaining, pace.batch_size(BATCH))
        prefix = prefixes[number % len(prefixes)]
        clock.seconds += pace.take(prefix, batch) + response_s
        pace.succeeded(prefix)
        remaining, number = remaining - batch, number + 1
    return keys / (clock.seconds - began)


@pytest.mark.parametrize("max_rate", [3.0, 50.0, 700.0, 5_000.0])
@pytest.mark.parametrize("prefixes", [("data/s/",), ("data/s/", "data/t/", "")])
def test_the_rate_stays_within_ten_percent_of_the_ceiling(max_rate: float, prefixes: tuple[str, ...]) -> None:
    """The rate is measured over half a minute, for one prefix and for several."""
    clock = Clock()
    rate = measured_rate(Pace(clock, max_rate), clock, int(max_rate * 30), prefixes=prefixes)

    assert 0.9 * max_rate <= rate <= 1.1 * max_rate


def test_no_second_exceeds_the_ceiling_by_more_than_one_batch() -> None:
    """The first batches don't exceed it either."""
    clock = Clock()
    pace, times = Pace(clock, 100.0), []
    for _ in range(60):
        clock.seconds += pace.take("data/s/", pace.batch_size(BATCH))
        pace.succeeded("data/s/")
        times.append(clock.seconds)

    assert pace.batch_size(BATCH) == 50
    assert all(later - earlier >= 1.0 - 1e-9 for earlier, later in zip(times, times[2:], strict=False))


def test_the_rate_starts_low_and_doubles_while_nothing_fails() -> None:
    """An idle store takes a while to scale up."""
    clock = Clock()
    pace = Pace(clock)

    assert pace.rate("data/s/") == INITIAL_RATE
    assert [pace.take("data/s/", BATCH) for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]
    pace.succeeded("data/s/")
    assert pace.rate("data/s/") == 2 * INITIAL_RATE


def test_a_rejected_batch_halves_the_rate_of_its_prefix() -> None:
    """Other prefixes keep their rates, and no rate falls to zero."""
    clock = Clock()
    pace = Pace(clock)
    pace.throttled("data/s/")

    assert (pace.rate("data/s/"), pace.rate("data/t/")) == (INITIAL_RATE / 2, INITIAL_RATE)
    for _ in range(40):
        pace.throttled("data/s/")
    assert pace.rate("data/s/") == MIN_RATE


def test_a_halved_rate_recovers_in_small_steps() -> None:
    """The store has only just rejected requests."""
    clock = Clock()
    pace = Pace(clock)
    pace.throttled("data/s/")
    for _ in range(3):
        pace.take("data/s/", BATCH)
        pace.succeeded("data/s/")

    assert pace.rate("data/s/") == INITIAL_RATE / 2 + 3 * RATE_STEP


def test_batches_waiting_for_responses_do_not_raise_the_rate() -> None:
    """If the rate were far above the store's, halving it would have no effect."""
    clock = Clock()
    pace = Pace(clock)
    sustained = measured_rate(pace, clock, 200 * BATCH, response_s=0.2)

    assert pace.rate("data/s/") <= 4 * sustained
    pace.throttled("data/s/")
    pace.throttled("data/s/")
    assert measured_rate(pace, clock, 5 * BATCH) <= 1.5 * sustained


def test_a_ramp_starts_at_the_configured_rate_and_doubles_it_every_twenty_minutes() -> None:
    """The ramp applies to all prefixes together, and never exceeds the ceiling."""
    clock = Clock()
    pace, prefixes = Pace(clock, 1_500.0, 1_000.0), tuple(f"data/{number}/" for number in range(9))

    assert pace.batch_size(BATCH) == 500
    assert 950 <= measured_rate(pace, clock, 60_000, prefixes=prefixes) <= 1_050
    clock.seconds += RAMP_DOUBLING_S - 70
    assert 950 <= measured_rate(pace, clock, 5_000, prefixes=prefixes) <= 1_150
    clock.seconds += 10
    assert 1_400 <= measured_rate(pace, clock, 60_000, prefixes=prefixes) <= 1_550
    assert 1_900 <= measured_rate(Pace(clock, None, 2_000.0), clock, 60_000, prefixes=prefixes) <= 2_100
