"""The schedule that marks each selected repository at its own times. It is off until it is turned on in Dagster's UI.

A problem with one repository never affects another: each is marked in a run of its own.
"""

# no `from __future__ import annotations` here: Dagster reads the annotations of schedules and sensors
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg
from cronsim import CronSim

from lakegc_assets.assets.results import reporting_failures
from lakegc_assets.dead_runs import possibly_dead_runs, report_dead_run
from lakegc_assets.jobs import backup_and_sweep_job, mark_job, mark_request, sweep_job
from lakegc_assets.mark.context import find_target
from lakegc_assets.mark.preconditions import refuse_read_only
from lakegc_assets.mark.repository_selection import list_repositories, no_match_message, select_repositories
from lakegc_assets.partitions import CREATED_TAG, PARTITIONS, REPOSITORY_TAG, repository_key
from spark_resources.errors import LakegcError, WrongUsage, full_stop
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import LakeFS, Repository
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.mark_store.lease import Holder, current_holder
from spark_resources.model import Partition, default_mark_id
from spark_resources.settings import DEFAULT_MARK_CRON, Settings

PREFLIGHT_TAG = "lakegc/trouble"
"""A tag with the problem that the preflight check found in a repository, on the one run that reports it."""
PREFLIGHT_TIMEOUT_S = 30.0
"""The time limit of the preflight check. A repository that isn't checked by then gets a run anyway."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found before a mark: the problem that would immediately stop it, and who holds the lease; each is
    None if there is none. A repository that could not be checked in time has neither."""

    problem: str | None = None
    holder: Holder | None = None


LISTING_RETRY_S = 5.0
"""How long a tick retries the listing of a server's repositories: Dagster ends a tick after a minute, and the
repositories of the other servers must be marked."""


def preflight_all(lakefs: LakeFS, repositories: Sequence[Repository]) -> dict[str, Preflight]:
    """The preflight check of each repository, by its id. Repositories are checked in parallel, so none delays another;
    those that aren't checked within PREFLIGHT_TIMEOUT_S are left out."""
    executor = ThreadPoolExecutor(max_workers=8, thread_name_prefix="lakegc-preflight")
    checks = {executor.submit(preflight, lakefs, repository): repository.id for repository in repositories}
    done, _ = wait(checks, timeout=PREFLIGHT_TIMEOUT_S)
    executor.shutdown(wait=False, cancel_futures=True)
    return {checks[check]: check.result() for check in done}


def preflight(lakefs: LakeFS, repository: Repository) -> Preflight:
    """Check permissions, rules, store and lease of a repository."""
    try:
        refuse_read_only(repository)
        settings = Settings.load(os.environ, home_folder(), repository=repository.id)
        target = find_target(lakefs, repository.id, settings)
        lakefs.rules(repository.id)
        lakefs.branches(repository.id)
        return Preflight(holder=current_holder(target.place.store()))
    except LakegcError as error:
        return Preflight(problem=str(error))


def was_reported(instance: dg.DagsterInstance, repository: Repository, problem: str) -> bool:
    """Whether the schedule's newest run of the repository is tagged with this problem and hasn't succeeded."""
    tags = {
        "dagster/schedule_name": _SCHEDULE,
        REPOSITORY_TAG: repository.id,
        CREATED_TAG: repository.created.isoformat(),
    }
    newest = instance.get_run_records(dg.RunsFilter(tags=tags), limit=1)
    return any(
        record.dagster_run.tags.get(PREFLIGHT_TAG) == problem and not record.dagster_run.is_success for record in newest
    )


def queued_runs(instance: dg.DagsterInstance) -> dict[str, dg.DagsterRun]:
    """A queued mark or sweep of each repository that has one, by the repository's id."""
    filters = dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])
    runs = (run for run in instance.get_runs(filters) if run.job_name in MARKS_AND_SWEEPS)
    return {run.tags[REPOSITORY_TAG]: run for run in runs if REPOSITORY_TAG in run.tags}


def why_busy(repository: Repository, holder: Holder | None, queued: dg.DagsterRun | None) -> str | None:
    """Why a repository is skipped: a mark or sweep is running, or waiting in Dagster's queue. None if it isn't skipped.

    That a run is shown as started doesn't count: the lease says whether it is alive.
    """
    if holder is not None:
        return (
            f"{repository.id} is skipped: {holder.who} is still working on mark {holder.mark_id}, and holds "
            f"the lease until {holder.until:%H:%M:%S} UTC."
        )
    if queued is not None:
        return f"{repository.id} is skipped: run {queued.run_id} ({queued.job_name}) is still queued."
    return None


_SCHEDULE = "mark_repositories"
MARKS_AND_SWEEPS = (mark_job.name, sweep_job.name, backup_and_sweep_job.name)


def requests_for_due_repositories(
    context: dg.ScheduleEvaluationContext, lakefs: LakeFSResource
) -> list[dg.RunRequest] | dg.SkipReason:
    """Requests to mark the repositories whose cron schedule includes this time; if there are none, the reason why. Adds
    the partitions of the requested marks to Dagster.

    A repository is skipped if its previous mark or sweep isn't finished, or if its newest run already reported the
    problem that prevents marks. The mark id is the scheduled time, so that a repeated tick requests the same runs; the
    partitions say which those are.
    """
    with reporting_failures():
        settings, client = Settings.load(os.environ, home_folder()), lakefs.client()
        listing_client = lakefs.client(retry_total_s=min(settings.retry_total_s, LISTING_RETRY_S))
        listed, failures = list_repositories(listing_client)
    selected = select_repositories(listed, settings)
    if not selected and not failures:
        return dg.SkipReason(no_match_message(client, settings))
    time, instance = context.scheduled_execution_time, context.instance
    due, skipped = due_repositories(selected, time)
    skipped = [*failures.values(), *skipped]
    if not due and not skipped:
        return dg.SkipReason(f"No repository is scheduled for {time:%Y-%m-%d %H:%M} UTC.")
    mark_id, checked = default_mark_id(time), preflight_all(client, due)
    problems = {name: result.problem for name, result in checked.items() if result.problem is not None}
    requested_before = [repository for repository in due if has_partition(instance, repository, mark_id)]
    if requested_before:
        to_mark = requested_before
    else:
        report_dead_runs(context, {name for name, result in checked.items() if result == Preflight()})
        queued, to_mark = queued_runs(instance), []
        for repository in due:
            name = repository.id
            why = why_busy(repository, checked.get(name, Preflight()).holder, queued.get(name))
            if why is None and name in problems and was_reported(instance, repository, problems[name]):
                why = f"{name} is skipped until it can be marked. Its newest run gives the reason."
            if why is None:
                to_mark.append(repository)
            else:
                skipped.append(why)
    for sentence in skipped:
        context.log.warning(sentence)
    if not to_mark:
        return dg.SkipReason(" ".join(skipped))
    requests = [
        mark_request(
            repository,
            mark_id,
            f"{repository_key(repository)}|{mark_id}",
            {PREFLIGHT_TAG: problems[repository.id]} if repository.id in problems else {},
        )
        for repository in to_mark
    ]
    instance.add_dynamic_partitions(str(PARTITIONS.name), [str(request.partition_key) for request in requests])
    return requests


def has_partition(instance: dg.DagsterInstance, repository: Repository, mark_id: str) -> bool:
    keys = Partition.of(repository.id, mark_id).keys
    return any(instance.has_dynamic_partition(str(PARTITIONS.name), key) for key in keys)


def report_dead_runs(context: dg.ScheduleEvaluationContext, without_lease: Collection[str]) -> None:
    """Record dead runs of these repositories as failed, because they would hold back the new ones in the queue."""
    for run, repository in list(possibly_dead_runs(context.instance, now=datetime.now(UTC))):
        if repository in without_lease:
            context.log.warning(report_dead_run(context.instance, run, repository))


def due_repositories(selected: Sequence[Repository], time: datetime) -> tuple[list[Repository], list[str]]:
    """The repositories whose cron schedule includes this time, and a sentence for each with invalid settings."""
    due, invalid = [], []
    for repository in selected:
        try:
            if is_due(repository.id, time):
                due.append(repository)
        except LakegcError as error:
            invalid.append(f"{repository.id} is skipped: {full_stop(error)}")
    return due, invalid


def is_due(repository: str, time: datetime) -> bool:
    """Whether the cron schedule of a repository includes this time. Raises `WrongUsage` for invalid settings."""
    cron = Settings.load(os.environ, home_folder(), repository=repository).mark_cron
    minute = time.astimezone(UTC).replace(second=0, microsecond=0)
    return next(CronSim(cron, minute - timedelta(minutes=1)), None) == minute


def configured_crons(environ: Mapping[str, str]) -> list[str]:
    """The cron schedules of all repositories. Raises `WrongUsage` if one is invalid, or the fleet file is."""
    fleet = Settings.fleet_file(environ)
    variable = environ.get("LAKEGC_MARK_CRON", "").strip()
    if variable or fleet is None:
        return [variable or DEFAULT_MARK_CRON]
    given = [values["mark_cron"] for values in (fleet.shared, *fleet.sections.values()) if "mark_cron" in values]
    return sorted({fleet.shared.get("mark_cron", DEFAULT_MARK_CRON), *given})


def make_schedule(crons: Sequence[str]) -> dg.ScheduleDefinition:
    """The schedule with all these cron expressions, in UTC. Raises `WrongUsage` if one is invalid."""
    decorate = dg.schedule(
        list(crons),
        name=_SCHEDULE,
        job=mark_job,
        execution_timezone="UTC",
        description="""Marks the repositories of the lakeFS server, each at the times of its setting mark_cron (UTC,
by default every night at three), with the scheduled time as the mark id. It also makes full marks that are due
(full_every), even if all other marks of the repository name their base mark with --since. A changed mark_cron takes
effect when this code location is reloaded.

Repositories are selected by shell patterns: repositories_include (default *) and repositories_exclude (default
none), for example lake-*,archive. A repository that can't be marked, because it is read-only or permissions are
missing, has one failed run that says why, and is then skipped until the problem is solved or changes. One whose
previous mark or sweep is still running or queued is skipped this time. The tick names the skipped repositories; none
delays the others.""",
    )
    try:
        return decorate(requests_for_due_repositories)
    except dg.DagsterInvalidDefinitionError:
        raise WrongUsage(
            f"LAKEGC_MARK_CRON is '{', '.join(crons)}': expected a cron schedule in UTC, such as 0 3 * * *"
        ) from None


# the only setting that is needed at import; each run reads and checks the others
mark_repositories = make_schedule(configured_crons(os.environ))
