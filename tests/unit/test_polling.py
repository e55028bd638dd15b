"""Waiting for the result of other work by polling, tested with a fake clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_resources.stores.polling import poll


class Clock:
    """A clock that only advances when something waits."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def seconds(self) -> float:
        return sum(self.waits)


def polled(results: Iterator[str | None], **more: Any) -> tuple[str | None, list[float]]:
    clock = Clock()
    result = poll(lambda: next(results), monotonic=clock.seconds, sleep=clock.waits.append, **more)
    return result, clock.waits


def test_a_result_that_is_ready_is_returned_without_waiting() -> None:
    assert polled(iter(["done"]), timeout_s=0, first_wait_s=1) == ("done", [])


def test_the_wait_doubles_up_to_its_maximum() -> None:
    results = iter([None, None, None, None, "done"])

    assert polled(results, timeout_s=60, first_wait_s=1, longest_wait_s=3) == ("done", [1, 2, 3, 3])


def test_the_last_poll_comes_at_the_timeout() -> None:
    """The wait never exceeds the timeout, and a result that is ready by then is found."""
    assert polled(iter([None, None, "done"]), timeout_s=1.5, first_wait_s=1) == ("done", [1, 0.5])
    assert polled(iter([None, None, None]), timeout_s=1.5, first_wait_s=1) == (None, [1, 0.5])


def test_an_error_in_a_poll_ends_the_wait() -> None:
    with pytest.raises(StopIteration):
        polled(iter([None]), timeout_s=5, first_wait_s=1)


def test_the_caller_learns_after_each_wait_how_long_it_has_waited() -> None:
    waits: list[float] = []
    polled(iter([None, None, "done"]), timeout_s=9, first_wait_s=2, on_wait=waits.append)

    assert waits == [2, 4]
