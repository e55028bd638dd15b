"""What other retention rules would delete: the computation of a mark, repeated once per variant for the rows of some
addresses, without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.rules import garbage, keep_reasons
from lakegc_assets.rules.expiry_reasons import ATTRIBUTIONS, strongest_attributions
from lakegc_assets.rules.garbage import COMMITTED, MAYBE_GONE, STORED, UNCOMMITTED
from lakegc_assets.rules.keep_reasons import Decide, KeepReason
from spark_resources.model import ADDRESSES, EXPIRED_OBJECTS, STORED_OBJECTS

RANGES, ATTRIBUTED, EXPIRED = "ranges", "attributed", "expired"
ATTRIBUTED_OBJECTS = pa.schema([EXPIRED_OBJECTS.field(name) for name in ("address", "commit_id")])
"""The objects that no retained commit refers to in the mark, and the commit that the mark attributed each to."""
FREED = pa.schema(
    [
        pa.field("variant", pa.int64(), nullable=False),  # the position of the variant
        pa.field("branch", pa.string()),  # the branch whose rule expired the commit; null for dangling commits
        pa.field("committed", pa.bool_(), nullable=False),  # whether any commit had these objects
        pa.field("objects", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("more_objects", pa.int64(), nullable=False),  # of these, those that the first variant keeps
        pa.field("more_bytes", pa.int64(), nullable=False),
        pa.field("unprobed_objects", pa.int64(), nullable=False),  # of these, those that a branch may serve
        pa.field("unprobed_bytes", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Decided:
    """What one variant decides, as an executor applies it.

    `live` are the numbers of the ranges of retained commits, or of groups of such ranges. `verdicts` are
    `sorted_verdicts` of expired commits; `ranges` are other ranges or groups, and `positions` the position of the
    verdict that retained each of them longest. `cutoff` is by the store's clock. `reasons` decide on the objects that
    no list references.
    """

    live: pa.Array
    verdicts: pa.Table
    ranges: pa.Array
    positions: pa.Array
    cutoff: datetime
    reasons: Sequence[tuple[KeepReason, Decide]]


def expired_objects(
    rows: Mapping[str, pa.Table], stored: pa.Table, variant: Decided, time_resolution: timedelta
) -> pa.Table:
    """The objects that the variant expires (STORED_OBJECTS), among `stored`.

    `rows` has all rows of these addresses: RANGES (RANGE_ADDRESSES), UNCOMMITTED (column address), and those that the
    variant's reasons need.
    """
    ranges = rows[RANGES]
    references = {
        COMMITTED: ranges.filter(pc.is_in(ranges["range"], value_set=variant.live)),
        MAYBE_GONE: ADDRESSES.empty_table(),
        UNCOMMITTED: rows[UNCOMMITTED],
    }
    statuses, _ = garbage.reference_status({STORED: stored, **references}, variant.cutoff, time_resolution)
    objects = garbage.unreferenced(statuses).cast(STORED_OBJECTS)
    return keep_reasons.not_kept(keep_reasons.decided(objects, variant.reasons, rows))


def freed(
    rows: Mapping[str, pa.Table],
    stored: pa.Table,
    variants: Sequence[Decided],
    time_resolution: timedelta,
    sizes_at_heads: pa.Array,
) -> pa.Table:
    """How much each variant would free of these stored objects, by branch (FREED).

    `rows` also has ATTRIBUTED (ATTRIBUTED_OBJECTS) and EXPIRED (column address), the mark's expired set. Only objects
    of that set were probed for. Any other object counts as unprobed if some object at a branch head has the same size
    (`sizes_at_heads`), because it may be that object.
    """
    tables, first = [FREED.empty_table()], None
    for number, variant in enumerate(variants):
        expired = expired_objects(rows, stored, variant, time_resolution)
        first = expired["address"] if first is None else first
        attributed = verdicts_of(rows, expired, variant)
        position = attributed["verdict"].take(pc.index_in(expired["address"], value_set=attributed["address"]))
        unprobed = pc.and_(
            pc.invert(pc.is_in(expired["address"], value_set=rows[EXPIRED]["address"])),
            pc.is_in(expired["size"], value_set=sizes_at_heads),
        )
        more = pc.invert(pc.is_in(expired["address"], value_set=first))
        branch = variant.verdicts["branch"].take(position)
        tables.append(summed(number, expired["size"], branch, pc.is_valid(position), more, unprobed))
    return pa.concat_tables(tables)


def verdicts_of(rows: Mapping[str, pa.Table], objects: pa.Table, variant: Decided) -> pa.Table:
    """The verdict on the expired commit that kept each of these objects longest (ATTRIBUTIONS), as far as known: by
    its ranges, or by the mark's own attribution."""
    ranges, recorded = (
        rows[name].filter(pc.is_in(rows[name]["address"], value_set=objects["address"]))
        for name in (RANGES, ATTRIBUTED)
    )
    by_range = variant.positions.take(pc.index_in(ranges["range"], value_set=variant.ranges))
    by_commit = pc.index_in(recorded["commit_id"], value_set=variant.verdicts["commit_id"]).cast(pa.int64())
    pieces = []
    for addresses, positions in ((ranges["address"], by_range), (recorded["address"], by_commit)):
        table = pa.table([addresses, positions, pa.nulls(len(addresses), pa.string())], ATTRIBUTIONS.names)
        pieces.append(table.filter(pc.is_valid(table["verdict"])).cast(ATTRIBUTIONS))
    return distinct_attributions(strongest_attributions(pa.concat_tables(pieces)))


def distinct_attributions(attributions: pa.Table) -> pa.Table:
    return attributions.group_by(ATTRIBUTIONS.names, use_threads=False).aggregate([]).cast(ATTRIBUTIONS)


def summed(
    number: int,
    sizes: pa.ChunkedArray,
    branch: pa.ChunkedArray,
    committed: pa.ChunkedArray,
    more: pa.ChunkedArray,
    unprobed: pa.ChunkedArray,
) -> pa.Table:
    """The objects of one variant with these sizes, summed by branch (FREED)."""
    columns = {"branch": branch, "committed": committed}
    for name, chosen in (("", None), ("more_", more), ("unprobed_", unprobed)):
        is_chosen = pa.chunked_array([pa.repeat(1, len(sizes))]) if chosen is None else chosen.cast(pa.int64())
        columns |= {f"{name}objects": is_chosen, f"{name}bytes": pc.multiply(is_chosen, sizes)}
    sums = [name for name in columns if name not in ("branch", "committed")]
    grouped = (
        pa.table(columns)
        .group_by(["branch", "committed"], use_threads=False)
        .aggregate([(name, "sum") for name in sums])
    )
    variant = pa.repeat(pa.scalar(number, pa.int64()), len(grouped))
    by_name = {"variant": variant, "branch": grouped["branch"], "committed": grouped["committed"]}
    by_name |= {name: grouped[f"{name}_sum"] for name in sums}
    return pa.table([by_name[name] for name in FREED.names], schema=FREED)


def total(freed_rows: pa.Table) -> pa.Table:
    """The sums of rows of FREED, one row per variant and branch."""
    keys = ["variant", "branch", "committed"]
    sums = [name for name in FREED.names if name not in keys]
    grouped = freed_rows.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in sums])
    return grouped.select([*keys, *(f"{name}_sum" for name in sums)]).rename_columns(FREED.names).cast(FREED)
