"""How long a sweep continues to delete while other repositories can't be listed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.sweep.other_head_watch import FailureTime

PAUSE = 5.0


def test_delays_caused_by_failures_add_up_over_the_turns_of_a_cycle() -> None:
    """Otherwise, each of many turns could delay the last repositories by a minute while objects are deleted."""
    time = FailureTime()
    time.succeeded(100 - PAUSE, 100, cycle_is_over=True)
    time.succeeded(145 - PAUSE, 146, cycle_is_over=False)  # 40 seconds after the turn could have begun
    time.succeeded(186 - PAUSE, 190, cycle_is_over=False)  # 35 seconds after the turn could have begun

    assert time.seconds(191) == 40 + 35 + 1


def test_a_finished_cycle_leaves_no_delay_for_the_next_one() -> None:
    time = FailureTime()
    time.succeeded(100 - PAUSE, 100, cycle_is_over=False)
    time.succeeded(150 - PAUSE, 151, cycle_is_over=True)

    assert time.seconds(153) == 2


@given(st.lists(st.floats(0, 100), max_size=50))
def test_turns_without_failures_cause_no_delay_however_long_they_take(durations: list[float]) -> None:
    time, now = FailureTime(), 0.0
    time.succeeded(-PAUSE, now, cycle_is_over=True)
    for duration in durations:
        began, now = now + PAUSE, now + PAUSE + duration
        time.succeeded(began - PAUSE, now, cycle_is_over=False)

    assert time.seconds(now) < 1e-9
