"""Look up the facts for the reasons to keep unreferenced objects, one after the other, for marks and re-verifications.

The order is a safety rule, too: staged and committed addresses are listed once more after the path probes, because
neither the first lists nor a probe finds an object that is moved to another path in between (invariant 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark import addresses_on_hold, other_repositories, recheck, restaged_content
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.keep_facts import KeepFacts
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.rules import keep_reasons
from lakegc_assets.rules.keep_reasons import KEEP_REASONS, Attribution, KeepReason
from spark_resources.spark.arrow_shuffle import Input
from spark_resources.spark.tasks import Batches, Rows, collected

_SIZES = pa.schema([pa.field("size", pa.int64())])
Lookup: TypeAlias = Callable[[MarkRun, StepNotes, pa.Array, MarkChain], KeepFacts | None]
"""Looks up the facts for one reason to keep objects, given their distinct sizes; None if it keeps nothing. The chain is
empty unless the mark is incremental."""

LOOKUPS: Mapping[KeepReason, Lookup] = {
    keep_reasons.OTHER_REPOSITORY: other_repositories.look_up,
    keep_reasons.BRANCH: restaged_content.look_up,
    keep_reasons.MEANWHILE: recheck.look_up,
    keep_reasons.HOLD: addresses_on_hold.look_up,
}


def look_up(run: MarkRun, notes: StepNotes, sizes: pa.Array, chain: MarkChain) -> dict[KeepReason, KeepFacts]:
    """The facts for every reason that may keep one of the objects, which have these distinct sizes."""
    found = {reason: LOOKUPS[reason](run, notes, sizes, chain) for reason in KEEP_REASONS}
    return {reason: facts for reason, facts in found.items() if facts is not None}


def distinct_sizes(rows: Rows, objects_of: Callable[[pa.Table], pa.Table]) -> pa.Array:
    """The distinct sizes of the objects that `objects_of` takes from rows, on the driver (int64)."""

    def sizes(batches: Batches) -> Batches:
        for batch in batches:
            distinct = pc.unique(objects_of(pa.Table.from_batches([batch]))["size"])
            yield pa.RecordBatch.from_arrays([distinct.cast(pa.int64())], schema=_SIZES)

    return pc.unique(collected(rows, sizes, _SIZES)["size"])


def inputs_of(facts: Mapping[KeepReason, KeepFacts]) -> list[Input]:
    return [one for each in facts.values() for one in each.inputs]


def attributions_of(facts: Mapping[KeepReason, KeepFacts]) -> Sequence[tuple[KeepReason, Attribution]]:
    return [(reason, each.attribution) for reason, each in facts.items()]
