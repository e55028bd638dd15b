"""Waiting for the clocks of stores, which show whole seconds or less."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from spark_resources.stores.base import Store

LIMIT_S = 60


def later(store: Store, moment: datetime | None, *, by: timedelta = timedelta(0)) -> datetime:
    """Wait until the store's clock is past `moment` by more than its resolution and `by`. Returns the time by that
    clock.

    This is needed because an approval with the same second as the end of its mark is refused.
    """
    resolution = store.capabilities.time_resolution
    since = moment or store.now() - timedelta(days=1)
    return wait_until_passed(since + by, store.now, resolution=resolution)


def wait_until_passed(
    moment: datetime, now: Callable[[], datetime], *, resolution: timedelta = timedelta(seconds=1)
) -> datetime:
    """Wait until this clock is past `moment` by more than its resolution. Returns the time by that clock. Raises
    `TimeoutError`."""
    limit = time.monotonic() + LIMIT_S
    while (time_now := now()) <= moment + resolution:
        if time.monotonic() > limit:
            raise TimeoutError(f"the store's clock isn't moving at {time_now}")
        # servers in tests have this machine's clock: there is no point in asking before its next second
        next_second_s = 1.01 - time.time() % 1
        time.sleep(next_second_s if resolution >= timedelta(seconds=1) else min(0.05, resolution.total_seconds()))
    return time_now
