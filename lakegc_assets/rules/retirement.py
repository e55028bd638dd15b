"""Which old marks may be retired, and which old quarantines may be purged. Pure.

A retired mark keeps its small records, but loses its files. So a mark is only retired when nothing needs them any more:
no approval or sweep of the mark, no quarantine, and no incremental mark. Whatever isn't known for certain is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from lakegc_assets.formatting import age, duration, plural
from lakegc_assets.rules.incremental import CLOCK_MARGIN, why_not_incremental
from spark_resources.mark_store.record import RECORD_FORMAT, MarkRecord, digest_of, finished_at
from spark_resources.model import MarkState


class Action(StrEnum):
    KEEP = "keep"
    RETIRE = "retire"
    RESUME = "finish retiring"
    PURGE = "purge"


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to a mark or its quarantine, and why, as the end of "because …"."""

    mark_id: str
    action: Action
    why: str


@dataclass(frozen=True, slots=True)
class MarkStatus:
    """What is known about one mark, or about the sweep of a foreign one. Times are by the store's clock.

    `record` is None if it can't be used, for the reason in `unusable`; `is_newer_format` says that a newer version of
    lakegc wrote it. `is_foreign` means that the record is of lakegc's sweep of a mark of the reference collector.
    `holder` is who is working on it under the lease; "" for nobody.

    The other fields are known only if the mark is old enough or has a quarantine. `approved_until` is the end of its
    approval, even if that has passed; `approval_problem` says why it isn't known. `announced_due` is when a policy
    approves the mark, unless that was revoked. `sweep_ended` and `late` (objects that became live too late) are from
    the report of its sweep. `restored_at` is when its objects were last restored or purged, by undo, purge or from a
    backup; `restore_begun` says that some may have been restored from its quarantine.
    """

    mark_id: str
    record: MarkRecord | None = None
    unusable: str = ""
    is_newer_format: bool = False
    is_foreign: bool = False
    holder: str = ""
    has_quarantine: bool = False
    approved_until: datetime | None = None
    approval_problem: str = ""
    announced_due: datetime | None = None
    sweep_ended: datetime | None = None
    late: int = 0
    restored_at: datetime | None = None
    restore_begun: bool = False

    @property
    def own(self) -> MarkRecord | None:
        """The record of lakegc's own mark, unless it can't be used or the mark is retired."""
        if self.record is None or self.is_foreign or self.record.state is MarkState.RETIRED:
            return None
        return self.record

    def ended_at(self, record: MarkRecord) -> datetime:
        """The latest time at which anything was done with a mark, or at which its approval ends or is due."""
        times = (self.approved_until, self.announced_due, self.sweep_ended, self.restored_at)
        steps = (step.finished for step in record.steps.values())
        return max(finished_at(record), record.start, *steps, *filter(None, times))


@dataclass(frozen=True, slots=True)
class RepositoryIdentity:
    """What distinguishes a repository from an earlier one of the same name."""

    repository: str
    created: datetime
    namespace: str

    def matches(self, record: MarkRecord) -> bool:
        return (self.repository, self.created, self.namespace) == (
            record.repository, record.repository_created, record.namespace,
        )  # fmt: skip


# --- marks ----------------------------------------------------------------------------------------------------------


def retirements(
    marks: Sequence[MarkStatus], repository: RepositoryIdentity, retire_after: timedelta, *, now: datetime
) -> list[Decision]:
    """The decision on each mark that isn't completely retired. `now` is by the store's clock.

    `retire_after` is how long after the end of a mark, or of its approval, sweep or purge, it is retired.
    """
    kept: dict[str, str] = {}
    for status in marks:
        if why := why_kept(status, repository, retire_after, now=now):
            kept[status.mark_id] = why
    records = {status.mark_id: status.own for status in marks if status.own is not None}
    # a mark that must not be used can't take the place of the newest one
    usable = [record for record in records.values() if why_unusable(record, repository, now) is None]
    kept = {**needed_newest(records.values()), **needed_newest(usable), **kept}
    newer = next((status.mark_id for status in marks if status.is_newer_format), None)
    if newer is not None:
        why = f"a newer version of lakegc wrote mark {newer}, which may be based on it: update lakegc"
        kept = {**dict.fromkeys((record.mark_id for record in records.values() if can_be_base(record)), why), **kept}
    add_restored(kept, records, marks)
    add_bases(kept, records)
    return [decision for status in marks if (decision := _decision(status, kept, now)) is not None]


def _decision(status: MarkStatus, kept: Mapping[str, str], now: datetime) -> Decision | None:
    record = status.record
    if record is not None and record.state is MarkState.RETIRED and not status.is_foreign:
        if record.retired is not None and record.retired["done"]:
            return None
        if status.has_quarantine:  # it can't have had any when it was retired
            return Decision(status.mark_id, Action.KEEP, "it is retired, but its quarantine has objects: restore them")
        return Decision(status.mark_id, Action.RESUME, "an earlier attempt to retire it was interrupted")
    if status.mark_id in kept or record is None:
        return Decision(status.mark_id, Action.KEEP, kept[status.mark_id])
    return Decision(status.mark_id, Action.RETIRE, f"it ended {age(now - status.ended_at(record))} ago")


def why_kept(
    status: MarkStatus, repository: RepositoryIdentity, retire_after: timedelta, *, now: datetime
) -> str | None:
    """Why a mark itself must be kept, whatever the other marks are; None if it needn't be."""
    record = status.record
    if record is None:
        return status.unusable
    if status.is_foreign:
        return "the reference collector made it"
    if record.state is MarkState.RETIRED:
        return None
    if status.holder:
        return f"{status.holder} is working on it"
    if unusable := why_unusable(record, repository, now):
        return unusable
    if record.state is MarkState.SWEEPING:
        return "its sweep is running, or was interrupted and can be resumed"
    if record.state is MarkState.SWEPT_WITH_FAILURES:
        return "its sweep had failures and can be resumed"
    return _why_kept_by_time(status, record, retire_after, now)


def why_unusable(record: MarkRecord, repository: RepositoryIdentity, now: datetime) -> str | None:
    """Why a record says nothing certain about its mark; None if it does."""
    if record.format != RECORD_FORMAT:
        return f"an earlier version of lakegc made it (format {record.format})"
    if not repository.matches(record):
        return "it belongs to another repository"
    if record.finished is not None and record.digest != digest_of(record):
        return "its record was altered: the digest doesn't match"
    if now < (ended := finished_at(record)):
        return f"it ended {ended:%Y-%m-%d %H:%M} UTC, which is in the future by the store's clock"
    return None


def _why_kept_by_time(status: MarkStatus, record: MarkRecord, retire_after: timedelta, now: datetime) -> str | None:
    if status.has_quarantine:
        return "its quarantine has objects: restore or purge them first"
    if status.approval_problem:
        return status.approval_problem
    if record.state is MarkState.APPROVED and status.approved_until is not None and now < status.approved_until:
        return f"it is approved until {status.approved_until:%Y-%m-%d %H:%M} UTC, and not swept"
    if status.announced_due is not None and now < status.announced_due:
        return f"its approval by a policy is due {status.announced_due:%Y-%m-%d %H:%M} UTC"
    if record.state is MarkState.SWEPT and is_old(record, retire_after, now) and status.sweep_ended is None:
        return "its sweep has no readable report"
    ended = status.ended_at(record)
    if now < ended:
        return f"it ended {ended:%Y-%m-%d %H:%M} UTC, which is in the future by the store's clock"
    if now - ended < retire_after:
        return f"it ended {age(now - ended)} ago, and marks are retired after {duration(retire_after)}"
    return None


def is_old(record: MarkRecord, retire_after: timedelta, now: datetime) -> bool:
    """Whether a mark may be old enough to be retired, by its record alone."""
    return now - finished_at(record) >= retire_after


def can_be_base(record: MarkRecord) -> bool:
    """Whether an incremental mark can be based on this one, as far as that depends on this mark."""
    return record.finished is not None and "expired_set" in record.steps and why_not_incremental(record, record) == ""


def needed_newest(records: Collection[MarkRecord]) -> dict[str, str]:
    """The newest finished marks, which the next marks are based on and compared with, each with the reason."""
    finished = sorted((record for record in records if record.finished is not None), key=finished_at)
    bases = [record for record in finished if can_be_base(record)]
    by_scope = {record.scope: record for record in finished}
    compared = {
        record.previous["mark_id"]: f"mark {record.mark_id} is compared with it"
        for record in by_scope.values()
        if record.previous is not None and "mark_id" in record.previous
    }
    newest_of_scope = {
        record.mark_id: f"it is the newest finished mark of scope {scope}" for scope, record in by_scope.items()
    }
    base = {record.mark_id: "it is the newest one that an incremental mark can be based on" for record in bases[-1:]}
    newest = {record.mark_id: "it is the newest finished mark" for record in finished[-1:]}
    return {**compared, **newest_of_scope, **base, **newest}


def add_bases(kept: dict[str, str], records: Mapping[str, MarkRecord]) -> None:
    """Add the marks that the kept marks are based on. The chain of a base mark is part of the chains of the marks based
    on it, unless a record was altered."""
    to_do = [mark_id for mark_id in kept if mark_id in records]
    while to_do:
        record = records[to_do.pop()]
        if not (record.is_incremental or record.finished is None):
            continue
        for base in record.basis["chain"]:
            if base not in kept:
                kept[base] = f"mark {record.mark_id} is based on it"
                to_do += [base] if base in records else []


def add_restored(kept: dict[str, str], records: Mapping[str, MarkRecord], marks: Iterable[MarkStatus]) -> None:
    """Add the marks with objects that may have been restored since a base mark began: an incremental mark looks up all
    objects of these."""
    begun = {base.start: base.mark_id for base in bases_in_use(kept, records)}
    if not begun:
        return
    earliest = min(begun)
    for status in marks:
        is_recent = status.restored_at is not None and status.restored_at >= earliest - CLOCK_MARGIN
        if is_recent and status.mark_id not in kept:
            kept[status.mark_id] = (
                f"some of its objects may have been restored since mark {begun[earliest]} began, and incremental marks "
                f"based on {begun[earliest]} look them up"
            )


def bases_in_use(kept: Collection[str], records: Mapping[str, MarkRecord]) -> Iterator[MarkRecord]:
    """The marks that the next incremental mark, or an unfinished one, is based on."""
    finished = sorted((record for record in records.values() if record.finished is not None), key=finished_at)
    yield from finished[-1:]
    yield from [record for record in finished if can_be_base(record)][-1:]
    for mark_id, record in records.items():
        if mark_id in kept and record.finished is None:
            yield from (records[base] for base in record.basis["chain"][:1] if base in records)


# --- quarantines ----------------------------------------------------------------------------------------------------


def purges(
    marks: Iterable[MarkStatus], repository: RepositoryIdentity, purge_after: timedelta, *, now: datetime
) -> list[Decision]:
    """The decision on each quarantine that has objects. `now` is by the store's clock."""
    decisions = []
    for status in marks:
        if status.has_quarantine:
            why = why_not_purged(status, repository, purge_after, now=now)
            decisions.append(
                Decision(status.mark_id, Action.KEEP, why)
                if why
                else Decision(status.mark_id, Action.PURGE, _quarantined_ago(status, now))
            )
    return decisions


def _quarantined_ago(status: MarkStatus, now: datetime) -> str:
    return f"its sweep ended {age(now - status.sweep_ended)} ago" if status.sweep_ended is not None else ""


def why_not_purged(
    status: MarkStatus, repository: RepositoryIdentity, purge_after: timedelta, *, now: datetime
) -> str | None:
    """Why a quarantine isn't purged automatically; None if it may be. A person may purge it at any time."""
    record = status.record
    if record is None:
        return status.unusable
    if status.holder:
        return f"{status.holder} is working on it"
    if not repository.matches(record):
        return "it belongs to another repository"
    if record.state not in (MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES):
        return f"the mark is {record.state}: its sweep hasn't ended"
    if status.sweep_ended is None:
        return "its sweep has no readable report"
    if status.late:
        return f"{plural(status.late, 'object')} became live during its sweep: check them, then restore or purge"
    if status.restore_begun:
        return "some of its objects may have been restored: restore or purge the others"
    if now < status.sweep_ended:
        return f"its sweep ended {status.sweep_ended:%Y-%m-%d %H:%M} UTC, which is in the future by the store's clock"
    if now - status.sweep_ended < purge_after:
        return (
            f"its sweep ended {age(now - status.sweep_ended)} ago, and quarantines are purged after "
            f"{duration(purge_after)}"
        )
    return None
