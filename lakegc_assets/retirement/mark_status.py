"""What is known about the marks of a repository, for the rules on retirement. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lakegc_assets.approval.foreign_marks import open_sweep_record
from lakegc_assets.mark.context import Target
from lakegc_assets.rules.retirement import MarkStatus, RepositoryIdentity, is_old
from lakegc_assets.sweep.report import read_report_if_intact, report_key
from lakegc_assets.sweep.undo import BEGUN_NAME
from spark_resources.deleting.quarantine import QUARANTINE_ROOT
from spark_resources.errors import DamagedData, NotFound, UnknownFormat, WrongUsage, full_stop
from spark_resources.mark_store.announcement import read_announcement
from spark_resources.mark_store.approval import approval_key, read_approval
from spark_resources.mark_store.files import RESTORE_FOLDERS
from spark_resources.mark_store.lease import Holder
from spark_resources.mark_store.mark import Mark, folder_ids, mark_folder
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import MarkState
from spark_resources.stores.base import folders_in
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel


@dataclass(frozen=True, slots=True)
class KnownMark:
    """The status of a mark, and the mark in the version that the status describes. `mark` is None without a usable
    record."""

    status: MarkStatus
    mark: Mark | None = None


def identity_of(target: Target) -> RepositoryIdentity:
    return RepositoryIdentity(target.repository.id, target.repository.created, target.place.namespace.uri)


def known_marks(target: Target, older_than: timedelta, *, now: datetime, holder: Holder | None) -> list[KnownMark]:
    """The status of every mark with a folder in the namespace, sorted by id. `holder` is the holder of the lease.

    Small files next to the record are read only for marks that ended `older_than` ago or earlier, and for those with a
    quarantine. Raises the store's errors: a file that can't be read isn't treated as missing.
    """
    store = target.place.store()
    in_quarantine = {key.removeprefix(QUARANTINE_ROOT).rstrip("/") for key in folders_in(store, QUARANTINE_ROOT)}

    def read(mark_id: str) -> KnownMark:
        who = holder.who if holder is not None and holder.mark_id == mark_id else ""
        status = MarkStatus(mark_id, holder=who, has_quarantine=mark_id in in_quarantine)
        return read_mark(target, status, lambda record: status.has_quarantine or is_old(record, older_than, now))

    return list(fetch_in_parallel(folder_ids(store), read))


def read_mark(target: Target, status: MarkStatus, needs_details: Callable[[MarkRecord], bool]) -> KnownMark:
    place, mark_id = target.place, status.mark_id
    try:
        mark = own_mark(place, mark_id) or open_sweep_record(target, mark_id)
    except UnknownFormat as error:
        return KnownMark(replace(status, unusable=_unreadable(error), is_newer_format=True))
    except (DamagedData, WrongUsage) as error:
        return KnownMark(replace(status, unusable=_unreadable(error)))
    if mark is None:
        return KnownMark(replace(status, unusable="lakegc has no record of it"))
    is_foreign = mark.key != f"{mark_folder(mark_id)}mark.json"
    status = replace(status, record=mark.record, is_foreign=is_foreign)
    if mark.record.state is MarkState.RETIRED or not needs_details(mark.record):
        return KnownMark(status, mark)
    return KnownMark(with_details(place, status, mark.record), mark)


def own_mark(place: Place, mark_id: str) -> Mark | None:
    try:
        return Mark.open(place, mark_id)
    except NotFound:
        return None


def _unreadable(error: Exception) -> str:
    return f"its record can't be used: {full_stop(error).rstrip('.')}"


def with_details(place: Place, status: MarkStatus, record: MarkRecord) -> MarkStatus:
    """The status, completed from the small files of the mark and of its approval, sweep and restores."""
    report = read_report_if_intact(place, status.mark_id)
    restored_at, restore_begun = restores_of(place, status.mark_id)
    status = replace(
        status,
        # without a signing key, anyone who can write to the bucket could write an earlier time into the file
        sweep_ended=None
        if report is None
        else max(report.ended, place.store().stat(report_key(status.mark_id)).modified),
        late=0 if report is None else report.late_objects,
        restored_at=restored_at,
        restore_begun=restore_begun,
    )
    return with_approval(place, status, record)


def with_approval(place: Place, status: MarkStatus, record: MarkRecord) -> MarkStatus:
    """The status, completed with the approval, or announced approval, of a mark that isn't swept."""
    try:
        if record.state is MarkState.APPROVED:
            approval = read_approval(place, status.mark_id)
            if approval is None or approval.sha256 != record.approval:
                # the approval may still be being written: the record is written first
                return replace(
                    status,
                    approval_problem=f"it is approved, but {approval_key(status.mark_id)} doesn't match its record",
                )
            return replace(status, approved_until=approval.until)
        if record.state is MarkState.MARKED:
            stored = read_announcement(place, status.mark_id)
            if stored is not None and stored.announcement.revoked is None:
                return replace(status, announced_due=stored.announcement.due)
    except DamagedData as error:
        return replace(status, approval_problem=f"its approval can't be read: {full_stop(error).rstrip('.')}")
    return status


def restores_of(place: Place, mark_id: str) -> tuple[datetime | None, bool]:
    """When objects of a mark were last restored or purged (None: never), and whether an undo or a purge has begun to
    restore objects."""
    own, store = mark_folder(mark_id), place.store()
    written = set(folders_in(store, own))
    listed = [
        file
        for folder in RESTORE_FOLDERS
        if own + folder in written
        for page in store.pages(own + folder)
        for file in page.objects
    ]
    newest = max((file.modified for file in listed), default=None)
    return newest, any(file.key.endswith(f"/{BEGUN_NAME}") for file in listed)
