"""Marks that nobody has to ask for: a sensor for repositories that are new, a schedule for all of them.

Both are off until somebody turns them on in Dagster's UI. They ask the server for its repositories, request one run
each, and leave it to that run to fail: what is wrong with one repository never reaches another one.
"""

# no `from __future__ import annotations` here: Dagster reads the annotations of schedules and sensors
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from fnmatch import fnmatchcase

import dagster as dg

from lakegc_assets.approve_job import APPROVAL, BY_HAND, advise, give_approval, is_an_approval
from lakegc_assets.assets import MARK_ASSETS, PARTITIONS, told
from lakegc_assets.backup_assets import backup
from lakegc_assets.marking.resource import refuse_read_only
from lakegc_assets.marking.run import find_target
from lakegc_assets.sweep_assets import sweep_report
from spark_resources.errors import LakegcError, WrongUsage
from spark_resources.lakefs import LakeFS, Repository
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.lease import current_holder
from spark_resources.model import Partition, default_mark_id
from spark_resources.settings import DEFAULT_MARK_CRON, Settings
from spark_resources.user_folders import home_folder

REPOSITORY_TAG = "lakegc/repository"
"""On every run, so that Dagster's queue can keep runs of one repository apart."""
APPROVAL_TAG = "lakegc/approval"
"""On runs that an approval asked for: the number of Dagster's record of it."""
TROUBLE_TAG = "lakegc/trouble"
"""On the one run that says what is wrong with a repository: what was wrong with it before the run began."""
MOST_AT_ONCE = 20
"""New repositories that one look of the sensor has marked; the others come with the next looks."""
LOOK_S = 30.0
"""How long the schedule looks for trouble; a repository that hasn't answered by then is simply tried."""


def repository_tag(partition_key: str) -> dict[str, str]:
    """The tag of a partition's runs; none for a key that nobody can read, of which the run itself says so."""
    try:
        return {REPOSITORY_TAG: Partition.parse(partition_key).repository}
    except LakegcError:
        return {}


TAGGED = dg.PartitionedConfig(
    PARTITIONS, run_config_for_partition_key_fn=lambda _: {}, tags_for_partition_key_fn=repository_tag
)
"""So that runs which a person launches in the UI carry the tag, too."""

mark_job = dg.define_asset_job(
    "mark",
    selection=dg.AssetSelection.assets(*MARK_ASSETS),
    config=TAGGED,
    executor_def=dg.in_process_executor,
    description="""Finds out what may go in one lakeFS repository, and why. **It deletes nothing.**

To make a mark: **Materialize all**, then add a partition `repository|mark_id`, for example `lake|20261121T085000Z`: the
repository's id and a name for this mark, by custom the time in UTC. The five assets run one after the other in one
process. A mark that stopped can be gone on with from the asset that failed; a finished one is never changed, so the
next one needs a new name.

Its options are those of the first asset. To give some, hold Shift while clicking *Materialize all*, for example:

    ops:
      namespace_slices:
        config:
          min_age: 48h
          scope: COMMITTED

All of them, with what each means: *scope*, *min_age*, *allow_young*, *accept_missing*, *inventory*, *inventory_taken*,
*since* and *clean* on the page of *namespace_slices*, under *Config*.""",
)

APPROVE_TEMPLATE = {"ops": {give_approval.name: {"config": {"by": "", "digest": "", "release": {}}}}}


@dg.job(
    name="approve",
    partitions_def=PARTITIONS,
    config=dg.PartitionedConfig(
        PARTITIONS,
        run_config_for_partition_key_fn=lambda _: APPROVE_TEMPLATE,
        tags_for_partition_key_fn=repository_tag,
    ),
    executor_def=dg.in_process_executor,
    description="""Approves one expired set, so that a sweep may delete it. **It deletes nothing itself.**

On the *Launchpad*: choose the partition `repository|mark_id`, and fill in who you are (`by`) and the digest of the set
that you looked at (`digest`, at least its first 12 characters; *expired_set* shows it). A brake that has tripped is
released by its name, with the reason: `release: {share: the old experiments were deleted on purpose}`. What speaks
against the approval is said at once by a failed run, and then nothing is approved.""",
)
def approve_job() -> None:
    give_approval()


sweep_job = dg.define_asset_job(
    "sweep",
    selection=dg.AssetSelection.assets(sweep_report),
    config=TAGGED,
    executor_def=dg.in_process_executor,
    description="""Deletes what a person approved, and is still garbage. **This is the job that deletes.**

It takes one partition, `repository|mark_id`, whose mark was approved (see *sweep_approval*), proves everything again,
and reports on every object. A sweep that was killed goes on where it was when it is launched again.""",
)

backup_job = dg.define_asset_job(
    "back_up",
    selection=dg.AssetSelection.assets(backup),
    config=TAGGED,
    executor_def=dg.in_process_executor,
    description="""Copies what one finished mark holds to another bucket, container or folder. **It deletes nothing.**

It takes one partition, `repository|mark_id`; where to is set by LAKEGC_BACKUP_TO, or by `to` in its config. A backup
that was killed goes on where it was when it is launched again.""",
)

careful_sweep_job = dg.define_asset_job(
    "back_up_and_sweep",
    selection=dg.AssetSelection.assets(backup, sweep_report),
    config=TAGGED,
    executor_def=dg.in_process_executor,
    description="""Copies what a person approved to where LAKEGC_BACKUP_TO says, then sweeps it. **This job deletes,
too**, and nothing that isn't in the backup.""",
)


# --- which repositories ---------------------------------------------------------------------------------------------


def chosen(repositories: Iterable[Repository], settings: Settings) -> list[Repository]:
    """Those whose id matches a pattern to include and none to exclude, by id."""

    def matches(repository: Repository, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(repository.id, pattern) for pattern in patterns)

    found = (each for each in repositories if matches(each, settings.repositories_include))
    return sorted((each for each in found if not matches(each, settings.repositories_exclude)), key=lambda one: one.id)


def none_chosen(lakefs: LakeFS, settings: Settings) -> str:
    without = ", ".join(settings.repositories_exclude) or "nothing"
    return (
        f"No repository of {lakefs.where} that these credentials may list matches "
        f"{', '.join(settings.repositories_include)} without {without}. The patterns are LAKEGC_REPOSITORIES_INCLUDE "
        "and LAKEGC_REPOSITORIES_EXCLUDE."
    )


def identity(repository: Repository) -> str:
    """Tells a repository from a later one of the same name."""
    return f"{repository.id}@{repository.created.isoformat()}"


def troubles(lakefs: LakeFS, repositories: Sequence[Repository], settings: Settings) -> dict[str, str]:
    """What keeps repositories from being marked, by id; all are asked side by side, so a slow one delays none."""
    executor = ThreadPoolExecutor(max_workers=8, thread_name_prefix="lakegc-look")
    looks = {executor.submit(trouble, lakefs, each, settings): each.id for each in repositories}
    done, _ = wait(looks, timeout=LOOK_S)
    executor.shutdown(wait=False, cancel_futures=True)
    found = {looks[look]: look.result() for look in done}
    return {name: sentence for name, sentence in found.items() if sentence is not None}


def trouble(lakefs: LakeFS, repository: Repository, settings: Settings) -> str | None:
    """What a mark of the repository would stop at within its first second, or None: rights, rules and the store."""
    try:
        refuse_read_only(repository)
        target = find_target(lakefs, repository.id, settings)
        lakefs.rules(repository.id)
        lakefs.branches(repository.id)
        current_holder(target.place.store())
    except LakegcError as error:
        return str(error)
    return None


def said_before(instance: dg.DagsterInstance, schedule: str, repository: str, sentence: str) -> bool:
    """Whether the schedule's newest run of the repository was for this trouble, and didn't succeed all the same."""
    tags = {"dagster/schedule_name": schedule, REPOSITORY_TAG: repository}
    newest = instance.get_run_records(dg.RunsFilter(tags=tags), limit=1)
    return any(
        record.dagster_run.tags.get(TROUBLE_TAG) == sentence and not record.dagster_run.is_success for record in newest
    )


def run_request(repository: Repository, mark_id: str, run_key: str, tags: Mapping[str, str]) -> dg.RunRequest:
    """The run of the job for one mark. Its partition has to be added by whoever asks for it."""
    return dg.RunRequest(
        run_key=run_key,
        partition_key=str(Partition.of(repository.id, mark_id)),
        tags={REPOSITORY_TAG: repository.id, **tags},
    )


# --- new ones -------------------------------------------------------------------------------------------------------


@dg.sensor(
    job=mark_job,
    minimum_interval_seconds=60,
    description="""Looks every minute for repositories of the lakeFS server, and marks each one once, when it is
seen for the first time. When turned on, that is all there are, twenty at a time.

Which ones is set by shell patterns: LAKEGC_REPOSITORIES_INCLUDE (default *) and LAKEGC_REPOSITORIES_EXCLUDE
(default none), for example lake-*,archive. A repository that can't be marked has one failed run that says why.""",
)
def new_repositories(context: dg.SensorEvaluationContext, lakefs: LakeFSResource) -> dg.SensorResult | dg.SkipReason:
    now = datetime.now(UTC)
    try:
        settings, client = Settings.load(os.environ, home_folder()), lakefs.client()
        there = {identity(each): each for each in chosen(client.repositories(), settings)}
    except LakegcError as error:
        return dg.SkipReason(str(error))
    known = set(json.loads(context.cursor)) if context.cursor else set()
    new = {key: each for key, each in there.items() if key not in known}
    if not new:
        return dg.SkipReason(
            f"{len(there)} repositories, none of them new." if there else none_chosen(client, settings)
        )
    now_marked = dict(list(new.items())[:MOST_AT_ONCE])
    mark_id = default_mark_id(now)
    requests = [run_request(each, mark_id, run_key=key, tags={}) for key, each in now_marked.items()]
    return dg.SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=[PARTITIONS.build_add_request([str(each.partition_key) for each in requests])],
        # a repository that is gone is forgotten: another one of its name is new again
        cursor=json.dumps(sorted((known & there.keys()) | now_marked.keys())),
    )


# --- all of them ----------------------------------------------------------------------------------------------------

_SCHEDULE = "mark_repositories"


def requests_for_all(
    context: dg.ScheduleEvaluationContext, lakefs: LakeFSResource
) -> list[dg.RunRequest] | dg.SkipReason:
    """Request a mark of every chosen repository; its id is the scheduled time, so the same tick asks for the same."""
    with told():
        settings, client = Settings.load(os.environ, home_folder()), lakefs.client()
        repositories = chosen(client.repositories(), settings)
    if not repositories:
        return dg.SkipReason(none_chosen(client, settings))
    wrong = troubles(client, repositories, settings)
    known = {name for name, what in wrong.items() if said_before(context.instance, _SCHEDULE, name, what)}
    mark_id = default_mark_id(context.scheduled_execution_time)
    requests = [
        run_request(each, mark_id, f"{each.id}|{mark_id}", {TROUBLE_TAG: wrong[each.id]} if each.id in wrong else {})
        for each in repositories
        if each.id not in known
    ]
    if not requests:
        names = ", ".join(sorted(known))
        return dg.SkipReason(f"Left out until they can be marked, as the newest run of each says why not: {names}.")
    context.instance.add_dynamic_partitions(str(PARTITIONS.name), [str(each.partition_key) for each in requests])
    return requests


def scheduled(cron: str) -> dg.ScheduleDefinition:
    """The schedule at the times of a cron schedule, in UTC. Raises `WrongUsage` for one that nobody can read."""
    make = dg.schedule(
        cron,
        name=_SCHEDULE,
        job=mark_job,
        execution_timezone="UTC",
        description="""Marks all repositories of the lakeFS server at the times of LAKEGC_MARK_CRON (UTC, by default
every night at three), each under the scheduled time as its mark id. A full mark that is due (LAKEGC_CLEAN_EVERY) is
made by it, too, also where every other mark of the repository names its base with --since.

Which ones is set by shell patterns: LAKEGC_REPOSITORIES_INCLUDE (default *) and LAKEGC_REPOSITORIES_EXCLUDE
(default none), for example lake-*,archive. A repository that can't be marked, because it is read-only or rights are
lacking, has one failed run that says why, and is then left out until that has changed. The others don't wait.""",
    )
    try:
        return make(requests_for_all)
    except dg.DagsterInvalidDefinitionError:
        raise WrongUsage(f"LAKEGC_MARK_CRON is '{cron}': expected a cron schedule in UTC, such as 0 3 * * *") from None


# --- what was approved ----------------------------------------------------------------------------------------------

APPROVALS_A_TICK = 20


@dg.sensor(
    jobs=[sweep_job, careful_sweep_job],
    minimum_interval_seconds=30,
    description="""Starts the sweep of each mark that a person approved, once for every approval, and of no other mark.

An approval is given by the job *approve* or by 'lakegc approve'; an event of sweep_approval that was reported by hand
approves nothing, and is answered with what to do instead. The sweep itself verifies the approval in the namespace
before anything is deleted. Where LAKEGC_BACKUP_TO says where backups go, a backup is made first. While this
sensor is off, nothing is swept but by hand; approvals that are given meanwhile are seen when it is turned on.""",
)
def approved_sweeps(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    # the oldest ones first, by the number of their records: none is left out, however many came at once
    seen = int(context.cursor) if context.cursor else None
    events = context.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=APPROVAL, after_storage_id=seen), limit=APPROVALS_A_TICK, ascending=True
    ).records
    if not events:
        return dg.SkipReason("No new approval.")
    requests, unfollowed = [], []
    job = careful_sweep_job if os.environ.get("LAKEGC_BACKUP_TO", "").strip() else sweep_job
    for event in events:
        key = event.partition_key or ""
        if not is_an_approval(event):
            advise(context.instance, key)
            unfollowed.append(f"{key or 'an event without a partition'}: {BY_HAND}")
            continue
        try:
            partition = Partition.parse(key)
        except LakegcError as error:
            unfollowed.append(str(error))
            continue
        tags = {REPOSITORY_TAG: partition.repository, APPROVAL_TAG: str(event.storage_id)}
        run_key = f"approval {event.storage_id}"
        requests.append(dg.RunRequest(run_key=run_key, partition_key=key, tags=tags, job_name=job.name))
    for sentence in unfollowed:
        context.log.error(sentence)
    return dg.SensorResult(
        run_requests=requests,
        # a partition that nobody knows here, such as one approved on another machine, is added: its run says what it is
        dynamic_partitions_requests=[PARTITIONS.build_add_request([str(one.partition_key) for one in requests])]
        if requests
        else [],
        skip_reason=None if requests else dg.SkipReason("; ".join(unfollowed)),
        cursor=str(events[-1].storage_id),
    )


# the one setting that is needed before anything runs; the others are read, and complained about, by each run
mark_repositories = scheduled(os.environ.get("LAKEGC_MARK_CRON", "").strip() or DEFAULT_MARK_CRON)
