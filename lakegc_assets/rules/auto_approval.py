"""When a policy in the settings may approve a mark instead of a person (invariant 7).

Pure: inputs in, unmet conditions out. A mark qualifies only if every condition is met, and what isn't known counts as
unmet. Everything that isn't clearly routine needs a person's approval.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lakegc_assets.formatting import plural
from lakegc_assets.rules.brakes import Brake, ratio
from spark_resources.model import MarkState

if TYPE_CHECKING:
    from spark_resources.settings import Settings


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy in the settings (`auto_approve_…`). `max_share` is a fraction of all objects, and of all bytes.

    Every expired object must be older than `min_age`. An approval is announced `wait` before it is given. The sweep
    quarantines objects (`quarantine`), requires a backup of them in `backup_to`, or both.
    """

    max_share: float
    min_age: timedelta
    wait: timedelta
    quarantine: bool
    backup_to: str | None

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        return cls(
            settings.auto_approve_max_share,
            settings.auto_approve_min_age,
            settings.auto_approve_wait,
            settings.sweep_quarantine,
            settings.backup_to,
        )

    @property
    def text(self) -> str:
        """The policy as one line. Policies that differ have different texts, so values aren't rounded."""
        safety_nets = ["sweeps quarantine objects"] if self.quarantine else []
        safety_nets += [f"sweeps require a backup in {self.backup_to}"] if self.backup_to is not None else []
        return "; ".join(
            [
                f"at most {self.max_share!r} of all objects and of all bytes are expired",
                f"every expired object is older than {self.min_age}",
                f"the approval is announced {self.wait} in advance",
                *(safety_nets or ["neither quarantine nor backup"]),
            ]
        )

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """What the conditions compare. Counts are those of the mark's record.

    `own` says whether lakegc made the mark. `has_approval` says whether it has an approval, even one that is no
    longer in force. `previous` is the mark that it was compared with, None for the first one; `unreadable` are marks
    that can't be read. `brakes` are measured at the time of the approval. `trusted` are the repositories and
    patterns that the mark trusted, and didn't read (None if that isn't recorded); `trusted_now` are the patterns of
    today's settings. `youngest` is when the youngest expired object was stored. `reasons` and `previous_reasons` are
    the labels of all reasons with their rules. All three are None if they aren't known. Times are by the store's
    clock.
    """

    own: bool
    state: MarkState
    has_approval: bool
    from_inventory: bool
    previous: str | None
    unreadable: tuple[str, ...]
    brakes: tuple[Brake, ...]
    trusted: tuple[str, ...] | None
    trusted_now: tuple[str, ...]
    candidates: int
    candidate_bytes: int
    expired: int
    expired_bytes: int
    youngest: datetime | None
    reasons: frozenset[str] | None
    previous_reasons: frozenset[str] | None


def unmet_conditions(inputs: PolicyInputs, policy: Policy, *, now: datetime) -> list[str]:
    """Every condition that forbids an approval by the policy, as a sentence; empty if the mark qualifies. `now` is by
    the store's clock."""
    return [
        *unmet_by_policy(policy),
        *unmet_by_history(inputs),
        *(f"the brake '{brake.name}' has tripped: {brake.why}" for brake in inputs.brakes if brake.tripped),
        *unmet_by_other_repositories(inputs),
        *unmet_by_set(inputs, policy, now=now),
        *unmet_by_reasons(inputs),
    ]


def unmet_by_policy(policy: Policy) -> Iterator[str]:
    if not (policy.quarantine or policy.backup_to):
        yield "neither sweep_quarantine nor backup_to is set, so deleted objects could not be restored"
    if policy.wait <= timedelta(0):
        yield f"auto_approve_wait is {policy.wait}, so nobody could revoke the approval in advance"


def unmet_by_history(inputs: PolicyInputs) -> Iterator[str]:
    if not inputs.own:
        yield "the mark was not made by lakegc"
    if inputs.state is not MarkState.MARKED:
        yield f"the mark's state is '{inputs.state}', and '{MarkState.MARKED}' is required"
    if inputs.has_approval:
        yield "the mark has been approved before: only a person can approve it again"
    if inputs.from_inventory:
        yield "the mark was made from an inventory, whose sizes and times are unverified"
    if inputs.previous is None:
        yield "this is the first mark of the repository and scope: there is none to compare it with"
    if inputs.unreadable:
        yield f"{plural(len(inputs.unreadable), 'mark')} can't be read: {', '.join(inputs.unreadable)}"


def unmet_by_other_repositories(inputs: PolicyInputs) -> Iterator[str]:
    """Conditions on repositories that are trusted without being read. Those that can't be read have brakes."""
    if inputs.trusted is None:
        yield "the mark doesn't record which other repositories it trusted without reading them"
    elif inputs.trusted:
        yield f"the mark trusted other repositories without reading them: {', '.join(inputs.trusted)}"
    if inputs.trusted_now:
        yield f"a sweep would trust other repositories without reading them: {', '.join(inputs.trusted_now)}"


def unmet_by_set(inputs: PolicyInputs, policy: Policy, *, now: datetime) -> Iterator[str]:
    if inputs.expired <= 0:
        yield "no object is expired"
    for what, expired, stored in (
        ("objects", inputs.expired, inputs.candidates),
        ("bytes", inputs.expired_bytes, inputs.candidate_bytes),
    ):
        if not ratio(expired, stored) <= policy.max_share:
            yield (
                f"{100 * ratio(expired, stored):.4g}% of all {what} are expired ({expired:,} of {stored:,}); the limit "
                f"is {100 * policy.max_share:.4g}%"
            )
    if inputs.youngest is None:
        yield "the mark doesn't record when its youngest expired object was stored"
    elif not now - inputs.youngest > policy.min_age:
        yield (
            f"the youngest expired object was stored {inputs.youngest:%Y-%m-%d %H:%M:%S} UTC, {now - inputs.youngest} "
            f"ago; every object must be older than {policy.min_age}"
        )


def unmet_by_reasons(inputs: PolicyInputs) -> Iterator[str]:
    if inputs.reasons is None:
        yield "the mark's expiry reasons aren't known"
    elif inputs.previous is None:
        return  # the first mark doesn't qualify anyway
    elif inputs.previous_reasons is None:
        yield f"the expiry reasons of the previous mark, {inputs.previous}, aren't known"
    elif new := sorted(inputs.reasons - inputs.previous_reasons):
        yield f"{plural(len(new), 'reason')} did not occur in the previous mark, {inputs.previous}: {'; '.join(new)}"
