"""The schedule that marks each selected repository at its own times. It is off until it is turned on in Dagster's UI.

A problem with one repository never affects another: each is marked in a run of its own.
"""

# no `from __future__ import annotations` here: Dagster reads the annotations of schedules and sensors
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta

import dagster as dg
from cronsim import CronSim

from lakegc_assets.assets.results import reporting_failures
from lakegc_assets.jobs import mark_job, mark_request
from lakegc_assets.mark.context import find_target
from lakegc_assets.mark.preconditions import refuse_read_only
from lakegc_assets.mark.repository_selection import no_match_message, select_repositories
from lakegc_assets.partitions import PARTITIONS, REPOSITORY_TAG
from spark_resources.errors import LakegcError, WrongUsage
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import LakeFS, Repository
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.mark_store.lease import current_holder
from spark_resources.model import default_mark_id
from spark_resources.settings import DEFAULT_MARK_CRON, Settings

PREFLIGHT_TAG = "lakegc/trouble"
"""A tag with the problem that the preflight check found in a repository, on the one run that reports it."""
PREFLIGHT_TIMEOUT_S = 30.0
"""The time limit of the preflight check. A repository that isn't checked by then gets a run anyway."""


def preflight_problems(lakefs: LakeFS, repositories: Sequence[Repository]) -> dict[str, str]:
    """The problems that prevent marks, by repository id. Repositories are checked in parallel, so none delays
    another. Those that aren't checked within PREFLIGHT_TIMEOUT_S are left out."""
    executor = ThreadPoolExecutor(max_workers=8, thread_name_prefix="lakegc-preflight")
    checks = {executor.submit(preflight_problem, lakefs, repository): repository.id for repository in repositories}
    done, _ = wait(checks, timeout=PREFLIGHT_TIMEOUT_S)
    executor.shutdown(wait=False, cancel_futures=True)
    results = {checks[check]: check.result() for check in done}
    return {name: problem for name, problem in results.items() if problem is not None}


def preflight_problem(lakefs: LakeFS, repository: Repository) -> str | None:
    """The problem with permissions, rules or the store that would immediately stop a mark of the repository, or
    None."""
    try:
        refuse_read_only(repository)
        settings = Settings.load(os.environ, home_folder(), repository=repository.id)
        target = find_target(lakefs, repository.id, settings)
        lakefs.rules(repository.id)
        lakefs.branches(repository.id)
        current_holder(target.place.store())
    except LakegcError as error:
        return str(error)
    return None


def was_reported(instance: dg.DagsterInstance, schedule: str, repository: str, problem: str) -> bool:
    """Whether the schedule's newest run of the repository is tagged with this problem and hasn't succeeded."""
    tags = {"dagster/schedule_name": schedule, REPOSITORY_TAG: repository}
    newest = instance.get_run_records(dg.RunsFilter(tags=tags), limit=1)
    return any(
        record.dagster_run.tags.get(PREFLIGHT_TAG) == problem and not record.dagster_run.is_success for record in newest
    )


_SCHEDULE = "mark_repositories"


def requests_for_due_repositories(
    context: dg.ScheduleEvaluationContext, lakefs: LakeFSResource
) -> list[dg.RunRequest] | dg.SkipReason:
    """Requests to mark every selected repository that is due at this time, except those whose newest run already
    reported the same problem; if there are none, the reason why. Adds the partitions of the requested marks to
    Dagster.

    The mark id is the scheduled time, so that a repeated tick requests the same runs.
    """
    with reporting_failures():
        settings, client = Settings.load(os.environ, home_folder()), lakefs.client()
        selected = select_repositories(client.repositories(), settings)
    if not selected:
        return dg.SkipReason(no_match_message(client, settings))
    time = context.scheduled_execution_time
    repositories = [repository for repository in selected if is_due(repository.id, time)]
    if not repositories:
        return dg.SkipReason(f"No repository is scheduled for {time:%Y-%m-%d %H:%M} UTC.")
    problems = preflight_problems(client, repositories)
    reported = {name for name, problem in problems.items() if was_reported(context.instance, _SCHEDULE, name, problem)}
    mark_id = default_mark_id(time)
    requests = [
        mark_request(
            repository,
            mark_id,
            f"{repository.id}|{mark_id}",
            {PREFLIGHT_TAG: problems[repository.id]} if repository.id in problems else {},
        )
        for repository in repositories
        if repository.id not in reported
    ]
    if not requests:
        names = ", ".join(sorted(reported))
        return dg.SkipReason(
            f"These repositories are skipped until they can be marked: {names}. The newest run of each "
            "gives the reason."
        )
    context.instance.add_dynamic_partitions(str(PARTITIONS.name), [str(request.partition_key) for request in requests])
    return requests


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
        description="""Marks the repositories of the lakeFS server, each at the times of its setting *mark_cron* (UTC,
by default every night at three), with the scheduled time as the mark id. It also makes full marks that are due
(*full_every*), even if all other marks of the repository name their base mark with --since. A changed *mark_cron* takes
effect when this code location is reloaded.

Repositories are selected by shell patterns: *repositories_include* (default *) and *repositories_exclude* (default
none), for example lake-*,archive. A repository that can't be marked, because it is read-only or permissions are
missing, has one failed run that says why, and is then skipped until the problem is solved or changes. It doesn't
delay the others.""",
    )
    try:
        return decorate(requests_for_due_repositories)
    except dg.DagsterInvalidDefinitionError:
        raise WrongUsage(
            f"LAKEGC_MARK_CRON is '{', '.join(crons)}': expected a cron schedule in UTC, such as 0 3 * * *"
        ) from None


# the only setting that is needed at import; each run reads and checks the others
mark_repositories = make_schedule(configured_crons(os.environ))
