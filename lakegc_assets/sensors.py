"""Sensors that mark new repositories and sweep approved marks.

Both are off until they are turned on in Dagster's UI.
"""

# no `from __future__ import annotations` here: Dagster reads the annotations of schedules and sensors
import json
import os
from datetime import UTC, datetime

import dagster as dg

from lakegc_assets.assets.approval_events import MANUAL_EVENT_ADVICE, is_an_approval, report_advice
from lakegc_assets.assets.review import APPROVAL
from lakegc_assets.jobs import backup_and_sweep_job, mark_job, mark_request, sweep_job
from lakegc_assets.mark.repository_selection import no_match_message, select_repositories
from lakegc_assets.partitions import PARTITIONS, REPOSITORY_TAG
from spark_resources.errors import LakegcError
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import Repository
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.model import Partition, default_mark_id
from spark_resources.settings import Settings

APPROVAL_TAG = "lakegc/approval"
"""The tag of runs that an approval triggered, with the storage id of its event in Dagster."""
MAX_NEW_PER_TICK = 20
"""The maximum number of new repositories per tick of the sensor. The others follow on later ticks."""


def repository_key(repository: Repository) -> str:
    """A key that distinguishes a repository from a later one of the same name."""
    return f"{repository.id}@{repository.created.isoformat()}"


@dg.sensor(
    job=mark_job,
    minimum_interval_seconds=60,
    description="""Checks the lakeFS server for new repositories every minute, and marks each one once, when it is
seen for the first time. When the sensor is first turned on, all repositories count as new; it starts
at most twenty marks per tick.

Repositories are selected by shell patterns: LAKEGC_REPOSITORIES_INCLUDE (default *) and LAKEGC_REPOSITORIES_EXCLUDE
(default none), for example lake-*,archive. A repository that can't be marked has one failed run that says why.""",
)
def new_repositories(context: dg.SensorEvaluationContext, lakefs: LakeFSResource) -> dg.SensorResult | dg.SkipReason:
    now = datetime.now(UTC)
    try:
        settings, client = Settings.load(os.environ, home_folder()), lakefs.client()
        listed = {
            repository_key(repository): repository
            for repository in select_repositories(client.repositories(), settings)
        }
    except LakegcError as error:
        return dg.SkipReason(str(error))
    known = set(json.loads(context.cursor)) if context.cursor else set()
    new = {key: repository for key, repository in listed.items() if key not in known}
    if not new:
        return dg.SkipReason(
            f"No new repositories among the {len(listed)} selected." if listed else no_match_message(client, settings)
        )
    to_mark = dict(list(new.items())[:MAX_NEW_PER_TICK])
    mark_id = default_mark_id(now)
    requests = [mark_request(repository, mark_id, run_key=key, tags={}) for key, repository in to_mark.items()]
    return dg.SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=[
            PARTITIONS.build_add_request([str(request.partition_key) for request in requests])
        ],
        # a deleted repository is forgotten: a later one of the same name counts as new
        cursor=json.dumps(sorted((known & listed.keys()) | to_mark.keys())),
    )


APPROVALS_PER_TICK = 20


def has_backup(repository: str) -> bool:
    """Whether a backup of a repository's expired objects has to be made before they are swept."""
    return Settings.load(os.environ, home_folder(), repository=repository).backup_to is not None


@dg.sensor(
    jobs=[sweep_job, backup_and_sweep_job],
    minimum_interval_seconds=30,
    description="""Starts the sweep of each approved mark, once per approval, and of no other mark.

Approvals are given by the job *approve* or by 'lakegc approve'; a manually reported event of sweep_approval
approves nothing, and the sensor says what to do instead. The sweep itself verifies the approval in the namespace
before anything is deleted. If a backup destination is set, a backup is made first. While this sensor is off,
sweeps start only manually; approvals given meanwhile are picked up when it is turned on.""",
)
def approved_sweeps(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    # oldest first, by storage id, so that none is skipped even if many arrive together
    last_id = int(context.cursor) if context.cursor else None
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
            job = backup_and_sweep_job if has_backup(partition.repository) else sweep_job
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
