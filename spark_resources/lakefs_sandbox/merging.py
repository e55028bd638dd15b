"""Three-way merges like the server's: by whole ranges if possible, by record where both sides changed a range.

Which ranges are reused whole determines the new tables and, for identical contents, which address is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_resources.lakefs_sandbox.committed import Committed, same_content
from spark_resources.lakefs_sandbox.errors import conflict
from spark_resources.sstable import RangeRef, Record


class Strategy(NamedTuple):
    """A merge strategy. If both sides changed a path, the `winner` determines its value; None makes it a conflict."""

    name: str
    winner: str | None


STRATEGIES = {
    "": Strategy("default", None),
    "dest-wins": Strategy("dest-wins", "dest"),
    "source-wins": Strategy("source-wins", "source"),
}


def merge_metaranges(committed: Committed, *, source: str, dest: str, base: str, strategy: Strategy) -> str:
    """Merge two metaranges with a common base; returns the new id. Raises `Problem` 409 for an unresolved conflict."""
    if dest == base:
        return source
    return _Merge(committed, source, dest, base, strategy).run()


class _Cursor:
    """A position in a metarange: before a whole range (`record` is None), or at one of its records."""

    def __init__(self, committed: Committed, metarange_id: str) -> None:
        self._committed = committed
        self._ranges = committed.ranges(metarange_id)
        self._range_index = 0
        self._records: Sequence[Record] = ()
        self._record_index = 0

    @property
    def range(self) -> RangeRef | None:
        """The current range; None after the last one."""
        return self._ranges[self._range_index] if self._range_index < len(self._ranges) else None

    @property
    def record(self) -> Record | None:
        return self._records[self._record_index] if self._records else None

    def enter(self) -> None:
        """Move from before a range to its first record."""
        self._records, self._record_index = self._committed.records(self._ranges[self._range_index].id), 0

    def next_range(self) -> None:
        self._range_index, self._records = self._range_index + 1, ()

    def next_record(self) -> None:
        self._record_index += 1
        if self._record_index == len(self._records):
            self.next_range()


class _Merge:
    def __init__(self, committed: Committed, source: str, dest: str, base: str, strategy: Strategy) -> None:
        self._committed = committed
        self._base = base
        self._source = _Cursor(committed, source)
        self._dest = _Cursor(committed, dest)
        self._strategy = strategy
        self._writer = committed.writer()

    def run(self) -> str:
        source, dest = self._source, self._dest
        while source.range is not None and dest.range is not None:
            if source.record is not None and dest.record is not None:
                self._merge_records(source.record, dest.record)
            elif source.record is not None:
                self._merge_range_and_record(dest, dest.range, source, source.record)
            elif dest.record is not None:
                self._merge_range_and_record(source, source.range, dest, dest.record)
            else:
                self._merge_ranges(source.range, dest.range)
        self._merge_rest(source)
        self._merge_rest(dest)
        return self._writer.finish()

    def _merge_ranges(self, source: RangeRef, dest: RangeRef) -> None:
        """Merge when both sides are before a range."""
        if source.id == dest.id:
            self._take_range(source)
        elif (source.min_key, source.max_key) == (dest.min_key, dest.max_key):
            base = self._committed.overlapping_range(self._base, source)
            if base is not None and base.id in (source.id, dest.id):
                self._take_range(dest if source.id == base.id else source)  # only the other side changed it
            else:
                self._enter_both()
        elif source.max_key < dest.min_key:
            if not self._apply_whole_range(self._source, source):
                self._enter_both()
        elif not (dest.max_key < source.min_key and self._apply_whole_range(self._dest, dest)):
            self._enter_both()

    def _take_range(self, ref: RangeRef) -> None:
        self._writer.add_range(ref)
        self._source.next_range()
        self._dest.next_range()

    def _enter_both(self) -> None:
        self._source.enter()
        self._dest.enter()

    def _apply_whole_range(self, cursor: _Cursor, ref: RangeRef) -> bool:
        """Add or delete a whole range where the other side has no records. Returns whether that was possible."""
        base = self._committed.overlapping_range(self._base, ref)
        if base is not None and base.id != ref.id:
            return False
        if base is None:
            self._writer.add_range(ref)
        cursor.next_range()
        return True

    def _merge_range_and_record(self, waiting: _Cursor, ref: RangeRef, entered: _Cursor, record: Record) -> None:
        """Merge when one side is before a range and the other at a record."""
        if record.key < ref.min_key:
            self._merge_one_sided(entered, record)
        elif not (ref.max_key < record.key and self._apply_whole_range(waiting, ref)):
            waiting.enter()

    def _merge_records(self, source: Record, dest: Record) -> None:
        if source.key < dest.key:
            self._merge_one_sided(self._source, source)
        elif dest.key < source.key:
            self._merge_one_sided(self._dest, dest)
        else:
            self._write(source.key, source.value, dest.value)
            self._source.next_record()
            self._dest.next_record()

    def _merge_one_sided(self, cursor: _Cursor, record: Record) -> None:
        """Merge a record that the other side doesn't have."""
        if cursor is self._source:
            self._write(record.key, record.value, None)
        else:
            self._write(record.key, None, record.value)
        cursor.next_record()

    def _merge_rest(self, cursor: _Cursor) -> None:
        """Merge the rest of one side after the end of the other."""
        while cursor.range is not None:
            if cursor.record is not None:
                self._merge_one_sided(cursor, cursor.record)
            elif not self._apply_whole_range(cursor, cursor.range):
                cursor.enter()

    def _write(self, path: bytes, source: bytes | None, dest: bytes | None) -> None:
        base = self._committed.value(self._base, path)
        self._writer.add_value(path, source if _takes_source(base, source, dest, self._strategy) else dest)


def _takes_source(base: bytes | None, source: bytes | None, dest: bytes | None, strategy: Strategy) -> bool:
    """Whether a path gets the source's value, not the destination's. Raises `Problem` 409 for a conflict."""
    if same_content(source, dest) or same_content(dest, base):
        return True
    if same_content(source, base):
        return False
    if strategy.winner is None:
        raise conflict("conflict found")
    return strategy.winner == "source"
