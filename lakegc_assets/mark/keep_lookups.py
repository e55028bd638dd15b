"""Look up the facts for the reasons to keep unreferenced objects, one reason after another, for marks and
re-verifications.

The order is a safety rule, too: staged and committed addresses are listed once more after the path probes, because
neither the first lists nor a probe finds an object that is moved to another path in between (invariant 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from lakegc_assets.mark import addresses_on_hold, other_repositories, recheck, restaged_content
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.keep_facts import Facts, KeepFacts, UndecidedObjects
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.rules import keep_reasons
from lakegc_assets.rules.keep_reasons import KEEP_REASONS, KeepReason

Lookup: TypeAlias = Callable[[MarkRun, StepNotes, UndecidedObjects, MarkChain], KeepFacts | None]
"""Looks up the facts for one reason to keep objects, given those for earlier reasons; None if the reason keeps nothing.
Unless the mark is incremental, the chain is that of `MarkChain.of_full`."""

LOOKUPS: Mapping[KeepReason, Lookup] = {
    keep_reasons.OTHER_REPOSITORY: other_repositories.look_up,
    keep_reasons.BRANCH: restaged_content.look_up,
    keep_reasons.MEANWHILE: recheck.look_up,
    keep_reasons.HOLD: addresses_on_hold.look_up,
}


def look_up(run: MarkRun, notes: StepNotes, objects: UndecidedObjects, chain: MarkChain) -> Facts:
    """The facts for every reason that may keep one of the objects."""
    facts: dict[KeepReason, KeepFacts] = {}
    for reason in KEEP_REASONS:
        reason_facts = LOOKUPS[reason](run, notes, objects.with_facts(facts), chain)
        if reason_facts is not None:
            facts[reason] = reason_facts
    return facts
