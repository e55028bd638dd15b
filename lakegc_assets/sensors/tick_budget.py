"""How a sensor reads the namespaces of many repositories within one tick, which Dagster ends after a minute."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta

from lakegc_assets.mark.context import Target, find_target
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.settings import Settings

TICK_BUDGET_S = 20.0
RETRY_S = 5.0


class TickBudget:
    """The time that a tick spends on reading namespaces. What it doesn't reach is left to the next tick."""

    def __init__(self, seconds: float = TICK_BUDGET_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds

    @property
    def is_used_up(self) -> bool:
        return self._clock() >= self._end


def client_for_tick(lakefs: LakeFSResource) -> LakeFS:
    """A client that retries only briefly, because a later tick tries again."""
    return lakefs.client(retry_total_s=_short_retry_time(Settings.load(os.environ, home_folder())))


def target_for_tick(lakefs: LakeFS, repository: str) -> tuple[Target, Settings]:
    """A repository, with a store that retries only briefly, and the repository's settings."""
    environ, home = os.environ, home_folder()
    settings = Settings.load(environ, home, repository=repository)
    short_retries = Settings.load(environ, home, repository=repository, retry_total_s=_short_retry_time(settings))
    return find_target(lakefs, repository, short_retries), settings


def _short_retry_time(settings: Settings) -> float:
    return min(settings.retry_total_s, RETRY_S)


def waited_too_long(waited: timedelta) -> bool:
    """Whether work has waited for so long that a sensor gives up on it."""
    return waited > timedelta(days=7)
