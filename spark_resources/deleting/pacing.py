"""How fast keys may be sent to a store: as fast as it bears, prefix by prefix, and never above a ceiling.

Stores limit keys and not requests (S3 about 3,500 deletes a second and prefix), and turn requests away beyond that.
The rate starts low, doubles with every batch that goes well, halves with every one that is turned away, and grows again
in small steps, as TCP does; and like TCP's it grows only while it is what keys wait for, so that it stays near what the
store really did, and half of it is less. Where a store wants to be asked for more gradually, all prefixes together
begin with its ramp, and have twice as much every twenty minutes (Cloud Storage spreads a bucket over more servers
meanwhile, and what comes faster ends in errors). Time comes in and waiting goes out as numbers; nothing here sleeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

START = 2_000.0  # keys a second, before anything is known
LEAST = 20.0  # keys a second: a store that bears less is waited for by attempts, and not by pace
STEP = 200.0  # keys a second more with every good batch, once a store has turned something away
UNBOUND = 1e9
RAMP_DOUBLES_S = 1_200.0


@dataclass(slots=True)
class _Bucket:
    """Keys that left so far, as the time until which they keep the line busy."""

    rate: float
    busy_until: float = 0.0
    pushed_back: bool = False

    def take(self, keys: int, now: float) -> float:
        begins = max(now, self.busy_until)
        self.busy_until = begins + keys / self.rate
        return begins - now


@dataclass(slots=True)
class Pace:
    """The pace of one task. `most` is its share of the ceiling in keys a second, None for no ceiling; `clock` seconds.

    `ramp` is its share of what the store takes at first, None where the store has no such wish. Safe to call from
    several threads.
    """

    clock: Callable[[], float]
    most: float | None = None
    ramp: float | None = None
    _prefixes: dict[str, _Bucket] = field(default_factory=dict)
    _all: _Bucket = field(init=False)
    _began: float | None = None  # when the first keys were sent
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._all = _Bucket(self._ceiling(0.0))

    def batch(self, largest: int) -> int:
        """How many keys to send at once: no more than half a second's, so that a ceiling isn't jumped over."""
        return max(1, min(largest, int(self._ceiling(0.0) / 2)))

    def take(self, prefix: str, keys: int) -> float:
        """Reserve the next place in the line for so many keys. Returns the seconds to wait until it is their turn."""
        with self._lock:
            now = self.clock()
            self._began = now if self._began is None else self._began
            self._all.rate = self._ceiling(now - self._began)
            return max(self._all.take(keys, now), self._of(prefix).take(keys, now))

    def succeeded(self, prefix: str) -> None:
        with self._lock:
            one = self._of(prefix)
            if one.busy_until <= self.clock():
                return
            one.rate = min(one.rate + STEP if one.pushed_back else one.rate * 2, UNBOUND)

    def turned_away(self, prefix: str) -> None:
        """The store had too much of it: a 503, a time-out."""
        with self._lock:
            one = self._of(prefix)
            one.rate, one.pushed_back = max(one.rate / 2, LEAST), True

    def rate(self, prefix: str) -> float:
        """Keys a second that this prefix is sent at most, for now."""
        with self._lock:
            return min(self._of(prefix).rate, self._all.rate)

    def _ceiling(self, seconds: float) -> float:
        """Keys a second of all prefixes, so long after the first."""
        ramp = UNBOUND if self.ramp is None else self.ramp * 2 ** min(seconds // RAMP_DOUBLES_S, 64)
        return min(UNBOUND if self.most is None else self.most, ramp)

    def _of(self, prefix: str) -> _Bucket:
        return self._prefixes.setdefault(prefix, _Bucket(START))
