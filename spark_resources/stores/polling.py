"""Waiting for work that is done elsewhere: a copy in a store, a task of the lakeFS server, Spark tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def poll(
    check: Callable[[], _T | None],
    *,
    timeout_s: float,
    first_wait_s: float,
    longest_wait_s: float | None = None,
    on_wait: Callable[[float], None] = lambda _: None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _T | None:
    """The first result of `check` that isn't None; None after `timeout_s` seconds without one.

    The wait doubles each time up to `longest_wait_s`; without that limit it is constant. The last check is made
    when the time is up. `on_wait` is called after each wait with the seconds since the start.
    """
    start, wait_s = monotonic(), first_wait_s
    while (result := check()) is None:
        remaining_s = start + timeout_s - monotonic()
        if remaining_s <= 0:
            return None
        sleep(min(wait_s, remaining_s))
        on_wait(monotonic() - start)
        wait_s = wait_s if longest_wait_s is None else min(2 * wait_s, longest_wait_s)
    return result
