"""Derive the notifications about a finished run of lakegc from its events in Dagster.

Only the events of the run itself are read: no lakeFS server, store or namespace has to be reachable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from lakegc_assets.notifications.messages import Notification, approval_waiting, brakes_tripped, run_failed, swept
from lakegc_assets.partitions import PARTITION_TAG
from lakegc_assets.sweep.metadata import LATE, OBJECTS
from spark_resources import errors
from spark_resources.errors import LakegcError
from spark_resources.identifiers import Partition

ASSET_JOB = "__ASSET_JOB"
"""The prefix of the names of jobs with which Dagster materializes assets that were selected in the UI."""
ASSETS = frozenset(
    {
        *("namespace_slices", "uncommitted_addresses", "retained_commits", "committed_addresses"),
        *("expired_set", "backup", "sweep_report"),
    }
)
BRAKE_CHECK = "brake_"
"""The prefix of the names of brake checks."""
JOBS = frozenset({"mark", "sweep", "back_up", "back_up_and_sweep"})
_EVENT_TYPES = {
    dg.DagsterEventType.ASSET_MATERIALIZATION,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.RUN_FAILURE,
}


class _LoggedEvent:
    """An event in a run's log: its time, and its metadata as plain values."""

    def __init__(self, entry: dg.EventLogEntry, metadata: Mapping[str, dg.MetadataValue[Any]]) -> None:
        self.time = datetime.fromtimestamp(entry.timestamp, UTC)
        self.metadata = {name: value.value for name, value in metadata.items()}


def notifications_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[Notification]:
    """The notifications of a finished run; none for a run of another project, or without a valid partition."""
    if not is_ours(run):
        return []
    try:
        partition = Partition.parse(run.tags.get(PARTITION_TAG, ""))
    except LakegcError:
        return []
    logs = instance.get_records_for_run(run.run_id, of_type=_EVENT_TYPES).records
    return list(_notifications(run, partition, [record.event_log_entry for record in logs]))


def is_ours(run: dg.DagsterRun) -> bool:
    """Whether this is a run that marks, backs up or sweeps. Other projects may use the same Dagster instance."""
    if run.job_name.startswith(ASSET_JOB):
        selected = run.asset_selection or frozenset()
        return bool(selected) and all(key.to_user_string() in ASSETS for key in selected)
    return run.job_name in JOBS


def _notifications(
    run: dg.DagsterRun, partition: Partition, entries: Sequence[dg.EventLogEntry]
) -> Iterator[Notification]:
    if (mark := _materialized(entries, "expired_set")) is not None:
        counts = {
            "objects": int(mark.metadata.get("expired", 0)),
            "expired_bytes": int(mark.metadata.get("expired_bytes", 0)),
        }
        if counts["objects"]:
            yield approval_waiting(partition, mark.time, run.run_id, **counts)
        if tripped := sorted(_tripped_brakes(entries)):
            yield brakes_tripped(partition, mark.time, run.run_id, names=tripped, **counts)
    failure = _failure(entries)
    is_sweep_with_failures = failure is not None and is_report(failure.metadata)
    sweep = failure if is_sweep_with_failures else _materialized(entries, "sweep_report")
    if sweep is not None and is_report(sweep.metadata):
        objects, sizes = (_counts(sweep.metadata, prefix) for prefix in (OBJECTS, "bytes."))
        late = int(sweep.metadata.get(LATE, 0))
        yield swept(partition, sweep.time, run.run_id, objects=objects, sizes=sizes, late=late)
    if failure is not None and not is_sweep_with_failures:
        kind = str(failure.metadata.get("kind", ""))
        known = kind if hasattr(errors, kind) else ""
        yield run_failed(partition, failure.time, run.run_id, job=_job(run), error=known)


def is_report(metadata: Mapping[str, Any]) -> bool:
    """Whether this is the metadata of a sweep's report."""
    return any(name.startswith(OBJECTS) for name in metadata)


def _materialized(entries: Sequence[dg.EventLogEntry], asset: str) -> _LoggedEvent | None:
    """The materialization of an asset in this run; None if there is none."""
    for entry, event in _events(entries, dg.DagsterEventType.ASSET_MATERIALIZATION):
        materialization = event.step_materialization_data.materialization
        if materialization.asset_key.to_user_string() == asset:
            return _LoggedEvent(entry, materialization.metadata)
    return None


def _tripped_brakes(entries: Sequence[dg.EventLogEntry]) -> Iterator[str]:
    for _, event in _events(entries, dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        check = event.asset_check_evaluation_data
        if check.check_name.startswith(BRAKE_CHECK) and not check.passed:
            yield check.check_name.removeprefix(BRAKE_CHECK)


def _failure(entries: Sequence[dg.EventLogEntry]) -> _LoggedEvent | None:
    """The failure of the run, with the metadata of the step that failed; None if it succeeded."""
    metadata: Mapping[str, dg.MetadataValue[Any]] = {}
    for _, event in _events(entries, dg.DagsterEventType.STEP_FAILURE):
        if (user_data := event.step_failure_data.user_failure_data) is not None:
            metadata = user_data.metadata
    for entry, _ in _events(entries, dg.DagsterEventType.RUN_FAILURE):
        return _LoggedEvent(entry, metadata)
    return None


def _events(
    entries: Sequence[dg.EventLogEntry], kind: dg.DagsterEventType
) -> Iterator[tuple[dg.EventLogEntry, dg.DagsterEvent]]:
    for entry in entries:
        if entry.dagster_event is not None and entry.dagster_event.event_type is kind:
            yield entry, entry.dagster_event


def _counts(metadata: Mapping[str, Any], prefix: str) -> dict[str, int]:
    """The entries whose names begin with a prefix, by the rest of their names: counts by outcome."""
    return {name.removeprefix(prefix): int(value) for name, value in metadata.items() if name.startswith(prefix)}


def _job(run: dg.DagsterRun) -> str:
    """The job's name; for selected assets, their names."""
    if not run.job_name.startswith(ASSET_JOB):
        return run.job_name
    return ", ".join(sorted(key.to_user_string() for key in run.asset_selection or ()))
