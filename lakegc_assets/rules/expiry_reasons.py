"""Why each object expires: objects are joined with the expired commits that they are attributed to. Arrow tables in, a
table out.

Nothing here reads, and nothing here decides what expires: that comes in, address by address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.model import EXPIRED_OBJECTS, STORED_OBJECTS, ExpiredReason

LAST = ("until", "commit_id", "branch", "days")
"""What orders the commits that kept an object: the one that kept it longest has the largest of these, None first."""
VERDICTS = pa.schema([EXPIRED_OBJECTS.field(name) for name in ("commit_id", "branch", "days", "until")])
ATTRIBUTIONS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("verdict", pa.int64(), nullable=False),  # its place among `in_order`, so the largest is the last
        pa.field("path", pa.string()),  # where that commit had it
    ]
)
"""The expired commit that an address is attributed to."""
MIXED_ROWS = pa.schema(
    [
        *(field.with_nullable(True) for field in STORED_OBJECTS),
        pa.field("deletable", pa.bool_()),
        *(field.with_nullable(True) for field in ATTRIBUTIONS if field.name != "address"),
    ]
)
"""Rows of three kinds, by what they have: an object (`size`), a deletable address (`deletable`), an attribution
(`verdict`)."""
ATTRIBUTIONS_AT_ONCE = 500_000
EXPLAINED = pa.schema([field.with_nullable(field.nullable or field.name == "reason") for field in EXPIRED_OBJECTS])
"""EXPIRED_OBJECTS, where what is kept has no reason."""


def in_order(verdicts: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Commits' verdicts (VERDICTS), each once, the one that kept its objects longest at the end."""
    rows = {tuple(row[name] for name in LAST): row for row in verdicts}
    ordered = sorted(rows, key=lambda key: [(value is not None, value) for value in key])
    return pa.Table.from_pylist([{name: rows[key][name] for name in VERDICTS.names} for key in ordered], VERDICTS)


def separated(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Rows of MIXED_ROWS by their kind: objects (STORED_OBJECTS), deletable ones (column address), and attributions
    (ATTRIBUTIONS, each address once, so that no more are in memory than there are addresses)."""
    others, attributions, new = [MIXED_ROWS.empty_table()], [ATTRIBUTIONS.empty_table()], 0
    for batch in batches:
        table = pa.Table.from_batches([batch]).select(MIXED_ROWS.names).cast(MIXED_ROWS)
        others.append(table.filter(pc.is_null(table["verdict"])))
        attributions.append(table.filter(pc.is_valid(table["verdict"])).select(ATTRIBUTIONS.names).cast(ATTRIBUTIONS))
        new += len(attributions[-1])
        if new >= ATTRIBUTIONS_AT_ONCE:
            attributions, new = [best(pa.concat_tables(attributions))], 0
    rows = pa.concat_tables(others)
    objects = rows.filter(pc.is_valid(rows["size"])).select(STORED_OBJECTS.names).cast(STORED_OBJECTS)
    deletable = rows.filter(pc.is_valid(rows["deletable"])).select(["address"])
    return objects, deletable, best(pa.concat_tables(attributions))


def explained(
    objects: pa.Table, deletable: pa.Table, attributions: pa.Table, verdicts: pa.Table, *, all_known: bool
) -> pa.Table:
    """The objects in the order of their addresses (EXPLAINED): deletable ones with a reason, and each with the
    expired commit that kept it longest, as far as one did.

    `verdicts` is `in_order`; `attributions` has an address once; with `all_known`, these are all there are.
    """
    objects = objects.sort_by("address")
    place = pc.index_in(objects["address"], value_set=attributions["address"])
    verdict = attributions["verdict"].take(place)
    unattributed = ExpiredReason.NEVER_COMMITTED if all_known else ExpiredReason.UNKNOWN
    why = pc.if_else(pc.is_valid(verdict), ExpiredReason.EXPIRED_COMMIT.value, unattributed.value)
    is_deletable = pc.is_in(objects["address"], value_set=deletable["address"])
    columns = {name: objects[name] for name in objects.column_names}
    columns |= {name: verdicts[name].take(verdict) for name in VERDICTS.names}
    columns |= {
        "path": attributions["path"].take(place),
        "reason": pc.if_else(is_deletable, why, pa.scalar(None, pa.string())),
    }
    return pa.table([columns[name] for name in EXPLAINED.names], schema=EXPLAINED)


def best(attributions: pa.Table) -> pa.Table:
    """Of each address the attribution to the last verdict, and the largest path of these."""
    last = attributions.group_by("address", use_threads=False).aggregate([("verdict", "max")])
    if len(last) == len(attributions):
        return attributions
    place = pc.index_in(attributions["address"], value_set=last["address"])
    best = attributions.filter(pc.equal(attributions["verdict"], last["verdict_max"].take(place)))
    if len(best) == len(last):
        return best
    rows = best.sort_by([("address", "ascending"), ("path", "descending")])  # null comes last, as the least
    same = pc.equal(rows["address"].slice(1), rows["address"].slice(0, len(rows) - 1))
    return rows.filter(pa.chunked_array([pa.array([True]), *pc.invert(same).chunks]))
