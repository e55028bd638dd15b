"""The vectorized (compiled) decoder, with loops compiled by numba. Its results equal those of the readable one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_resources.sstable import kernels
from spark_resources.sstable.blocks import FOOTER_LENGTH, Table, Totals, check_totals
from spark_resources.sstable.readable_decoder import ReadableDecoder
from spark_resources.sstable.records import ENTRY_SCHEMA
from spark_resources.sstable.wire import InvalidTable

_MIN_RECORD_BYTES = 3  # three lengths of one byte each
_MAX_LENGTHS_BYTES = 24  # two lengths in decimal, each followed by a bar
_MAX_REUSED_BYTES = 32 << 20  # of the content buffer that a thread reuses: allocating it costs more than filling it


class Unreadable(Exception):
    """Raised, without a reason, if a compiled loop finds broken data. The readable decoder then finds the reason."""


class VectorizedDecoder:
    """Decodes millions of records per second. For a broken table, the readable decoder finds the reason."""

    name = "vectorized"

    def __init__(self) -> None:
        self._reference_decoder = ReadableDecoder()
        self._buffers = threading.local()

    def entries(self, table: Table, columns: Sequence[str]) -> pa.RecordBatch:
        try:
            return self.attempt_entries(table, columns)[0]
        except Unreadable:
            self._reference_decoder.entries(table, columns)  # raises the precise error, unless the two disagree
            raise DecodersDisagree("two decoders disagree on it") from None

    def entries_and_content(self, table: Table, columns: Sequence[str]) -> tuple[pa.RecordBatch, Iterable[bytes]]:
        try:
            batch, content = self.attempt_entries(table, columns, with_content=True)
            return batch, [content]
        except Unreadable:
            self._reference_decoder.entries(table, columns)
            raise DecodersDisagree("two decoders disagree on it") from None

    def content(self, table: Table) -> Iterable[bytes]:
        try:
            return [self.attempt_content(table)]
        except Unreadable:
            for _ in self._reference_decoder.content(table):
                pass
            raise DecodersDisagree("two decoders disagree on it") from None

    def attempt_entries(
        self, table: Table, columns: Sequence[str], *, with_content: bool = False
    ) -> tuple[pa.RecordBatch, bytes]:
        blocks = _Blocks(table)
        rows, text_size = table.properties.count, blocks.total + kernels.SLACK
        requested = {column: column in columns for column in ENTRY_SCHEMA.names}
        output = kernels.Columns(
            *_text_buffers(table.key_bytes + kernels.SLACK, rows, requested["path"]),
            *_text_buffers(text_size, rows, requested["address"]),
            address_types=np.empty(rows, dtype=np.int8),
            sizes=np.empty(rows, dtype=np.int64),
            checksums=(buffers := _text_buffers(text_size, rows, requested["checksum"]))[0],
            checksum_offsets=buffers[1],
            times=np.empty(rows * requested["last_modified"], dtype=np.int64),
            has_time=np.empty(rows * requested["last_modified"], dtype=np.uint8),
            content=self._buffer(blocks.content_size * with_content),
        )
        if not kernels.fill_columns(blocks.data, blocks.handles, blocks.scratch, output):
            raise Unreadable
        blocks.check_totals()
        schema = pa.schema([ENTRY_SCHEMA.field(column) for column in columns])
        batch = pa.record_batch([_array(column, output) for column in columns], schema=schema)
        return batch, output.content[: blocks.scratch.state[kernels.CONTENT]].data  # type: ignore[return-value]

    def attempt_content(self, table: Table) -> bytes:
        blocks = _Blocks(table)
        buffer = self._buffer(blocks.content_size)
        length = kernels.write_content(blocks.data, blocks.handles, blocks.scratch, buffer)
        if length < 0:
            raise Unreadable
        blocks.check_totals()
        return buffer[:length].data  # type: ignore[return-value]

    def _buffer(self, size: int) -> kernels.Bytes:
        """A buffer for content, reused for one table after another."""
        buffer: kernels.Bytes | None = getattr(self._buffers, "content", None)
        if buffer is None or len(buffer) < size:
            buffer = np.empty(size, dtype=np.uint8)
            if size <= _MAX_REUSED_BYTES:
                self._buffers.content = buffer
        return buffer[:size]


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
        stated = table.properties.count
        if largest < 0 or stated > self.total // _MIN_RECORD_BYTES:
            raise Unreadable
        self._state = np.zeros(kernels.STATE, dtype=np.int64)
        self._state[kernels.KEY_LENGTH] = -1
        self._state[kernels.STATED_ROWS] = stated
        self._state[kernels.STATED_KEY_BYTES] = table.key_bytes
        block, key, first = (np.empty(largest + kernels.SLACK, dtype=np.uint8) for _ in range(3))
        self.scratch = kernels.Scratch(block, key, first, self._state, np.empty(kernels.FIELDS, dtype=np.int64))

    @property
    def content_size(self) -> int:
        """A sufficient size, in bytes, for the table's records in the form from which its id is computed."""
        return self._table.key_bytes + self.total + _MAX_LENGTHS_BYTES * self._table.properties.count + kernels.SLACK

    def check_totals(self) -> None:
        state = self._state
        first = self.scratch.first[: state[kernels.FIRST_LENGTH]].tobytes()
        last = self.scratch.key[: max(state[kernels.KEY_LENGTH], 0)].tobytes()
        try:
            check_totals(self._table, Totals(int(state[kernels.ROWS]), int(state[kernels.KEY_BYTES]), first, last))
        except InvalidTable as error:
            raise Unreadable from error


def _text_buffers(length: int, rows: int, requested: bool) -> tuple[kernels.Bytes, kernels.Offsets]:
    return np.empty(length * requested, dtype=np.uint8), np.zeros((rows + 1) * requested, dtype=np.int32)


def _array(column: str, output: kernels.Columns) -> Any:
    match column:
        case "path":
            return _texts(pa.binary(), output.path_offsets, output.paths)
        case "address":
            return _texts(pa.string(), output.address_offsets, output.addresses)
        case "checksum":
            return _texts(pa.string(), output.checksum_offsets, output.checksums)
        case "address_type":
            return _numbers(pa.int8(), output.address_types)
        case "size":
            return _numbers(pa.int64(), output.sizes)
    validity = pa.py_buffer(np.packbits(output.has_time, bitorder="little"))
    return pa.Array.from_buffers(
        ENTRY_SCHEMA.field(column).type, len(output.times), [validity, pa.py_buffer(output.times)]
    )


def _numbers(kind: Any, values: Any) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _texts(kind: Any, offsets: kernels.Offsets, content: kernels.Bytes) -> Any:
    used = content[: offsets[-1]]
    array = pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(used)])
    if kind == pa.string() and len(used) and used.max() >= 0x80:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise Unreadable from error
    return array


class DecodersDisagree(InvalidTable):
    """Raised for a table that only the readable decoder can read."""

    advice = "This is a bug in lakegc: report it, and attach this table."
