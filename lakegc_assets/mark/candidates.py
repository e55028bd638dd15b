"""How a mark finds its candidates: by a full listing, from an inventory, or incrementally since a base mark.

The choice is made once, when the mark begins, and recorded (`MarkRecord.basis` and `inventory`). `choose` makes it and
`recorded_candidates` returns it again; no step needs to know which kind was chosen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lakegc_assets.mark import incremental_comparison, inventory_listing
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.full_listing import all_parts, list_parts
from lakegc_assets.mark.incremental_listing import (
    fully_listed_slices,
    look_up,
    possibly_changed_parts,
    ranges_no_longer_retained,
)
from lakegc_assets.mark.listed_objects import ASSET, COMPARED_PART, NO_LONGER_RETAINED_PART
from lakegc_assets.mark.mark_chain import UNREADABLE, MarkChain, can_be_base, refuse_mixed_modes
from lakegc_assets.mark.missed_by_incremental import count_missed
from lakegc_assets.rules import garbage
from lakegc_assets.rules.garbage import Rule
from spark_resources.errors import Refused
from spark_resources.model import ADDRESSES, RANGE_IDS
from spark_resources.spark.arrow_shuffle import Input
from spark_resources.spark.datasets import Dataset, write_rows
from spark_resources.spark.remote_errors import errors_from_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMMITTED = "committed_addresses"
FROM_BASE_PART = "from_base"  # the ranges whose addresses came from the files of earlier marks


@dataclass(frozen=True)
class Candidates(ABC):
    """The candidates of one mark, and what earlier marks recorded (see `MarkChain`)."""

    run: MarkRun
    chain: MarkChain

    @abstractmethod
    def write_listing(self, notes: StepNotes) -> None:
        """Write the candidates that are in the store (STORED_OBJECTS)."""

    @abstractmethod
    def comparison(self, inputs: Sequence[Input]) -> tuple[list[Input], Rule]:
        """The inputs to co-group for the reference status (`inputs`, and possibly more), and the rule to apply to each
        group."""

    @abstractmethod
    def whole_repository_counts(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """The counts for the whole repository, from the counts of the reference status."""

    @abstractmethod
    def write_reused_ranges(self, notes: StepNotes, ranges: Sequence[str]) -> None:
        """Write which of these ranges needn't be read because earlier marks read them."""

    @abstractmethod
    def ranges_dropped_since_listing(self, ranges: Sequence[str]) -> frozenset[str]:
        """The ranges that counted as committed when the candidates were listed but aren't among `ranges`, which count
        as committed now. Objects that only the dropped ranges contain were not looked up, so the next mark must look
        them up."""

    @abstractmethod
    def without_unchanged(self, addresses: DataFrame) -> DataFrame:
        """Drop the addresses (column address) that the mark didn't have to check."""

    @abstractmethod
    def count_missed(self, notes: StepNotes, expired: Dataset) -> None:
        """Record how many expired objects an incremental mark would have missed."""


@dataclass(frozen=True)
class FullListing(Candidates):
    """All stored objects, as listed by the store."""

    def write_listing(self, notes: StepNotes) -> None:
        self.run.log_message(f"listing {self.run.store.where}")
        list_parts(self.run, notes, all_parts(self.run.store))

    def comparison(self, inputs: Sequence[Input]) -> tuple[list[Input], Rule]:
        cutoff, time_resolution = self.run.mark.record.cutoff, self.run.store.capabilities.time_resolution
        return list(inputs), partial(garbage.reference_status, cutoff=cutoff, time_resolution=time_resolution)

    def whole_repository_counts(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        return counts

    def write_reused_ranges(self, notes: StepNotes, ranges: Sequence[str]) -> None:
        pass

    def ranges_dropped_since_listing(self, ranges: Sequence[str]) -> frozenset[str]:
        return frozenset()

    def without_unchanged(self, addresses: DataFrame) -> DataFrame:
        return addresses

    def count_missed(self, notes: StepNotes, expired: Dataset) -> None:
        count_missed(self.run, notes, expired)


@dataclass(frozen=True)
class FromInventory(FullListing):
    """All objects that were stored when an inventory was taken."""

    def write_listing(self, notes: StepNotes) -> None:
        inventory_listing.write_candidates(self.run, notes, self.run.mark.record.inventory or {})


@dataclass(frozen=True)
class Incremental(Candidates):
    """Objects that may have changed since a base mark: those in slices that may have been written to since then and,
    elsewhere, those that no retained commit refers to any more.

    `ranges` are the ids of the ranges that were no longer retained when the mark began.
    """

    ranges: frozenset[str]

    def write_listing(self, notes: StepNotes) -> None:
        self.run.log_message(f"listing {self.run.store.where}")
        parts = possibly_changed_parts(self.run.store, self.chain.base.start)
        list_parts(self.run, notes, parts)
        look_up(self.run, notes, self.chain, self.ranges, fully_listed_slices(parts))

    def comparison(self, inputs: Sequence[Input]) -> tuple[list[Input], Rule]:
        return incremental_comparison.comparison(self.run, self.chain, inputs)

    def whole_repository_counts(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        return incremental_comparison.whole_repository_counts(counts, self.chain.base)

    def write_reused_ranges(self, notes: StepNotes, ranges: Sequence[str]) -> None:
        rows = [{"range_id": range_id} for range_id in ranges if range_id in self.chain.refs]
        folder = self.run.mark.folder(COMMITTED, FROM_BASE_PART)
        notes.add_dataset(write_rows(self.run.place, folder, rows, RANGE_IDS), FROM_BASE_PART)

    def ranges_dropped_since_listing(self, ranges: Sequence[str]) -> frozenset[str]:
        return self.chain.committed_at_base - self.ranges - set(ranges)

    def without_unchanged(self, addresses: DataFrame) -> DataFrame:
        looked_up = self.run.read(ASSET, ADDRESSES, COMPARED_PART)
        unchanged = self.chain.addresses(self.chain.committed_at_base).transform(
            garbage.without_addresses_in(looked_up)
        )
        return addresses.transform(
            garbage.without_addresses_in(unchanged.transform(garbage.with_addresses_in(addresses)))
        )

    def count_missed(self, notes: StepNotes, expired: Dataset) -> None:
        pass


# --- the choice -----------------------------------------------------------------------------------------------------


def choose(run: MarkRun) -> Candidates:
    """Choose the candidates of a new mark. If the mark can't be incremental after all, make it full and record why."""
    incremental_or_why: Incremental | str = begin_incremental(run) if run.mark.record.is_incremental else ""
    if isinstance(incremental_or_why, Incremental):
        return incremental_or_why
    if incremental_or_why:
        run.mark.make_full(incremental_or_why)
        run.log_message(f"making a full mark, because {incremental_or_why}")
    return full_candidates(run)


def recorded_candidates(run: MarkRun) -> Candidates:
    """The candidates of a mark that has already listed them. Raises `Refused` (invariant 3) if they were listed in a
    different mode from the mark's, or if the mark is incremental and the commit graph can no longer be read. Raises
    the errors of `MarkChain.recorded` if an earlier mark can't be read."""
    refuse_mixed_modes(run)
    if not run.mark.record.is_incremental:
        return full_candidates(run)
    if not can_be_base(run):
        raise Refused(
            f"these credentials could read the commit graph of {run.partition.repository} when this mark began, but "
            "can no longer read it. An incremental mark needs it: make a new mark with --full.",
            invariant=3,
        )
    ranges = frozenset(row["range_id"] for row in run.rows(ASSET, RANGE_IDS, NO_LONGER_RETAINED_PART))
    return Incremental(run, MarkChain.recorded(run), ranges)


def full_candidates(run: MarkRun) -> Candidates:
    kind = FullListing if run.mark.record.inventory is None else FromInventory
    return kind(run, MarkChain.of_full(run))


def begin_incremental(run: MarkRun) -> Incremental | str:
    """The candidates of an incremental mark, or the reason why earlier marks or the commit graph can't be read."""
    try:
        chain = MarkChain.recorded(run)
        run.log_message(f"searching for changes since mark {chain.base.mark_id}")
        if chain.restored_marks:
            run.log_message(f"including objects that may have been restored from {', '.join(chain.restored_marks)}")
        with errors_from_executors():
            ranges = ranges_no_longer_retained(run, chain)
    except UNREADABLE as error:
        return f"an earlier mark can't be read: {error}"
    return "these credentials can't read the commit graph" if ranges is None else Incremental(run, chain, ranges)
