"""The definition of garbage: stored objects, minus committed, minus uncommitted, minus young ones. Full and incremental
marks use this same rule. Arrow tables in, a table out: nothing here reads, writes or starts a job.

Every subtraction errs on the side of keeping: an extra reference costs storage, a missing one costs data. Age is part
of the rule instead of the listing, so that no kind of listing can omit it (invariant 6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.rules.addresses import have_dot_segments, in_listed_area, slices_of
from spark_resources.model import STORED_OBJECTS, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STORED, COMMITTED, MAYBE_GONE, UNCOMMITTED = "stored", "committed", "maybe_gone", "uncommitted"
LOOKED_UP, KNOWN = "looked_up", "known"  # of an incremental mark
KNOWN_ADDRESSES = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("before", pa.bool_(), nullable=False),  # whether it was in a committed range at the base mark
        pa.field("live", pa.bool_(), nullable=False),  # whether it is in a committed range now
        pa.field("again", pa.bool_(), nullable=False),  # whether it is in a range that is committed now but wasn't then
    ]
)


class Status(StrEnum):
    """The status of an address that no retained commit refers to, or that is missing from the listing."""

    UNREFERENCED = "unreferenced"
    """Stored, old enough, neither committed nor uncommitted: it expires unless another reason keeps it."""
    DOT_SEGMENT = "dot segment"
    """Like UNREFERENCED, but kept for its key (see `addresses.have_dot_segments`)."""
    YOUNG_OR_UNCOMMITTED = "young or uncommitted"
    MISSING = "missing"
    """Live, but missing from the listing that should include it (invariant 3)."""


_TIME = STORED_OBJECTS.field("modified").type
EARLIEST_TIME = datetime(1980, 1, 2, tzinfo=UTC)
"""An earlier modification time counts as missing: no store is that old, and the zero values of Unix, Go and DOS are in
the years 1970, 1 and 1980."""
_LISTED = ("size", "modified", "checksum", "slice")
REFERENCE_STATUS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        *(STORED_OBJECTS.field(name).with_nullable(True) for name in _LISTED),  # null for missing objects
        pa.field("status", pa.string(), nullable=False),
    ]
)
"""One row per address; objects that are stored and committed are only counted."""


# --- the rule -------------------------------------------------------------------------------------------------------


Rule: TypeAlias = Callable[[Mapping[str, pa.Table]], tuple[pa.Table, dict[str, int]]]
"""Maps all rows of some addresses, by the name of their input, to REFERENCE_STATUS and counts."""


def reference_status(
    rows: Mapping[str, pa.Table], cutoff: datetime, time_resolution: timedelta
) -> tuple[pa.Table, dict[str, int]]:
    """The status of some addresses (REFERENCE_STATUS), and counts and bytes for the review.

    `rows` has all rows of these addresses: `stored` (STORED_OBJECTS), and with just a column `address`, `committed`,
    `maybe_gone` (committed only if stored) and `uncommitted`. `cutoff` is a time by the store's clock.
    `time_resolution` is that of the store's times: with whole seconds, the true time may be almost a second later.
    """
    stored = youngest_listing(rows[STORED])
    addresses = stored["address"]
    committed = distinct(rows[COMMITTED]["address"], _among(rows[MAYBE_GONE]["address"], addresses))
    uncommitted = distinct(rows[UNCOMMITTED]["address"])
    live = distinct(committed, uncommitted)
    is_committed, is_uncommitted = (
        pc.is_in(addresses, value_set=references) for references in (committed, uncommitted)
    )
    is_young = pc.or_(
        pc.greater(stored["modified"], pa.scalar(cutoff - time_resolution, _TIME)), is_without_time(stored["modified"])
    )
    is_unreferenced = _none_of(is_committed, is_uncommitted, is_young)
    has_dot_segment = pc.and_(is_unreferenced, have_dot_segments(addresses))
    status = pc.if_else(has_dot_segment, Status.DOT_SEGMENT.value, Status.UNREFERENCED.value)
    status = pc.if_else(is_unreferenced, status, Status.YOUNG_OR_UNCOMMITTED.value)
    missing = live.filter(pc.and_(in_listed_area(live), _none_of(pc.is_in(live, value_set=addresses))))
    counts = {
        "candidates": len(stored),
        "candidate_bytes": _sum(stored["size"]),
        "young": _sum(is_young),
        "committed": _sum(is_committed),
        "committed_bytes": _sum(stored["size"].filter(is_committed)),
        "not_retained": len(stored) - _sum(is_committed),
        "unreferenced": _sum(is_unreferenced) - _sum(has_dot_segment),
        "dot_segments": _sum(has_dot_segment),
        "live_not_listed": len(missing),
        "uncommitted": _sum(pc.and_(is_uncommitted, pc.invert(is_committed))),
        "live_inside": len(live),
    }
    with_status = stored.select(["address", *_LISTED]).append_column("status", status)
    statuses = with_status.filter(_none_of(is_committed)).cast(REFERENCE_STATUS)
    return pa.concat_tables([statuses, _missing(missing)]), counts


def incremental_reference_status(
    rows: Mapping[str, pa.Table], cutoff: datetime, time_resolution: timedelta, folders: pa.Array
) -> tuple[pa.Table, dict[str, int]]:
    """`reference_status` for an incremental mark, which read only the objects that may have changed since its base
    mark.

    Committed addresses in `rows` are those of ranges that were read now. `rows` also has the addresses that earlier
    marks recorded (`known`, KNOWN_ADDRESSES) and those that were `looked_up` one by one (column address); `folders`
    are those that were listed. An address that counted as committed before and was neither listed nor looked up is
    unchanged and has no row. The counts include `again` and `again_bytes`, for objects that the base mark counted as
    committed and that this mark counts again. These two may be too large, which only makes brakes stricter (less seems
    to be stored), but never too small.
    """
    known = rows[KNOWN]
    before, live, again = (known["address"].filter(known[name]) for name in ("before", "live", "again"))
    addresses = distinct(addresses_now(rows), again)
    was_committed = pc.is_in(addresses, value_set=before)
    was_checked = pc.is_in(addresses, value_set=distinct(rows[STORED]["address"], rows[LOOKED_UP]["address"]))
    was_checked = pc.or_(was_checked, pc.is_in(slices_of(addresses), value_set=folders))
    unchanged = addresses.filter(pc.and_(was_committed, pc.invert(was_checked)))
    now = {
        COMMITTED: _not_among(distinct(rows[COMMITTED]["address"], _among(live, addresses)), unchanged),
        UNCOMMITTED: _not_among(rows[UNCOMMITTED]["address"], unchanged),
    }
    references = {name: pa.table([column], ["address"]) for name, column in now.items()}
    statuses, counts = reference_status({**rows, **references}, cutoff, time_resolution)
    counted_again, stored = addresses.filter(pc.and_(was_committed, was_checked)), youngest_listing(rows[STORED])
    sizes = stored["size"].filter(pc.is_in(stored["address"], value_set=counted_again))
    return statuses, counts | {"again": len(counted_again), "again_bytes": _sum(sizes)}


def is_without_time(modified: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether these modification times are zero values. Such an object may be young, so it is kept."""
    return pc.less(modified, pa.scalar(EARLIEST_TIME, _TIME))


def addresses_now(rows: Mapping[str, pa.Table]) -> pa.Array:
    """The distinct addresses that an incremental mark read itself, without those that only earlier marks recorded."""
    return distinct(*(rows[name]["address"] for name in (STORED, COMMITTED, UNCOMMITTED, LOOKED_UP)))


def distinct(*addresses: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The distinct addresses in all of these arrays."""
    chunks = [column.chunks if isinstance(column, pa.ChunkedArray) else [column] for column in addresses]
    return pc.unique(pa.chunked_array([chunk for of_column in chunks for chunk in of_column], pa.string()))


def youngest_listing(stored: pa.Table) -> pa.Table:
    """One row per address; if an address was listed several times, the row with the latest time."""
    if pc.count_distinct(stored["address"]).as_py() == len(stored):
        return stored
    order = [("address", "ascending"), *((name, "descending") for name in ("modified", "size", "checksum", "slice"))]
    return first_of_each(stored.sort_by(order), "address")  # nulls sort last, as the smallest


def first_of_each(rows: pa.Table, column: str) -> pa.Table:
    """The first row for each value of this column, by which the rows must be sorted."""
    values = rows[column].combine_chunks()
    is_first = [pa.array([True][: len(values)], pa.bool_()), pc.not_equal(values[1:], values[:-1])]
    return rows.filter(pa.concat_arrays(is_first))


def _missing(addresses: pa.Array) -> pa.Table:
    """Rows of REFERENCE_STATUS for addresses that aren't stored."""
    listed = [pa.nulls(len(addresses), REFERENCE_STATUS.field(name).type) for name in _LISTED]
    status = pa.repeat(pa.scalar(Status.MISSING.value), len(addresses))
    return pa.table([addresses, *listed, status], schema=REFERENCE_STATUS)


def _none_of(*flags: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.invert(reduce(pc.or_, flags))


def _among(addresses: pa.ChunkedArray, wanted: pa.ChunkedArray) -> pa.ChunkedArray:
    return addresses.filter(pc.is_in(addresses, value_set=wanted))


def _not_among(addresses: pa.ChunkedArray, others: pa.ChunkedArray) -> pa.ChunkedArray:
    return addresses.filter(pc.invert(pc.is_in(addresses, value_set=others)))


def _sum(values: pa.ChunkedArray) -> int:
    return int(pc.sum(values, min_count=0).as_py())


# --- the result -----------------------------------------------------------------------------------------------------


def unreferenced(statuses: pa.Table) -> pa.Table:
    """The objects among rows of REFERENCE_STATUS that expire unless another reason keeps them (STORED_OBJECTS)."""
    return statuses.filter(pc.equal(statuses["status"], Status.UNREFERENCED.value)).select(STORED_OBJECTS.names)


def not_committed(statuses: pa.Table) -> pa.Table:
    """The objects among rows of REFERENCE_STATUS that no retained commit refers to, whatever else keeps them
    (STORED_OBJECTS)."""
    is_stored = pc.not_equal(statuses["status"], Status.MISSING.value)
    return statuses.filter(is_stored).select(STORED_OBJECTS.names).cast(STORED_OBJECTS)


def in_scope(objects: pa.Table, attributed: pa.ChunkedArray, scope: Scope) -> pa.Table:
    """The unreferenced objects that a mark of this scope may expire: for the scope `committed`, only those at addresses
    that are attributed to an expired commit."""
    if scope is not Scope.COMMITTED:
        return objects
    return objects.filter(pc.is_in(objects["address"], value_set=attributed))


# --- rows of DataFrames ---------------------------------------------------------------------------------------


def without_addresses_in(addresses: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """A transformation that drops the rows whose address is one of these."""
    return lambda df: df.join(addresses.select("address"), "address", "left_anti")


def with_addresses_in(addresses: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """A transformation that keeps only the rows whose address is one of these."""
    return lambda df: df.join(addresses.select("address"), "address", "left_semi")
