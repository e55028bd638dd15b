"""The notifications that are still to be sent: the cursor of the sensor `notifications`.

The cursor has the newest runs that were read, and the events that no receiver has accepted yet. An event is delivered
at least once, and dropped after MAX_AGE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pydantic import BaseModel, ConfigDict, ValidationError

from lakegc_assets.notifications.messages import Notification
from lakegc_assets.notifications.webhook import Undelivered
from spark_resources.errors import DamagedData
from spark_resources.identifiers import Event

MAX_AGE = timedelta(hours=24)
MAX_WAITING = 500
"""While this many events wait, no further runs are read; they stay in Dagster."""
MAX_FAILURES = 2
"""Failed attempts after which a tick ends, so that an unreachable receiver doesn't use up the tick's time."""
MAX_SECONDS = 30.0
"""After this time, a tick starts no further delivery: Dagster ends a tick after 60 seconds."""


class Waiting(BaseModel):
    """An event that hasn't been delivered yet: enough to read it again from Dagster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    event: Event
    time: datetime


class Cursor(BaseModel):
    """The storage ids, in Dagster, of the newest succeeded and failed runs that were read, and the waiting events."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    succeeded: int
    failed: int
    waiting: tuple[Waiting, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse a cursor. Raises `DamagedData` if it is invalid, for example because somebody edited it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            raise DamagedData(
                "the cursor of the sensor 'notifications' is invalid. Reset the cursor in Dagster: the sensor then "
                "begins with the runs that end from now on.",
                invariant=None,
            ) from None


def waiting_for(notification: Notification) -> Waiting:
    return Waiting(run=notification.run_id, event=notification.event, time=notification.time)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What happened to notifications in one tick: the delivered ones, those that still wait, the attempts that failed
    (each with the reason), and those that were dropped because they are too old."""

    delivered: Sequence[Notification] = ()
    waiting: Sequence[Notification] = ()
    failures: Sequence[tuple[Notification, str]] = ()
    dropped: Sequence[Notification] = field(default=())


def deliver(
    notifications: Sequence[Notification],
    send: Callable[[Notification], None],
    *,
    now: datetime,
    seconds_passed: Callable[[], float],
) -> Delivery:
    """Send notifications in this order. `send` raises `Undelivered` if the receiver doesn't accept one.

    After a failure, the next ones are still tried, until MAX_FAILURES attempts have failed or MAX_SECONDS have passed:
    an event that the receiver refuses doesn't hold up the others. Failed ones wait behind those that weren't tried.
    """
    result = Delivery()
    untried = []
    for notification in notifications:
        if now - notification.time > MAX_AGE:
            result = replace(result, dropped=[*result.dropped, notification])
        elif len(result.failures) >= MAX_FAILURES or seconds_passed() > MAX_SECONDS:
            untried.append(notification)
        else:
            try:
                send(notification)
            except Undelivered as error:
                result = replace(result, failures=[*result.failures, (notification, str(error))])
            else:
                result = replace(result, delivered=[*result.delivered, notification])
    return replace(result, waiting=[*untried, *(failed for failed, _ in result.failures)])
