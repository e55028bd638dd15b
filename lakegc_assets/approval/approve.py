"""Check, give and revoke the approval of an expired set, and verify it before a sweep (invariants 7 and 9).

The steps in order, each with the state that a crash right after it leaves behind. For lakegc's own marks:

    approve   1. mark.json: `approved`, with the SHA-256 of the approval     names a missing file: no approval
              2. approval.json                                               approved
              3. summary.json, with --for-reference only                     approved, for the reference collector, too
    revoke    1. summary.json is removed                                     approved, but only for lakegc's own sweep
              2. auto_approval.json, if any, records the revocation          no approval by a policy is valid any more
              3. mark.json: `marked`                                         not approved; approval.json is invalid now
              4. approval.json records that it ended, by whom and when       not approved

For a foreign mark, only approval.json is written. Each write of mark.json and approval.json is conditional on the
version that was read: if two people write at the same time, the second one gets an error. While a mark is being swept,
its approval can be neither given nor revoked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from lakegc_assets.approval.parse_request import known_brake, single_line
from lakegc_assets.approval.preconditions import (
    check_brakes,
    check_newer,
    check_record,
    check_request,
    check_set,
    check_status,
    check_unchanged,
    refuse_store_without_conditional_writes,
    status_of_earlier_approval,
)
from lakegc_assets.approval.proposals import ApprovalRequest, Proposal, refuse_unusable_foreign_mark, refuse_used
from lakegc_assets.approval.verify_files import check_files, foreign_files
from lakegc_assets.mark.context import Target
from lakegc_assets.rules.brakes import BrakeLimits, brakes, effective_time
from spark_resources.errors import DamagedData, Refused, WrongUsage
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.announcement import announcement_key, read_announcement, withdraw_announcement
from spark_resources.mark_store.approval import (
    RENEWED,
    REVOKED,
    Approval,
    ApprovalConflict,
    ApprovalEnd,
    ApprovalStatus,
    approval_status,
    foreign_approval_status,
    read_untrusted_approval,
    withdraw_reference_summary,
    write_approval,
    write_reference_summary,
)
from spark_resources.mark_store.foreign_layouts import ReferenceMark
from spark_resources.mark_store.mark import Mark, claim_namespace
from spark_resources.mark_store.record import MarkRecord, refuse_earlier_format
from spark_resources.model import MarkState
from spark_resources.stores.place import Place

MAX_TRIES = 3


# --- approving ------------------------------------------------------------------------------------------------------


def approve(
    proposal: Proposal,
    request: ApprovalRequest,
    lakefs: LakeFS,
    limits: BrakeLimits,
    *,
    now: datetime,
    single_deployment: bool,
) -> Approval:
    """Approve the requested mark if nothing forbids it, and return the approval, which replaces an earlier one
    that has expired or is incomplete. `now` is by the store's clock.

    Raises `WrongUsage` or `Refused` with the cause: the mark's state, a request older than the mark, a different
    digest, changed rules or holds, a tripped brake, or an altered file or row. No approval is written in that case.
    """
    refuse_store_without_conditional_writes(proposal, single_deployment=single_deployment)
    claim_namespace(proposal.target.place, proposal.target.repository.id, proposal.target.repository.created)
    earlier_status, approval = check_and_build(proposal, request, lakefs, limits, now=now)
    if earlier_status in (ApprovalStatus.EXPIRED, ApprovalStatus.INCOMPLETE):
        revoke(proposal, who=request.who, how=RENEWED, now=now)
    grant(proposal, approval, now=now)
    return approval


def check(
    proposal: Proposal,
    request: ApprovalRequest,
    lakefs: LakeFS,
    limits: BrakeLimits,
    *,
    now: datetime,
    single_deployment: bool,
) -> None:
    """Raise the error that the checks of `approve` would raise, and write nothing. Called before asking for
    confirmation."""
    refuse_store_without_conditional_writes(proposal, single_deployment=single_deployment)
    check_and_build(proposal, request, lakefs, limits, now=now)


def check_and_build(
    proposal: Proposal, request: ApprovalRequest, lakefs: LakeFS, limits: BrakeLimits, *, now: datetime
) -> tuple[ApprovalStatus, Approval]:
    """Check everything, and return the status of any earlier approval and the new approval, which isn't written yet."""
    refuse_earlier_format(proposal.record, "approved")
    earlier_status = status_of_earlier_approval(proposal, now=now)
    check_request(proposal, request)
    check_newer(proposal, request, earlier_status)
    approval = new_approval(proposal, request, limits, now=now, servers=lakefs.servers)
    check_brakes(proposal, request.released, limits, until=approval.until)
    check_unchanged(proposal, lakefs)
    check_set(proposal)
    return earlier_status, approval


def new_approval(
    proposal: Proposal,
    request: ApprovalRequest,
    limits: BrakeLimits,
    *,
    now: datetime,
    servers: Collection[str] = ("",),
) -> Approval:
    """The requested approval. By default, it ends when the mark becomes too old or, if the mark is already too old,
    after the same time span from now. `servers` are the names of the lakeFS servers in the settings.

    Raises `WrongUsage` for an unusable name or reason, an end in the past, or a mark that can't be approved for the
    reference collector.
    """
    finished = effective_time(proposal.record) if proposal.record.finished else now
    until = request.until or (finished if finished + limits.age > now else now) + limits.age
    if until <= now:
        raise WrongUsage(
            f"--until {until:%Y-%m-%d %H:%M} UTC has passed: it is {now:%Y-%m-%d %H:%M} by the store's clock. "
            "Pass a later time."
        )
    released = {
        known_brake(name): single_line(reason, f"the reason for releasing '{name}'")
        for name, reason in request.released.items()
    }
    if request.for_reference and proposal.record.inventory is not None:
        raise WrongUsage(
            f"{proposal.name} was made from an inventory, whose sizes and times are unverified. lakegc's sweep "
            "checks each object again, but the reference collector doesn't. Leave out --for-reference, or make a "
            "mark that lists the store."
        )
    if request.for_reference and proposal.record.is_incremental and proposal.target.place.seal is None:
        raise WrongUsage(
            f"{proposal.name} is incremental: it builds on files of earlier marks, which anyone with write access to "
            "the namespace can alter. lakegc's sweep verifies them again, but the reference collector doesn't. "
            "Leave out --for-reference, make a mark with --full, or sign marks (LAKEGC_SIGNING_KEY)."
        )
    foreign = proposal.foreign
    if foreign is not None and request.for_reference:
        raise WrongUsage(
            f"{proposal.name} was made by the reference collector, and --for-reference is for marks made by lakegc. "
            "Leave out --for-reference."
        )
    return Approval(
        mark_id=proposal.record.mark_id,
        layout=None if foreign is None else foreign.layout,
        digest=proposal.digest,
        who=single_line(request.who, "the approver's name"),
        how=request.how,
        when=request.when,
        until=until,
        released=released,
        for_reference=request.for_reference,
        policy=request.policy,
        configured_holds=() if foreign is None else tuple(sorted(hold.id for hold in proposal.target.configured_holds)),
        servers=() if foreign is None else tuple(sorted(set(servers) - {""})),
    )


def grant(proposal: Proposal, approval: Approval, *, now: datetime) -> None:
    """Write an approval, in the order described at the top of this module."""
    place = proposal.target.place
    if proposal.mark is None:
        existing = read_untrusted_approval(place, approval.mark_id)
        # an approval given since `existing` was read makes the write fail
        status_of_earlier_approval(proposal, now=now)
        write_approval(place, approval, replacing=existing)
        return
    proposal.mark.move_to(MarkState.APPROVED, approval=approval.sha256)
    write_recorded_approval(proposal.mark, approval)
    if approval.for_reference:
        write_reference_summary(place, proposal.mark.record)
        refuse_conflicting_change(proposal.mark, approval)


def write_recorded_approval(mark: Mark, approval: Approval) -> None:
    """Write the approval that the mark's record names, replacing the file of an earlier approval.

    Raises `ApprovalConflict` if the record no longer names this approval, or if others keep writing the file.
    """
    for attempt in range(1, MAX_TRIES + 1):
        existing = read_untrusted_approval(mark.place, approval.mark_id)
        if Mark.open(mark.place, approval.mark_id).record.approval != approval.sha256:
            raise conflict_error(mark)
        try:
            write_approval(mark.place, approval, replacing=existing)
        except ApprovalConflict:  # a concurrent revoke has recorded the end of the earlier approval
            if attempt == MAX_TRIES:
                raise
        else:
            return


def refuse_conflicting_change(mark: Mark, approval: Approval) -> None:
    """Withdraw the new summary and raise `ApprovalConflict` if the approval was revoked or used while the summary was
    being written."""
    record = Mark.open(mark.place, approval.mark_id).record
    if record.state is not MarkState.APPROVED or record.approval != approval.sha256:
        withdraw_reference_summary(mark.place, approval.mark_id)
        raise conflict_error(mark)


def conflict_error(mark: Mark) -> ApprovalConflict:
    return ApprovalConflict(
        f"the approval of mark {mark.record.mark_id} of {mark.record.repository} was revoked, or the mark's sweep "
        "began, while the approval was being written. 'lakegc status' shows the mark's current state.",
        invariant=7,
    )


# --- revoking -------------------------------------------------------------------------------------------------------


def revoke(proposal: Proposal, *, who: str, now: datetime, how: str = REVOKED) -> None:
    """Revoke an approval, even a partly written or merely announced one, and record when, by whom and `how` it ended.
    `now` is by the store's clock.

    After that, no policy approves the mark, unless `how` says that the approval is merely replaced. Raises `WrongUsage`
    if there is no approval, `Refused` if the mark is being swept, was swept, or is superseded.
    """
    place, mark = proposal.target.place, proposal.mark
    refuse_used(proposal)
    was_announced = False
    if mark is not None:
        had_summary = withdraw_reference_summary(place, proposal.record.mark_id)
        if how == REVOKED:
            was_announced = withdraw_announcement(
                place, proposal.record.mark_id, digest=proposal.digest, who=who, now=now
            )
            if was_announced:  # a policy may have approved the mark, and its sweep begun, after the proposal was read
                mark = Mark.open(place, proposal.record.mark_id)
                refuse_used(replace(proposal, record=mark.record, mark=mark))
        was_approved = mark.record.state is MarkState.APPROVED
        if was_approved:
            mark.move_to(MarkState.MARKED, approval=None)
    else:
        was_approved = had_summary = False
    had_approval = record_end(proposal, who=who, how=how, now=now)
    if not (was_approved or had_summary or had_approval or was_announced):
        raise WrongUsage(f"{proposal.name} is not approved, so there is nothing to revoke.")


def record_end(proposal: Proposal, *, who: str, how: str, now: datetime) -> bool:
    """Record the end of an approval in approval.json, even if that file is unreadable. Returns whether there was an
    approval to end."""
    place, mark_id = proposal.target.place, proposal.record.mark_id
    existing = read_untrusted_approval(place, mark_id)
    if existing is None or (proposal.mark is not None and is_named_by_record(place, mark_id, existing[0])):
        return False
    end = ApprovalEnd(how=how, who=who, when=now.isoformat())
    try:
        approval = Approval.from_json(existing[0], mark_id)
    except DamagedData:
        layout = None if proposal.foreign is None else proposal.foreign.layout
        approval = Approval(mark_id, layout, "", "unreadable", "unreadable", now, now)
    if approval.ended is not None:
        return False
    try:
        write_approval(place, replace(approval, ended=end), replacing=existing)
    except ApprovalConflict:
        if proposal.mark is None:
            raise
        # a new approval has already replaced this one, so there is nothing to record
    return True


def is_named_by_record(place: Place, mark_id: str, data: bytes) -> bool:
    """Whether the mark's record names the approval in `data`. If so, it is a new one, given after the earlier one had
    been revoked."""
    return Mark.open(place, mark_id).record.approval == hashlib.sha256(data).hexdigest()


# --- verifying ------------------------------------------------------------------------------------------------------


def valid_approval(proposal: Proposal, *, now: datetime) -> Approval:
    """The valid approval of a mark; the mark's files aren't checked. `now` is by the store's clock.

    Raises `Refused` if there is no approval, or if it is incomplete, has expired or was used, and `DamagedData` if it
    is unreadable.
    """
    refuse_used(proposal)
    approval = proposal.approval()
    check_status(proposal.target.repository.id, proposal.record.mark_id, proposal.status(approval, now=now), approval)
    assert approval is not None
    return approval


def verify_approved(target: Target, record: MarkRecord, approval: Approval | None, *, now: datetime) -> None:
    """Raise `Refused` unless this approval is valid now for this lakegc mark, and the mark is unchanged.

    Called right before a sweep: rows, files and record must be the approved ones. Rules and holds may have changed
    since then: a sweep applies the current ones, but only to approved objects, so it can only keep more of them. `now`
    is by the store's clock.
    """
    check_approved(target, record, approval, now=now)
    verify_recorded_files(target, record)


def check_approved(
    target: Target,
    record: MarkRecord,
    approval: Approval | None,
    *,
    now: datetime,
    limits: BrakeLimits | None = None,
) -> None:
    """Raise `Refused` unless this approval is valid now for this mark and unused. The mark's files aren't read.

    With `limits`, the error has the complete command that approves the mark, with the brakes to release.
    """
    from lakegc_assets.mark.preconditions import (
        refuse_different_repository,  # imports Dagster, which reviews don't need
    )

    refuse_different_repository(record, target)
    refuse_used(Proposal(target, record, record.digest or ""))
    tripped = [] if limits is None else [brake.name for brake in brakes(record, limits, now=now) if brake.tripped]
    check_status(record.repository, record.mark_id, approval_status(record, approval, now=now), approval, tripped)
    assert approval is not None
    refuse_without_announcement(target.place, record, approval)


def refuse_without_announcement(place: Place, record: MarkRecord, approval: Approval) -> None:
    """Raise `Refused` if a policy approved the mark, but its announcement was revoked, replaced or removed."""
    if approval.policy is None:
        return
    name, stored = f"mark {record.mark_id} of {record.repository}", read_announcement(place, record.mark_id)
    if stored is not None and stored.announcement.revoked is not None:
        revocation = stored.announcement.revoked
        raise Refused(
            f"{revocation['who']} revoked the policy's approval of {name} at {revocation['when']}. To sweep the mark, "
            "approve it yourself: lakegc revoke, then lakegc approve.",
            invariant=7,
        )
    announced = None if stored is None else (stored.announcement.digest, stored.announcement.policy_sha256)
    if announced != (approval.digest, approval.policy["sha256"]):
        raise Refused(
            f"{name} was approved by a policy, but its announcement ({announcement_key(record.mark_id)} in "
            f"{place.store().where}) {'was removed' if announced is None else 'is for another set or policy'}. Find "
            "out who did this. To sweep the mark, approve it yourself: lakegc revoke, then lakegc approve.",
            invariant=7,
        )


def verify_recorded_files(target: Target, record: MarkRecord) -> None:
    """Raise `Refused` unless the mark's rows and files are the recorded ones. Called for backups and resumed sweeps."""
    check_record(record)
    check_files(target, record)


def verify_foreign(target: Target, foreign: ReferenceMark, approval: Approval | None, *, now: datetime) -> None:
    """Like `verify_approved`, for a mark of the reference collector."""
    name = f"mark {foreign.mark_id} of {target.repository.id}"
    check_foreign_approved(target, foreign, approval, now=now)
    files = foreign_files(target, foreign)
    if approval is None or files.digest != approval.digest:
        raise Refused(
            f"the files of {name} have changed since the approval. Make a new mark: lakegc mark {target.repository.id}",
            invariant=7,
        )


def check_foreign_approved(target: Target, foreign: ReferenceMark, approval: Approval | None, *, now: datetime) -> None:
    """Like `check_approved`, for a mark of the reference collector."""
    refuse_unusable_foreign_mark(target, foreign)
    status = foreign_approval_status(approval, layout=foreign.layout, now=now)
    check_status(target.repository.id, f"{foreign.layout}/{foreign.mark_id}", status, approval)
