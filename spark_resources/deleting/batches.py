"""Batches of deletes in flight: retried on transient failures, with a result for each key.

Deletes of users' objects have their own retry loop instead of the stores' retry policy: before each retry the keys pass
every check of a first request, and the pace of the task is part of the wait. The store decides which failures are
transient. Whatever made a request wait, its keys are looked up again unless their last lookup is recent. A lookup that
was too slow is repeated with fewer keys, which also limits the next lookups; a single key whose lookup is too slow
several times is not deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from spark_resources.deleting.pacing import Pace
from spark_resources.errors import LakegcError
from spark_resources.mark_store.lease import boottime_s
from spark_resources.stores.base import DeleteResult, Deletion, Store
from spark_resources.stores.keys import is_xml_safe

TRIES = 8
IN_FLIGHT = 4  # batches of one task
SINGLES_IN_FLIGHT = 16  # single deletes, if a store has no batch delete
LONGEST_WAIT_S = 30.0
LOOKUP_VALID_S = 3.0  # a lookup that began longer ago is repeated before a delete is sent
FAST_LOOKUP_S = 0.75  # after a lookup that took less time, the next one may have twice as many keys
MAX_KEYS_PER_LOOKUP = 1 << 20
MAX_SLOW_LOOKUPS = 3  # after this many lookups longer than LOOKUP_VALID_S, a single key is not deleted
NEVER = -float("inf")
CHANGED = "its size, time or checksum differs from the marked object's"
TOO_SLOW = (
    "the lookup right before its delete took too long, so the object was not deleted. Run the same command again."
)

# codes of transient failures that aren't caused by sending keys too fast
_NOT_THROTTLING = frozenset(
    {"NoAnswer", "NotSent", "unknown", "EndpointConnectionError", "TransportError", "ServiceRequestError"}
)


@dataclass(frozen=True, slots=True)
class SendResult:
    """The outcome of one key. `attempts` counts the requests that contained the key. `result` is None if the key wasn't
    sent, or not sent again after a transient failure. `changed` is whether a different object was found at the key
    before a request."""

    key: str
    result: DeleteResult | None
    attempts: int
    changed: bool = False


@dataclass(frozen=True, slots=True)
class RecheckedKeys:
    """Keys whose delete is about to be sent, by what was found at each: the marked object, nothing, nothing after an
    interrupted attempt to delete the object, or a different object."""

    unchanged: Sequence[str]
    gone: Sequence[str]
    interrupted: Sequence[str]
    changed: Sequence[str]


@dataclass(slots=True)
class Sender:
    """Sends the deletes of one task in batches.

    `check_may_send` is called before every request and raises a `LakegcError` if nothing more may be sent. `recheck`
    looks up keys again, before a retry and whenever the last lookup is too old by `clock` (seconds); None if the
    objects can't have changed. `sleep` waits for a number of seconds; `jitter` returns a random number in [0, 1).
    """

    store: Store
    pace: Pace
    check_may_send: Callable[[], None]
    sleep: Callable[[float], None]
    jitter: Callable[[], float]
    tries: int = TRIES
    in_flight: int = IN_FLIGHT
    recheck: Callable[[Sequence[str]], RecheckedKeys] | None = None
    became_live: Callable[[str], bool] = lambda _: False  # whether a key became live, as of the last `check_may_send`
    clock: Callable[[], float] = boottime_s
    requests: int = 0
    keys_per_lookup: int = MAX_KEYS_PER_LOOKUP
    copy_pace: Pace = field(init=False)  # the pace of copies, which have the same ceiling
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.copy_pace = Pace(self.pace.clock, self.pace.max_rate, self.pace.ramp)

    def send(
        self, keys: Sequence[str], prefix: str, *, looked_up_at: float = NEVER
    ) -> tuple[list[SendResult], LakegcError | None]:
        """Delete these keys, all under one prefix, which were last looked up at `looked_up_at` (a reading of `clock`).
        Returns one result per key, in any order, and the error that stopped sending, if any.

        If a check or a lookup raises, requests in flight are completed, and the others aren't sent.
        """
        batches = self._batches(keys)
        stop_errors: list[LakegcError] = []

        workers = self.in_flight if self.store.capabilities.delete_batch > 1 else SINGLES_IN_FLIGHT
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="lakegc-delete") as pool:
            results_of_batches = pool.map(
                lambda batch: self._send_batch(batch, prefix, stop_errors, looked_up_at), batches
            )
            results = [result for batch_results in results_of_batches for result in batch_results]
        return results, stop_errors[0] if stop_errors else None

    def _batches(self, keys: Sequence[str]) -> list[Sequence[str]]:
        """Batches of one request each. A key that can't be part of a batch is sent alone."""
        size = self.pace.batch_size(self.store.capabilities.delete_batch)
        together: list[str] = []
        alone: list[str] = []
        for key in keys:
            (together if is_xml_safe(key) else alone).append(key)
        batches: list[Sequence[str]] = [together[start : start + size] for start in range(0, len(together), size)]
        return [*batches, *([key] for key in alone)]

    def _send_batch(
        self, batch: Sequence[str], prefix: str, stop_errors: list[LakegcError], looked_up_at: float, attempts: int = 0
    ) -> list[SendResult]:
        """Send these keys, and return their outcomes. `attempts` is how many earlier requests contained them."""
        done: list[SendResult] = []
        waiting = list(batch)
        for attempt in range(attempts + 1, self.tries + 1):
            if len(waiting) > 1 and self.store.capabilities.delete_batch == 1:  # learned from the last request
                alone = (self._send_batch([key], prefix, stop_errors, NEVER, attempt - 1) for key in waiting)
                return [*done, *(sent for batch in alone for sent in batch)]
            if self._too_many_to_look_up(waiting, looked_up_at):  # before they take their share of the pace
                return [*done, *self._send_in_halves(waiting, prefix, stop_errors, attempt - 1)]
            if not stop_errors:
                self.sleep(self.pace.take(prefix, len(waiting)))
            slow = 0  # slow lookups of a single key
            try:
                if stop_errors:
                    raise stop_errors[0]
                self.check_may_send()  # this may wait, so the lookup comes after it
                while waiting and self._needs_recheck(looked_up_at) and slow < MAX_SLOW_LOOKUPS:
                    if self._too_many_to_look_up(waiting, looked_up_at):
                        return [*done, *self._send_in_halves(waiting, prefix, stop_errors, attempt - 1)]
                    keys, looked_up_at = len(waiting), self.clock()
                    waiting = self._still_marked(waiting, attempt - 1, done)
                    self._adjust_lookups(keys, self.clock() - looked_up_at)
                    if self._needs_recheck(looked_up_at):  # the lookup itself took that long
                        if keys > 1:
                            return [*done, *self._send_in_halves(waiting, prefix, stop_errors, attempt - 1)]
                        slow += 1
                    self.check_may_send()
            except LakegcError as error:
                with self._lock:
                    stop_errors.append(error)
                return [*done, *(SendResult(key, None, attempt - 1) for key in waiting)]
            done += [SendResult(key, None, attempt - 1) for key in waiting if self.became_live(key)]
            waiting = [key for key in waiting if not self.became_live(key)]
            if slow == MAX_SLOW_LOOKUPS:
                too_slow = (DeleteResult(key, Deletion.FAILED, "TooSlow", TOO_SLOW) for key in waiting)
                return [*done, *(SendResult(result.key, result, attempt - 1) for result in too_slow)]
            if not waiting:
                break
            with self._lock:
                self.requests += 1
            results = self.store.delete_many(waiting)
            to_retry = [result.key for result in results if result.transient and attempt < self.tries]
            done += [
                SendResult(result.key, result, attempt)
                for result in results
                if not (result.transient and attempt < self.tries)
            ]
            if any(result.transient and result.code not in _NOT_THROTTLING for result in results):
                self.pace.throttled(prefix)
            elif not to_retry:
                self.pace.succeeded(prefix)
            if not to_retry:
                break
            waiting, looked_up_at = to_retry, NEVER
            self.sleep(min(LONGEST_WAIT_S, 0.1 * 2**attempt) * (0.5 + self.jitter()))
        return done

    def _send_in_halves(
        self, keys: Sequence[str], prefix: str, stop_errors: list[LakegcError], attempts: int
    ) -> list[SendResult]:
        """Call `_send_batch` for each half of these keys, because looking up all of them takes too long."""
        middle = (len(keys) + 1) // 2
        halves = [half for half in (keys[:middle], keys[middle:]) if half]
        return [sent for half in halves for sent in self._send_batch(half, prefix, stop_errors, NEVER, attempts)]

    def _needs_recheck(self, looked_up_at: float) -> bool:
        """Whether keys that were looked up at this time have to be looked up again before their delete is sent."""
        return self.recheck is not None and self.clock() - looked_up_at > LOOKUP_VALID_S

    def _too_many_to_look_up(self, keys: Sequence[str], looked_up_at: float) -> bool:
        return len(keys) > self.keys_per_lookup and self._needs_recheck(looked_up_at)

    def _adjust_lookups(self, keys: int, seconds: float) -> None:
        """Let the next lookups have fewer keys if the lookup of this many was too slow, and more if it was fast."""
        with self._lock:
            if seconds > LOOKUP_VALID_S:
                self.keys_per_lookup = min(self.keys_per_lookup, max(1, keys // 2))
            elif seconds < FAST_LOOKUP_S and keys * 2 > self.keys_per_lookup:
                self.keys_per_lookup = min(self.keys_per_lookup * 2, MAX_KEYS_PER_LOOKUP)

    def _still_marked(self, keys: Sequence[str], attempts: int, done: list[SendResult]) -> list[str]:
        """The keys that still have the marked object after `attempts` requests; the others are added to `done`."""
        assert self.recheck is not None
        rechecked = self.recheck(keys)
        # after a request: it deleted the object, and its response was lost
        deletion = Deletion.DELETED if attempts else Deletion.ALREADY_GONE
        done += [SendResult(key, DeleteResult(key, deletion), attempts) for key in rechecked.gone]
        done += [SendResult(key, DeleteResult(key, Deletion.DELETED), attempts) for key in rechecked.interrupted]
        changed = (DeleteResult(key, Deletion.FAILED, "", CHANGED) for key in rechecked.changed)
        done += [SendResult(result.key, result, attempts, changed=True) for result in changed]
        return list(rechecked.unchanged)
