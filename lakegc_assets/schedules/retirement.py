"""The schedule that retires old marks and purges old quarantines. It is off until it is turned on in Dagster's UI."""

# no `from __future__ import annotations` here: Dagster reads the annotations of schedules and sensors
import os
from collections.abc import Iterable

import dagster as dg

from lakegc_assets.jobs import retire_job
from lakegc_assets.mark.repository_selection import list_repositories, no_match_message, select_repositories
from lakegc_assets.partitions import console_config
from spark_resources.errors import LakegcError, full_stop
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import Repository
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.settings import Settings

RETRY_S = 5.0
"""How long a tick retries a request to the lakeFS server: the daemon ends a tick after a minute."""
NOTHING_CONFIGURED = "Nothing is retired or purged: set retire_after or purge_after, for example to 90d."


def has_something_to_do(repositories: Iterable[Repository]) -> tuple[bool, list[str]]:
    """Whether the settings of any repository ask for retirements or purges, and a sentence for each with invalid
    settings."""
    is_configured, invalid = False, []
    for repository in repositories:
        try:
            settings = Settings.load(os.environ, home_folder(), repository=repository.id)
            is_configured |= settings.retire_after is not None or settings.purge_after is not None
        except LakegcError as error:
            invalid.append(f"{repository.id} is skipped: {full_stop(error)}")
    return is_configured, invalid


@dg.schedule(
    "30 4 * * *",
    name="retire_old_marks",
    job=retire_job,
    execution_timezone="UTC",
    description="""Retires marks that nothing needs any more after retire_after, and purges quarantines after
purge_after, every morning (UTC). Both settings are off by default, and can differ by repository. If the lakeFS server
can't be reached, the tick is skipped; a repository that can't be read, or in which something is running, doesn't hold
up the others.""",
)
def retire_old_marks(context: dg.ScheduleEvaluationContext, lakefs: LakeFSResource) -> dg.RunRequest | dg.SkipReason:
    try:
        settings = Settings.load(os.environ, home_folder())
        client = lakefs.client(retry_total_s=min(settings.retry_total_s, RETRY_S))
        repositories, failures = list_repositories(client)
    except LakegcError as error:
        return dg.SkipReason(str(error))
    selected = select_repositories(repositories, settings)
    if not selected:
        return dg.SkipReason(" ".join([*failures.values(), no_match_message(client, settings)]))
    is_configured, invalid = has_something_to_do(selected)
    for sentence in (*failures.values(), *invalid):
        context.log.warning(sentence)
    if not is_configured:
        return dg.SkipReason(" ".join([*failures.values(), *invalid, NOTHING_CONFIGURED]))
    return dg.RunRequest(
        run_key=f"{context.scheduled_execution_time:%Y-%m-%d %H:%M}", run_config=console_config(os.environ)
    )
