"""The announcement that a policy will approve a mark, as stored in the mark's folder.

    _lakefs/retention/gc/lakegc/<mark_id>/auto_approval.json     which digest, by which policy, when, until when to wait

It is written before the approval, so that a person can revoke it. A revoked announcement is never replaced, and the
sweep of a mark that a policy approved requires one that wasn't revoked.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Final

from typing_extensions import TypedDict

from spark_resources.errors import DamagedData, NotFound
from spark_resources.mark_store.conditional_write import WriteConflict, create_or_replace
from spark_resources.mark_store.mark import mark_folder
from spark_resources.records.json_records import Version
from spark_resources.records.model import MarkId, Record, Sha256, TimeText, UtcTime, require_format
from spark_resources.stores.place import Place

ANNOUNCEMENT_NAME = "auto_approval.json"
ANNOUNCEMENT_FORMAT: Final = 1
MAX_TRIES = 3
UNREADABLE = "unreadable"
"""The policy's text in a revoked announcement whose earlier content couldn't be read."""


class Revocation(TypedDict):
    """Who revoked an announcement, and when."""

    who: str
    when: TimeText


@dataclass(frozen=True, slots=True)
class Announcement(Record):
    """The announced approval of one set. Times are by the store's clock.

    `policy` is the policy's text. The approval is given at `due` at the earliest.
    """

    mark_id: MarkId
    digest: str
    policy: str
    policy_sha256: Sha256
    announced: UtcTime
    due: UtcTime
    revoked: Revocation | None = None
    format: Annotated[int, require_format(ANNOUNCEMENT_FORMAT)] = ANNOUNCEMENT_FORMAT

    def verify(self, data: bytes) -> None:
        if self.policy_sha256 != hashlib.sha256(self.policy.encode()).hexdigest():
            raise ValueError("the policy's text was altered")
        if self.due < self.announced:
            raise ValueError("it is due before it was announced")

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(
            f"{where} is not a valid announcement of an approval ({why}). No policy approves this mark. Find out who "
            "wrote the file, and withdraw the announcement with 'lakegc revoke'. To sweep the mark, approve it "
            "yourself.",
            invariant=7,
        )


@dataclass(frozen=True, slots=True)
class StoredAnnouncement:
    """An announcement that was read, its version for a conditional replace, and when the store wrote it."""

    announcement: Announcement
    version: Version
    written: datetime

    def is_due(self, wait: timedelta, *, now: datetime) -> bool:
        """Whether the waiting time has passed since the announcement, and since the store wrote the file.

        Without a signing key, anyone who can write to the bucket could write an earlier time into the file.
        """
        return now >= max(self.announcement.due, self.announcement.announced + wait, self.written + wait)


class AnnouncementConflict(WriteConflict):
    """Raised if another process wrote or revoked the announcement at the same time. That version is kept."""

    advice = "Check 'lakegc status', and try again."


def announcement_key(mark_id: str) -> str:
    return mark_folder(mark_id) + ANNOUNCEMENT_NAME


def read_announcement(place: Place, mark_id: str) -> StoredAnnouncement | None:
    """The mark's announcement, even a revoked one; None if there is none.

    Raises `DamagedData` if the file can't be read as an announcement for this mark, or isn't signed although a key is
    set.
    """
    store, key = place.store(), announcement_key(mark_id)
    where = f"{store.where}/{key}"
    try:
        data, version = place.records().read_with_version(key)
        written = store.stat(key).modified
    except NotFound:
        return None
    announcement = Announcement.from_json(data, where)
    if announcement.mark_id != mark_id:
        raise Announcement.damaged_error(where, f"it was copied from mark {announcement.mark_id}")
    return StoredAnnouncement(announcement, version, written)


def write_announcement(place: Place, announcement: Announcement, *, replacing: Version | None) -> None:
    """Write an announcement, replacing the version that was read (None if there was no file).

    Raises `AnnouncementConflict` if that version is no longer the current one.
    """
    key = announcement_key(announcement.mark_id)
    create_or_replace(place, key, announcement.to_json(), replacing, conflict=AnnouncementConflict)


def withdraw_announcement(place: Place, mark_id: str, *, digest: str, who: str, now: datetime) -> bool:
    """Record that a mark's announcement is revoked, even if it is unreadable. Returns whether there was one to revoke.

    `digest` is the mark's; `now` is by the store's clock. Raises `AnnouncementConflict` if others keep writing the
    file.
    """
    for _ in range(MAX_TRIES - 1):
        try:
            return _withdraw_once(place, mark_id, digest=digest, who=who, now=now)
        except AnnouncementConflict:  # a policy has written a new one: revoke that one
            continue
    return _withdraw_once(place, mark_id, digest=digest, who=who, now=now)


def _withdraw_once(place: Place, mark_id: str, *, digest: str, who: str, now: datetime) -> bool:
    try:
        stored = read_announcement(place, mark_id)
    except DamagedData:
        text_sha256 = hashlib.sha256(UNREADABLE.encode()).hexdigest()
        announcement = Announcement(mark_id, digest, UNREADABLE, text_sha256, now, now)
        version = place.records().read_untrusted(announcement_key(mark_id))[1]
    else:
        if stored is None or stored.announcement.revoked is not None:
            return False
        announcement, version = stored.announcement, stored.version
    revocation = Revocation(who=who, when=now.isoformat())
    write_announcement(place, replace(announcement, revoked=revocation), replacing=version)
    return True
