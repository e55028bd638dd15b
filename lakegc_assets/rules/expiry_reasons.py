"""Why each object would go: objects meet what expired commits tell of them. Arrow tables in, a table out.

Nothing here reads, and nothing here decides what goes: that comes in, address by address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.model import EXPIRED_OBJECTS, STORED_OBJECTS, ExpiredReason

LAST = ("until", "commit_id", "branch", "days")
"""By which the commit that kept an object longest is told: the largest of these, None first."""
VERDICTS = pa.schema([EXPIRED_OBJECTS.field(name) for name in ("commit_id", "branch", "days", "until")])
TOLD = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("verdict", pa.int64(), nullable=False),  # its place among `in_order`, so the largest is the last
        pa.field("path", pa.string()),  # where that commit had it
    ]
)
"""What an expired commit tells of an address."""
MET = pa.schema(
    [
        *(field.with_nullable(True) for field in STORED_OBJECTS),
        pa.field("goes", pa.bool_()),
        *(field.with_nullable(True) for field in TOLD if field.name != "address"),
    ]
)
"""Rows of three kinds, by what they have: an object (`size`), an address that goes (`goes`), a telling (`verdict`)."""
TOLD_AT_ONCE = 500_000
EXPLAINED = pa.schema([field.with_nullable(field.nullable or field.name == "reason") for field in EXPIRED_OBJECTS])
"""EXPIRED_OBJECTS, where what stays has no reason."""


def in_order(verdicts: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Commits' verdicts (VERDICTS), each once, the one that kept its objects longest at the end."""
    rows = {tuple(row[name] for name in LAST): row for row in verdicts}
    ordered = sorted(rows, key=lambda key: [(value is not None, value) for value in key])
    return pa.Table.from_pylist([{name: rows[key][name] for name in VERDICTS.names} for key in ordered], VERDICTS)


def sorted_out(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Rows of MET by their kind: objects (STORED_OBJECTS), what goes (column address), and what is told (TOLD, each
    address once, so that no more is held than there are)."""
    met, told, new = [MET.empty_table()], [TOLD.empty_table()], 0
    for batch in batches:
        table = pa.Table.from_batches([batch]).select(MET.names).cast(MET)
        met.append(table.filter(pc.is_null(table["verdict"])))
        told.append(table.filter(pc.is_valid(table["verdict"])).select(TOLD.names).cast(TOLD))
        new += len(told[-1])
        if new >= TOLD_AT_ONCE:
            told, new = [best(pa.concat_tables(told))], 0
    rows = pa.concat_tables(met)
    objects = rows.filter(pc.is_valid(rows["size"])).select(STORED_OBJECTS.names).cast(STORED_OBJECTS)
    return objects, rows.filter(pc.is_valid(rows["goes"])).select(["address"]), best(pa.concat_tables(told))


def explained(objects: pa.Table, going: pa.Table, told: pa.Table, verdicts: pa.Table, *, all_known: bool) -> pa.Table:
    """The objects in the order of their addresses (EXPLAINED): those that go with a reason, and each with the expired
    commit that kept it longest, as far as one did.

    `verdicts` is `in_order`; `told` has an address once; `all_known` says that all was told that expired commits hold.
    """
    objects = objects.sort_by("address")
    place = pc.index_in(objects["address"], value_set=told["address"])
    verdict = told["verdict"].take(place)
    untold = ExpiredReason.NEVER_COMMITTED if all_known else ExpiredReason.UNKNOWN
    why = pc.if_else(pc.is_valid(verdict), ExpiredReason.EXPIRED_COMMIT.value, untold.value)
    goes = pc.is_in(objects["address"], value_set=going["address"])
    columns = {name: objects[name] for name in objects.column_names}
    columns |= {name: verdicts[name].take(verdict) for name in VERDICTS.names}
    columns |= {"path": told["path"].take(place), "reason": pc.if_else(goes, why, pa.scalar(None, pa.string()))}
    return pa.table([columns[name] for name in EXPLAINED.names], schema=EXPLAINED)


def best(told: pa.Table) -> pa.Table:
    """Of each address the telling by the last verdict, and the largest path of these."""
    last = told.group_by("address", use_threads=False).aggregate([("verdict", "max")])
    if len(last) == len(told):
        return told
    place = pc.index_in(told["address"], value_set=last["address"])
    best = told.filter(pc.equal(told["verdict"], last["verdict_max"].take(place)))
    if len(best) == len(last):
        return best
    rows = best.sort_by([("address", "ascending"), ("path", "descending")])  # null comes last, as the least
    same = pc.equal(rows["address"].slice(1), rows["address"].slice(0, len(rows) - 1))
    return rows.filter(pa.chunked_array([pa.array([True]), *pc.invert(same).chunks]))
