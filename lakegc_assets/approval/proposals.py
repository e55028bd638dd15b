"""Marks proposed for approval, and approval requests. Refuses marks that can't be approved, but approves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lakegc_assets.approval.foreign_marks import open_sweep_record, record_of_foreign_mark
from lakegc_assets.approval.verify_files import foreign_files
from lakegc_assets.mark.context import Target
from lakegc_assets.mark.options import SAFE_MIN_AGE, arguments_to_repeat
from spark_resources.errors import DamagedData, NothingToDo, Refused, WrongUsage, full_stop
from spark_resources.mark_store.approval import (
    SWEPT,
    Approval,
    ApprovalStatus,
    PolicyTerms,
    approval_status,
    foreign_approval_status,
    read_approval,
    withdraw_stale_summary,
)
from spark_resources.mark_store.foreign_expired_set import reference_mark
from spark_resources.mark_store.foreign_layouts import LAYOUTS_WITH_SUMMARY, ReferenceMark
from spark_resources.mark_store.mark import Mark, own_mark_ids
from spark_resources.mark_store.record import MarkRecord, refuse_retired
from spark_resources.model import MarkState, Scope, check_mark_id
from spark_resources.stores.base import Store

DEFAULTS = Scope.UNIFIED, SAFE_MIN_AGE
USED_STATES = frozenset({MarkState.SWEEPING, MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES})


@dataclass(frozen=True, slots=True)
class Proposal:
    """A finished mark proposed for approval. For a foreign mark, `record` is built from its files and a
    listing of the store."""

    target: Target
    record: MarkRecord
    digest: str
    mark: Mark | None = None
    foreign: ReferenceMark | None = None

    @property
    def name(self) -> str:
        return f"mark {self.record.mark_id} of {self.target.repository.id}"

    @property
    def store(self) -> Store:
        return self.target.place.store()

    def approval(self) -> Approval | None:
        return read_approval(self.target.place, self.record.mark_id)

    def status(self, approval: Approval | None, *, now: datetime) -> ApprovalStatus:
        """The status of an approval. `now` is by the store's clock."""
        if self.foreign is None:
            return approval_status(self.record, approval, now=now)
        return foreign_approval_status(approval, layout=self.foreign.layout, now=now)


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A request to approve a mark, by a person or a policy. `when` is by the store's clock; `how` is the interface
    (terminal or UI) or the policy; `released` maps the brakes to release to the reasons.

    `until` is None if the approval is to last until the mark is too old. `digest` identifies the set that was reviewed;
    None if none was given. `for_reference` also lets the reference collector sweep the mark. `policy` has the terms of
    a policy that approves the mark; None if a person does."""

    who: str
    how: str
    when: datetime
    released: Mapping[str, str] = field(default_factory=dict)
    until: datetime | None = None
    digest: str | None = None
    for_reference: bool = False
    policy: PolicyTerms | None = None


def propose(target: Target, name: str, *, now: datetime) -> Proposal:
    """Open the finished mark with this id, or the foreign mark with this `layout/id`, for approval. `now` is by the
    store's clock.

    Raises `WrongUsage` if it is unknown or unfinished, `Refused` if it belongs to another repository. Removes a summary
    that is left over from an approval that is no longer in force.
    """
    from lakegc_assets.mark.preconditions import (
        refuse_different_repository,  # imports Dagster, which reviews don't need
    )

    place = target.place
    if "/" not in name and Mark.exists(place, check_mark_id(name)):
        mark = Mark.open(place, name)
        refuse_different_repository(mark.record, target)
        refuse_unfinished(mark.record)
        withdraw_stale_summary(place, mark.record, now=now)
        return Proposal(target, mark.record, mark.record.digest or "", mark=mark)
    foreign = reference_mark(place, name, own_ids=own_mark_ids(place))
    if foreign is None:
        raise WrongUsage(
            f"there is no mark {name} of {target.repository.id}. 'lakegc status {target.repository.id}' lists the "
            "marks."
        )
    refuse_unusable_foreign_mark(target, foreign)
    files = foreign_files(target, foreign)
    return Proposal(target, record_of_foreign_mark(target, foreign, files.addresses), files.digest, foreign=foreign)


def refuse_unfinished(record: MarkRecord) -> None:
    """Raise `WrongUsage` for an unfinished mark, and `Retired` for a retired one."""
    refuse_retired(record)
    if record.finished is None:
        reason = f": {record.failure}" if record.failure else ""
        problem = full_stop(f"mark {record.mark_id} of {record.repository} is not finished ({record.state}){reason}")
        raise WrongUsage(f"{problem} Resume it in Dagster's UI, or make a new mark: lakegc mark {record.repository}")


def refuse_unusable_foreign_mark(target: Target, foreign: ReferenceMark) -> None:
    """Raise `WrongUsage` if a foreign mark didn't finish successfully, `Refused` if it is older than the repository."""
    if foreign.written < target.repository.created:
        raise Refused(
            f"mark {foreign.mark_id} is older than the repository {target.repository.id}, which was created on "
            f"{target.repository.created:%Y-%m-%d %H:%M:%S} UTC, so the mark was made for an earlier repository with "
            f"this name. Make a new mark: lakegc mark {target.repository.id}",
            invariant=7,
        )
    if foreign.layout in LAYOUTS_WITH_SUMMARY and (
        foreign.summary is None or foreign.summary.get("success") is not True
    ):
        raise WrongUsage(
            f"mark {foreign.mark_id} of {target.repository.id} is not finished: the reference collector wrote no "
            f"summary that reports success. Make a new mark: lakegc mark {target.repository.id}"
        )


def refuse_used(proposal: Proposal) -> None:
    """Raise `Refused` if a mark is being swept, was swept, was superseded by a newer one, or was retired."""
    refuse_retired(proposal.record)
    options = arguments_to_repeat(proposal.record, configured=DEFAULTS) if proposal.foreign is None else ()
    state, mark_again = proposal.record.state, " ".join(["lakegc mark", proposal.target.repository.id, *options])
    if state in USED_STATES:
        raise NothingToDo(
            f"the approval of {proposal.name} has been used: the mark's state is {state}. Make a new mark: "
            f"{mark_again}",
            invariant=7,
        )
    if state is MarkState.SUPERSEDED:
        raise Refused(f"{proposal.name} is superseded by a newer mark. Review and approve that mark.", invariant=7)
    if proposal.foreign is None:
        return
    sweep = open_sweep_record(proposal.target, proposal.record.mark_id)
    if sweep is not None and sweep.record.state in USED_STATES:
        raise NothingToDo(
            f"the approval of {proposal.name} has been used: the mark's state is {sweep.record.state}. Make a new "
            f"mark: {mark_again}",
            invariant=7,
        )
    if (approval := read_if_intact(proposal)) and approval.ended and approval.ended["how"] == SWEPT:
        raise NothingToDo(
            f"the approval of {proposal.name} has been used: the mark was swept. Make a new mark: {mark_again}",
            invariant=7,
        )


def read_if_intact(proposal: Proposal) -> Approval | None:
    """The approval of a proposed mark; None if there is none, or if it is unreadable."""
    try:
        return proposal.approval()
    except DamagedData:
        return None
