"""The vectorised decoder: the same results as the readable one, from loops compiled by numba."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_resources.sstable import kernels
from spark_resources.sstable.blocks import FOOTER_LENGTH, Ends, Table, check_ends
from spark_resources.sstable.readable_decoder import ReadableDecoder
from spark_resources.sstable.records import ENTRY_SCHEMA
from spark_resources.sstable.wire import Broken

_SHORTEST_RECORD = 3  # three lengths of one byte each
_LONGEST_LENGTHS = 24  # two lengths in decimal, each followed by a bar
_KEPT = 32 << 20  # the largest content buffer that a thread keeps, in bytes: new memory costs more than filling it


class Unreadable(Exception):
    """Raised if a compiled loop finds broken data, without a reason."""


class VectorisedDecoder:
    """Decodes millions of records a second. For a broken table, the readable decoder gives the reason."""

    name = "vectorised"

    def __init__(self) -> None:
        self._readable = ReadableDecoder()
        self._kept = threading.local()

    def entries(self, table: Table, columns: Sequence[str]) -> pa.RecordBatch:
        try:
            return self.attempt_entries(table, columns)[0]
        except Unreadable:
            self._readable.entries(table, columns)
            raise _disagreement() from None

    def entries_and_content(self, table: Table, columns: Sequence[str]) -> tuple[pa.RecordBatch, Iterable[bytes]]:
        try:
            batch, content = self.attempt_entries(table, columns, content=True)
            return batch, [content]
        except Unreadable:
            self._readable.entries(table, columns)
            raise _disagreement() from None

    def content(self, table: Table) -> Iterable[bytes]:
        try:
            return [self.attempt_content(table)]
        except Unreadable:
            for _ in self._readable.content(table):
                pass
            raise _disagreement() from None

    def attempt_entries(
        self, table: Table, columns: Sequence[str], *, content: bool = False
    ) -> tuple[pa.RecordBatch, bytes]:
        blocks = _Blocks(table)
        rows, text = table.properties.count, blocks.total + kernels.SLACK
        asked = {column: column in columns for column in ENTRY_SCHEMA.names}
        found = kernels.Columns(
            *_text_room(table.key_bytes + kernels.SLACK, rows, asked["path"]),
            *_text_room(text, rows, asked["address"]),
            kinds=np.empty(rows, dtype=np.int8),
            sizes=np.empty(rows, dtype=np.int64),
            checksums=(room := _text_room(text, rows, asked["checksum"]))[0],
            checksum_at=room[1],
            times=np.empty(rows * asked["last_modified"], dtype=np.int64),
            time_there=np.empty(rows * asked["last_modified"], dtype=np.uint8),
            content=self._room(blocks.content_room * content),
        )
        if not kernels.columns(blocks.data, blocks.handles, blocks.scratch, found):
            raise Unreadable
        blocks.check_ends()
        schema = pa.schema([ENTRY_SCHEMA.field(column) for column in columns])
        batch = pa.record_batch([_array(column, found) for column in columns], schema=schema)
        return batch, found.content[: blocks.scratch.state[kernels.CONTENT]].data  # type: ignore[return-value]

    def attempt_content(self, table: Table) -> bytes:
        blocks = _Blocks(table)
        text = self._room(blocks.content_room)
        length = kernels.content(blocks.data, blocks.handles, blocks.scratch, text)
        if length < 0:
            raise Unreadable
        blocks.check_ends()
        return text[:length].data  # type: ignore[return-value]

    def _room(self, size: int) -> kernels.Bytes:
        """A buffer for content, reused for one table after another."""
        kept: kernels.Bytes | None = getattr(self._kept, "room", None)
        if kept is None or len(kept) < size:
            kept = np.empty(size, dtype=np.uint8)
            if size <= _KEPT:
                self._kept.room = kept
        return kept[:size]


class _Blocks:
    """A table's data blocks with verified checksums, and their buffers. `total` is their decompressed size."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.data = np.frombuffer(table.data, dtype=np.uint8)
        limit = len(self.data) - FOOTER_LENGTH
        count, handles = kernels.data_blocks(self.data, limit, *table.index, table.two_levels)
        if count < 0:
            raise Unreadable
        self.handles = handles[:count]
        largest, self.total = kernels.raw_sizes(self.data, limit, self.handles)
        promised = table.properties.count
        if largest < 0 or promised > self.total // _SHORTEST_RECORD:
            raise Unreadable
        self._state = np.zeros(kernels.STATE, dtype=np.int64)
        self._state[kernels.KEY_LENGTH] = -1
        self._state[kernels.PROMISED_ROWS] = promised
        self._state[kernels.PROMISED_KEY_BYTES] = table.key_bytes
        block, key, first = (np.empty(largest + kernels.SLACK, dtype=np.uint8) for _ in range(3))
        self.scratch = kernels.Scratch(block, key, first, self._state, np.empty(kernels.FIELDS, dtype=np.int64))

    @property
    def content_room(self) -> int:
        """A sufficient size, in bytes, for the table's records in the form that its id is computed from."""
        return self._table.key_bytes + self.total + _LONGEST_LENGTHS * self._table.properties.count + kernels.SLACK

    def check_ends(self) -> None:
        state = self._state
        first = self.scratch.first[: state[kernels.FIRST_LENGTH]].tobytes()
        last = self.scratch.key[: max(state[kernels.KEY_LENGTH], 0)].tobytes()
        try:
            check_ends(self._table, Ends(int(state[kernels.ROWS]), int(state[kernels.KEY_BYTES]), first, last))
        except Broken as broken:
            raise Unreadable from broken


def _text_room(length: int, rows: int, asked: bool) -> tuple[kernels.Bytes, kernels.Offsets]:
    return np.empty(length * asked, dtype=np.uint8), np.zeros((rows + 1) * asked, dtype=np.int32)


def _array(column: str, found: kernels.Columns) -> Any:
    match column:
        case "path":
            return _texts(pa.binary(), found.path_at, found.paths)
        case "address":
            return _texts(pa.string(), found.address_at, found.addresses)
        case "checksum":
            return _texts(pa.string(), found.checksum_at, found.checksums)
        case "address_type":
            return _numbers(pa.int8(), found.kinds)
        case "size":
            return _numbers(pa.int64(), found.sizes)
    there = pa.py_buffer(np.packbits(found.time_there, bitorder="little"))
    return pa.Array.from_buffers(ENTRY_SCHEMA.field(column).type, len(found.times), [there, pa.py_buffer(found.times)])


def _numbers(kind: Any, values: Any) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _texts(kind: Any, begins: kernels.Offsets, content: kernels.Bytes) -> Any:
    used = content[: begins[-1]]
    array = pa.Array.from_buffers(kind, len(begins) - 1, [None, pa.py_buffer(begins), pa.py_buffer(used)])
    if kind == pa.string() and len(used) and used.max() >= 0x80:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise Unreadable from error
    return array


def _disagreement() -> Broken:
    return Broken("two decoders disagree on it, which is a bug in lakegc. Report it with this table")
