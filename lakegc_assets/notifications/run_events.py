"""Read from Dagster which notifications a finished run of lakegc gives rise to.

Only the events of the run itself are read: no lakeFS server, store or namespace has to be reachable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from lakegc_assets.notifications.messages import Notification, approval_waiting, brakes_tripped, run_failed, swept
from lakegc_assets.sweep.metadata import LATE
from spark_resources import errors
from spark_resources.errors import FinishedWithFailures, LakegcError
from spark_resources.identifiers import Partition

PARTITION_TAG = "dagster/partition"
ASSET_JOB = "__ASSET_JOB"
"""How the names of jobs begin with which Dagster materializes assets that were selected in the UI."""
ASSETS = frozenset(
    {
        *("namespace_slices", "uncommitted_addresses", "retained_commits", "committed_addresses"),
        *("expired_set", "backup", "sweep_report"),
    }
)
JOBS = frozenset({"mark", "sweep", "back_up", "back_up_and_sweep"})
_EVENT_TYPES = {
    dg.DagsterEventType.ASSET_MATERIALIZATION,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.RUN_FAILURE,
}


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
    tripped: list[str] = []
    marked: tuple[datetime, int, int] | None = None
    failure, failed_at = "", None
    for entry in entries:
        event, time = entry.dagster_event, datetime.fromtimestamp(entry.timestamp, UTC)
        if event is None:
            continue
        if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION:
            metadata = _plain(event.step_materialization_data.materialization.metadata)
            asset = event.step_materialization_data.materialization.asset_key.to_user_string()
            if asset == "expired_set":
                marked = time, int(metadata.get("expired", 0)), int(metadata.get("expired_bytes", 0))
            elif asset == "sweep_report":
                yield _swept(run, partition, time, metadata)
        elif event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            if check.check_name.startswith("brake_") and not check.passed:
                tripped.append(check.check_name.removeprefix("brake_"))
        elif event.event_type is dg.DagsterEventType.STEP_FAILURE:
            user_data = event.step_failure_data.user_failure_data
            metadata = _plain(user_data.metadata if user_data else {})
            failure = str(metadata.get("kind", ""))
            if failure == FinishedWithFailures.__name__ and LATE in metadata:
                yield _swept(run, partition, time, metadata)
        else:
            failed_at = time
    if marked is not None:
        time, objects, expired_bytes = marked
        if objects:
            yield approval_waiting(partition, time, run.run_id, objects=objects, expired_bytes=expired_bytes)
        if tripped:
            yield brakes_tripped(
                partition, time, run.run_id, names=sorted(tripped), objects=objects, expired_bytes=expired_bytes
            )
    if failed_at is not None and failure != FinishedWithFailures.__name__:
        known = failure if hasattr(errors, failure) else ""
        yield run_failed(partition, failed_at, run.run_id, job=_job(run), error=known)


def _swept(run: dg.DagsterRun, partition: Partition, time: datetime, metadata: Mapping[str, Any]) -> Notification:
    objects, sizes = (
        {
            name.removeprefix(prefix): int(value)
            for name, value in metadata.items()
            if name.startswith(prefix) and isinstance(value, int)
        }
        for prefix in ("objects.", "bytes.")
    )
    late = int(metadata.get(LATE, 0))
    return swept(partition, time, run.run_id, objects=objects, sizes=sizes, late=late)


def _job(run: dg.DagsterRun) -> str:
    """The job's name; for selected assets, their names."""
    if not run.job_name.startswith(ASSET_JOB):
        return run.job_name
    return ", ".join(sorted(key.to_user_string() for key in run.asset_selection or ()))


def _plain(metadata: Mapping[str, dg.MetadataValue[Any]]) -> dict[str, Any]:
    return {name: value.value for name, value in metadata.items()}
