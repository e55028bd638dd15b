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
from spark_resources.spark.arrow_shuffle import GroupedRows, Input, co_group
from spark_resources.spark.partitioning import MAX_BROADCAST_ADDRESSES
from spark_resources.spark.task_report import TaskReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ReferenceStatus:
    """The result of one pass over all addresses (`rows`, REFERENCE_STATUS; also as a table, `few`, if they are on the
    driver), and its counts."""

    rows: DataFrame
    few: pa.Table | None
    counts: Mapping[str, int]

    @property
    def not_committed(self) -> DataFrame:
        """The objects that no retained commit refers to, whatever else keeps them (STORED_OBJECTS)."""
        return self._objects(Status.UNREFERENCED, Status.DOT_SEGMENT, Status.YOUNG_OR_UNCOMMITTED)

    @property
    def unreferenced(self) -> DataFrame:
        """The objects that are stored − committed − uncommitted − young − kept for their keys."""
        return self._objects(Status.UNREFERENCED)

    @property
    def dot_segments(self) -> DataFrame:
        """The objects that are kept only for their keys."""
        return self._objects(Status.DOT_SEGMENT)

    @property
    def missing(self) -> DataFrame:
        """The live addresses (column address) missing from the listing."""
        return self._with(Status.MISSING).select("address")

    @property
    def not_committed_count(self) -> int:
        return self.counts["not_retained"]

    @cached_property
    def few_not_committed(self) -> pa.Array | None:
        """The addresses of `not_committed`; None if there are too many for one task to hold."""
        if self.not_committed_count > MAX_BROADCAST_ADDRESSES:
            return None
        if self.few is not None:
            is_missing = pc.equal(self.few["status"], Status.MISSING.value)
            return self.few["address"].filter(pc.invert(is_missing)).combine_chunks()
        return self.not_committed.select("address").toArrow()["address"].combine_chunks()

    def _objects(self, *statuses: Status) -> DataFrame:
        return self._with(*statuses).select(*STORED_OBJECTS.names)

    def _with(self, *statuses: Status) -> DataFrame:
        return self.rows.where(self.rows["status"].isin([one.value for one in statuses]))


def compare(run: MarkRun, candidates: Candidates) -> ReferenceStatus:
    """The status of every candidate, and of every live address that may be missing."""
    inputs, rule = candidates.comparison(listed_and_live(run))

    def combine(grouped: GroupedRows, report: TaskReport) -> pa.Table:
        found, counts = rule(grouped)
        report.count(**counts)
        return found

    found = co_group(run.spark(), run.place, inputs, combine, REFERENCE_STATUS, run.persist)
    return ReferenceStatus(found.rows, found.few, candidates.of_whole_repository(dict(found.report.counters)))


def listed_and_live(run: MarkRun) -> list[Input]:
    """The stored, committed and uncommitted inputs, under the names that the rule uses."""
    asset, maybe_gone = committed_addresses.ASSET, committed_addresses.MAYBE_GONE_PART
    needed = run.mark.dataset(asset, committed_addresses.ADDRESSES_PART)
    others = [run.mark.dataset(asset, maybe_gone)] if maybe_gone in run.mark.record.step(asset).datasets else []
    return [
        Input.whole(garbage.STORED, listed_objects.datasets(run), STORED_OBJECTS),
        Input.of_addresses(garbage.COMMITTED, [needed], RANGE_ADDRESSES),
        Input.of_addresses(garbage.MAYBE_GONE, others, RANGE_ADDRESSES),
        Input.of_addresses(garbage.UNCOMMITTED, uncommitted_addresses.datasets(run), ADDRESSES),
    ]
