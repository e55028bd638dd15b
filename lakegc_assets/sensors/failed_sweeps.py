"""The sensor that starts failed sweeps again, once each. It is off until it is turned on in Dagster's UI."""

# no `from __future__ import annotations` here: Dagster reads the annotations of schedules and sensors
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from lakegc_assets.assets.sweep import sweep_report
from lakegc_assets.dead_runs import possibly_dead_runs, report_dead_run
from lakegc_assets.jobs import backup_and_sweep_job, sweep_job
from lakegc_assets.mark.preconditions import refuse_different_repository
from lakegc_assets.partitions import COMMAND_LINE_TAG, PARTITION_TAG, REPOSITORY_TAG, RESUMED_TAG, console_config
from lakegc_assets.rules.resumption import UNFINISHED_SWEEPS, why_not_resumed
from lakegc_assets.sensors.tick_budget import TickBudget, client_for_tick, target_for_tick, waited_too_long
from lakegc_assets.sweep.report import read_report
from spark_resources.errors import LakegcError, NotFound, NothingToDo, Unavailable, full_stop
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.mark_store.approval import Approval, read_approval
from spark_resources.mark_store.lease import current_holder
from spark_resources.mark_store.mark import Mark
from spark_resources.model import Partition

FAILED_RUN_TAG = "lakegc/resumed_run"
"""The tag of a run that starts a failed sweep again, with the id of the run that failed."""
SWEEP_JOBS = frozenset({sweep_job.name, backup_and_sweep_job.name})
FAILURES_PER_TICK = 50


@dataclass(frozen=True, slots=True)
class Cursor:
    """The storage id of the newest failure that was read, and the ids of failed runs that wait for a free lease."""

    after: int
    waiting: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        values = json.loads(text)
        return cls(values["after"], tuple(values["waiting"]))

    def text(self) -> str:
        return json.dumps({"after": self.after, "waiting": self.waiting})


class TryLater(Exception):
    """Raised for a sweep that can't be restarted yet. The message is the reason."""


class NotResumed(Exception):
    """Raised for a sweep that won't be restarted automatically. The message is the reason."""


@dg.sensor(
    jobs=[sweep_job, backup_and_sweep_job],
    minimum_interval_seconds=60,
    description="""Restarts sweeps that failed, were killed, or ended with failures: once per approval, with the
same options. Such a sweep re-verifies everything before it deletes.

A sweep is restarted only while it could also be started for the first time: its approval hasn't expired, and the
mark isn't older than brake_age. It waits until no other run is working on the repository. If it fails again, or must
not be started, an observation of sweep_report says what to do. Runs that a person terminated, and sweeps that were
started in a terminal, are left alone. So are failures from before the sensor was first turned on.""",
)
def resumed_sweeps(context: dg.SensorEvaluationContext, lakefs: LakeFSResource) -> dg.SensorResult | dg.SkipReason:
    instance, client = context.instance, client_for_tick(lakefs)
    if context.cursor is None:
        newest = instance.fetch_run_status_changes(dg.DagsterEventType.RUN_FAILURE, limit=1).records
        first = Cursor(newest[0].storage_id if newest else 0)
        return dg.SensorResult(skip_reason=dg.SkipReason("Waiting for sweeps that fail."), cursor=first.text())
    cursor = Cursor.parse(context.cursor)
    report_dead_sweeps(context, client)
    after, failed = new_failures(instance, cursor.after)
    requests: dict[str | None, dg.RunRequest] = {}  # by run key: several runs of one sweep may have failed
    unread, waiting, budget = [], [], TickBudget()
    for run_id in dict.fromkeys((*cursor.waiting, *failed)):
        if budget.is_used_up:
            unread.append(run_id)
            continue
        record = instance.get_run_record_by_id(run_id)
        if record is None or not is_resumable(record.dagster_run):
            continue
        run = record.dagster_run
        try:
            request = request_to_resume(instance, client, run)
            requests.setdefault(request.run_key, request)
        except NothingToDo as reason:
            context.log.info(f"The sweep of {run.tags[PARTITION_TAG]} needs no further run: {full_stop(reason)}")
        except NotResumed as reason:
            report_needs_manual_action(context, run, str(reason))
        except (TryLater, Unavailable) as reason:
            if waited_too_long(datetime.now(UTC) - datetime.fromtimestamp(record.end_time or 0, UTC)):
                report_needs_manual_action(context, run, str(reason))
                continue
            context.log.info(f"The sweep of {run.tags[PARTITION_TAG]} isn't restarted yet: {full_stop(reason)}")
            waiting.append(run_id)
        except LakegcError as error:
            report_needs_manual_action(context, run, str(error))
    waiting = [*unread, *waiting]  # the next tick begins with those that this one didn't reach
    return dg.SensorResult(
        run_requests=list(requests.values()),
        skip_reason=None if requests else dg.SkipReason(f"No failed sweep was restarted; {len(waiting)} waiting."),
        cursor=Cursor(after, tuple(waiting)).text(),
    )


def new_failures(instance: dg.DagsterInstance, after: int) -> tuple[int, list[str]]:
    """The ids of runs that failed since then, oldest first, and the storage id of the last failure that was read."""
    filters = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=after)
    records = instance.fetch_run_status_changes(filters, limit=FAILURES_PER_TICK, ascending=True).records
    newest = max((record.storage_id for record in records), default=after)
    return newest, list(dict.fromkeys(record.run_id for record in records))


def report_dead_sweeps(context: dg.SensorEvaluationContext, lakefs: LakeFS) -> None:
    """Record sweeps whose process died as failed, so that they are found like other failures."""
    for run, repository in list(possibly_dead_runs(context.instance, now=datetime.now(UTC))):
        if run.job_name not in SWEEP_JOBS:
            continue
        try:
            if current_holder(target_for_tick(lakefs, repository)[0].place.store()) is None:
                context.log.warning(report_dead_run(context.instance, run, repository))
        except LakegcError as error:
            context.log.error(f"Whether run {run.run_id} of {repository} is alive is unknown: {full_stop(error)}")


def is_resumable(run: dg.DagsterRun) -> bool:
    """Whether a run is a failed sweep that Dagster started."""
    return (
        run.job_name in SWEEP_JOBS
        and run.status is dg.DagsterRunStatus.FAILURE
        and COMMAND_LINE_TAG not in run.tags
        and {PARTITION_TAG, REPOSITORY_TAG} <= run.tags.keys()  # other code locations may have jobs of these names
    )


def request_to_resume(instance: dg.DagsterInstance, lakefs: LakeFS, run: dg.DagsterRun) -> dg.RunRequest:
    """The request to restart a failed sweep, with its options.

    Raises `NothingToDo` if the sweep was finished or its approval revoked in the meantime, `NotResumed` or `TryLater`
    with the reason if it must not be restarted, or not yet, and the error if the mark can't be read.
    """
    key = run.tags[PARTITION_TAG]
    partition = Partition.parse(key)
    try:
        target, settings = target_for_tick(lakefs, partition.repository)
        record = Mark.open(target.place, partition.mark_id).record
    except NotFound as error:
        raise NotResumed(f"lakegc has no such mark ({full_stop(error).rstrip('.')})") from error
    refuse_different_repository(record, target)
    if record.state not in UNFINISHED_SWEEPS:
        raise NothingToDo(f"mark {record.mark_id} of {record.repository} is {record.state}: there is nothing to resume")
    approval, report = read_approval(target.place, partition.mark_id), read_report(target.place, partition.mark_id)
    now = target.place.store().now()
    outcomes = None if report is None else report.objects
    why = why_not_resumed(record, approval, outcomes, max_age=settings.brake_age, now=now)
    if why is not None or approval is None:
        raise NotResumed(why or "it has no approval")
    if RESUMED_TAG in run.tags or was_resumed(instance, run, approval):
        raise NotResumed("it was already restarted once under this approval")
    if holder := current_holder(target.place.store()):
        raise TryLater(f"{holder.who} holds the lease until {holder.until:%H:%M:%S} UTC")
    return dg.RunRequest(
        run_key=f"resumed approval {approval.sha256}",
        partition_key=key,  # Dagster has this key, even if it has the format of an earlier version
        job_name=run.job_name,
        run_config={
            "ops": run.run_config.get("ops", {}),
            **console_config(os.environ),
        },  # with its options, such as quarantine
        tags={REPOSITORY_TAG: partition.repository, RESUMED_TAG: approval.sha256, FAILED_RUN_TAG: run.run_id},
    )


def was_resumed(instance: dg.DagsterInstance, run: dg.DagsterRun, approval: Approval) -> bool:
    """Whether a sweep was restarted under this approval. A run that was created for this very failure but not
    launched, because the daemon was killed in between, doesn't count: the same request launches it."""
    records = instance.get_run_records(dg.RunsFilter(tags={RESUMED_TAG: approval.sha256}), limit=2)
    return any(
        record.dagster_run.status is not dg.DagsterRunStatus.NOT_STARTED
        or record.dagster_run.tags.get(FAILED_RUN_TAG) != run.run_id
        for record in records
    )


def report_needs_manual_action(context: dg.SensorEvaluationContext, run: dg.DagsterRun, why: str) -> None:
    """Say in the tick and on the page of `sweep_report` that a failed sweep needs manual action."""
    key = run.tags[PARTITION_TAG]
    sentence = f"The failed sweep of {key} will not be restarted automatically: {full_stop(why)} {next_step(key)}"
    context.log.error(sentence)
    context.instance.report_runless_asset_event(
        dg.AssetObservation(
            sweep_report.key,
            partition=key,
            description=sentence,
            metadata={"failed_run": dg.MetadataValue.dagster_run(run.run_id)},
        )
    )


def next_step(key: str) -> str:
    try:
        partition = Partition.parse(key)
    except LakegcError:
        return "Check the run's error."
    name = f"{partition.repository} {partition.mark_id}"
    return (
        f"Check the run's error and 'lakegc report {name}'. To resume the sweep: lakegc sweep {name}. If that is "
        f"refused, make a new mark: lakegc mark {partition.repository}."
    )
