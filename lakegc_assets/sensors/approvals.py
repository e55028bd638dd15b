"""The sensor that sweeps approved marks. It is off until it is turned on in Dagster's UI."""

# no `from __future__ import annotations` here: Dagster reads the annotations of schedules and sensors
import os

import dagster as dg

from lakegc_assets.assets.approval_events import MANUAL_EVENT_ADVICE, is_an_approval, report_advice
from lakegc_assets.assets.review import APPROVAL
from lakegc_assets.jobs import backup_and_sweep_job, sweep_job
from lakegc_assets.partitions import PARTITIONS, REPOSITORY_TAG
from spark_resources.errors import LakegcError
from spark_resources.host.user_folders import home_folder
from spark_resources.model import Partition
from spark_resources.settings import Settings

APPROVAL_TAG = "lakegc/approval"
"""The tag of runs that an approval triggered, with the storage id of its event in Dagster."""
APPROVALS_PER_TICK = 20


def requires_backup(repository: str) -> bool:
    """Whether a backup of a repository's expired objects has to be made before they are swept."""
    return Settings.load(os.environ, home_folder(), repository=repository).backup_to is not None


def last_requested(instance: dg.DagsterInstance) -> int | None:
    """The storage id of the last approval whose sweep was requested; None if there is none.

    A sensor without a cursor begins after it: Dagster keeps cursors by the name of the code location, so that one with
    a new name would request the sweeps of all earlier approvals again.
    """
    values = [value for _, values in instance.get_run_tags(tag_keys=[APPROVAL_TAG]) for value in values]
    return max((int(value) for value in values if value.isdecimal()), default=None)


@dg.sensor(
    jobs=[sweep_job, backup_and_sweep_job],
    minimum_interval_seconds=30,
    description="""Starts the sweep of each approved mark, once per approval, and of no other mark.

Approvals are given by the job 'approve' or by 'lakegc approve'; a manually reported event of sweep_approval
approves nothing, and the sensor says what to do instead. The sweep itself verifies the approval in the namespace
before anything is deleted. If a backup destination is set, a backup is made first. While this sensor is off,
sweeps start only manually; approvals given in the meantime are picked up when it is turned on.""",
)
def approved_sweeps(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    # oldest first, by storage id, so that none is skipped even if many arrive together
    last_id = int(context.cursor) if context.cursor else last_requested(context.instance)
    events = context.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=APPROVAL, after_storage_id=last_id), limit=APPROVALS_PER_TICK, ascending=True
    ).records
    if not events:
        return dg.SkipReason("No new approval.")
    requests, ignored = [], []
    for event in events:
        key = event.partition_key or ""
        if not is_an_approval(event):
            report_advice(context.instance, key)
            ignored.append(f"{key or 'an event without a partition'}: {MANUAL_EVENT_ADVICE}")
            continue
        try:
            partition = Partition.parse(key)
            job = backup_and_sweep_job if requires_backup(partition.repository) else sweep_job
        except LakegcError as error:
            ignored.append(str(error))
            continue
        tags = {REPOSITORY_TAG: partition.repository, APPROVAL_TAG: str(event.storage_id)}
        run_key = f"approval {event.storage_id}"
        requests.append(dg.RunRequest(run_key=run_key, partition_key=key, tags=tags, job_name=job.name))
    for sentence in ignored:
        context.log.error(sentence)
    return dg.SensorResult(
        run_requests=requests,
        # a partition may be unknown here if it was approved on another machine; its run reports any problem
        dynamic_partitions_requests=[PARTITIONS.build_add_request([str(request.partition_key) for request in requests])]
        if requests
        else [],
        skip_reason=None if requests else dg.SkipReason("; ".join(ignored)),
        cursor=str(events[-1].storage_id),
    )
