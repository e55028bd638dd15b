"""The sensor that marks new repositories. It is off until it is turned on in Dagster's UI."""

# no `from __future__ import annotations` here: Dagster reads the annotations of schedules and sensors
import json
import os
from datetime import UTC, datetime

import dagster as dg

from lakegc_assets.jobs import mark_job, mark_request
from lakegc_assets.mark.repository_selection import list_repositories, no_match_message, select_repositories
from lakegc_assets.partitions import PARTITIONS, repository_key
from lakegc_assets.sensors.tick_budget import client_for_tick
from spark_resources.errors import LakegcError
from spark_resources.host.user_folders import home_folder
from spark_resources.identifiers import server_of
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.model import default_mark_id
from spark_resources.settings import Settings

MAX_NEW_PER_TICK = 20
"""The maximum number of new repositories per tick of the sensor. The others follow on later ticks."""


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
        settings, client = Settings.load(os.environ, home_folder()), client_for_tick(lakefs)
        repositories, failures = list_repositories(client)
        listed = {repository_key(repository): repository for repository in select_repositories(repositories, settings)}
    except LakegcError as error:
        return dg.SkipReason(str(error))
    known = set(json.loads(context.cursor)) if context.cursor else set()
    new = {key: repository for key, repository in listed.items() if key not in known}
    if not new:
        nothing = (
            f"No new repositories among the {len(listed)} selected." if listed else no_match_message(client, settings)
        )
        return dg.SkipReason(" ".join([nothing, *failures.values()]))
    unlisted = {key for key in known if server_of(key.partition("@")[0]) in failures}
    to_mark = dict(list(new.items())[:MAX_NEW_PER_TICK])
    mark_id = default_mark_id(now)
    requests = [mark_request(repository, mark_id, run_key=key, tags={}) for key, repository in to_mark.items()]
    return dg.SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=[
            PARTITIONS.build_add_request([str(request.partition_key) for request in requests])
        ],
        # a deleted repository is forgotten: a later one of the same name counts as new
        cursor=json.dumps(sorted((known & listed.keys()) | to_mark.keys() | unlisted)),
    )
