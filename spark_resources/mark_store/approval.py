"""The approval of one expired set, as stored in the namespace (invariant 7).

    _lakefs/retention/gc/lakegc/<mark_id>/approval.json      who, when, which digest, until when, released brakes
    _lakefs/retention/gc/unified/<mark_id>/summary.json      only if the reference collector may sweep it

An approval of lakegc's own mark is valid only if the mark's record contains a SHA-256 *and* approval.json has that
hash. The record is written first and decides races; the file is written last. For a mark of the reference collector,
which has no record, the file alone decides. Files are replaced conditionally and never deleted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import ClassVar, Final, Literal

from typing_extensions import TypedDict

from spark_resources.errors import DamagedData, NotFound, Unavailable, UnknownFormat, Untrusted
from spark_resources.mark_store.conditional_write import WriteConflict, create_or_replace
from spark_resources.mark_store.mark import each_mark, mark_folder, reference_folder
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import MarkState
from spark_resources.records.json_records import Version, record_bytes, to_json_value
from spark_resources.records.model import AsInJson, Record, TimeText, UtcTime
from spark_resources.stores.place import Place
from spark_resources.stores.retry import delete_own_files

APPROVAL_NAME = "approval.json"
APPROVAL_FORMAT: Final = 1


REVOKED, RENEWED, SWEPT = "revoked", "renewed", "swept"
"""How a person ends an approval, in the words of its record."""


class ApprovalEnd(TypedDict):
    """How an approval ended, by whom, and when. If a policy ended it, `how` is a clause with the reason."""

    how: str
    who: str
    when: TimeText


class PolicyTerms(TypedDict):
    """The terms of an approval by a policy: the SHA-256 of the policy's text, and what the sweep must do, regardless of
    the settings at that time: whether it quarantines objects, and in which destination it requires a backup of them
    (`backup_to`; None: no backup).
    """

    sha256: str
    quarantine: bool
    backup_to: str | None


@dataclass(frozen=True, slots=True)
class Approval(Record):
    """What was approved, by whom, how (by which command, UI or policy), and until when. Times are by the store's clock.

    `layout` is the reference collector's layout for a foreign mark, None for lakegc's own. `released` are the tripped
    brakes that were released, each with a reason. `ended` records how, by whom and when an approval was revoked or
    used. `policy` has the terms if a policy, not a person, approved the mark. `configured_holds` are the ids of the
    holds in the settings when a foreign mark was approved, `servers` the names of the servers if there were several;
    lakegc's own marks record theirs.
    """

    optional_fields: ClassVar = frozenset({"policy", "configured_holds", "servers"})

    mark_id: str
    layout: str | None
    digest: str
    who: str
    how: str
    when: UtcTime
    until: UtcTime
    released: Mapping[str, str] = field(default_factory=dict)
    for_reference: bool = False
    ended: ApprovalEnd | None = None
    policy: PolicyTerms | None = None
    configured_holds: AsInJson[tuple[str, ...]] = ()
    servers: AsInJson[tuple[str, ...]] = ()
    format: Literal[1] = APPROVAL_FORMAT

    def to_json(self) -> bytes:
        """The approval as JSON. Optional fields that aren't set are left out, as in earlier versions: its bytes are
        hashed."""
        fields = to_json_value(self)
        assert isinstance(fields, dict)
        return record_bytes(
            {name: value for name, value in fields.items() if value or name not in self.optional_fields}
        )

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_json()).hexdigest()

    def verify(self, data: bytes) -> None:
        """Raise `ValueError` unless the bytes are exactly what lakegc writes for this approval."""
        if self.to_json() != data:
            raise ValueError("its content was altered")

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(
            f"{where} is not a valid approval ({why}). Run 'lakegc revoke', then approve the mark again.", invariant=7
        )


def approval_key(mark_id: str) -> str:
    return mark_folder(mark_id) + APPROVAL_NAME


def read_approval(place: Place, mark_id: str) -> Approval | None:
    """The mark's approval.json, even if that approval is not in force; None if there is no file.

    Raises `DamagedData` if the file can't be read as an approval.
    """
    store, key = place.store(), approval_key(mark_id)
    try:
        return Approval.from_json(place.records().read(key), f"{store.where}/{key}")
    except NotFound:
        return None


# --- validity -------------------------------------------------------------------------------------------------------


class ApprovalStatus(StrEnum):
    """Whether an approval is valid, considering the state of its mark."""

    NONE = "not approved"
    APPROVED = "approved"
    EXPIRED = "approval expired"
    INCOMPLETE = "approval incomplete"  # the record names a file that is missing or different: not valid


def approval_status(record: MarkRecord, approval: Approval | None, *, now: datetime) -> ApprovalStatus:
    """The status of the approval of lakegc's own mark. `now` is by the store's clock."""
    if record.state is not MarkState.APPROVED:
        return ApprovalStatus.NONE
    if approval is None or approval.sha256 != record.approval or approval.digest != record.digest:
        return ApprovalStatus.INCOMPLETE
    return ApprovalStatus.EXPIRED if now >= approval.until else ApprovalStatus.APPROVED


def foreign_approval_status(approval: Approval | None, *, layout: str, now: datetime) -> ApprovalStatus:
    """The status of the approval of a foreign mark (of the reference collector). `now` is by the store's clock."""
    if approval is None or approval.ended is not None or approval.layout != layout:
        return ApprovalStatus.NONE
    return ApprovalStatus.EXPIRED if now >= approval.until else ApprovalStatus.APPROVED


# --- writing --------------------------------------------------------------------------------------------------------


class ApprovalConflict(WriteConflict):
    """Raised if another process wrote an approval at the same time. That approval is kept."""

    advice = "Check 'lakegc status', and try again."


def read_untrusted_approval(place: Place, mark_id: str) -> tuple[bytes, Version] | None:
    """The bytes of approval.json, unverified, and its version for a conditional replace; None if there is no file."""
    try:
        return place.records().read_untrusted(approval_key(mark_id))
    except NotFound:
        return None


def write_approval(place: Place, approval: Approval, *, replacing: tuple[bytes, Version] | None) -> None:
    """Write approval.json, replacing the version that was read (None if there was no file).

    Raises `ApprovalConflict` if that version is no longer the current one.
    """
    key = approval_key(approval.mark_id)
    create_or_replace(
        place, key, approval.to_json(), None if replacing is None else replacing[1], conflict=ApprovalConflict
    )


# --- for the reference collector ------------------------------------------------------------------------------------


def summary_key(mark_id: str) -> str:
    return reference_folder(mark_id) + "summary.json"


def write_reference_summary(place: Place, record: MarkRecord) -> None:
    """Let the reference collector, which re-verifies nothing, sweep lakegc's mark: write the mark's summary.json."""
    summary = {
        "run_id": record.mark_id,
        "success": True,
        "first_slice": "",
        "start_time": _rfc3339(record.start),
        "cutoff_time": _rfc3339(record.cutoff),
        "num_deleted_objects": record.counts["expired"],
    }
    place.store().write(summary_key(record.mark_id), json.dumps(summary, separators=(",", ":")).encode())


def withdraw_reference_summary(place: Place, mark_id: str) -> bool:
    """Remove summary.json, so that the reference collector refuses to sweep the mark. Returns whether there was one.

    Raises `Unavailable` if it exists and can't be removed.
    """
    store, key = place.store(), summary_key(mark_id)
    try:
        store.stat(key)
    except NotFound:
        return False
    for failed in delete_own_files(store, [key]):
        raise Unavailable(
            f"{key} in {store.where} can't be deleted ({failed.code}). As long as it exists, the reference collector "
            "can sweep this mark. Delete it manually."
        )
    return True


def withdraw_stale_summaries(place: Place, *, now: datetime) -> list[str]:
    """Remove the summary of each of lakegc's finished marks without a valid approval for the reference collector.

    Returns the ids of the marks whose summary was removed. The removal keeps that collector from using an approval that
    has expired, that isn't signed although a key is set, or that belongs to a mark of an unknown format. `now` is by
    the store's clock.
    """

    def withdraw_unless_approved(mark_id: str, record: MarkRecord | Untrusted | UnknownFormat) -> bool:
        if not isinstance(record, MarkRecord):
            return withdraw_reference_summary(place, mark_id)
        return record.finished is not None and withdraw_stale_summary(place, record, now=now)

    return [mark_id for mark_id, record in each_mark(place) if withdraw_unless_approved(mark_id, record)]


def withdraw_stale_summary(place: Place, record: MarkRecord, *, now: datetime) -> bool:
    """Remove the summary of one mark, unless a valid approval permits it. Returns whether one was removed."""
    try:
        place.store().stat(summary_key(record.mark_id))
    except NotFound:
        return False
    try:
        approval = read_approval(place, record.mark_id)
    except DamagedData:
        approval = None  # an unreadable approval permits nothing
    is_for_reference = approval is not None and approval.for_reference
    if is_for_reference and approval_status(record, approval, now=now) is ApprovalStatus.APPROVED:
        return False
    return withdraw_reference_summary(place, record.mark_id)


def _rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
