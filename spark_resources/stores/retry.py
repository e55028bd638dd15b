"""One retry policy for every store and for the lakeFS server.

Whoever sends a request says of its failure whether it may pass: `Transient`, or any other error. Nothing else is
repeated, and nothing below a policy repeats by itself, so a policy's times hold for all that it calls.

Deletes are not repeated here: before each repetition a sweep makes the checks of a first one. A store says of each
key that failed whether that may pass (`DeleteResult.transient`). What is waited for, and has not failed, is polled
(`polling`). Other loops that read again do so since what they read was overtaken or fails a check: a rule, no retry.
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

from spark_resources.errors import NotThere, Transient, Unavailable
from spark_resources.stores.base import NOT_SENT, AlreadyThere, Changed, DeleteResult, Deletion

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from spark_resources.stores.base import Store

_T = TypeVar("_T")
_P = ParamSpec("_P")
_log = logging.getLogger(__name__)


PASSING_STATUS = frozenset({408, 425, 429, *range(500, 600)} - {501, 505, 507})
"""Of HTTP. 501 and 505 say what the other side can't do, and 507 that it is full: asking again doesn't change it."""


class RetryPolicy(BaseModel):
    """How long, and how often, a request is repeated. Times are in seconds.

    `total_s` begins with the first failure; the last repetition begins when it ends, and 0 means none. Before the n-th
    repetition comes a random wait of up to `first_wait_s` * 2^(n-1), and never more than `longest_wait_s`; where the
    store or the server names a time, no less than that. `attempts` bounds the requests as well, the first included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    total_s: float = Field(default=60.0, ge=0)
    first_wait_s: float = Field(default=0.5, ge=0)
    longest_wait_s: float = Field(default=8.0, ge=0)
    attempts: int | None = Field(default=None, ge=1)

    def call(self, act: Callable[[], _T], *, sleep: Callable[[float], None] = time.sleep) -> _T:
        """What `act` returns, repeated while it raises `Transient`.

        Raises `Unavailable` with the last failure's words when the time is over, so that no policy around this one
        begins anew; every other error at once.
        """
        try:
            return act()
        except Transient as error:
            return self._repeated(act, error, sleep)

    def _repeated(self, act: Callable[[], _T], first: Transient, sleep: Callable[[float], None]) -> _T:
        import tenacity  # takes 50 ms, which most processes never need

        pending = [first]

        def attempt() -> _T:
            if pending:  # the failure that was met already: tenacity's clock begins with it
                raise pending.pop()
            return act()

        backoff = tenacity.wait_random_exponential(multiplier=self.first_wait_s, max=self.longest_wait_s)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            stop=self._is_over,
            wait=lambda state: self._wait(state, backoff(state)),
            sleep=sleep,
            before_sleep=tenacity.before_sleep_log(_log, logging.INFO),
            retry_error_callback=_give_up,
        )
        return retrying(attempt)

    def _is_over(self, state: RetryCallState) -> bool:
        return _elapsed(state) >= self.total_s or state.attempt_number >= (self.attempts or state.attempt_number + 1)

    def _wait(self, state: RetryCallState, backoff: float) -> float:
        """No further than to the end of the time, so that the last repetition is at its very end."""
        return min(max(backoff, _last(state).after_s), max(0.0, self.total_s - _elapsed(state)))


NO_RETRIES = RetryPolicy(total_s=0)


class HasPolicy(Protocol):
    @property
    def retry(self) -> RetryPolicy: ...


_Self = TypeVar("_Self", bound=HasPolicy)


def retried(method: Callable[Concatenate[_Self, _P], _T]) -> Callable[Concatenate[_Self, _P], _T]:
    """A method that is repeated by its object's policy: for what may be done twice."""

    @wraps(method)
    def repeated(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self.retry.call(lambda: method(self, *args, **kwargs))

    return repeated


def write_on_condition(
    policy: RetryPolicy, write: Callable[[], str], read_with_tag: Callable[[], tuple[bytes, str]], data: bytes
) -> str:
    """A conditional write, repeated; returns the tag of what was written.

    A write whose answer was lost may have been done: then it is its repetition that finds the key taken or the object
    changed. So that object is read, and if it holds this very `data`, the write was done.
    """
    lost = False

    def attempt() -> str:
        nonlocal lost
        try:
            return write()
        except Transient:
            lost = True
            raise
        except (AlreadyThere, Changed):
            tag = _tag_of(read_with_tag, data) if lost else None
            if tag is None:
                raise
            return tag

    return policy.call(attempt)


def delete_own(store: Store, keys: Iterable[str]) -> list[DeleteResult]:
    """Delete files of lakegc's own, repeated by the store's policy; returns what failed. Never for users' objects."""
    left, failed = list(keys), dict[str, DeleteResult]()

    def attempt() -> None:
        nonlocal left
        results = {each.key: each for each in _all_sent(store, left)}
        for key in left:
            failed.pop(key, None)
        failed.update(results)
        left = [key for key, each in results.items() if each.transient]
        if left:
            raise Transient(f"{len(left)} files in {store.where} could not be deleted")

    with suppress(Unavailable):  # what is left tells
        store.retry.call(attempt)
    return list(failed.values())


def _all_sent(store: Store, keys: Iterable[str]) -> list[DeleteResult]:
    """What failed of these keys, each of which was sent, unless none was."""
    results = store.delete_many(keys)
    failed = [result for result in results if result.deletion is Deletion.FAILED]
    late = [result.key for result in failed if result.code == NOT_SENT]
    if not late or len(late) == len(results):
        return failed
    return [*(result for result in failed if result.code != NOT_SENT), *_all_sent(store, late)]


def _tag_of(read_with_tag: Callable[[], tuple[bytes, str]], data: bytes) -> str | None:
    """The object's tag if it holds these bytes."""
    try:
        found, tag = read_with_tag()
    except NotThere:
        return None
    return tag if found == data else None


# --- what transports have in common ---------------------------------------------------------------------------------


def is_tls_refusal(error: Exception | str) -> bool:
    """Whether an error, or its text, is about TLS and stays: whom to trust, or no TLS at all. Connections that broke
    while TLS began aren't."""
    text = str(error).upper()
    broken = ("EOF", "RESET", "TIMED OUT", "BROKEN PIPE", "CLOSED")
    return ("SSL" in text or "CERTIFICATE" in text) and not any(word in text for word in broken)


def seconds_of(headers: Mapping[str, str]) -> float:
    """What `Retry-After` asks for in seconds; 0 where it asks for nothing, or names a date."""
    text = next((value for name, value in headers.items() if name.lower() == "retry-after"), "").strip()
    return float(text) if text.isdecimal() else 0.0


def origin_of(location: str) -> str:
    """Where a redirect leads, without what a login page may have put into its query."""
    parts = urlsplit(location)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) or "an unnamed place"


def _elapsed(state: RetryCallState) -> float:
    return max(state.seconds_since_start or 0.0, state.idle_for)


def _last(state: RetryCallState) -> Transient:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, Transient)
    return error


def _give_up(state: RetryCallState) -> None:
    error, tries = _last(state), state.attempt_number
    how_often = f" Tried {tries} times in {_elapsed(state):.0f} seconds." if tries > 1 else ""
    raise Unavailable(f"{error}{how_often}") from error.__cause__
