"""One retry policy for every store and for the lakeFS server.

The code that sends a request classifies its failure: `Transient`, or any other error. Only `Transient` is retried. The
libraries' own retries are switched off, so a policy's limits apply to everything that it calls.

Deletes are not retried here: before each retry, a sweep repeats the checks of the first attempt. A store reports for
each failed key whether a retry may succeed (`DeleteResult.transient`). Pending work that has not failed is polled
(`polling`). Other loops read again because data is outdated or fails a check, not because a request failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field

from spark_resources.errors import NotFound, StillUnavailable, Transient, plural
from spark_resources.stores.base import NOT_SENT, AlreadyExists, Changed, DeleteResult, Deletion

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from spark_resources.stores.base import Store

_T = TypeVar("_T")
_P = ParamSpec("_P")
_log = logging.getLogger(__name__)


TRANSIENT_STATUSES = frozenset({408, 425, 429, *range(500, 600)} - {501, 505, 507})
"""HTTP statuses worth a retry. For 501 and 505 (unsupported by the server) and 507 (full), a retry changes nothing."""


class RetryPolicy(BaseModel):
    """How long and how often a request is retried. Times are in seconds.

    `total_s` is counted from the first failure; the last retry starts when that time is up, and 0 means no retries. A
    run takes it from the setting `retry_total_s`, which has its own default. The wait before the n-th retry is random:
    up to `first_wait_s` * 2^(n-1) and at most `longest_wait_s`, but at least the time that the store or the server
    asks for. `attempts` also limits the number of requests, including the first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    total_s: float = Field(default=60.0, ge=0)
    first_wait_s: float = Field(default=0.5, ge=0)
    longest_wait_s: float = Field(default=8.0, ge=0)
    attempts: int | None = Field(default=None, ge=1)

    def call(self, request: Callable[[], _T], *, sleep: Callable[[float], None] = time.sleep) -> _T:
        """The result of `request`, retried while it raises `Transient`.

        When a limit is reached, raises `StillUnavailable` with the last failure's message; outer policies don't retry
        that error. Any other error is raised immediately.
        """
        try:
            return request()
        except Transient as error:
            return self._retry(request, error, sleep)

    def _retry(self, request: Callable[[], _T], first: Transient, sleep: Callable[[float], None]) -> _T:
        import tenacity  # imported on the first retry: it takes 50 ms, and most processes never retry

        pending = [first]

        def attempt() -> _T:
            if pending:  # the failure that has already occurred: tenacity's clock starts with it
                raise pending.pop()
            return request()

        backoff = tenacity.wait_random_exponential(multiplier=self.first_wait_s, max=self.longest_wait_s)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            stop=self._should_stop,
            wait=lambda state: self._wait(state, backoff(state)),
            sleep=sleep,
            before_sleep=tenacity.before_sleep_log(_log, logging.INFO),
            retry_error_callback=_raise_unavailable,
        )
        return retrying(attempt)

    def _should_stop(self, state: RetryCallState) -> bool:
        return _elapsed(state) >= self.total_s or state.attempt_number >= (self.attempts or state.attempt_number + 1)

    def _wait(self, state: RetryCallState, backoff: float) -> float:
        """The next wait, cut off at the end of the total time, so that the last retry is made exactly then."""
        return min(max(backoff, _last_error(state).after_s), max(0.0, self.total_s - _elapsed(state)))


NO_RETRIES = RetryPolicy(total_s=0)


class HasRetryPolicy(Protocol):
    @property
    def retry(self) -> RetryPolicy: ...


_Self = TypeVar("_Self", bound=HasRetryPolicy)


def retried(method: Callable[Concatenate[_Self, _P], _T]) -> Callable[Concatenate[_Self, _P], _T]:
    """Decorates an idempotent method: its calls are retried according to the `retry` policy of the object."""

    @wraps(method)
    def repeated(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self.retry.call(lambda: method(self, *args, **kwargs))

    return repeated


def write_conditionally(
    policy: RetryPolicy, write: Callable[[], str], read_with_tag: Callable[[], tuple[bytes, str]], data: bytes
) -> str:
    """A conditional write with retries; returns the tag of the written object.

    A write whose response was lost may have succeeded, and then its retry finds the key taken or the object changed.
    In that case the object is read: if it contains exactly `data`, the write has succeeded.
    """
    may_have_succeeded = False

    def attempt() -> str:
        nonlocal may_have_succeeded
        try:
            return write()
        except Transient:
            may_have_succeeded = True
            raise
        except (AlreadyExists, Changed):
            tag = _tag_if_identical(read_with_tag, data) if may_have_succeeded else None
            if tag is None:
                raise
            return tag

    return policy.call(attempt)


def delete_own_files(store: Store, keys: Iterable[str]) -> list[DeleteResult]:
    """Delete lakegc's own files, with the store's retry policy; returns the failures. Not for users' objects."""
    remaining, failed = list(keys), dict[str, DeleteResult]()

    def attempt() -> None:
        nonlocal remaining
        results = {result.key: result for result in _delete_all(store, remaining)}
        for key in remaining:
            failed.pop(key, None)
        failed.update(results)
        remaining = [key for key, result in results.items() if result.transient]
        if remaining:
            raise Transient(f"{plural(len(remaining), 'file')} in {store.where} could not be deleted")

    with suppress(StillUnavailable):  # the caller gets the failures
        store.retry.call(attempt)
    return list(failed.values())


def _delete_all(store: Store, keys: Iterable[str]) -> list[DeleteResult]:
    """Delete keys; returns the failures. Keys that were not sent are sent again, unless none was sent at all."""
    results = store.delete_many(keys)
    failed = [result for result in results if result.deletion is Deletion.FAILED]
    not_sent = [result.key for result in failed if result.code == NOT_SENT]
    if not not_sent or len(not_sent) == len(results):
        return failed
    return [*(result for result in failed if result.code != NOT_SENT), *_delete_all(store, not_sent)]


def _tag_if_identical(read_with_tag: Callable[[], tuple[bytes, str]], data: bytes) -> str | None:
    """The object's tag if it contains exactly these bytes, otherwise None."""
    try:
        content, tag = read_with_tag()
    except NotFound:
        return None
    return tag if content == data else None


# --- shared by transports -------------------------------------------------------------------------------------------


def is_permanent_tls_error(error: Exception | str) -> bool:
    """Whether an error, or its text, is a permanent TLS failure: an untrusted certificate, or no TLS at all.

    A connection that broke during the TLS handshake is not one.
    """
    text = str(error).upper()
    disconnected = ("EOF", "RESET", "TIMED OUT", "BROKEN PIPE", "CLOSED")
    return ("SSL" in text or "CERTIFICATE" in text) and not any(word in text for word in disconnected)


def retry_after_s(headers: Mapping[str, str]) -> float:
    """The value of `Retry-After` in seconds; 0 if it is missing or a date."""
    text = next((value for name, value in headers.items() if name.lower() == "retry-after"), "").strip()
    return float(text) if text.isdecimal() else 0.0


def redirect_target(location: str) -> str:
    """The target of a redirect, as text without user and query, which may contain secrets, e.g. of a login page."""
    parts = urlsplit(location)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) or "an unknown location"


def _elapsed(state: RetryCallState) -> float:
    return max(state.seconds_since_start or 0.0, state.idle_for)


def _last_error(state: RetryCallState) -> Transient:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, Transient)
    return error


def _raise_unavailable(state: RetryCallState) -> None:
    error, tries = _last_error(state), state.attempt_number
    attempts_made = f" Tried {tries} times in {plural(round(_elapsed(state)), 'second')}." if tries > 1 else ""
    raise StillUnavailable(f"{error}{attempts_made}") from error.__cause__
