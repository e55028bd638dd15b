"""What commits point to: metaranges and ranges, written once, shared between commits, named by content (formats §3).

A range ends where a key's hash says so. The same content therefore always makes the same ranges, and a change rewrites
only those that it falls into.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from spark_resources.sandbox.objects import Objects
from spark_resources.sandbox.problems import conflict
from spark_resources.sandbox.state import Staged
from spark_resources.sstable import RangeRef, Record, range_ref, read_ranges, read_records, write_metarange, write_table
from spark_resources.sstable.values import split_value

PREFIX = "_lakefs/"
DEFAULT_RANGE_ENTRIES = 1000
_CACHED_RECORDS = 400_000
_KEY = attrgetter("key")
_MAX_KEY = attrgetter("max_key")


class Sides(NamedTuple):
    """A path's values before and after; None where there is nothing."""

    before: bytes | None
    after: bytes | None


class Committed:
    """The committed data of one repository. Tables are immutable, so what was read once is kept."""

    def __init__(self, objects: Objects, *, range_entries: int = DEFAULT_RANGE_ENTRIES) -> None:
        self._objects = objects
        self._range_entries = range_entries
        self._lock = threading.Lock()
        self._ranges: dict[str, tuple[RangeRef, ...]] = {"": ()}
        self._records: OrderedDict[str, Sequence[Record]] = OrderedDict()
        self._count = 0

    # --- reading ----------------------------------------------------------------------------------------------------

    def ranges(self, metarange_id: str) -> tuple[RangeRef, ...]:
        with self._lock:
            known = self._ranges.get(metarange_id)
        if known is None:
            known = tuple(read_ranges(self._objects.read(PREFIX + metarange_id), name=metarange_id))
            with self._lock:
                self._ranges[metarange_id] = known
        return known

    def records(self, range_id: str) -> Sequence[Record]:
        with self._lock:
            known = self._records.get(range_id)
            if known is not None:
                self._records.move_to_end(range_id)
                return known
        known = read_records(self._objects.read(PREFIX + range_id), name=range_id)
        self._keep(range_id, known)
        return known

    def _keep(self, range_id: str, records: Sequence[Record]) -> None:
        with self._lock:
            if range_id not in self._records:
                self._records[range_id] = records
                self._count += len(records)
            while self._count > _CACHED_RECORDS and len(self._records) > 1:
                _, dropped = self._records.popitem(last=False)
                self._count -= len(dropped)

    def value(self, metarange_id: str, path: bytes) -> bytes | None:
        """The value at a path, None where the metarange has none."""
        ranges = self.ranges(metarange_id)
        at = bisect_left(ranges, path, key=_MAX_KEY)
        if at == len(ranges) or path < ranges[at].min_key:
            return None
        records = self.records(ranges[at].id)
        place = bisect_left(records, path, key=_KEY)
        return records[place].value if place < len(records) and records[place].key == path else None

    def since(self, metarange_id: str, path: bytes) -> Iterator[Record]:
        """The records from a path on, in order; ranges are read as they are reached."""
        ranges = self.ranges(metarange_id)
        for ref in ranges[bisect_left(ranges, path, key=_MAX_KEY) :]:
            records = self.records(ref.id)
            yield from records[bisect_left(records, path, key=_KEY) :]

    def under(self, metarange_id: str, prefix: bytes) -> Iterator[Record]:
        """The records whose path starts so, in order."""
        return takewhile(lambda record: record.key.startswith(prefix), self.since(metarange_id, prefix))

    def changes(self, metarange_id: str, staged: Iterable[Staged]) -> Iterator[tuple[Staged, bytes | None]]:
        """The staged paths that change content, each with what is committed there.

        As on the server, the same content at another address is no change, and hiding what isn't there is none.
        """
        for each in staged:
            before = self.value(metarange_id, each.path)
            if each.value is None:
                changed = before is not None
            else:
                changed = before is None or identity(before) != identity(each.value)
            if changed:
                yield each, before

    def differences(self, before: str, after: str) -> dict[bytes, Sides]:
        """Every path whose value isn't the same in two metaranges. Only ranges that they don't share are read."""
        old, new = self.ranges(before), self.ranges(after)
        shared = {ref.id for ref in old} & {ref.id for ref in new}
        was = {record.key: record.value for ref in old if ref.id not in shared for record in self.records(ref.id)}
        is_ = {record.key: record.value for ref in new if ref.id not in shared for record in self.records(ref.id)}
        return {
            path: Sides(was.get(path), is_.get(path))
            for path in sorted(was.keys() | is_.keys())
            if was.get(path) != is_.get(path)
        }

    # --- writing ----------------------------------------------------------------------------------------------------

    def written(self, metarange_id: str, changes: Sequence[Staged]) -> str:
        """The metarange that has these values, in the order of paths, and the rest as it was; writes its tables."""
        result: list[RangeRef] = []
        open_records: list[Record] = []
        left = list(changes)
        ranges = self.ranges(metarange_id)
        for ref in ranges:
            at = bisect_left(left, ref.max_key, key=attrgetter("path"))
            inside = at + 1 if at < len(left) and left[at].path == ref.max_key else at
            if ref is ranges[-1] and not self._ends_range(ref.max_key):  # what follows belongs to it
                inside = len(left)
            if inside == 0 and not open_records:
                result.append(ref)
                continue
            open_records += _with_changes(self.records(ref.id), left[:inside])
            left = left[inside:]
            open_records = self._write_full(open_records, result)
        open_records = self._write_full(open_records + _with_changes((), left), result)
        if open_records:
            result.append(self._write_range(open_records))
        table = write_metarange(result)
        self._put(table.id, table.data)
        with self._lock:
            self._ranges[table.id] = tuple(result)
        return table.id

    def _ends_range(self, key: bytes) -> bool:
        digest = hashlib.blake2b(key, digest_size=8).digest()
        return int.from_bytes(digest, "big") % self._range_entries == 0

    def _write_full(self, records: list[Record], result: list[RangeRef]) -> list[Record]:
        """Writes what ends here, and gives back what goes on."""
        begin = 0
        for at, record in enumerate(records, start=1):
            if self._ends_range(record.key):
                result.append(self._write_range(records[begin:at]))
                begin = at
        return records[begin:]

    def _write_range(self, records: list[Record]) -> RangeRef:
        table = write_table(records, {"type": "ranges"})
        self._put(table.id, table.data)
        self._keep(table.id, records)
        return range_ref(table.data, name=table.id)

    def _put(self, table_id: str, data: bytes) -> None:
        if not self._objects.has(PREFIX + table_id):
            self._objects.write(PREFIX + table_id, data)


def identity(value: bytes) -> bytes:
    """What an entry's value is compared by (formats §3)."""
    return split_value(value).identity


def _with_changes(records: Sequence[Record], changes: Sequence[Staged]) -> list[Record]:
    content = {record.key: record.value for record in records}
    for path, value in changes:
        if value is None:
            content.pop(path, None)
        else:
            content[path] = value
    return [Record(*item) for item in sorted(content.items())]


class Strategy(NamedTuple):
    """How a merge decides a path that both sides changed: by taking one side's value, or (None) not at all."""

    name: str
    takes: str | None


STRATEGIES = {
    "": Strategy("default", None),
    "dest-wins": Strategy("dest-wins", "dest"),
    "source-wins": Strategy("source-wins", "source"),
}


def merged(committed: Committed, *, source: str, dest: str, base: str, strategy: Strategy) -> str:
    """The metarange of a three-way merge, path by path. Raises `Problem` 409 for a conflict that nothing decides."""
    if dest == base:
        return source
    theirs, ours = committed.differences(base, source), committed.differences(base, dest)
    changes = []
    for path, (before, value) in theirs.items():
        other = ours.get(path)
        if other is None or _wins(before, value, other.after, strategy):
            changes.append(Staged(path, value))
    return committed.written(dest, changes)


def _wins(base: bytes | None, source: bytes | None, dest: bytes | None, strategy: Strategy) -> bool:
    """Whether the source's value stands at a path where both sides differ from the base. Raises `Problem` 409."""
    if same_content(source, dest) or same_content(dest, base):
        return True
    if same_content(source, base):
        return False
    if strategy.takes is None:
        raise conflict("conflict found")
    return strategy.takes == "source"


def same_content(one: bytes | None, other: bytes | None) -> bool:
    """Whether two values are the same to the server, which compares content and not addresses."""
    if one is None or other is None:
        return one is other
    return identity(one) == identity(other)
