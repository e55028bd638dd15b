"""Preconditions of an approval (invariants 7, 9, 11). Each check raises an error or returns; none writes anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from lakegc_assets.approval.parse_request import PLACEHOLDER, release_options
from lakegc_assets.approval.proposals import ApprovalRequest, Proposal, read_if_intact, refuse_used
from lakegc_assets.approval.verify_files import check_files, foreign_files
from lakegc_assets.formatting import plural, rules_in_words
from lakegc_assets.mark.context import Target
from lakegc_assets.rules.brakes import BrakeLimits, brakes, servers_read
from spark_resources.errors import NothingToDo, Refused, WrongUsage, full_stop
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.approval import RENEWED, REVOKED, SWEPT, Approval, ApprovalEnd, ApprovalStatus
from spark_resources.mark_store.foreign_expired_set import reference_mark
from spark_resources.mark_store.holds import read_holds
from spark_resources.mark_store.mark import own_mark_ids
from spark_resources.mark_store.record import MarkRecord, digest_of


def refuse_store_without_conditional_writes(proposal: Proposal, *, single_deployment: bool) -> None:
    if not (proposal.store.capabilities.conditional_writes or single_deployment):
        raise Refused(
            f"{proposal.store.where} has no conditional writes, so lakegc can't prevent two people from approving at "
            "the same time. If no other lakegc deployment uses this store, set LAKEGC_SINGLE_DEPLOYMENT=true.",
            invariant=11,
        )


def status_of_earlier_approval(proposal: Proposal, *, now: datetime) -> ApprovalStatus:
    """The status of an earlier approval. Raises `Refused` unless a new one may be given."""
    refuse_used(proposal)
    approval = read_if_intact(proposal)
    status = proposal.status(approval, now=now)
    if status is ApprovalStatus.APPROVED and approval is not None:
        raise Refused(
            f"{proposal.name} is already approved by {approval.who} until {approval.until:%Y-%m-%d %H:%M} UTC. To "
            "approve it with other options, first revoke that approval: lakegc revoke.",
            invariant=7,
        )
    return status


def check_request(proposal: Proposal, request: ApprovalRequest) -> None:
    """Raise `Refused` if a request is older than the mark or than the end of an earlier approval, or names a
    different digest."""
    finished = proposal.record.finished
    assert finished is not None  # a proposed mark is always finished
    # a store that rounds times down to whole seconds may date a mark up to a second too early
    if request.when < finished + proposal.store.capabilities.time_resolution:
        raise Refused(
            f"{proposal.name} was finished at {finished:%Y-%m-%d %H:%M:%S} UTC by the store's clock, after this "
            f"approval was given ({request.when:%Y-%m-%d %H:%M:%S}), so the approver can't have seen this set. "
            "Review it, and approve again.",
            invariant=7,
        )
    earlier = read_if_intact(proposal)
    if (
        earlier is not None
        and earlier.ended is not None
        and request.when <= datetime.fromisoformat(earlier.ended["when"])
    ):
        raise Refused(
            f"an earlier approval of {proposal.name} {end_in_words(earlier.ended)} after this one was given, at "
            f"{request.when:%Y-%m-%d %H:%M:%S} UTC. Approve again if the mark should still be swept.",
            invariant=7,
        )
    if request.digest is not None and request.digest != proposal.digest:
        review = f"lakegc review {proposal.target.repository.id} {proposal.record.mark_id}"
        problem = (
            "is only its beginning. Pass the whole digest"
            if proposal.digest.startswith(request.digest)
            else f"identifies a different set. Review the current set: {review}"
        )
        raise Refused(
            f"the digest of {proposal.name} is {proposal.digest}, but the approval is for {request.digest}, which "
            f"{problem}",
            invariant=7,
        )


def check_newer(proposal: Proposal, request: ApprovalRequest, earlier_status: ApprovalStatus) -> None:
    """Raise `Refused` if a request isn't newer than the end of an expired approval, which it would merely extend."""
    approval = read_if_intact(proposal)
    if earlier_status is ApprovalStatus.EXPIRED and approval is not None and request.when < approval.until:
        raise Refused(
            f"the approval of {proposal.name} by {approval.who} expired at {approval.until:%Y-%m-%d %H:%M:%S} UTC, and "
            f"this approval was given earlier, at {request.when:%Y-%m-%d %H:%M:%S}. Review the mark, and approve it "
            "again.",
            invariant=7,
        )


def end_in_words(ended: ApprovalEnd) -> str:
    """How an approval ended, as a predicate: "was revoked by Ada". If a policy ended it, `how` is a clause with the
    reason."""
    if ended["how"] in (REVOKED, RENEWED, SWEPT):
        return f"was {ended['how']} by {ended['who']}"
    return f"was revoked because {ended['how']}"


class StoppedByBrakes(Refused):
    """Raised when a brake has tripped and isn't released. `tripped` names all tripped brakes."""

    def __init__(self, message: str, tripped: Sequence[str] = ()) -> None:
        super().__init__(message, invariant=9)
        self.tripped = tuple(tripped)


class BrakeNotTripped(WrongUsage):
    """Raised when a released brake has not tripped. `tripped` names all tripped brakes."""

    def __init__(self, message: str, tripped: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tripped = tuple(tripped)


def check_brakes(proposal: Proposal, released: Mapping[str, str], limits: BrakeLimits, *, until: datetime) -> None:
    """Raise `StoppedByBrakes` for tripped brakes that aren't released, `BrakeNotTripped` for released brakes that
    haven't tripped. Each error names both kinds, so that the next attempt can succeed.

    The mark's age is measured at the end of the approval, because the mark may be swept as late as then.
    """
    all_brakes = brakes(proposal.record, limits, now=until)
    tripped = {brake.name: brake.why for brake in all_brakes if brake.tripped}
    unreleased = {name: why for name, why in tripped.items() if name not in released}
    sentences = "".join(f"\n  {name}: {why}" for name, why in unreleased.items())
    how_to_release = (
        "\nIf that is expected, release each brake by name with a reason: --release BRAKE --because TEXT, or, "
        "in Dagster's job approve, 'release: {BRAKE: TEXT}'."
    )
    if not_tripped := sorted(set(released) - set(tripped)):
        others_tripped = (
            f" The mark is stopped by:{sentences}{how_to_release}"
            if unreleased
            else f" Tripped: {', '.join(tripped) or 'none'}."
        )
        verb = "has" if len(not_tripped) == 1 else "have"
        raise BrakeNotTripped(
            f"{', '.join(not_tripped)} {verb} not tripped for {proposal.name} and can't be released in advance."
            f"{others_tripped}",
            tuple(tripped),
        )
    if unreleased:
        stopped = f"{proposal.name} is stopped by {plural(len(unreleased), 'brake')}:{sentences}{how_to_release}"
        raise StoppedByBrakes(stopped, tuple(tripped))


class OutdatedMark(Refused):
    """Raised if a mark was made with rules, holds or servers other than today's. `change` says what has changed, and
    `mark_command` makes a new mark."""

    def __init__(self, change: str, mark_command: str, *, invariant: int | None) -> None:
        super().__init__(f"{full_stop(change)} Make a new mark: {mark_command}", invariant=invariant)
        self.change = change


def check_unchanged(proposal: Proposal, lakefs: LakeFS) -> None:
    """Raise `OutdatedMark` if rules or holds have changed since the mark was made, or if it was made without a server
    that is in the settings now. Accepts foreign marks, which record none of these."""
    if proposal.foreign is None:
        for change in changes_since(proposal.record, proposal.target, lakefs):
            raise change


def changes_since(record: MarkRecord, target: Target, lakefs: LakeFS) -> Iterator[OutdatedMark]:
    """What has changed since one of lakegc's marks was made, each as the error that an approval would raise."""
    repository = target.repository.id
    name, mark_command = f"mark {record.mark_id} of {repository}", f"lakegc mark {repository}"
    if added := servers_added_since(record, target.repository.server, lakefs.servers):
        yield OutdatedMark(
            f"{name} was made without servers that are in the settings now: {', '.join(added)}. Their repositories may "
            "refer to objects of this mark",
            mark_command,
            invariant=2,
        )
    rules, holds = lakefs.rules(repository), read_holds(target.place, target.configured_holds)
    if rules != record.rules:
        yield OutdatedMark(
            f"the retention rules of {repository} were changed after {name} was made, from "
            f"{rules_in_words(record.rules)} to {rules_in_words(rules)}",
            mark_command,
            invariant=7,
        )
    if holds.sha256 != record.holds["sha256"]:
        before, after = set(record.holds["ids"]), set(holds.ids)
        changes = [f"added {hold_id}" for hold_id in sorted(after - before)] + [
            f"dropped {hold_id}" for hold_id in sorted(before - after)
        ]
        yield OutdatedMark(
            f"the holds of {repository} were changed after {name} was made "
            f"({', '.join(changes) or 'same ids, different definitions'})",
            mark_command,
            invariant=7,
        )


def servers_added_since(record: MarkRecord, own: str, servers: Collection[str]) -> list[str]:
    """The servers in the settings whose repositories a mark didn't read, sorted. `own` is the server of the mark's
    repository, which every mark reads; it has no name in a mark that was made when it was the only server."""
    return sorted(set(servers) - {own, *servers_read(record)})


def check_set(proposal: Proposal) -> None:
    """Raise `Refused` unless the namespace contains, byte for byte, the set that the digest identifies."""
    if proposal.foreign is not None:
        check_foreign(proposal)
        return
    check_record(proposal.record)
    check_files(proposal.target, proposal.record)


def check_record(record: MarkRecord) -> None:
    if digest_of(record) != record.digest:
        raise Refused(
            f"the record of mark {record.mark_id} of {record.repository} was altered after the mark was made: its "
            f"digest doesn't match its content. Make a new mark: lakegc mark {record.repository}",
            invariant=7,
        )


def check_foreign(proposal: Proposal) -> None:
    """Raise `Refused` if a foreign mark has changed since it was reviewed."""
    assert proposal.foreign is not None
    name, place = f"{proposal.foreign.layout}/{proposal.foreign.mark_id}", proposal.target.place
    foreign = reference_mark(place, name, own_ids=own_mark_ids(place))
    if foreign is None or foreign_files(proposal.target, foreign).digest != proposal.digest:
        raise Refused(
            f"the files of {proposal.name} have changed since the review: at least one was altered, added or removed. "
            "Review the mark again.",
            invariant=7,
        )


def check_status(
    repository: str, mark: str, status: ApprovalStatus, approval: Approval | None, tripped: Sequence[str] = ()
) -> None:
    """Raise `Refused` (invariant 7) unless a mark is approved. `mark` is its id, or `layout/id` for a foreign mark;
    `tripped` are the brakes, if known, that an approval has to release."""
    if status is ApprovalStatus.APPROVED:
        return
    why = {
        ApprovalStatus.NONE: "is not approved",
        ApprovalStatus.INCOMPLETE: "has an approval that is incomplete or was altered",
        ApprovalStatus.EXPIRED: f"was approved until {approval.until:%Y-%m-%d %H:%M} UTC" if approval else "",
    }[status]
    error_type = NothingToDo if status is ApprovalStatus.NONE else Refused
    options = "".join(f" {option}" for option in release_options(tripped))
    reasons = f" (replace each {PLACEHOLDER} with your reason)" if tripped else ""
    raise error_type(
        f"mark {mark.rpartition('/')[2]} of {repository} {why}. To review it: lakegc review {repository} {mark}. To "
        f"approve it: lakegc approve {repository} {mark}{options}{reasons}, or the job approve in Dagster.",
        invariant=7,
    )
