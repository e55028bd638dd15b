"""The differences between two expired sets, computed in one pass over both: rows in, rows out, with a window of each
set in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.errors import DamagedData


class Change(StrEnum):
    NEWLY = "newly expired"
    NO_LONGER = "no longer expired"
    STILL = "still expired"


def changes(before: Iterable[pa.Table], after: Iterable[pa.Table]) -> Iterator[tuple[Change, pa.Table]]:
    """Every row of two sets once, in non-empty tables. A row that is in both sets is taken from `after`.

    Both sets must have a column `address` and be sorted by it, byte by byte. Raises `DamagedData` if a set isn't sorted
    or has an address twice, because one pass over such sets would report wrong changes.
    """
    old, new = _Window(before), _Window(after)
    while True:
        bound = _least(old.last(), new.last())
        if bound is None:
            return
        old_rows, new_rows = old.take(bound), new.take(bound)
        for change, rows in (
            (Change.NO_LONGER, _without(old_rows, new_rows)),
            (Change.NEWLY, _without(new_rows, old_rows)),
            (Change.STILL, _among(new_rows, old_rows)),
        ):
            if rows is not None and len(rows):
                yield change, rows


class _Window:
    """The rows of a sorted set that were read but not yet taken."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables, self._rows, self._reached = iter(tables), None, ""
        self._begun = False

    def last(self) -> str | None:
        """Fill the window if it is empty, and return its last address; None at the end of the set."""
        while self._rows is None or not len(self._rows):
            self._rows = next(self._tables, None)
            if self._rows is None:
                return None
            if len(self._rows):
                self._check_order(self._rows["address"].combine_chunks())
        return self._reached

    def take(self, bound: str) -> pa.Table | None:
        """Take the rows up to and including an address; None at the end of the set."""
        if self._rows is None:
            return None
        count = pc.sum(pc.less_equal(self._rows["address"], bound)).as_py() or 0
        rows, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return rows

    def _check_order(self, addresses: pa.Array) -> None:
        in_order = pc.all(pc.less(addresses[:-1], addresses[1:]), min_count=0).as_py()
        if not in_order or (self._begun and addresses[0].as_py() <= self._reached):
            raise DamagedData(
                f"one of the two expired sets isn't sorted by address, or has duplicates, near "
                f"{addresses[0].as_py()!r}. It can't be compared; make a new mark."
            )
        self._begun, self._reached = True, addresses[-1].as_py()


def _least(first: str | None, second: str | None) -> str | None:
    return min((address for address in (first, second) if address is not None), default=None)


def _among(rows: pa.Table | None, others: pa.Table | None) -> pa.Table | None:
    if rows is None or others is None:
        return None
    return rows.filter(pc.is_in(rows["address"], value_set=others["address"].combine_chunks()))


def _without(rows: pa.Table | None, others: pa.Table | None) -> pa.Table | None:
    if rows is None or others is None:
        return rows
    return rows.filter(pc.invert(pc.is_in(rows["address"], value_set=others["address"].combine_chunks())))
