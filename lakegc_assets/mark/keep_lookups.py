"""Look up the evidence for the reasons to keep unreferenced objects, one reason after another, for marks and
re-verifications.

The order is a safety rule, too: staged and committed addresses are listed once more after the path probes, because
neither the first lists nor a probe finds an object that is moved to another path in between (invariant 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from lakegc_assets.mark import addresses_on_hold, other_repositories, recheck, restaged_content
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.keep_evidence import EvidenceByReason, KeepEvidence, UndecidedObjects
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.rules import keep_reasons
from lakegc_assets.rules.keep_reasons import KEEP_REASONS, KeepReason

Lookup: TypeAlias = Callable[[MarkRun, StepNotes, UndecidedObjects, MarkChain], KeepEvidence | None]
"""Looks up the evidence for one reason to keep objects, given that for earlier reasons; None if the reason keeps
nothing. Unless the mark is incremental, the chain is that of `MarkChain.of_full`."""

LOOKUPS: Mapping[KeepReason, Lookup] = {
    keep_reasons.OTHER_REPOSITORY: other_repositories.look_up,
    keep_reasons.BRANCH: restaged_content.look_up,
    keep_reasons.NEWLY_REFERENCED: recheck.look_up,
    keep_reasons.HOLD: addresses_on_hold.look_up,
}


def look_up(run: MarkRun, notes: StepNotes, objects: UndecidedObjects, chain: MarkChain) -> EvidenceByReason:
    """The evidence for every reason that may keep one of the objects."""
    evidence: dict[KeepReason, KeepEvidence] = {}
    for reason in KEEP_REASONS:
        found = LOOKUPS[reason](run, notes, objects.with_evidence(evidence), chain)
        if found is not None:
            evidence[reason] = found
    return evidence
