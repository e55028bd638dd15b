"""Look up the reasons to keep unreferenced objects, one after the other, for marks and re-verifications.

The order is a safety rule, too: staged and committed addresses are listed once more after the path probes, because an
object that is moved to another path between the first lists and a probe is found by neither (invariant 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from lakegc_assets.mark import addresses_on_hold, other_repositories, recheck, restaged_content
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.rules import keep_reasons
from lakegc_assets.rules.keep_reasons import KEEP_REASONS, Attribution, KeepReason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Lookup: TypeAlias = "Callable[[MarkRun, StepNotes, DataFrame, MarkChain], Attribution | None]"
"""Looks up the facts for one reason to keep, for the objects (columns address, size) that no earlier reason keeps; None
if it keeps nothing. The chain is empty unless the mark is incremental."""

LOOKUPS: Mapping[KeepReason, Lookup] = {
    keep_reasons.OTHER_REPOSITORY: other_repositories.look_up,
    keep_reasons.BRANCH: restaged_content.look_up,
    keep_reasons.MEANWHILE: recheck.look_up,
    keep_reasons.HOLD: addresses_on_hold.look_up,
}


def attributed(run: MarkRun, notes: StepNotes, objects: DataFrame, chain: MarkChain) -> DataFrame:
    """Apply every reason to keep to objects that are `undecided`, or already decided by their references."""
    for reason in KEEP_REASONS:
        attribution = LOOKUPS[reason](run, notes, keep_reasons.not_kept(objects), chain)
        if attribution is not None:
            objects = objects.transform(keep_reasons.decided(reason, attribution))
    return objects
