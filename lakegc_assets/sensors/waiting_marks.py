"""The sensor that reports marks that are waiting for approval. It is off until it is turned on in Dagster's UI."""

# no `from __future__ import annotations` here: Dagster reads the annotations of schedules and sensors
import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from lakegc_assets.assets.review import expired_set
from lakegc_assets.formatting import duration, plural, size
from lakegc_assets.mark.context import Target
from lakegc_assets.mark.preconditions import refuse_different_repository
from lakegc_assets.sensors.tick_budget import TickBudget, client_for_tick, target_for_tick, waited_too_long
from spark_resources.errors import LakegcError, NotFound, Unavailable, full_stop
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.mark_store.approval import ApprovalStatus, approval_status, read_approval
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import MarkRecord, refuse_earlier_format
from spark_resources.model import MarkState, Partition
from spark_resources.settings import Settings

REMINDER = "waiting_for_approval"
"""The metadata entry of a reminder, by which it is recognized: how long the mark has waited."""
MARKS_PER_TICK = 200
REPORTS_PER_TICK = 20


@dataclass(frozen=True, slots=True)
class Cursor:
    """The storage id of the newest mark in Dagster that was read, and the finish times (seconds since 1970) of the
    marks that aren't due yet, by partition key."""

    after: int
    finished: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        values = json.loads(text)
        return cls(values["after"], values["finished"])

    def text(self) -> str:
        return json.dumps({"after": self.after, "finished": self.finished})


@dg.sensor(
    minimum_interval_seconds=300,
    description="""Reports each mark that has waited for approval longer than approval_reminder (by default two days).
It does so once, as an observation of expired_set that shows how long the mark has waited, its objects, bytes and
owners, and the command that approves it. It starts nothing. Marks without expired objects are not reported. When the
sensor is first turned on, it looks at the newest mark of each repository, and at no earlier ones.""",
)
def waiting_marks(context: dg.SensorEvaluationContext, lakefs: LakeFSResource) -> dg.SensorResult | dg.SkipReason:
    now = datetime.now(UTC)
    client = client_for_tick(lakefs)
    known = Cursor.parse(context.cursor) if context.cursor else first_cursor(context.instance)
    cursor = with_new_marks(context.instance, known)
    waiting, later, reported, budget = dict(cursor.finished), {}, [], TickBudget()
    reminder_of = functools.cache(reminder_after)
    overdue = {key: overdue_by(key, now - datetime.fromtimestamp(at, UTC), reminder_of) for key, at in waiting.items()}
    for key in [key for key, by in overdue.items() if by >= timedelta(0)][:REPORTS_PER_TICK]:
        if budget.is_used_up:
            break
        finished = waiting.pop(key)
        try:
            if report_if_waiting(context.instance, client, key):
                reported.append(key)
        except Unavailable as error:
            context.log.error(f"Whether {key} is waiting for approval is unknown: {full_stop(error)}")
            if not isinstance(error, NotFound) and not waited_too_long(overdue[key]):
                later[key] = finished
        except LakegcError as error:
            context.log.error(f"{key} is not reported: {full_stop(error)}")
    # those that failed come last, so that they don't hold up the others
    text = Cursor(cursor.after, {**waiting, **later}).text()
    sentence = f"Reported: {', '.join(reported)}." if reported else "No mark was reported."
    return dg.SensorResult(skip_reason=dg.SkipReason(sentence), cursor=text)


def first_cursor(instance: dg.DagsterInstance) -> Cursor:
    """A cursor with the newest mark of each repository."""
    ids = instance.get_latest_storage_id_by_partition(expired_set.key, dg.DagsterEventType.ASSET_MATERIALIZATION)
    newest: dict[str, int] = {}
    for key, storage_id in ids.items():
        try:
            repository = Partition.parse(key).repository
        except LakegcError:
            continue  # a person can report a materialization for any text
        newest[repository] = max(storage_id, newest.get(repository, 0))
    if not newest:
        return Cursor(0, {})
    wanted = dg.AssetRecordsFilter(asset_key=expired_set.key, storage_ids=list(newest.values()))
    events = instance.fetch_materializations(wanted, limit=len(newest)).records
    return Cursor(
        max(newest.values()), {event.partition_key: event.timestamp for event in events if event.partition_key}
    )


def with_new_marks(instance: dg.DagsterInstance, cursor: Cursor) -> Cursor:
    """The cursor after the newest mark in Dagster; it includes the marks that have finished since `cursor`."""
    events = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=expired_set.key, after_storage_id=cursor.after),
        limit=MARKS_PER_TICK,
        ascending=True,
    ).records
    new = {event.partition_key: event.timestamp for event in events if event.partition_key}
    newest = max((event.storage_id for event in events), default=cursor.after)
    return Cursor(newest, {**cursor.finished, **new})


def overdue_by(key: str, waited: timedelta, reminder_of: Callable[[str], timedelta]) -> timedelta:
    """How much longer than its repository's `approval_reminder` a mark has waited, if it is still waiting; negative if
    it isn't due yet."""
    try:
        return waited - reminder_of(Partition.parse(key).repository)
    except LakegcError:
        return timedelta(0)  # due, so that the error is reported


def reminder_after(repository: str) -> timedelta:
    return Settings.load(os.environ, home_folder(), repository=repository).approval_reminder


def report_if_waiting(instance: dg.DagsterInstance, lakefs: LakeFS, key: str) -> bool:
    """Report a mark if it is still waiting for approval and wasn't reported before. Returns whether it was reported."""
    partition = Partition.parse(key)
    target, settings = target_for_tick(lakefs, partition.repository)
    record, now = Mark.open(target.place, partition.mark_id).record, target.place.store().now()
    refuse_different_repository(record, target)
    refuse_earlier_format(record, "approved")
    if not is_waiting_for_approval(target, record, now) or was_reported(instance, key):
        return False
    assert record.finished is not None  # a mark that waits for approval is finished
    metadata = reminder(record, settings.owners, now - record.finished)
    instance.report_runless_asset_event(
        dg.AssetObservation(
            expired_set.key,
            partition=key,
            description=f"Waiting for approval for {metadata[REMINDER]}: {plural(metadata['objects'], 'object')}, "
            f"{size(metadata['bytes'])}. To review the mark: {metadata['review']}.",
            metadata=metadata,
        )
    )
    return True


def is_waiting_for_approval(target: Target, record: MarkRecord, now: datetime) -> bool:
    """Whether a mark has expired objects and no approval that is in force. `now` is by the store's clock."""
    if not record.counts.get("expired"):
        return False
    if record.state is MarkState.APPROVED:
        status = approval_status(record, read_approval(target.place, record.mark_id), now=now)
        return status is not ApprovalStatus.APPROVED
    return record.state is MarkState.MARKED


def was_reported(instance: dg.DagsterInstance, key: str) -> bool:
    """Whether a reminder of this mark is in Dagster, for example because the daemon was killed before it saved
    the cursor."""
    records_filter = dg.AssetRecordsFilter(asset_key=expired_set.key, asset_partitions=[key])
    events = (event.asset_observation for event in instance.fetch_observations(records_filter, limit=100).records)
    return any(event is not None and REMINDER in event.metadata for event in events)


def reminder(record: MarkRecord, owners: tuple[str, ...], waited: timedelta) -> dict[str, Any]:
    """The metadata of a reminder: how long a mark has waited, what it would delete, and the commands for it."""
    name = f"{record.repository} {record.mark_id}"
    return {
        REMINDER: duration(waited),
        "objects": record.counts["expired"],
        "bytes": record.counts["expired_bytes"],
        "owners": ", ".join(owners) or "none: set 'owners'",
        "review": f"lakegc review {name}",
        "approve": f"lakegc approve {name}",
    }
