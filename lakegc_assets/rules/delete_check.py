"""The check right before a delete: whether the object at a key is still the one that was marked (invariant 1).

Pure, on Arrow tables. These functions are passed to executors: a sweep runs them before it deletes or quarantines
objects, a backup before it copies them. Both use the same rule, `differences`.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.rules.garbage import is_without_time
from spark_resources.model import RECEIPTS, DeleteCheck

_NOW = ("size", "modified", "checksum")


def check_before_delete(marked: pa.Table, current: pa.Table, *, cutoff: datetime | None) -> DeleteCheck:
    """Check each marked row (PENDING) against the object at its key now, and fill in missing sizes.

    `current` is the result of a lookup made just now (address, size, modified, checksum); `cutoff` is a time by the
    store's clock. An object that appeared where nothing was listed also counts as changed, because the re-verification
    didn't know its size.
    """
    present, now = _current_at(marked, current)
    appeared = pc.is_null(marked["size"])
    changed = pc.and_(present, pc.or_(_any(differences(marked, now, cutoff=cutoff)), appeared))
    size = pc.fill_null(pc.coalesce(marked["size"], now["size"]), 0)
    column_index = marked.schema.get_field_index("size")
    rows, absent = marked.set_column(column_index, marked.schema.field(column_index), size), pc.invert(present)
    return DeleteCheck(
        unchanged=rows.filter(pc.and_(present, pc.invert(changed))),
        changed=rows.filter(changed),
        gone=rows.filter(pc.and_(absent, pc.invert(rows["intended"]))),
        interrupted=rows.filter(pc.and_(absent, rows["intended"])),
    )


def how_changed(marked: pa.Table, current: pa.Table, *, cutoff: datetime | None) -> list[str]:
    """For each marked row (address, size, modified, checksum), a sentence on how the object there differs now; "" if it
    doesn't differ, or if nothing is there."""
    _, now = _current_at(marked, current)
    by_name = differences(marked, now, cutoff=cutoff)
    sentences = [""] * len(marked)
    for row_index in pc.indices_nonzero(_any(by_name).combine_chunks()).to_pylist():
        first = next(name for name, differs in by_name.items() if differs[row_index].as_py())
        old, new = ({name: _in_words(table[name][row_index].as_py()) for name in _NOW} for table in (marked, now))
        sentences[row_index] = _SENTENCES[first].format(before=old, after=new)
    return sentences


def _in_words(value: object) -> object:
    """A time to the second, as times are compared; any other value unchanged."""
    if not isinstance(value, datetime):
        return value
    return f"{value.replace(tzinfo=None).isoformat(' ', 'seconds')} UTC"


_SENTENCES = {
    "size": "it has {after[size]} bytes, but had {before[size]} when it was marked",
    "checksum": "its checksum is {after[checksum]}, but was {before[checksum]} when it was marked",
    "modified": "its modification time is {after[modified]}, but was {before[modified]} when it was marked",
    "young": "it was written at {after[modified]}, after the mark's cutoff",
    "without_time": "its modification time, {after[modified]}, is a zero value, so it may be young",
}


def differences(marked: pa.Table, now: pa.Table, *, cutoff: datetime | None) -> dict[str, pa.ChunkedArray]:
    """Whether each object differs from the marked one in the same row, by attribute; false if nothing is there.

    A value that is unknown on either side doesn't count as a difference. Times are compared to the second, because
    stores report them with varying precision. If a marked row has no time, an object younger than `cutoff` (by
    the store's clock) counts as different, unless `cutoff` is None. An object that has no time now always counts as
    different: a mark of an earlier version may have expired it.
    """
    modified = (pc.floor_temporal(table["modified"], unit="second") for table in (marked, now))
    limit = pa.scalar(cutoff, RECEIPTS.field("at").type)
    young = pc.and_(pc.is_null(marked["modified"]), pc.greater(now["modified"], limit))
    return {
        "size": _differ(marked["size"], now["size"]),
        "checksum": _differ(marked["checksum"], now["checksum"]),
        "modified": _differ(*modified),
        "young": pc.fill_null(young, False),
        "without_time": pc.fill_null(is_without_time(now["modified"]), False),
    }


def _current_at(marked: pa.Table, current: pa.Table) -> tuple[pa.ChunkedArray, pa.Table]:
    """Whether an object exists now at the key of each marked row, and its attributes; nulls if none exists."""
    row_index = pc.index_in(marked["address"], value_set=current["address"].combine_chunks())
    return pc.is_valid(row_index), pa.table([current[name].take(row_index) for name in _NOW], names=list(_NOW))


def _differ(marked: pa.ChunkedArray, current: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.not_equal(marked, current), False)


def _any(by_name: dict[str, pa.ChunkedArray]) -> pa.ChunkedArray:
    return reduce(pc.or_, by_name.values())
