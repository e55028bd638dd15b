"""Purge the old quarantines of one repository, as `lakegc purge` would: under the lease, after a re-verification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import Target, read_clocks
from lakegc_assets.progress import LogMessage
from lakegc_assets.resources import MarksResource
from lakegc_assets.retirement.mark_status import identity_of, known_marks
from lakegc_assets.retirement.retire import open_target
from lakegc_assets.rules.retirement import Action, Decision, purges
from lakegc_assets.sweep.context import SweepRun
from lakegc_assets.sweep.history import record_sweep
from lakegc_assets.sweep.preconditions import SweepOptions, open_swept
from lakegc_assets.sweep.undo import purge
from spark_resources.errors import LakegcError
from spark_resources.mark_store.lease import Holder, LeaseHeld, current_holder
from spark_resources.model import Outcome, Partition


@dataclass(frozen=True, slots=True)
class Purged:
    """What became of one old quarantine: its objects by outcome, why it wasn't purged this time, or the error."""

    mark_id: str
    objects: dict[str, int]
    skipped: str = ""
    error: str = ""

    def sentence(self, repository: str) -> str:
        name = f"the quarantine of mark {self.mark_id} of {repository}"
        if self.error or self.skipped:
            not_purged = "was not completely purged" if self.objects else "was not purged"
            return f"{name} {not_purged}: {self.error or self.skipped}"
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.objects.items()))
        return f"{name}: {counts or 'nothing left to purge'}"


def purge_all(
    marks: MarksResource, repositories: Iterable[str], log_message: LogMessage
) -> Iterator[tuple[str, Purged | LakegcError]]:
    """Purge the old quarantines of each repository with the setting `purge_after`, and yield what became of each, or
    the error of a repository, with the repository's id."""
    for repository in repositories:
        try:
            after = marks.settings(repository).purge_after
            if after is not None:
                for purged in purge_old(marks, repository, after, log_message):
                    yield repository, purged
        except LakegcError as error:
            yield repository, error


def decisions(target: Target, purge_after: timedelta, *, holder: Holder | None) -> list[Decision]:
    """The decision on each quarantine with objects in a repository."""
    now = target.place.store().now()
    known = known_marks(target, purge_after, now=now, holder=holder)
    return purges([known_mark.status for known_mark in known], identity_of(target), purge_after, now=now)


def purge_old(
    marks: MarksResource, repository: str, purge_after: timedelta, log_message: LogMessage
) -> Iterator[Purged]:
    """Purge the quarantines of a repository whose sweep ended at least `purge_after` ago, one after another, and yield
    what became of each. A quarantine that can't be purged doesn't hold up the others.

    Raises `Refused` if the clocks differ too much to tell ages, and the error if the repository can't be read.
    """
    client, settings = marks.lakefs.client(), marks.settings(repository)
    target = open_target(client, repository, settings)
    store = target.place.store()
    due = [
        decision.mark_id
        for decision in decisions(target, purge_after, holder=current_holder(store))
        if decision.action is Action.PURGE
    ]
    if not due:
        return
    clocks = read_clocks(store, client, target.repository.server, lambda: datetime.now(UTC))
    clocks.check(settings.max_clock_skew, repository)
    for mark_id in due:
        yield purge_one(marks, Partition.of(repository, mark_id), purge_after, log_message)


def purge_one(marks: MarksResource, partition: Partition, purge_after: timedelta, log_message: LogMessage) -> Purged:
    """Purge one quarantine, unless something else is running, or an undo or a retried sweep has changed it."""
    try:
        run = open_swept(marks, str(partition), SweepOptions(), log_message)
        if why := why_kept_now(run, purge_after):
            return Purged(partition.mark_id, {}, skipped=why)
        log_message(f"purging the quarantine of mark {partition.mark_id} of {partition.repository}")
        tally = purge(run)
        record_sweep(run.place, partition.mark_id, log_message)
    except LeaseHeld as error:
        return Purged(partition.mark_id, {}, skipped=str(error))
    except LakegcError as error:
        return Purged(partition.mark_id, {}, error=str(error))
    finally:
        marks.release()
    failed = tally.objects.get(Outcome.FAILED.value, 0)
    problem = f"{plural(failed, 'object')} failed; the receipts under {run.undone.folder} have the reasons"
    return Purged(partition.mark_id, dict(tally.objects), error=problem if failed else "")


def why_kept_now(run: SweepRun, purge_after: timedelta) -> str:
    """Why the quarantine isn't purged after all, decided again under the lease; "" if it is purged."""
    found = {decision.mark_id: decision for decision in decisions(run.target, purge_after, holder=None)}
    decision = found.get(run.partition.mark_id)
    if decision is None:
        return "it is empty now"
    return "" if decision.action is Action.PURGE else decision.why
