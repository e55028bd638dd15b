"""The reference status of all candidates: each is compared with committed and uncommitted addresses, in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark import committed_addresses, listed_objects, uncommitted_addresses
from lakegc_assets.mark.candidates import Candidates
from lakegc_assets.mark.context import MarkRun
from lakegc_assets.rules import garbage
from lakegc_assets.rules.garbage import REFERENCE_STATUS, Status
from spark_resources.model import ADDRESSES, RANGE_ADDRESSES, STORED_OBJECTS
from spark_resources.spark.arrow_shuffle import Grouped, GroupedRows, Input, co_group
from spark_resources.spark.partitioning import MAX_BROADCAST_ADDRESSES
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Rows, as_frame, filtered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


STATUS = "status"


@dataclass(frozen=True)
class ReferenceStatus:
    """The result of one pass over all addresses (REFERENCE_STATUS), and its counts."""

    grouped: Grouped
    counts: Mapping[str, int]

    @property
    def input(self) -> Input:
        """The rows, as an input of another pass over the same addresses."""
        return self.grouped.as_input(STATUS, REFERENCE_STATUS)

    @property
    def driver_rows(self) -> pa.Table | None:
        """The rows, if the driver has them; otherwise None."""
        return self.grouped.driver_rows

    @property
    def dot_segments(self) -> Rows:
        """The objects that are kept only because of their keys (REFERENCE_STATUS)."""
        return self._rows_with(Status.DOT_SEGMENT)

    @property
    def missing(self) -> Rows:
        """The live addresses missing from the listing (REFERENCE_STATUS)."""
        return self._rows_with(Status.MISSING)

    @property
    def not_retained_count(self) -> int:
        return self.counts["not_retained"]

    @cached_property
    def not_retained_if_few(self) -> pa.Array | None:
        """The addresses of `not_retained`; None if there are too many to fit into the memory of one task."""
        if self.not_retained_count > MAX_BROADCAST_ADDRESSES:
            return None
        if self.driver_rows is not None:
            is_missing = pc.equal(self.driver_rows["status"], Status.MISSING.value)
            return self.driver_rows["address"].filter(pc.invert(is_missing)).combine_chunks()
        return self.not_retained.toArrow()["address"].combine_chunks()

    @property
    def not_retained(self) -> DataFrame:
        """The addresses of the objects that no retained commit refers to, whatever else keeps them (column address)."""
        rows = as_frame(self.grouped.rows)
        return rows.where(rows["status"] != Status.MISSING.value).select("address")

    def _rows_with(self, status: Status) -> Rows:
        return filtered(self.grouped.rows, lambda rows: pc.equal(rows["status"], status.value), REFERENCE_STATUS)


def compare(run: MarkRun, candidates: Candidates) -> ReferenceStatus:
    """Determine the status of every candidate, and of every live address that may be missing."""
    inputs, rule = candidates.comparison(listed_and_live(run))

    def combine(grouped: GroupedRows, report: TaskReport) -> pa.Table:
        statuses, counts = rule(grouped)
        report.count(**counts)
        return statuses

    objects = co_group(run.spark, inputs, combine, REFERENCE_STATUS, run.persist)
    return ReferenceStatus(objects, candidates.whole_repository_counts(dict(objects.report.counters)))


def listed_and_live(run: MarkRun) -> list[Input]:
    """The stored, committed and uncommitted inputs, under the names that the rule uses."""
    asset, part = committed_addresses.ASSET, committed_addresses.MAYBE_GONE_PART
    committed = run.mark.dataset(asset, committed_addresses.ADDRESSES_PART)
    maybe_gone = [run.mark.dataset(asset, part)] if part in run.mark.record.step(asset).datasets else []
    return [
        Input.whole(garbage.STORED, run.place, listed_objects.datasets(run), STORED_OBJECTS),
        Input.of_addresses(garbage.COMMITTED, run.place, [committed], RANGE_ADDRESSES),
        Input.of_addresses(garbage.MAYBE_GONE, run.place, maybe_gone, RANGE_ADDRESSES),
        Input.of_addresses(garbage.UNCOMMITTED, run.place, uncommitted_addresses.datasets(run), ADDRESSES),
    ]
