"""Why each object expires: joins objects with the expired commits to which they are attributed. Arrow tables in, a
table out.

Nothing here does I/O or decides what expires: the deletable addresses are an input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.rules.garbage import first_of_each
from spark_resources.model import EXPIRED_OBJECTS, ExpiredReason

VERDICT_ORDER = ("until", "commit_id", "branch", "days")
"""Sort key of the commits that retained an object: the one that retained it longest is last; None sorts first."""
VERDICTS = pa.schema([EXPIRED_OBJECTS.field(name) for name in ("commit_id", "branch", "days", "until")])
ATTRIBUTIONS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field(
            "verdict", pa.int64(), nullable=False
        ),  # its position in `sorted_verdicts`: the verdict at the largest position retained the object longest
        pa.field("path", pa.string()),  # the object's path in that commit
    ]
)
"""The expired commit that an address is attributed to."""
EXPLAINED = pa.schema([field.with_nullable(field.nullable or field.name == "reason") for field in EXPIRED_OBJECTS])
"""EXPIRED_OBJECTS with a nullable reason: objects that are kept have none."""


def sorted_verdicts(verdicts: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The distinct verdicts of commits (VERDICTS), sorted so that the one that retained its objects longest is last."""
    rows = {tuple(row[name] for name in VERDICT_ORDER): row for row in verdicts}
    sorted_keys = sorted(rows, key=lambda key: [(value is not None, value) for value in key])
    return pa.Table.from_pylist([{name: rows[key][name] for name in VERDICTS.names} for key in sorted_keys], VERDICTS)


def explained(
    objects: pa.Table, deletable: pa.Table, attributions: pa.Table, verdicts: pa.Table, *, all_known: bool
) -> pa.Table:
    """The objects sorted by address (EXPLAINED): deletable ones with a reason, and each with the expired commit that
    retained it longest, if there is one.

    `verdicts` is the result of `sorted_verdicts`; `attributions` has at most one row per address; `all_known` means
    that attributions are complete.
    """
    objects = objects.sort_by("address")
    position = pc.index_in(objects["address"], value_set=attributions["address"])
    verdict = attributions["verdict"].take(position)
    unattributed = ExpiredReason.NEVER_COMMITTED if all_known else ExpiredReason.UNKNOWN
    why = pc.if_else(pc.is_valid(verdict), ExpiredReason.EXPIRED_COMMIT.value, unattributed.value)
    is_deletable = pc.is_in(objects["address"], value_set=deletable["address"])
    columns = {name: objects[name] for name in objects.column_names}
    columns |= {name: verdicts[name].take(verdict) for name in VERDICTS.names}
    columns |= {
        "path": attributions["path"].take(position),
        "reason": pc.if_else(is_deletable, why, pa.scalar(None, pa.string())),
    }
    return pa.table([columns[name] for name in EXPLAINED.names], schema=EXPLAINED)


def strongest_attributions(attributions: pa.Table) -> pa.Table:
    """For each address, the attribution to the last verdict; among equals, the one with the largest path."""
    last = attributions.group_by("address", use_threads=False).aggregate([("verdict", "max")])
    if len(last) == len(attributions):
        return attributions
    position = pc.index_in(attributions["address"], value_set=last["address"])
    with_last_verdict = attributions.filter(pc.equal(attributions["verdict"], last["verdict_max"].take(position)))
    if len(with_last_verdict) == len(last):
        return with_last_verdict
    # nulls sort last, as the smallest
    rows = with_last_verdict.sort_by([("address", "ascending"), ("path", "descending")])
    return first_of_each(rows, "address")
