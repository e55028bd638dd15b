"""The sensor that sends notifications to the webhook. It is off until it is turned on in Dagster's UI."""

# no `from __future__ import annotations` here: Dagster reads the annotations of schedules and sensors
import os
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Literal

import dagster as dg

from lakegc_assets.assets.results import reporting_failures
from lakegc_assets.formatting import plural
from lakegc_assets.notifications import outbox
from lakegc_assets.notifications.messages import SIGNATURE_HEADER, Notification, json_body, signature, slack_body
from lakegc_assets.notifications.outbox import Cursor, Waiting, deliver, waiting_for
from lakegc_assets.notifications.run_events import notifications_of
from lakegc_assets.notifications.webhook import send
from spark_resources.host.user_folders import home_folder
from spark_resources.settings import Settings

RUNS_PER_TICK = 20
RETRIES_PER_TICK = 20
_STATUSES: tuple[Literal[dg.DagsterEventType.RUN_SUCCESS, dg.DagsterEventType.RUN_FAILURE], ...] = (
    dg.DagsterEventType.RUN_SUCCESS,
    dg.DagsterEventType.RUN_FAILURE,
)


@dg.sensor(
    minimum_interval_seconds=60,
    description="""Sends notifications to the webhook LAKEGC_WEBHOOK_URL: a mark waits for approval, a mark trips
brakes, a run failed, a sweep ended. The setting 'notify' selects events; a fleet file can do that for each repository.

It begins with the runs that end after it was turned on. A notification that the webhook doesn't accept is sent again
by the next ticks, and dropped after 24 hours with an error in the tick's log. It may be delivered twice, with the same
id. Nothing else waits for the webhook.""",
)
def notifications(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    with reporting_failures():
        if Settings.load(os.environ, home_folder()).webhook_url is None:
            return dg.SkipReason("There is no webhook: set LAKEGC_WEBHOOK_URL.")
        if not context.cursor:
            return dg.SensorResult(
                skip_reason=dg.SkipReason("From now on, events are sent to the webhook."),
                cursor=cursor_after_ended_runs(context.instance).model_dump_json(),
            )
        cursor = Cursor.parse(context.cursor)
        new, cursor = new_notifications(context.instance, cursor)
        retried, later = cursor.waiting[:RETRIES_PER_TICK], cursor.waiting[RETRIES_PER_TICK:]
        known = [*new, *waiting_notifications(context.instance, retried)]
        for lost in set(retried) - set(map(waiting_for, known)):
            context.log.error(
                f"The event {lost.event} of run {lost.run} was not delivered: Dagster no longer has the run."
            )
        selected = [notification for notification in known if is_selected(notification)]
        started = time.monotonic()
        delivery = deliver(selected, post, now=datetime.now(UTC), seconds_passed=lambda: time.monotonic() - started)
    for notification in delivery.dropped:
        context.log.error(f"Not delivered within 24 hours, and dropped: {notification.summary}")
    for notification, why in delivery.failures:
        context.log.warning(f"Not delivered yet, because {why}: {notification.summary}")
    waiting = (*later, *map(waiting_for, delivery.waiting))
    return dg.SensorResult(
        skip_reason=dg.SkipReason(
            f"{plural(len(delivery.delivered), 'notification')} delivered, {len(waiting):,} waiting."
        ),
        cursor=cursor.model_copy(update={"waiting": waiting}).model_dump_json(),
    )


def cursor_after_ended_runs(instance: dg.DagsterInstance) -> Cursor:
    """A cursor after all runs that have ended so far."""
    succeeded, failed = (
        next((record.storage_id for record in instance.fetch_run_status_changes(status, limit=1).records), 0)
        for status in _STATUSES
    )
    return Cursor(succeeded=succeeded, failed=failed)


def new_notifications(instance: dg.DagsterInstance, cursor: Cursor) -> tuple[list[Notification], Cursor]:
    """The notifications of the next RUNS_PER_TICK runs of each status, and the cursor after them; none while
    `outbox.MAX_WAITING` or more events wait."""
    if len(cursor.waiting) >= outbox.MAX_WAITING:
        return [], cursor
    ids, runs = [cursor.succeeded, cursor.failed], []
    for position, status in enumerate(_STATUSES):
        records = instance.fetch_run_status_changes(
            dg.RunStatusChangeRecordsFilter(status, after_storage_id=ids[position]),
            limit=RUNS_PER_TICK,
            ascending=True,
        ).records
        runs += [record.run_id for record in records]
        ids[position] = max([ids[position], *(record.storage_id for record in records)])
    found = notifications_of_runs(instance, runs)
    return found, cursor.model_copy(update={"succeeded": ids[0], "failed": ids[1]})


def waiting_notifications(instance: dg.DagsterInstance, waiting: Sequence[Waiting]) -> list[Notification]:
    """The notifications of waiting events whose runs Dagster still has, in this order."""
    found = notifications_of_runs(instance, [event.run for event in waiting])
    by_event = {waiting_for(notification): notification for notification in found}
    return [by_event[event] for event in waiting if event in by_event]


def notifications_of_runs(instance: dg.DagsterInstance, run_ids: Iterable[str]) -> list[Notification]:
    distinct = list(dict.fromkeys(run_ids))
    if not distinct:
        return []
    runs = {run.run_id: run for run in instance.get_runs(filters=dg.RunsFilter(run_ids=distinct))}
    return [found for run_id in distinct if run_id in runs for found in notifications_of(instance, runs[run_id])]


def is_selected(notification: Notification) -> bool:
    """Whether the repository's setting `notify` selects this event."""
    patterns = Settings.load(os.environ, home_folder(), repository=notification.partition.repository).notify
    return any(fnmatchcase(notification.event, pattern) for pattern in patterns)


def post(notification: Notification) -> None:
    """Post a notification with the settings of its repository. Raises `Undelivered` if the webhook doesn't accept
    it."""
    settings = Settings.load(os.environ, home_folder(), repository=notification.partition.repository)
    body = (slack_body if settings.webhook_format == "slack" else json_body)(notification, settings.owners)
    secret, url = settings.webhook_secret, settings.webhook_url
    assert url is not None
    headers = {} if secret is None else {SIGNATURE_HEADER: signature(body, secret.get_secret_value())}
    send(url.get_secret_value(), body, headers)
