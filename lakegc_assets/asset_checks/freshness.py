"""Checks that each selected repository is marked and swept often enough.

Dagster's freshness policies look at the newest materialization of an asset, regardless of its partition. Here a
partition is one mark of one repository, so a repository that is no longer marked would be hidden by all the others.
These checks look at the newest partition of each repository instead. They warn about each repository that is
overdue.
"""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from lakegc_assets.assets.results import reporting_failures
from lakegc_assets.assets.review import expired_set
from lakegc_assets.assets.sweep import sweep_report
from lakegc_assets.formatting import age, is_or_are, plural
from lakegc_assets.mark.repository_selection import list_repositories, select_repositories
from lakegc_assets.resources import MarksResource
from lakegc_assets.rules.freshness import mark_is_due_by, sweep_is_due_by
from spark_resources.errors import LakegcError
from spark_resources.host.user_folders import home_folder
from spark_resources.model import Partition
from spark_resources.settings import Settings


@dataclass(frozen=True, slots=True)
class Materialized:
    """When an asset was materialized for the oldest and the newest partition of a repository, and how many objects
    were expired in the newest."""

    oldest: datetime
    newest: datetime
    expired: int


def materialized_by_repository(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dict[str, Materialized]:
    """The materializations of an asset by repository. Reads one index, and two events per repository."""
    by_repository: dict[str, list[int]] = defaultdict(list)
    newest = instance.get_latest_storage_id_by_partition(asset, dg.DagsterEventType.ASSET_MATERIALIZATION)
    for key, storage_id in newest.items():
        try:
            by_repository[Partition.parse(key).repository].append(storage_id)
        except LakegcError:
            continue  # a person can report a materialization for any text
    ends = {repository: (min(ids), max(ids)) for repository, ids in by_repository.items()}
    wanted = sorted({storage_id for pair in ends.values() for storage_id in pair})
    events = {event.storage_id: event for event in events_by_id(instance, asset, wanted)}
    return {
        repository: Materialized(time_of(events[first]), time_of(events[last]), expired_in(events[last]))
        for repository, (first, last) in ends.items()
    }


def events_by_id(instance: dg.DagsterInstance, asset: dg.AssetKey, ids: list[int]) -> list[dg.EventLogRecord]:
    if not ids:
        return []
    wanted = dg.AssetRecordsFilter(asset_key=asset, storage_ids=ids)
    return list(instance.fetch_materializations(wanted, limit=len(ids)).records)


def time_of(event: dg.EventLogRecord) -> datetime:
    return datetime.fromtimestamp(event.timestamp, UTC)


def expired_in(event: dg.EventLogRecord) -> int:
    metadata = event.asset_materialization.metadata if event.asset_materialization is not None else {}
    value = metadata["expired"].value if "expired" in metadata else 0
    return value if isinstance(value, int) else 0


def overdue_marks(settings: Mapping[str, Settings], marks: Mapping[str, Materialized], now: datetime) -> dict[str, str]:
    """A sentence for each repository whose newest mark is too old, or that has none."""
    overdue = {}
    for repository, configured in settings.items():
        if repository not in marks:
            overdue[repository] = "no mark yet"
        elif now > mark_is_due_by(marks[repository].newest, configured.mark_cron, configured.mark_max_age):
            overdue[repository] = f"the newest mark is {age(now - marks[repository].newest)} old"
    return overdue


def overdue_sweeps(
    settings: Mapping[str, Settings],
    marks: Mapping[str, Materialized],
    sweeps: Mapping[str, Materialized],
    now: datetime,
) -> dict[str, str]:
    """A sentence for each repository with expired objects whose last sweep was too long ago."""
    overdue = {}
    for repository in settings.keys() & marks.keys():
        mark, sweep = marks[repository], sweeps.get(repository)
        newest = None if sweep is None else sweep.newest
        due = sweep_is_due_by(newest, mark.oldest, mark.expired, settings[repository].sweep_max_age)
        if due is not None and now > due:
            last = (
                "the repository has never been swept"
                if newest is None
                else f"the last sweep was {age(now - newest)} ago"
            )
            overdue[repository] = f"{plural(mark.expired, 'object')} {is_or_are(mark.expired)} expired, and {last}"
    return overdue


def settings_of_selected(marks: MarksResource) -> tuple[dict[str, Settings], dict[str, str]]:
    """The settings of each selected repository, and the errors: of repositories with invalid settings, by id, and of
    servers that could not be listed."""
    lakefs = marks.lakefs.client()
    repositories, failures = list_repositories(lakefs)
    selected = select_repositories(repositories, Settings.load(os.environ, home_folder()))
    found, invalid = {}, {f"server {server}": why for server, why in failures.items()}
    for repository in selected:
        try:
            found[repository.id] = marks.settings(repository.id)
        except LakegcError as error:
            invalid[repository.id] = str(error)
    return found, invalid


def result(checked: int, overdue: Mapping[str, str], advice: str) -> dg.AssetCheckResult:
    sentences = [f"{repository}: {why}" for repository, why in sorted(overdue.items())]
    return dg.AssetCheckResult(
        passed=not overdue,
        severity=dg.AssetCheckSeverity.WARN,
        description="\n".join(
            [*sentences, advice] if overdue else [f"{plural(checked, 'repository')} checked, none overdue."]
        ),
        metadata={"repositories": checked, "late": len(overdue)},
    )


@dg.asset_check(
    asset=expired_set,
    description="Every selected repository has a recent mark. Protects against garbage that piles up unnoticed. If it "
    "fails: check that the schedule mark_repositories is on, and the newest run of each named repository.",
)
def marks_are_recent(context: dg.AssetCheckExecutionContext, marks: MarksResource) -> dg.AssetCheckResult:
    """Compares the newest mark of each repository with *mark_max_age*, or with its *mark_cron*."""
    with reporting_failures():
        settings, invalid = settings_of_selected(marks)
    known = materialized_by_repository(context.instance, expired_set.key)
    overdue = invalid | overdue_marks(settings, known, datetime.now(UTC))
    return result(
        len(settings) + len(invalid),
        overdue,
        "Check that the schedule mark_repositories is on, and the newest run of each repository.",
    )


@dg.asset_check(
    asset=sweep_report,
    description="Every selected repository with expired objects was swept recently. Protects against paying for "
    "garbage. If this check fails: review and approve the newest mark of each named repository.",
)
def sweeps_are_recent(context: dg.AssetCheckExecutionContext, marks: MarksResource) -> dg.AssetCheckResult:
    """Compares the age of the last sweep of each repository with *sweep_max_age*."""
    with reporting_failures():
        settings, invalid = settings_of_selected(marks)
    instance = context.instance
    known = [materialized_by_repository(instance, asset.key) for asset in (expired_set, sweep_report)]
    overdue = invalid | overdue_sweeps(settings, known[0], known[1], datetime.now(UTC))
    return result(
        len(settings) + len(invalid),
        overdue,
        "Review and approve the newest mark of each repository, or revise its retention rules.",
    )


FRESHNESS_CHECKS = [marks_are_recent, sweeps_are_recent]
