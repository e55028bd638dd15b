"""Incremental marks: which objects must be checked, given a finished mark. Nothing here reads, writes or starts a job.

Every object that was stored when the base mark listed the store was either committed, in a range that a retained commit
referred to, or recorded as not committed. So an object that may expire now was recorded then, was in a range that no
retained commit refers to any more, or was written later: into a slice that could still be written to or that is new, or
into a folder whose name has no date. These candidates are compared with everything that is live now, as in a full mark.

Ranges are identified by their ids, never by dates (clients set them), and never by their first and last keys (which are
paths, and copies put one address at many paths).
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta

from lakegc_assets.formatting import plural
from spark_resources.errors import NotFound
from spark_resources.mark_store.record import (
    FULL_MARK,
    RECORD_FORMAT,
    Basis,
    MarkRecord,
    finished_at,
    refuse_retired,
)
from spark_resources.model import MarkState, Scope

MAX_UPLOAD_DELAY = timedelta(hours=48)
"""How long after a slice was opened objects may still arrive in it: an hour in which new objects are placed in it, plus
the 24 hours of a link token (formats §1), plus a margin for slow uploads and clock differences."""

CLOCK_MARGIN = timedelta(hours=1)  # for inexact times in a store's listing

LATE_UPLOADS = (
    f"Uploads that arrived more than {round(MAX_UPLOAD_DELAY.total_seconds() / 3600)} hours after their slice was "
    "created were not searched for: a full mark finds them"
)
"""The limitation of incremental marks, as they report it."""

_YEAR_4000 = 64_060_588_800  # names of slices count back from here, so that later ones sort first
_FIRST_SLICE = datetime(2022, 1, 1, tzinfo=UTC)  # there are no older slices
_XID = 20  # characters
NO_BASE: Basis = {**FULL_MARK, "why": "there is no finished mark"}


def slice_opened_at(name: str) -> datetime | None:
    """When a slice was opened, according to its name (formats §1); None if it isn't the name of a slice."""
    if len(name) != _XID or name != name.lower():
        return None
    try:
        raw = base64.b32hexdecode(name.upper() + "=" * (-_XID % 8))
    except ValueError:
        return None
    if base64.b32hexencode(raw).decode().rstrip("=").lower() != name:
        return None
    seconds = (_YEAR_4000 - int.from_bytes(raw[:4], "big")) % 2**32
    opened = datetime.fromtimestamp(seconds, UTC)
    return opened if opened >= _FIRST_SLICE else None


def may_have_changed(name: str, since: datetime) -> bool:
    """Whether, according to a folder's name, objects may have been written into it since this time."""
    opened = slice_opened_at(name)
    return opened is None or opened >= since - MAX_UPLOAD_DELAY


# --- the base mark --------------------------------------------------------------------------------------------------


def basis_of(
    record: MarkRecord,
    earlier: Iterable[MarkRecord],
    *,
    untrusted: Collection[str] = (),
    since: str = "",
    full: bool = False,
    every: int,
) -> Basis:
    """How to make a new mark (`MarkRecord.basis`): incremental since the newest finished or a named mark, or full.

    Each `every`th mark is full, unless its base mark is named with `since`, which is never overridden. `full_in` is the
    number of incremental marks until a full one is due; 0 means that the next mark without a named base is full.
    `untrusted` are the ids of marks that aren't signed although a key is set; these can't be base marks. The spellings
    are taken from the new record's own basis. Raises `NotFound` if the named mark isn't among the earlier ones, and
    `Retired` if it was retired.
    """
    if since in untrusted and not full:
        chosen: Basis = {**FULL_MARK, "why": f"mark {since} isn't signed with a known key"}
    else:
        chosen = _basis_of(record, earlier, since=since, full=full, every=every)
        if untrusted and chosen == NO_BASE:
            chosen = {
                **FULL_MARK,
                "why": f"mark {max(untrusted)} isn't signed with a known key, and there is no other finished mark",
            }
    return {**chosen, "spellings": record.basis["spellings"]}


def _basis_of(record: MarkRecord, earlier: Iterable[MarkRecord], *, since: str, full: bool, every: int) -> Basis:
    finished = [mark for mark in earlier if mark.finished is not None and mark.mark_id != record.mark_id]
    without_full = incremental_in_a_row(finished)
    if since and since not in {mark.mark_id for mark in finished}:
        raise NotFound(
            f"there is no finished mark {since} of {record.repository} to base an incremental mark on. "
            f"'lakegc status {record.repository}' lists the marks."
        )
    if full:
        return {**FULL_MARK, "why": "requested"}
    if since:
        finished = [mark for mark in finished if mark.mark_id == since]
        refuse_retired(finished[0])
    base = max((mark for mark in finished if mark.state is not MarkState.RETIRED), key=finished_at, default=None)
    if base is None:
        return NO_BASE
    why_full = why_not_incremental(record, base)
    if why_full:
        return {**FULL_MARK, "why": why_full}
    chain = [base.mark_id, *(base.basis["chain"] if base.is_incremental else [])]
    digests = [base.digest or "", *(base.basis["digests"] if base.is_incremental else [])]
    since_full = max(len(chain), without_full + 1)  # chains don't grow if each mark names the same base
    if since_full >= max(every, 1) and not since:
        why = f"a full mark is due every {every} marks" if every > 1 else "every mark is full"
        return {**FULL_MARK, "why": why, "chain": chain, "digests": digests}
    full_in = max(every - since_full - 1, 0)
    return {**FULL_MARK, "incremental": True, "chain": chain, "digests": digests, "full_in": full_in}


def incremental_in_a_row(finished: Iterable[MarkRecord]) -> int:
    """The number of incremental marks since the newest full one. Only a full listing finds late uploads, so a mark of
    another scope or from an inventory doesn't count as full."""
    count = 0
    for mark in sorted(finished, key=finished_at, reverse=True):
        if mark.is_incremental:
            count += 1
        elif mark.scope is Scope.UNIFIED and mark.inventory is None:
            break
    return count


def late_uploads(record: MarkRecord) -> str:
    """A message on what only the next full mark will find, and when that mark is due; "" for a full mark."""
    if not record.is_incremental:
        return ""
    marks = record.basis.get("full_in")
    if marks is None:  # made by a version of lakegc that didn't record this
        return f"{LATE_UPLOADS}."
    if marks == 0:
        return (
            f"{LATE_UPLOADS}, and a full mark is due now. The next mark without --since is a full one, and so is the "
            "next scheduled mark."
        )
    return f"{LATE_UPLOADS}. A full mark is due after {plural(marks, 'more incremental mark')}."


def why_not_incremental(record: MarkRecord, base: MarkRecord) -> str:
    """Why an incremental mark with this base might differ from a full one; "" if it can't."""
    base_name = f"mark {base.mark_id}"
    if base.format != RECORD_FORMAT:
        return f"{base_name} was made by an earlier version of lakegc (format {base.format}; now {RECORD_FORMAT})"
    if (base.repository, base.repository_created, base.namespace) != (
        record.repository, record.repository_created, record.namespace,
    ):  # fmt: skip
        return f"{base_name} belongs to another repository"
    if record.scope is not Scope.UNIFIED or base.scope is not Scope.UNIFIED:
        return f"only marks of scope {Scope.UNIFIED} can be incremental"
    if record.inventory is not None or base.inventory is not None:
        return "an incremental mark can't be based on an inventory"
    if "unexplained" in base.step("expired_set").facts:
        return f"{base_name} records no reasons for its expired objects"
    if "not_retained" not in base.step("expired_set").datasets:
        return f"{base_name} couldn't read every commit"
    if base.basis["spellings"] != record.basis["spellings"]:
        return f"the namespace's equivalent spellings have changed since {base_name}"
    if base.versions.get("lakegc") != record.versions.get("lakegc"):
        return f"{base_name} was made by another version of lakegc"
    if base.start > record.start or base.server_now > record.server_now:
        return f"the clocks were set back after {base_name} was made"
    return ""
