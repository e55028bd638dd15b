"""The rate at which keys are sent to a store: as fast as it can handle, per prefix, and never above a ceiling.

Stores limit keys, not requests (S3 to about 3,500 deletes per second per prefix), and throttle requests beyond that.
As in TCP, the rate starts low, doubles with every successful batch, halves with every throttled one, and then grows in
small steps. Also as in TCP, it grows only while it is the bottleneck, so that it stays near the rate that the store
achieved and halving it has an effect. If a store needs a gradual ramp-up, all prefixes together start at its `ramp`,
which doubles every twenty minutes, as Cloud Storage spreads a bucket over more servers; faster requests fail.
Times are passed in and waits are returned as numbers; nothing here sleeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

INITIAL_RATE = 2_000.0  # keys per second, initially
MIN_RATE = 20.0  # keys per second: a slower store is handled by retries, not by pacing
RATE_STEP = 200.0  # keys per second, added with every successful batch once a store has throttled
UNLIMITED = 1e9
RAMP_DOUBLING_S = 1_200.0


@dataclass(slots=True)
class _Bucket:
    """The keys sent so far, expressed as the time until which they use up the rate."""

    rate: float
    busy_until: float = 0.0
    was_throttled: bool = False

    def take(self, keys: int, now: float) -> float:
        starts_at = max(now, self.busy_until)
        self.busy_until = starts_at + keys / self.rate
        return starts_at - now


@dataclass(slots=True)
class Pace:
    """The pace of one task. Thread-safe. `clock` returns seconds.

    `max_rate` is its share of the ceiling in keys per second, None for no ceiling. `ramp` is its share of the store's
    initial rate, or None if the store needs no ramp-up.
    """

    clock: Callable[[], float]
    max_rate: float | None = None
    ramp: float | None = None
    _prefixes: dict[str, _Bucket] = field(default_factory=dict)
    _overall: _Bucket = field(init=False)
    _started: float | None = None  # when the first keys were sent
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._overall = _Bucket(self._ceiling(0.0))

    def batch_size(self, largest: int) -> int:
        """The number of keys to send in one request: at most half a second's worth, so that a ceiling isn't
        exceeded."""
        return max(1, min(largest, int(self._ceiling(0.0) / 2)))

    def take(self, prefix: str, keys: int) -> float:
        """Reserve the next slot for this many keys. Returns the seconds to wait for it."""
        with self._lock:
            now = self.clock()
            self._started = now if self._started is None else self._started
            self._overall.rate = self._ceiling(now - self._started)
            return max(self._overall.take(keys, now), self._bucket(prefix).take(keys, now))

    def succeeded(self, prefix: str) -> None:
        with self._lock:
            bucket = self._bucket(prefix)
            if bucket.busy_until <= self.clock():
                return
            bucket.rate = min(bucket.rate + RATE_STEP if bucket.was_throttled else bucket.rate * 2, UNLIMITED)

    def throttled(self, prefix: str) -> None:
        """Record that the store throttled a request: a 503 or a timeout."""
        with self._lock:
            bucket = self._bucket(prefix)
            bucket.rate, bucket.was_throttled = max(bucket.rate / 2, MIN_RATE), True

    def rate(self, prefix: str) -> float:
        """The current maximum number of keys per second for this prefix."""
        with self._lock:
            return min(self._bucket(prefix).rate, self._overall.rate)

    def _ceiling(self, seconds: float) -> float:
        """The maximum number of keys per second over all prefixes, this many seconds after the first request."""
        ramp = UNLIMITED if self.ramp is None else self.ramp * 2 ** min(seconds // RAMP_DOUBLING_S, 64)
        return min(UNLIMITED if self.max_rate is None else self.max_rate, ramp)

    def _bucket(self, prefix: str) -> _Bucket:
        return self._prefixes.setdefault(prefix, _Bucket(INITIAL_RATE))
