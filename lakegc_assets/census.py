"""Who refers to what is stored, of all rows of some addresses: Arrow tables in, a table out. Nothing here reads.

It errs towards keeping as `lakegc_assets.mark` does, whose `census` says the same of DataFrames; what is settled, that
is stored and held by a retained commit, is counted and not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.model import STORED_OBJECTS

STORED, COMMITTED, MAYBE_GONE, UNCOMMITTED = "stored", "committed", "maybe_gone", "uncommitted"
_LISTED = ("modified", "size", "checksum", "slice")
CENSUS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("listed", pa.struct([STORED_OBJECTS.field(name).with_nullable(True) for name in _LISTED])),
        pa.field("committed", pa.bool_(), nullable=False),
        pa.field("uncommitted", pa.bool_(), nullable=False),
    ]
)
"""The columns of `mark.census`."""


def census(met: Mapping[str, pa.Table], youngest: datetime) -> tuple[pa.Table, dict[str, int]]:
    """What is stored and no retained commit holds, and what is live and should be listed and isn't (CENSUS); and the
    counts of `mark.counted`.

    `met` has all rows of the addresses it has any of: STORED_OBJECTS under `stored`, and columns `address`: what counts
    as committed, what counts so where it is stored, and what is staged. What is `youngest` is still old.
    """
    stored = once(met[STORED])
    addresses = stored["address"]
    there = met[MAYBE_GONE]["address"]
    committed = pc.unique(pa.chunked_array([*met[COMMITTED]["address"].chunks, *_of(there, addresses).chunks]))
    staged = pc.unique(met[UNCOMMITTED]["address"])
    live = pc.unique(pa.chunked_array([committed, staged]))
    is_committed, is_staged = pc.is_in(addresses, value_set=committed), pc.is_in(addresses, value_set=staged)
    is_young = pc.greater(stored["modified"], pa.scalar(youngest, STORED_OBJECTS.field("modified").type))
    is_unsettled = pc.invert(is_committed)
    is_unreferenced = pc.and_(is_unsettled, pc.invert(pc.or_(is_staged, is_young)))
    missing = live.filter(pc.and_(in_listed_area(live), pc.invert(pc.is_in(live, value_set=addresses))))
    unsettled = stored.filter(is_unsettled)
    counts = {
        "candidates": len(stored),
        "candidate_bytes": _sum(stored["size"]),
        "young": _sum(is_young),
        "committed": _sum(is_committed),
        "committed_bytes": _sum(stored["size"].filter(is_committed)),
        "unsettled": len(unsettled),
        "unreferenced": _sum(is_unreferenced),
        "live_not_listed": len(missing),
        "uncommitted": _sum(is_staged),
        "live_inside": len(live),
    }
    found = pa.table(
        [
            unsettled["address"],
            _structs(unsettled),
            pa.repeat(pa.scalar(False), len(unsettled)),
            is_staged.filter(is_unsettled),
        ],
        schema=CENSUS,
    )
    lost = pa.table(
        [
            missing,
            pa.nulls(len(missing), CENSUS.field("listed").type),
            pc.is_in(missing, value_set=committed),
            pc.is_in(missing, value_set=staged),
        ],
        schema=CENSUS,
    )
    return pa.concat_tables([found, lost]), counts


def once(stored: pa.Table) -> pa.Table:
    """Each address once: of several listings the youngest, as `mark.census` tells it."""
    if pc.count_distinct(stored["address"]).as_py() == len(stored):
        return stored
    order = [("address", "ascending"), *((name, "descending") for name in _LISTED)]
    rows = stored.sort_by(order)  # null comes last, as the least
    same = pc.equal(rows["address"].slice(1), rows["address"].slice(0, len(rows) - 1))
    return rows.filter(pa.chunked_array([pa.array([True]), *pc.invert(same).chunks]))


def in_listed_area(addresses: pa.Array) -> pa.Array:
    """Whether the listing would hold such an address if the store does (`mark.in_listed_area`)."""
    return pc.or_(pc.starts_with(addresses, "data/"), pc.invert(pc.match_substring(addresses, "/")))


def _of(addresses: pa.ChunkedArray, wanted: pa.ChunkedArray) -> pa.ChunkedArray:
    return addresses.filter(pc.is_in(addresses, value_set=wanted))


def _structs(stored: pa.Table) -> pa.Array:
    columns = [stored[name].combine_chunks() for name in _LISTED]
    return pa.StructArray.from_arrays(columns, fields=list(CENSUS.field("listed").type))


def _sum(values: pa.ChunkedArray) -> int:
    return int(pc.sum(values, min_count=0).as_py())
