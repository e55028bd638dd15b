"""What reviews and lists of marks say about a mark: its state, and whether a policy will approve it."""

from __future__ import annotations

from datetime import datetime

from spark_resources.errors import DamagedData, WrongUsage
from spark_resources.mark_store.announcement import Announcement, read_announcement
from spark_resources.mark_store.approval import ApprovalStatus, approval_status, foreign_approval_status, read_approval
from spark_resources.mark_store.foreign_layouts import ReferenceMark
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import MarkState
from spark_resources.stores.place import Place


def state_of(place: Place, record: MarkRecord, *, now: datetime) -> str:
    """The state of a lakegc mark; `approved` only while its approval is valid. `now` is by the store's clock."""
    if record.state is not MarkState.APPROVED:
        return record.state.value
    try:
        approval = read_approval(place, record.mark_id)
    except DamagedData:
        approval = None
    return approval_status(record, approval, now=now).value


def status_of_foreign_approval(place: Place, foreign: ReferenceMark, *, now: datetime) -> ApprovalStatus:
    """The status of lakegc's approval of a foreign mark. `now` is by the store's clock."""
    try:
        approval = read_approval(place, foreign.mark_id)
    except (DamagedData, WrongUsage):  # an id that lakegc can't use has no approval
        approval = None
    return foreign_approval_status(approval, layout=foreign.layout, now=now)


def pending_announcement(place: Place, record: MarkRecord) -> Announcement | None:
    """The announced approval of a mark that isn't approved yet; None if there is none, or if it was revoked.

    Raises `DamagedData` if the announcement is unreadable.
    """
    if record.state is not MarkState.MARKED:
        return None
    stored = read_announcement(place, record.mark_id)
    return None if stored is None or stored.announcement.revoked is not None else stored.announcement
