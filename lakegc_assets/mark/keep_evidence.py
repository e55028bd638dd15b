"""The unreferenced objects that a reason may still keep, and the evidence from which each reason decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.rules import keep_reasons
from lakegc_assets.rules.keep_reasons import Decide, KeepReason
from spark_resources.spark.arrow_shuffle import Grouped, GroupedRows, Input, co_group
from spark_resources.spark.datasets import Dataset
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Rows, collected
from spark_resources.stores.place import Place

OBJECTS = "objects"
SIZES = pa.schema([pa.field("size", pa.int64())])


@dataclass(frozen=True, slots=True)
class KeepEvidence:
    """The evidence for one reason: how it decides on objects, and the rows to group with them by address."""

    decide: Decide
    inputs: tuple[Input, ...] = ()


def evidence_at_addresses(
    reason: KeepReason, place: Place, datasets: Sequence[Dataset], schema: pa.Schema
) -> KeepEvidence:
    """The evidence that keeps the objects at the addresses in these datasets (of `schema`)."""
    addresses = Input.of_addresses(reason.name, place, datasets, schema)
    return KeepEvidence(keep_reasons.at_addresses(reason.name), (addresses,))


EvidenceByReason = Mapping[KeepReason, KeepEvidence]


def inputs_of(evidence: EvidenceByReason) -> list[Input]:
    return [source for keep_evidence in evidence.values() for source in keep_evidence.inputs]


def decisions_of(evidence: EvidenceByReason) -> Sequence[tuple[KeepReason, Decide]]:
    return [(reason, keep_evidence.decide) for reason, keep_evidence in evidence.items()]


@dataclass(frozen=True)
class UndecidedObjects:
    """The objects that may be kept: those that `objects_of` takes from rows of `schema` (columns address and size,
    among others). `evidence` is what was looked up so far."""

    run: MarkRun
    grouped: Grouped
    schema: pa.Schema
    objects_of: Callable[[pa.Table], pa.Table]
    evidence: EvidenceByReason = field(default_factory=dict)

    def with_evidence(self, evidence: EvidenceByReason) -> UndecidedObjects:
        """These objects, with more evidence."""
        return replace(self, evidence={**self.evidence, **evidence})

    def sizes(self) -> pa.Array:
        """The distinct sizes of the objects that the evidence so far doesn't keep, on the driver (int64)."""
        objects_of, decisions = self.objects_of, decisions_of(self.evidence)
        if not decisions:
            return distinct_sizes_on_driver(self.grouped.rows, objects_of)

        def sizes_of_objects_not_kept(rows: GroupedRows, _: TaskReport) -> pa.Table:
            return distinct_sizes(
                keep_reasons.not_kept(keep_reasons.decided(objects_of(rows[OBJECTS]), decisions, rows))
            )

        inputs = [self.grouped.as_input(OBJECTS, self.schema), *inputs_of(self.evidence)]
        sizes = co_group(self.run.spark, inputs, sizes_of_objects_not_kept, SIZES, self.run.persist)
        return distinct_sizes_on_driver(sizes.rows, lambda rows: rows)


def distinct_sizes_on_driver(rows: Rows, objects_of: Callable[[pa.Table], pa.Table]) -> pa.Array:
    """The distinct sizes of the objects that `objects_of` takes from rows (int64); each task sends each size once."""

    def sizes(batches: Batches) -> Batches:
        sizes_by_batch = [distinct_sizes(objects_of(pa.Table.from_batches([batch]))) for batch in batches]
        yield from distinct_sizes(pa.concat_tables([SIZES.empty_table(), *sizes_by_batch])).to_batches()

    return pc.unique(collected(rows, sizes, SIZES)["size"])


def distinct_sizes(objects: pa.Table) -> pa.Table:
    return pa.table([pc.unique(objects["size"]).cast(pa.int64())], schema=SIZES)
