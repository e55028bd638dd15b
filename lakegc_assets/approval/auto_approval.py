"""Approve marks by a policy in the settings: announce the approval, wait, check everything again, and approve as a
person would.

The steps in order, each with the state that a crash right after it leaves behind:

    1. auto_approval.json announces the approval      a person can revoke it; the approval is given when it is due
    2. the steps of `approve`                         see `lakegc_assets.approval.approve`
    3. the caller reports the approval to Dagster     approved; the next call returns it again, to be reported

Each call looks only at the newest finished mark. The announcement is written conditionally, so that two processes never
replace each other's, and a revocation is never lost: the sweep requires that the announcement wasn't revoked.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from lakegc_assets.approval.approve import approve, refuse_without_announcement, revoke
from lakegc_assets.approval.preconditions import (
    check_record,
    check_unchanged,
    refuse_store_without_conditional_writes,
)
from lakegc_assets.approval.proposals import ApprovalRequest, Proposal, propose
from lakegc_assets.mark.context import Target, read_clocks
from lakegc_assets.mark.sample_objects import newest_object_time
from lakegc_assets.mark.totals import EVERYTHING_ELSE, label_in_words, recorded_totals
from lakegc_assets.rules.auto_approval import Policy, PolicyInputs, unmet_conditions
from lakegc_assets.rules.brakes import BrakeLimits, brakes
from spark_resources.errors import DamagedData, Refused
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.announcement import (
    Announcement,
    StoredAnnouncement,
    read_announcement,
    write_announcement,
)
from spark_resources.mark_store.approval import (
    Approval,
    ApprovalStatus,
    PolicyTerms,
    read_approval,
    read_untrusted_approval,
)
from spark_resources.mark_store.mark import Mark, each_mark, refuse_foreign_namespace
from spark_resources.mark_store.record import MarkRecord, newest_finished, refuse_earlier_format
from spark_resources.model import MarkState
from spark_resources.settings import Settings
from spark_resources.stores.place import Place

POLICY = "policy"
"""The approver's name in an approval by a policy."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about a repository's newest mark, as a sentence. `approval` is set if the policy has approved
    the mark of `proposal`, now or earlier, and its sweep hasn't started."""

    sentence: str
    proposal: Proposal | None = None
    approval: Approval | None = None


def apply_policy(target: Target, lakefs: LakeFS, settings: Settings) -> Decision:
    """Announce the approval of a repository's newest finished mark if it qualifies, and approve it when that is due.

    The store's clock decides. Raises `Refused` or `DamagedData` if a record can't be trusted or read, and for
    everything that forbids an approval by a person, too. Nothing is approved in that case.
    """
    place, policy = target.place, Policy.of(settings)
    refuse_foreign_namespace(place, target.repository.id, target.repository.created)
    record, unreadable = newest_finished_mark(place)
    if record is None:
        return Decision("no mark is finished")
    now = place.store().now()
    proposal = propose(target, record.mark_id, now=now)
    refuse_earlier_format(proposal.record, "approved by a policy")
    refuse_store_without_conditional_writes(proposal, single_deployment=settings.single_deployment)
    if (decided := decision_if_approved(proposal)) is not None:
        return decided
    stored = read_announcement(place, record.mark_id)
    if stored is not None:
        check_announced_set(stored.announcement, proposal)
        if (revocation := stored.announcement.revoked) is not None:
            return Decision(f"mark {record.mark_id} isn't approved: {revocation['who']} revoked the announcement")
        is_current = stored.announcement.policy_sha256 == policy.sha256
        if is_current and not stored.is_due(policy.wait, now=now):
            return Decision(announced_in_words(stored.announcement))
    else:
        is_current = False
    approved_at = now if is_current else now + policy.wait  # a mark ages while its approval is announced
    inputs = policy_inputs(proposal, unreadable, settings, approved_at=approved_at)
    if unmet := unmet_conditions(inputs, policy, now=now):
        return Decision(f"mark {record.mark_id} doesn't qualify: {'; '.join(unmet)}")
    # the waiting time and all ages are by the store's clock: a clock that jumped could end the wait at once
    clocks = read_clocks(proposal.store, lakefs, target.repository.server, lambda: datetime.now(UTC))
    clocks.check(settings.max_clock_skew, target.repository.id)
    check_unchanged(proposal, lakefs)
    if stored is None or not is_current:
        return announce(proposal, policy, replacing=stored)
    return approve_announced(proposal, stored.announcement, policy, lakefs, settings)


def newest_finished_mark(place: Place) -> tuple[MarkRecord | None, tuple[str, ...]]:
    """lakegc's newest finished mark (None if there is none), and the ids of marks that aren't signed with a known key
    or have an unknown format. Raises `DamagedData` if a record can't be read."""
    records = dict(each_mark(place))
    unreadable = tuple(mark_id for mark_id, record in records.items() if not isinstance(record, MarkRecord))
    return newest_finished(records.values()), unreadable


def decision_if_approved(proposal: Proposal) -> Decision | None:
    """The decision on a mark that a policy has already approved and that can still be swept; None otherwise."""
    if proposal.record.state is not MarkState.APPROVED:
        return None
    approval = read_approval(proposal.target.place, proposal.record.mark_id)
    if approval is None or approval.policy is None:
        return None
    if proposal.status(approval, now=proposal.store.now()) is not ApprovalStatus.APPROVED:
        return None
    refuse_without_announcement(proposal.target.place, proposal.record, approval)
    return Decision(f"mark {proposal.record.mark_id} is approved until {approval.until:%Y-%m-%d %H:%M} UTC", proposal,
                    approval)  # fmt: skip


def check_announced_set(announcement: Announcement, proposal: Proposal) -> None:
    """Raise `DamagedData` if an announcement is for a different set from the mark's. A revoked announcement may have
    any digest."""
    if announcement.revoked is None and announcement.digest != proposal.digest:
        raise DamagedData(
            f"the announced approval of {proposal.name} is for the digest {announcement.digest}, but the mark's is "
            f"{proposal.digest}: one of them was altered. No policy approves this mark. Find out who did this, and "
            "withdraw the announcement with 'lakegc revoke'.",
            invariant=7,
        )


# --- what the policy's conditions compare ----------------------------------------------------------------------------


def policy_inputs(
    proposal: Proposal, unreadable: tuple[str, ...], settings: Settings, *, approved_at: datetime
) -> PolicyInputs:
    """What the policy's conditions compare for a mark, read from small files. Brakes are measured at `approved_at`, by
    the store's clock.

    Raises `Refused` if the record of this or the previous mark was altered, and `DamagedData` if one of their files is
    damaged.
    """
    record, place = proposal.record, proposal.target.place
    previous = record.previous or {}
    previous_id = previous.get("mark_id")
    return PolicyInputs(
        own=proposal.mark is not None,
        state=record.state,
        has_approval=read_untrusted_approval(place, record.mark_id) is not None,
        from_inventory=record.inventory is not None,
        previous=previous_id,
        unreadable=tuple(sorted({*unreadable, *previous.get("unreadable", ())})),
        brakes=brakes(record, BrakeLimits.of(settings), now=approved_at),
        trusted=trusted_in(record),
        trusted_now=settings.trusted_repositories,
        candidates=record.counts["candidates"],
        candidate_bytes=record.counts["candidate_bytes"],
        expired=record.counts["expired"],
        expired_bytes=record.counts["expired_bytes"],
        youngest=None if proposal.mark is None else newest_object_time(proposal.mark),
        reasons=None if proposal.mark is None else reasons_of(proposal.mark),
        previous_reasons=None if previous_id is None else reasons_of(Mark.open(place, previous_id)),
    )


def trusted_in(record: MarkRecord) -> tuple[str, ...] | None:
    """The other repositories that any step of a mark trusted; None if that isn't recorded. Steps may differ, because a
    resumed mark may continue with other settings."""
    if "trusted" not in record.step("committed_addresses").facts.get("elsewhere", {}):
        return None
    by_step = (step.facts.get("elsewhere", {}).get("trusted", ()) for step in record.steps.values())
    return tuple(sorted({name for names in by_step for name in names}))


def reasons_of(mark: Mark) -> frozenset[str] | None:
    """All expiry reasons of a mark, each with its branch and days; None if it has more than its totals record.

    Raises `Refused` if its record was altered.
    """
    check_record(mark.record)
    labels = recorded_totals(mark).by["reason"]
    return None if EVERYTHING_ELSE in labels else frozenset(label_in_words("reason", label) for label in labels)


# --- announcing and approving ---------------------------------------------------------------------------------------


def announce(proposal: Proposal, policy: Policy, *, replacing: StoredAnnouncement | None) -> Decision:
    """Announce the approval, replacing the announcement of an earlier policy. A revoked announcement is never
    replaced."""
    now = proposal.store.now()
    announcement = Announcement(
        mark_id=proposal.record.mark_id,
        digest=proposal.digest,
        policy=policy.text,
        policy_sha256=policy.sha256,
        announced=now,
        due=now + policy.wait,
    )
    version = None if replacing is None else replacing.version
    write_announcement(proposal.target.place, announcement, replacing=version)
    return Decision(announced_in_words(announcement))


def announced_in_words(announcement: Announcement) -> str:
    return (
        f"the approval of mark {announcement.mark_id} was announced on {announcement.announced:%Y-%m-%d %H:%M} UTC; "
        f"the policy approves the mark on {announcement.due:%Y-%m-%d %H:%M} UTC at the earliest"
    )


def approve_announced(
    proposal: Proposal, announcement: Announcement, policy: Policy, lakefs: LakeFS, settings: Settings
) -> Decision:
    """Approve a mark whose announcement is due, unless the announcement is revoked or a newer mark is finished in the
    meantime.

    Verifying a large set takes minutes, so both are checked again once the approval is given; if one has happened, the
    approval is revoked.
    """
    now = proposal.store.now()
    request = ApprovalRequest(
        who=POLICY,
        how=f"{POLICY}: {policy.text}",
        when=now,
        digest=announcement.digest,
        policy=PolicyTerms(sha256=policy.sha256, quarantine=policy.quarantine, backup_to=policy.backup_to),
    )
    limits, single_deployment = BrakeLimits.of(settings), settings.single_deployment
    approval = approve(proposal, request, lakefs, limits, now=now, single_deployment=single_deployment)
    try:
        refuse_without_announcement(proposal.target.place, proposal.record, approval)
        refuse_unless_newest(proposal)
    except Refused as error:
        how = "a newer mark was finished" if isinstance(error, NewerMark) else "the announcement was revoked"
        revoke(proposal, who=POLICY, how=how, now=proposal.store.now())
        raise
    return Decision(f"mark {proposal.record.mark_id} was approved", proposal, approval)


class NewerMark(Refused):
    """Raised if a newer mark was finished while an older one was being approved."""


def refuse_unless_newest(proposal: Proposal) -> None:
    newest, _ = newest_finished_mark(proposal.target.place)
    if newest is not None and newest.mark_id != proposal.record.mark_id:
        raise NewerMark(
            f"mark {newest.mark_id} was finished while the policy was approving {proposal.name}, so the approval was "
            "revoked.",
            invariant=7,
        )
