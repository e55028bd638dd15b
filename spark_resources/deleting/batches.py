"""Batches of deletes in flight: retried on transient failures, with a result for each key.

Deletes of users' objects have their own retry loop instead of the stores' retry policy: before each retry the keys pass
every check of a first request, and the pace of the task is part of the wait. The store decides which failures are
transient. Whatever made a request wait, its keys are looked up again if they weren't a moment ago. A look-up that was
too slow is repeated with fewer keys; a single key that is looked up too slowly several times stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from spark_resources.deleting.pacing import Pace
from spark_resources.errors import LakegcError
from spark_resources.mark_store.lease import seconds_passed
from spark_resources.stores.base import DeleteResult, Deletion, Store
from spark_resources.stores.keys import fits_xml

TRIES = 8
IN_FLIGHT = 4  # batches of one task
SINGLES_IN_FLIGHT = 16  # single deletes, if a store has no batch delete
LONGEST_WAIT_S = 30.0
FRESH_S = 3.0  # a look-up that began longer ago is made again before a delete is sent
SLOW_TRIES = 3  # look-ups of a single key that may take longer than that before it is left alone
NEVER = -float("inf")
CHANGED = "size, time or checksum differ from what was marked"
TOO_SLOW = (
    "the store took too long to look the object up right before its delete, so it was left alone. Run the same command "
    "again."
)

# codes of transient failures that aren't caused by sending keys too fast
_NOT_TOO_MUCH = frozenset(
    {"NoAnswer", "NotSent", "unknown", "EndpointConnectionError", "TransportError", "ServiceRequestError"}
)


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of one key. `attempts` counts the requests that named it. `result` is None if it wasn't sent at all.
    `changed`: a different object was found at the key before a request."""

    key: str
    result: DeleteResult | None
    attempts: int
    changed: bool = False


@dataclass(frozen=True, slots=True)
class CheckedAgain:
    """Keys whose delete is about to be sent: still the marked object, gone, gone although an interrupted attempt meant
    to delete it, or a different object."""

    unchanged: Sequence[str]
    gone: Sequence[str]
    cut_off: Sequence[str]
    changed: Sequence[str]


@dataclass(slots=True)
class Sender:
    """Sends batches of keys of one task.

    `may_send` is called before every request and raises a `LakegcError` if no more may be sent. `check_again` looks up
    keys again, before a retry and whenever the last look-up is no longer fresh by `clock` (seconds); None if the
    objects can't have changed. `wait` sleeps for a number of seconds; `jitter` is a random number in [0, 1).
    """

    store: Store
    pace: Pace
    may_send: Callable[[], None]
    wait: Callable[[float], None]
    jitter: Callable[[], float]
    tries: int = TRIES
    in_flight: int = IN_FLIGHT
    check_again: Callable[[Sequence[str]], CheckedAgain] | None = None
    revived: Callable[[str], bool] = lambda _: False  # whether a key became live meanwhile, as of the last `may_send`
    clock: Callable[[], float] = seconds_passed
    requests: int = 0
    copying: Pace = field(init=False)  # the pace of copies, which have the same ceiling
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.copying = Pace(self.pace.clock, self.pace.most, self.pace.ramp)

    def send(
        self, keys: Sequence[str], prefix: str, *, looked_up: float = NEVER
    ) -> tuple[list[Sent], LakegcError | None]:
        """Delete these keys, all of one prefix, that were looked up at a time of `clock`. Returns one result per key,
        in any order.

        If `may_send` raises, requests in flight are completed, the rest isn't sent, and the error is returned.
        """
        batches = self._batches(keys)
        stop: list[LakegcError] = []

        workers = self.in_flight if self.store.capabilities.delete_batch > 1 else SINGLES_IN_FLIGHT
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="lakegc-delete") as pool:
            answers = [
                sent
                for batch in pool.map(lambda batch: self._sent(batch, prefix, stop, looked_up), batches)
                for sent in batch
            ]
        return answers, stop[0] if stop else None

    def _batches(self, keys: Sequence[str]) -> list[Sequence[str]]:
        """Batches of one request each. A key that can't be part of a batch is sent alone."""
        size = self.pace.batch(self.store.capabilities.delete_batch)
        together: list[str] = []
        alone: list[str] = []
        for key in keys:
            (together if fits_xml(key) else alone).append(key)
        batches: list[Sequence[str]] = [together[start : start + size] for start in range(0, len(together), size)]
        return [*batches, *([key] for key in alone)]

    def _sent(
        self, batch: Sequence[str], prefix: str, stop: list[LakegcError], looked_up: float, tried: int = 0
    ) -> list[Sent]:
        """Send these keys, which `tried` earlier requests named, and return their outcomes."""
        done: list[Sent] = []
        waiting = list(batch)
        for attempt in range(tried + 1, self.tries + 1):
            if len(waiting) > 1 and self.store.capabilities.delete_batch == 1:  # found out by the last request
                alone = (self._sent([key], prefix, stop, NEVER, attempt - 1) for key in waiting)
                return [*done, *(sent for each in alone for sent in each)]
            self.wait(self.pace.take(prefix, len(waiting)))
            slow = 0  # look-ups of a single key
            try:
                if stop:
                    raise stop[0]
                self.may_send()  # this may wait, and so the look-up follows
                while waiting and self._is_old(looked_up) and slow < SLOW_TRIES:
                    several, looked_up = len(waiting) > 1, self.clock()
                    waiting = self._still_marked(waiting, attempt - 1, done)
                    if self._is_old(looked_up):  # the look-up itself took that long
                        if several:
                            return [*done, *self._sent_in_halves(waiting, prefix, stop, attempt - 1)]
                        slow += 1
                    self.may_send()
            except LakegcError as error:
                with self._lock:
                    stop.append(error)
                return [*done, *(Sent(key, None, attempt - 1) for key in waiting)]
            done += [Sent(key, None, attempt - 1) for key in waiting if self.revived(key)]
            waiting = [key for key in waiting if not self.revived(key)]
            if slow == SLOW_TRIES:
                too_slow = (DeleteResult(key, Deletion.FAILED, "TooSlow", TOO_SLOW) for key in waiting)
                return [*done, *(Sent(each.key, each, attempt - 1) for each in too_slow)]
            if not waiting:
                break
            with self._lock:
                self.requests += 1
            results = self.store.delete_many(waiting)
            again = [each.key for each in results if each.transient and attempt < self.tries]
            done += [Sent(each.key, each, attempt) for each in results if not (each.transient and attempt < self.tries)]
            if any(each.transient and each.code not in _NOT_TOO_MUCH for each in results):
                self.pace.turned_away(prefix)
            elif not again:
                self.pace.succeeded(prefix)
            if not again:
                break
            waiting, looked_up = again, NEVER
            self.wait(min(LONGEST_WAIT_S, 0.1 * 2**attempt) * (0.5 + self.jitter()))
        return done

    def _sent_in_halves(self, keys: Sequence[str], prefix: str, stop: list[LakegcError], tried: int) -> list[Sent]:
        """The same for each half of these keys, whose look-up was too slow."""
        middle = (len(keys) + 1) // 2
        halves = [half for half in (keys[:middle], keys[middle:]) if half]
        return [sent for half in halves for sent in self._sent(half, prefix, stop, NEVER, tried)]

    def _is_old(self, looked_up: float) -> bool:
        """Whether keys that were looked up at this time have to be looked up again before their delete is sent."""
        return self.check_again is not None and self.clock() - looked_up > FRESH_S

    def _still_marked(self, keys: Sequence[str], attempts: int, done: list[Sent]) -> list[str]:
        """The keys that still have the marked object after `attempts` requests; the others are added to `done`."""
        assert self.check_again is not None
        found = self.check_again(keys)
        # after a request: it deleted the object, and its response was lost
        gone = Deletion.DELETED if attempts else Deletion.ALREADY_GONE
        done += [Sent(key, DeleteResult(key, gone), attempts) for key in found.gone]
        done += [Sent(key, DeleteResult(key, Deletion.DELETED), attempts) for key in found.cut_off]
        changed = (DeleteResult(key, Deletion.FAILED, "", CHANGED) for key in found.changed)
        done += [Sent(each.key, each, attempts, changed=True) for each in changed]
        return list(found.unchanged)
