"""The lease in a namespace: one mark or sweep per repository at a time, across deployments (invariant 11).

The lease is one small JSON object: taken by write-if-absent, renewed and released by replace-if-unchanged, and timed
only by the store's clock. It relies on atomic conditional writes. A store without them is refused, unless the
configuration states that there is a single deployment.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar

from pydantic import Field

from spark_resources.errors import LakegcError, NotFound, Refused
from spark_resources.host.processes import ProcessIdentity, is_known_dead, this_process
from spark_resources.records.json_records import to_json_value
from spark_resources.records.model import AsInJson, Record, UtcTime, require_format
from spark_resources.stores.base import AlreadyExists, Changed, Store


class LeaseHeld(Refused):
    """Raised if another run holds the lease of a namespace. Nothing was changed."""

    is_temporary = True


LEASE_KEY = "_lakefs/retention/gc/lakegc/lease.json"
LEASE_FORMAT = 1
LEASE_TIME = timedelta(minutes=10)
REREAD_INTERVAL_S = 20.0  # how long a process that watches a lease relies on its latest read


@dataclass(frozen=True, slots=True)
class Holder(Record):
    """Who holds the lease, for which mark, and until when (by the store's clock). `token` is unique to one acquisition.

    `process` identifies the holder's process; None if its system doesn't support that. `tasks_stop_after_s` is how long
    tasks of this holder, or of a dead one that it replaced, may still run after another holder has taken over the
    lease; 0 if there are no such tasks.
    """

    __pydantic_config__: ClassVar = {**Record.__pydantic_config__, "extra": "ignore"}
    optional_fields = frozenset({"format", "process", "tasks_stop_after_s"})

    format: Annotated[int, require_format(LEASE_FORMAT)] = field(default=LEASE_FORMAT, kw_only=True)
    who: str
    mark_id: str
    token: str
    until: UtcTime
    process: AsInJson[ProcessIdentity] | None = None
    tasks_stop_after_s: Annotated[float, Field(ge=0)] = 0.0

    def to_json(self) -> bytes:
        return json.dumps(self, default=to_json_value).encode()

    @classmethod
    def damaged_error(cls, where: str, why: str) -> Refused:
        return Refused(
            f"the lease {where} can't be read ({why}). If no other lakegc is running on this repository, delete the "
            "lease.",
            invariant=11,
        )


def _holder_of(data: bytes, store: Store) -> Holder:
    return Holder.from_json(data, f"{store.where}/{LEASE_KEY}")


def boottime_s() -> float:
    """The time in seconds by a monotonic clock, which keeps running while the machine sleeps, if the system has one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    # on macOS, time.monotonic() stops while the machine sleeps, but this clock doesn't
    return time.clock_gettime(time.CLOCK_MONOTONIC) if sys.platform == "darwin" else time.monotonic()


class Lease:
    """A lease of this process, renewed by a thread until it is released."""

    def __init__(self, store: Store, holder: Holder, tag: str, valid_until: float, clock: Callable[[], float]) -> None:
        self._store, self._holder, self._tag = store, holder, tag
        self._valid_until, self._clock = valid_until, clock
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._lost: str | None = None
        self._watched_until = -float("inf")  # until when other processes may still rely on the lease
        self._thread = threading.Thread(target=self._renew_until_released, name="lakegc-lease", daemon=True)
        self._thread.start()

    @property
    def mark_id(self) -> str:
        return self._holder.mark_id

    @property
    def token(self) -> str:
        return self._holder.token

    def time_left(self) -> timedelta:
        """How long the lease is certain to last, by the monotonic clock of this process."""
        return timedelta(seconds=self._valid_until - self._clock())

    def check(self, *, at_least: timedelta = timedelta(seconds=30)) -> None:
        """Raise `Refused` if the lease was lost or has less time left than `at_least`, the time for a request."""
        if self._lost is not None or self.time_left() < at_least:
            raise Refused(
                f"the lease on {self._store.where} was lost ({self._lost or 'it could not be renewed in time'}). "
                "Nothing more was done. Run the same command again.",
                invariant=11,
            )

    def renew(self) -> None:
        with self._lock:
            self._renew(self._holder.tasks_stop_after_s)

    def _renew(self, tasks_stop_after_s: float) -> None:
        started, until = self._clock(), self._store.now() + LEASE_TIME
        holder = replace(self._holder, until=until, tasks_stop_after_s=tasks_stop_after_s)
        try:
            self._tag = self._store.replace_if_unchanged(LEASE_KEY, holder.to_json(), self._tag)
        except (Changed, NotFound) as error:
            self._lost = "another run took it over"
            raise Refused(
                f"the lease on {self._store.where} was taken over by another run. Nothing more was done. Run the "
                "same command again.",
                invariant=11,
            ) from error
        self._holder, self._valid_until = holder, started + LEASE_TIME.total_seconds()

    @contextmanager
    def watched(self, request_time: timedelta, all_tasks_ended: Callable[[], bool]) -> Iterator[None]:
        """A context for work in other processes that watch this lease. Their requests take at most `request_time` each.

        Afterwards `all_tasks_ended` returns whether all their tasks have stopped, including those whose work was
        reassigned. If it returns False, the lease remains taken even after a release, until each of these processes
        must have read the lease again, and its last requests must have ended.
        """
        stop_after_s = REREAD_INTERVAL_S + request_time.total_seconds()
        with self._lock:
            self._renew(max(stop_after_s, self._holder.tasks_stop_after_s))
        all_ended = False
        try:
            yield
            all_ended = all_tasks_ended()
        except Exception:
            all_ended = all_tasks_ended()
            raise
        finally:
            if not all_ended:  # also after an interruption
                self.keep_for(timedelta(seconds=stop_after_s))

    def keep_for(self, duration: timedelta) -> None:
        """Keep the lease for this duration from now on, even after a release: other processes may still rely on it."""
        self._watched_until = max(self._watched_until, self._clock() + duration.total_seconds())

    def release(self) -> None:
        """Release the lease, so that the next run doesn't have to wait. Never raises: if it fails, the lease just
        expires."""
        self._stop.set()
        self._thread.join(timeout=30)
        # if the release fails even after the store's retries, the lease expires anyway
        with self._lock, suppress(LakegcError):
            try:
                self._end_lease()
            except Changed:
                if self._adopt_lost_renewal():
                    self._end_lease()

    def _end_lease(self) -> None:
        # the lease is set to expired, not deleted, because another run could take it between a read and a delete
        time_left = (
            timedelta(seconds=self._watched_until - self._clock()) if self._watched_until > self._clock() else None
        )
        until = (
            datetime.fromtimestamp(0, UTC)
            if time_left is None
            else min(self._holder.until, self._store.now() + time_left)
        )
        self._store.replace_if_unchanged(LEASE_KEY, replace(self._holder, until=until).to_json(), self._tag)

    def _adopt_lost_renewal(self) -> bool:
        """Adopt the tag of a renewal that succeeded but whose response was lost. Returns whether there was one."""
        data, tag = self._store.read_with_tag(LEASE_KEY)
        if tag == self._tag or _holder_of(data, self._store).token != self.token:
            return False
        self._tag = tag
        return True

    def _renew_until_released(self) -> None:
        while not self._stop.wait(LEASE_TIME.total_seconds() / 3):
            try:
                self.renew()
            except Refused:
                return  # check() reports it to the caller
            except LakegcError:
                continue  # retried at the next interval, while the lease still has time left


class LeaseWatch:
    """Watches the lease of another process: reads it again before it could expire, and never renews it."""

    def __init__(self, store: Store, token: str, clock: Callable[[], float] = boottime_s) -> None:
        self._store, self._token, self._clock = store, token, clock
        self._valid_until, self._read_again_at = 0.0, 0.0
        self._lock = threading.Lock()

    def check(self, *, at_least: timedelta) -> None:
        """Raise `Refused` if the lease has another holder or less time left than `at_least`, the time for a request."""
        with self._lock:
            if self._clock() >= min(self._read_again_at, self._valid_until - at_least.total_seconds()):
                self._read()
            if self._valid_until - self._clock() < at_least.total_seconds():
                raise Refused(
                    f"the lease on {self._store.where} may expire before another request ends. Nothing more was "
                    "done. Run the same command again.",
                    invariant=11,
                )

    def _read(self) -> None:
        started = self._clock()
        try:
            holder = _holder_of(self._store.read(LEASE_KEY), self._store)
        except NotFound:
            holder = None
        if holder is None or holder.token != self._token:
            holder_now = f"is now held by {holder.who}" if holder is not None else "was deleted"
            raise Refused(
                f"the lease on {self._store.where} {holder_now}. Nothing more was done. Run the same command again.",
                invariant=11,
            )
        # the store's clock may be ahead by up to its resolution
        time_left = (
            holder.until - self._store.now() - max(self._store.capabilities.time_resolution, timedelta(seconds=1))
        )
        self._valid_until, self._read_again_at = started + time_left.total_seconds(), started + REREAD_INTERVAL_S


def current_holder(store: Store) -> Holder | None:
    """The current holder of the lease, by the store's clock; None if there is none."""
    try:
        holder = _holder_of(store.read(LEASE_KEY), store)
    except NotFound:
        return None
    return holder if holder.until > store.now() else None


def take_lease(
    store: Store,
    *,
    who: str,
    mark_id: str,
    token: str,
    single_deployment: bool,
    clock: Callable[[], float] = boottime_s,
    sleep: Callable[[float], None] = time.sleep,
    log_message: Callable[[str], None] = lambda _: None,
) -> Lease:
    """Take the lease of a namespace, or raise `LeaseHeld` with the current holder and the end of its lease.

    An expired lease (by the store's clock) is taken over. So is the lease of a process that is known to be dead, after
    waiting until none of its tasks can still send a delete. `token` must be unique to this call.
    """
    if not (store.capabilities.conditional_writes or single_deployment):
        raise Refused(
            f"{store.where} has no conditional writes, so lakegc can't prevent concurrent runs. If no other lakegc "
            "deployment uses this store, set LAKEGC_SINGLE_DEPLOYMENT=true.",
            invariant=11,
        )
    started = clock()
    own_holder = Holder(who, mark_id, token, store.now() + LEASE_TIME, this_process())
    dead_holder: Holder | None = None
    try:
        tag = store.write_if_absent(LEASE_KEY, own_holder.to_json())
    except AlreadyExists:
        try:
            data, current_tag = store.read_with_tag(LEASE_KEY)
            current = _holder_of(data, store)
            if current.token == token:
                tag = current_tag  # our own write, which was retried after its response was lost
            else:
                if current.until > store.now():
                    if current.process is None or not is_known_dead(current.process):
                        raise _lease_held_error(current, store)
                    dead_holder = current
                    own_holder = replace(
                        own_holder, tasks_stop_after_s=seconds_until_tasks_end(dead_holder, store)
                    )  # for the next holder
                tag = store.replace_if_unchanged(LEASE_KEY, own_holder.to_json(), current_tag)
        except (Changed, NotFound) as error:
            raise LeaseHeld(
                f"another run changed the lease on {store.where} at the same time. Try again later.", invariant=11
            ) from error
    lease = Lease(store, own_holder, tag, started + LEASE_TIME.total_seconds(), clock)
    if dead_holder is not None:
        wait_for_tasks_to_end(lease, dead_holder, store, sleep, log_message)
    return lease


def wait_for_tasks_to_end(
    lease: Lease, dead_holder: Holder, store: Store, sleep: Callable[[float], None], log_message: Callable[[str], None]
) -> None:
    """Wait until no task of a dead holder can still send a delete. The lease is kept at least that long."""
    seconds = seconds_until_tasks_end(dead_holder, store)
    if seconds <= 0:
        return
    lease.keep_for(timedelta(seconds=seconds))
    log_message(
        f"{dead_holder.who} ended while its tasks were working on mark {dead_holder.mark_id}; waiting {seconds:.0f} s, "
        "until none of them can still be running"
    )
    try:
        sleep(seconds)
    except BaseException:
        lease.release()
        raise


def seconds_until_tasks_end(dead_holder: Holder, store: Store) -> float:
    """For how many more seconds a task of a dead holder may still be running."""
    return max(0.0, min(dead_holder.tasks_stop_after_s, (dead_holder.until - store.now()).total_seconds()))


def _lease_held_error(holder: Holder, store: Store) -> LeaseHeld:
    return LeaseHeld(
        f"{holder.who} is working on {store.where} (mark {holder.mark_id}) and holds the lease until "
        f"{holder.until:%Y-%m-%d %H:%M:%S} UTC. Wait until then: if that run died, its lease expires at that time.",
        invariant=11,
    )
