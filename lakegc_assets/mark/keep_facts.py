"""What the reasons to keep objects are looked up for, and the facts that were found for one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.rules import keep_reasons
from lakegc_assets.rules.keep_reasons import Attribution, KeepReason
from spark_resources.spark.arrow_shuffle import Grouped, GroupedRows, Input, co_group
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, collected

OBJECTS = "objects"
SIZES = pa.schema([pa.field("size", pa.int64())])


@dataclass(frozen=True, slots=True)
class KeepFacts:
    """How a reason decides on objects, and the rows that are grouped with them by address for this."""

    attribution: Attribution
    inputs: tuple[Input, ...] = ()


Facts = Mapping[KeepReason, KeepFacts]


def inputs_of(facts: Facts) -> list[Input]:
    return [source for found in facts.values() for source in found.inputs]


def attributions_of(facts: Facts) -> Sequence[tuple[KeepReason, Attribution]]:
    return [(reason, found.attribution) for reason, found in facts.items()]


@dataclass(frozen=True)
class ObjectsToDecide:
    """The objects that may be kept: those that `objects_of` takes from rows of `schema` (columns address and size,
    among others). `facts` are those found so far."""

    run: MarkRun
    grouped: Grouped
    schema: pa.Schema
    objects_of: Callable[[pa.Table], pa.Table]
    facts: Facts = field(default_factory=dict)

    def given(self, facts: Facts) -> ObjectsToDecide:
        """The same objects, with more facts."""
        return replace(self, facts={**self.facts, **facts})

    def sizes(self) -> pa.Array:
        """The distinct sizes of the objects that these facts don't keep, on the driver (int64)."""
        objects_of, reasons = self.objects_of, attributions_of(self.facts)
        rows, schema = self.grouped.rows, SIZES
        if reasons:

            def not_kept(grouped: GroupedRows, _: TaskReport) -> pa.Table:
                decided = keep_reasons.decided(objects_of(grouped[OBJECTS]), reasons, grouped)
                return distinct_sizes(keep_reasons.not_kept(decided))

            inputs = [self.grouped.as_input(OBJECTS, self.schema), *inputs_of(self.facts)]
            rows, objects_of = co_group(self.run.spark, inputs, not_kept, SIZES, self.run.persist).rows, distinct_sizes

        def sizes(batches: Batches) -> Batches:
            for batch in batches:
                yield from distinct_sizes(objects_of(pa.Table.from_batches([batch]))).to_batches()

        return pc.unique(collected(rows, sizes, schema)["size"])


def distinct_sizes(objects: pa.Table) -> pa.Table:
    return pa.table([pc.unique(objects["size"]).cast(pa.int64())], schema=SIZES)
