"""Who refers to what is stored, of all rows of some addresses: Arrow tables in, a table out. Nothing here reads.

It errs towards keeping as `lakegc_assets.rules.garbage` does; what is settled, that is stored and held by a retained
commit, is counted and not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.rules.addresses import have_dot_segments
from spark_resources.model import STORED_OBJECTS

STORED, COMMITTED, MAYBE_GONE, UNCOMMITTED = "stored", "committed", "maybe_gone", "uncommitted"
LOOKED_AT, KNOWN = "looked_at", "known"  # of a run that goes on from an earlier mark
KNOWN_ADDRESSES = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("before", pa.bool_(), nullable=False),  # whether a range that holds it counted at the earlier mark
        pa.field("live", pa.bool_(), nullable=False),  # whether one counts now
        pa.field("again", pa.bool_(), nullable=False),  # whether one counts now that didn't then
    ]
)
_LISTED = ("modified", "size", "checksum", "slice")
CENSUS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("listed", pa.struct([STORED_OBJECTS.field(name).with_nullable(True) for name in _LISTED])),
        pa.field("committed", pa.bool_(), nullable=False),
        pa.field("uncommitted", pa.bool_(), nullable=False),
    ]
)
"""An object that is stored (`listed`; of several listings the youngest) or live, and who refers to it."""


def census(met: Mapping[str, pa.Table], youngest: datetime) -> tuple[pa.Table, dict[str, int]]:
    """What is stored and no retained commit holds, and what is live and should be listed and isn't (CENSUS); and what
    a review wants to know of all of it, as counts and bytes.

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
    is_kept_for_its_key = pc.and_(is_unreferenced, have_dot_segments(addresses))
    missing = live.filter(pc.and_(in_listed_area(live), pc.invert(pc.is_in(live, value_set=addresses))))
    unsettled = stored.filter(is_unsettled)
    counts = {
        "candidates": len(stored),
        "candidate_bytes": _sum(stored["size"]),
        "young": _sum(is_young),
        "committed": _sum(is_committed),
        "committed_bytes": _sum(stored["size"].filter(is_committed)),
        "not_retained": len(unsettled),
        "unreferenced": _sum(is_unreferenced) - _sum(is_kept_for_its_key),
        "dot_segments": _sum(is_kept_for_its_key),
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


def census_since(met: Mapping[str, pa.Table], youngest: datetime, folders: pa.Array) -> tuple[pa.Table, dict[str, int]]:
    """The same in a run that goes on from an earlier mark and has looked at what may have changed since.

    What `met` has as committed are addresses of ranges that were read now. It also has what earlier marks `known` of
    its addresses (KNOWN_ADDRESSES) and which were `looked_at` one by one (column address); `folders` were listed. What
    counted as committed before, and wasn't looked at, is settled: it is as it was, and isn't told. The counts have
    `again` and `again_bytes`, what the earlier mark counted as settled and this one counts again: rather too many than
    too few, for the less is stored the stricter brakes are.
    """
    stored, known = met[STORED], met[KNOWN]
    before, live, again = (known["address"].filter(known[name]) for name in ("before", "live", "again"))
    told = together(told_now(met), again)
    was_known = pc.is_in(told, value_set=before)
    seen = pc.is_in(told, value_set=together(stored["address"], met[LOOKED_AT]["address"]))
    seen = pc.or_(seen, pc.is_in(slices_of(told), value_set=folders))
    settled = told.filter(pc.and_(was_known, pc.invert(seen)))
    now = {
        COMMITTED: _without(together(met[COMMITTED]["address"], _of(live, told)), settled),
        UNCOMMITTED: _without(met[UNCOMMITTED]["address"], settled),
    }
    found, counts = census({**met, **{name: pa.table([column], ["address"]) for name, column in now.items()}}, youngest)
    counted_again, objects = told.filter(pc.and_(was_known, seen)), once(stored)
    sizes = objects["size"].filter(pc.is_in(objects["address"], value_set=counted_again))
    return found, counts | {"again": len(counted_again), "again_bytes": _sum(sizes)}


def told_now(met: Mapping[str, pa.Table]) -> pa.Array:
    """The distinct addresses that a run which goes on from an earlier mark has to say something of by itself."""
    return together(*(met[name]["address"] for name in (STORED, COMMITTED, UNCOMMITTED, LOOKED_AT)))


def together(*addresses: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The distinct addresses of all of these."""
    chunks = [column.chunks if isinstance(column, pa.ChunkedArray) else [column] for column in addresses]
    return pc.unique(pa.chunked_array([chunk for some in chunks for chunk in some], pa.string()))


def once(stored: pa.Table) -> pa.Table:
    """Each address once: of several listings the youngest."""
    if pc.count_distinct(stored["address"]).as_py() == len(stored):
        return stored
    order = [("address", "ascending"), *((name, "descending") for name in _LISTED)]
    rows = stored.sort_by(order)  # null comes last, as the least
    same = pc.equal(rows["address"].slice(1), rows["address"].slice(0, len(rows) - 1))
    return rows.filter(pa.chunked_array([pa.array([True]), *pc.invert(same).chunks]))


def in_listed_area(addresses: pa.Array) -> pa.Array:
    """Whether the listing would hold such an address if the store does (`garbage.in_listed_area`)."""
    return pc.or_(pc.starts_with(addresses, "data/"), pc.invert(pc.match_substring(addresses, "/")))


def slices_of(addresses: pa.Array) -> pa.Array:
    """The folder that each address is listed in by a full run: `data/<name>/`, `data/`, or "" for the root."""
    return pc.struct_field(pc.extract_regex(addresses, r"^(?P<slice>data/[^/]*/|data/|)"), "slice")


def _without(addresses: pa.ChunkedArray, others: pa.ChunkedArray) -> pa.ChunkedArray:
    return addresses.filter(pc.invert(pc.is_in(addresses, value_set=others)))


def _of(addresses: pa.ChunkedArray, wanted: pa.ChunkedArray) -> pa.ChunkedArray:
    return addresses.filter(pc.is_in(addresses, value_set=wanted))


def _structs(stored: pa.Table) -> pa.Array:
    columns = [stored[name].combine_chunks() for name in _LISTED]
    return pa.StructArray.from_arrays(columns, fields=list(CENSUS.field("listed").type))


def _sum(values: pa.ChunkedArray) -> int:
    return int(pc.sum(values, min_count=0).as_py())
