"""Groups of ranges on which all variants of a comparison decide alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.rules.what_if import Decided
from spark_resources.lakefs.ranges import Ref, address_batches, decoder_for, range_number
from spark_resources.model import RANGE_ADDRESSES
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Step
from spark_resources.stores.place import Place

Select: TypeAlias = Callable[[pa.Table], pa.Table]

LIVE, UNKNOWN = -1, -2  # instead of a position: a variant retains a range, or nothing is known about it


def range_numbers_of(range_ids: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.array(map(range_number, range_ids.to_pylist()), pa.int64())


def live_in_any(decided: Sequence[Decided]) -> set[int]:
    return {number for variant in decided for number in variant.live.to_pylist()}


def grouped_ranges(decided: Sequence[Decided]) -> tuple[pa.Table, list[Decided]]:
    """The number of each range and its group (columns range and group), and what the variants decide on groups.

    All variants decide alike on the ranges of a group, so an address in several of them is needed only once. Most
    ranges are retained by all variants, and versions of a range share most of their addresses.
    """
    is_live = [set(variant.live.to_pylist()) for variant in decided]
    position_of = [
        dict(zip(variant.ranges.to_pylist(), variant.positions.to_pylist(), strict=True)) for variant in decided
    ]
    range_numbers = sorted({number for known in (*is_live, *position_of) for number in known})
    group_of: dict[tuple[int, ...], int] = {}
    groups = [
        group_of.setdefault(
            tuple(
                LIVE if number in live else positions.get(number, UNKNOWN)
                for live, positions in zip(is_live, position_of, strict=True)
            ),
            len(group_of),
        )
        for number in range_numbers
    ]
    by_group = [
        replace(
            variant,
            live=pa.array([group for key, group in group_of.items() if key[number] == LIVE], pa.int64()),
            ranges=pa.array([group for key, group in group_of.items() if key[number] >= 0], pa.int64()),
            positions=pa.array([key[number] for key in group_of if key[number] >= 0], pa.int64()),
        )
        for number, variant in enumerate(decided)
    ]
    return pa.table([pa.array(range_numbers, pa.int64()), pa.array(groups, pa.int64())], ["range", "group"]), by_group


def group_selector(groups: pa.Table) -> Select:
    """A function that replaces the number of each row's range with that of its group, and drops rows of other ranges
    and duplicates (RANGE_ADDRESSES)."""
    range_numbers, group_numbers = groups["range"].combine_chunks(), groups["group"].combine_chunks()

    def select(table: pa.Table) -> pa.Table:
        group = group_numbers.take(pc.index_in(table["range"], value_set=range_numbers))
        rows = pa.table([group, table["address"]], RANGE_ADDRESSES.names)
        return distinct_range_addresses(rows.filter(pc.is_valid(group)))

    return select


def distinct_range_addresses(table: pa.Table) -> pa.Table:
    return table.group_by(RANGE_ADDRESSES.names, use_threads=False).aggregate([]).cast(RANGE_ADDRESSES)


def range_address_reader(place: Place, select: Select) -> Step:
    """A step that maps rows of RANGE_REFS to what `select` makes of the addresses inside the namespace
    (RANGE_ADDRESSES)."""

    def read(batches: Batches) -> Batches:
        refs: list[Ref] = [row for batch in batches for row in batch.to_pylist()]
        for range_id, addresses, _ in address_batches(place, refs, TaskReport(), decoder_for(refs)):
            number = pa.repeat(pa.scalar(range_number(range_id), pa.int64()), len(addresses))
            yield from select(pa.table([number, addresses], schema=RANGE_ADDRESSES)).to_batches()

    return read
