"""Committed data: metaranges and ranges, written once, shared by commits, and named by their content hash (formats §3).

A range ends after a key whose hash marks a boundary, or before a range that is reused whole. A change rewrites only the
ranges that it affects.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from spark_resources.lakefs_sandbox.objects import Objects
from spark_resources.lakefs_sandbox.state import StagedEntry
from spark_resources.sstable import RangeRef, Record, range_ref, read_ranges, read_records, write_metarange, write_table
from spark_resources.sstable.values import split_value

PREFIX = "_lakefs/"
DEFAULT_RANGE_ENTRIES = 50_000  # average per range; also the server's default
_MAX_CACHED_RECORDS = 400_000
_KEY = attrgetter("key")
_MAX_KEY = attrgetter("max_key")


class ValuePair(NamedTuple):
    """A path's values before and after a change; None where it has none."""

    before: bytes | None
    after: bytes | None


class Committed:
    """The committed data of one repository. Tables are immutable, so they are cached after they have been read."""

    def __init__(self, objects: Objects, *, range_entries: int = DEFAULT_RANGE_ENTRIES) -> None:
        self._objects = objects
        self._range_entries = range_entries
        self._lock = threading.Lock()
        self._ranges: dict[str, tuple[RangeRef, ...]] = {"": ()}
        self._records: OrderedDict[str, Sequence[Record]] = OrderedDict()
        self._cached_count = 0

    # --- reading ----------------------------------------------------------------------------------------------------

    def ranges(self, metarange_id: str) -> tuple[RangeRef, ...]:
        with self._lock:
            cached = self._ranges.get(metarange_id)
        if cached is None:
            cached = tuple(read_ranges(self._objects.read(PREFIX + metarange_id), name=metarange_id))
            with self._lock:
                self._ranges[metarange_id] = cached
        return cached

    def records(self, range_id: str) -> Sequence[Record]:
        with self._lock:
            cached = self._records.get(range_id)
            if cached is not None:
                self._records.move_to_end(range_id)
                return cached
        cached = read_records(self._objects.read(PREFIX + range_id), name=range_id)
        self._cache(range_id, cached)
        return cached

    def _cache(self, range_id: str, records: Sequence[Record]) -> None:
        with self._lock:
            if range_id not in self._records:
                self._records[range_id] = records
                self._cached_count += len(records)
            while self._cached_count > _MAX_CACHED_RECORDS and len(self._records) > 1:
                _, dropped = self._records.popitem(last=False)
                self._cached_count -= len(dropped)

    def value(self, metarange_id: str, path: bytes) -> bytes | None:
        """The value at a path; None if the metarange has none."""
        ranges = self.ranges(metarange_id)
        range_index = bisect_left(ranges, path, key=_MAX_KEY)
        if range_index == len(ranges) or path < ranges[range_index].min_key:
            return None
        records = self.records(ranges[range_index].id)
        record_index = bisect_left(records, path, key=_KEY)
        return (
            records[record_index].value if record_index < len(records) and records[record_index].key == path else None
        )

    def overlapping_range(self, metarange_id: str, span: RangeRef) -> RangeRef | None:
        """The first range of a metarange with keys between the first and last key of `span`; None if there is none."""
        ranges = self.ranges(metarange_id)
        range_index = bisect_left(ranges, span.min_key, key=_MAX_KEY)
        return (
            ranges[range_index] if range_index < len(ranges) and ranges[range_index].min_key <= span.max_key else None
        )

    def records_from(self, metarange_id: str, path: bytes) -> Iterator[Record]:
        """The records from a path onwards, in order. Each range is read only when it is reached."""
        ranges = self.ranges(metarange_id)
        for ref in ranges[bisect_left(ranges, path, key=_MAX_KEY) :]:
            records = self.records(ref.id)
            yield from records[bisect_left(records, path, key=_KEY) :]

    def records_with_prefix(self, metarange_id: str, prefix: bytes) -> Iterator[Record]:
        """The records whose paths have this prefix, in order."""
        return takewhile(lambda record: record.key.startswith(prefix), self.records_from(metarange_id, prefix))

    def changes(self, metarange_id: str, staged: Iterable[StagedEntry]) -> Iterator[tuple[StagedEntry, bytes | None]]:
        """The staged entries that change the content at their path, each with the committed value of that path.

        As on the server, identical content at another address isn't a change, nor is a tombstone for a missing path.
        """
        for entry in staged:
            before = self.value(metarange_id, entry.path)
            if entry.value is None:
                changed = before is not None
            else:
                changed = before is None or identity(before) != identity(entry.value)
            if changed:
                yield entry, before

    def differences(self, before: str, after: str) -> dict[bytes, ValuePair]:
        """Every path with different values in two metaranges. Ranges that are in both aren't read."""
        old, new = self.ranges(before), self.ranges(after)
        shared = {ref.id for ref in old} & {ref.id for ref in new}
        old_values = {
            record.key: record.value for ref in old if ref.id not in shared for record in self.records(ref.id)
        }
        new_values = {
            record.key: record.value for ref in new if ref.id not in shared for record in self.records(ref.id)
        }
        return {
            path: ValuePair(old_values.get(path), new_values.get(path))
            for path in sorted(old_values.keys() | new_values.keys())
            if old_values.get(path) != new_values.get(path)
        }

    # --- writing ----------------------------------------------------------------------------------------------------

    def apply_changes(self, metarange_id: str, changes: Sequence[StagedEntry]) -> str:
        """Apply changes, sorted by path, to a metarange. Writes the new tables; returns the new metarange's id.

        As on the server, ranges before the next change or after the last one are reused whole, so a record that is
        added after a reused range starts a new range.
        """
        writer = self.writer()
        remaining = deque(changes)
        for ref in self.ranges(metarange_id):
            if not remaining or ref.max_key < remaining[0].path:
                writer.add_range(ref)
                continue
            for record in self.records(ref.id):
                while remaining and remaining[0].path < record.key:
                    writer.add_value(*remaining.popleft())
                if remaining and remaining[0].path == record.key:
                    writer.add_value(*remaining.popleft())
                else:
                    writer.add_record(record)
        for change in remaining:
            writer.add_value(*change)
        return writer.finish()

    def writer(self) -> MetarangeWriter:
        return MetarangeWriter(self)

    def ends_range(self, key: bytes) -> bool:
        """Whether a range ends after this key, by the key's 64-bit FNV-1a hash."""
        digest = 0xCBF29CE484222325
        for byte in key:
            digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        return digest % self._range_entries == 0

    def write_metarange(self, ranges: Sequence[RangeRef]) -> str:
        table = write_metarange(ranges)
        self._put(table.id, table.data)
        with self._lock:
            self._ranges[table.id] = tuple(ranges)
        return table.id

    def write_range(self, records: list[Record]) -> RangeRef:
        table = write_table(records, {"type": "ranges"})
        self._put(table.id, table.data)
        self._cache(table.id, records)
        return range_ref(table.data, name=table.id)

    def _put(self, table_id: str, data: bytes) -> None:
        if not self._objects.has(PREFIX + table_id):
            self._objects.write(PREFIX + table_id, data)


class MetarangeWriter:
    """Builds a metarange from records and whole ranges that are added in key order."""

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self._ranges: list[RangeRef] = []
        self._open_records: list[Record] = []

    def add_record(self, record: Record) -> None:
        self._open_records.append(record)
        if self._committed.ends_range(record.key):
            self._close_range()

    def add_value(self, path: bytes, value: bytes | None) -> None:
        """Add a record, unless its value is None."""
        if value is not None:
            self.add_record(Record(path, value))

    def add_range(self, ref: RangeRef) -> None:
        self._close_range()
        self._ranges.append(ref)

    def finish(self) -> str:
        self._close_range()
        return self._committed.write_metarange(self._ranges)

    def _close_range(self) -> None:
        if self._open_records:
            self._ranges.append(self._committed.write_range(self._open_records))
            self._open_records = []


def identity(value: bytes) -> bytes:
    """The identity part of an entry's value, by which entries are compared (formats §3)."""
    return split_value(value).identity


def same_content(one: bytes | None, other: bytes | None) -> bool:
    """Whether the server considers two values equal. It compares their content, not their addresses."""
    if one is None or other is None:
        return one is other
    return identity(one) == identity(other)
