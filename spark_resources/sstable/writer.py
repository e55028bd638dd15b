"""Writes tables as lakeFS does, following pebble's rules for blocks, index and properties (formats §3).

The ids are those that the server would assign. If nothing was compressed, the bytes are the server's, too. Otherwise
they can differ, because implementations of snappy may compress the same block differently.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

import pyarrow as pa

from spark_resources.errors import WrongUsage
from spark_resources.model import Commit
from spark_resources.sstable.blocks import (
    BLOCK_TRAILER,
    CRC32C,
    FOOTER_LENGTH,
    HANDLES_LENGTH,
    KEY_TRAILER,
    MAGIC,
    NO_COMPRESSION,
    ONE_LEVEL,
    SET_TRAILER,
    SNAPPY,
    TWO_LEVELS,
    VERSION,
    Handle,
    encode_handle,
    masked_crc,
)
from spark_resources.sstable.content_ids import content_id, entry_identity, record_content
from spark_resources.sstable.records import Branch, Dump, Entry, RangeRef, Record, Tag, WrittenTable
from spark_resources.sstable.schemas import DUMP_SCHEMAS
from spark_resources.sstable.values import (
    encode_branch,
    encode_commit,
    encode_entry,
    encode_range_ref,
    encode_tag,
    encode_value,
)
from spark_resources.sstable.wire import as_uvarint

_T = TypeVar("_T")

RESTART_INTERVAL = 16
_EVERY_RECORD = 1
_NEVER = 1 << 31
_BLOCK_SIZE = 4096
_NEARLY_FULL = (_BLOCK_SIZE * 90 + 99) // 100
_HANDLE_ESTIMATE = 20
_SEPARATOR_TRAILER = b"\x11" + b"\xff" * 7
_NO_KEY = b"\xff" + b"\x00" * 7
_CODEC = pa.Codec("snappy")

_FIXED_PROPERTIES = {
    "rocksdb.block.based.table.prefix.filtering": b"0",
    "rocksdb.block.based.table.whole.key.filtering": b"0",
    "rocksdb.column.family.id": b"\xff\xff\xff\xff\x07",
    "rocksdb.comparator": b"leveldb.BytewiseComparator",
    "rocksdb.compression": b"Snappy",
    "rocksdb.compression_options": b"window_bits=-14; level=32767; strategy=0; max_dict_bytes=0; "
    b"zstd_max_train_bytes=0; enabled=0; ",
    "rocksdb.creation.time": b"\x00",
    "rocksdb.deleted.keys": b"\x00",
    "rocksdb.external_sst_file.global_seqno": bytes(8),
    "rocksdb.external_sst_file.version": struct.pack("<I", 2),
    "rocksdb.filter.size": b"\x00",
    "rocksdb.fixed.key.length": b"\x00",
    "rocksdb.format.version": b"\x00",
    "rocksdb.index.key.is.user.key": b"\x00",
    "rocksdb.index.value.is.delta.encoded": b"\x00",
    "rocksdb.merge.operands": b"\x00",
    "rocksdb.merge.operator": b"pebble.concatenate",
    "rocksdb.num.range-deletions": b"\x00",
    "rocksdb.oldest.key.time": b"\x00",
    "rocksdb.prefix.extractor.name": b"nullptr",
    "rocksdb.property.collectors": b"[static]",
}


def write_range(entries: Sequence[Entry]) -> WrittenTable:
    """A range of entries ordered by path, byte by byte. Raises `WrongUsage` for any other order."""
    records = [Record(entry.path, encode_value(entry_identity(entry), encode_entry(entry))) for entry in entries]
    return write_table(records, {"type": "ranges"})


def write_metarange(ranges: Sequence[RangeRef]) -> WrittenTable:
    """A metarange of ranges in the order of their keys. Raises `WrongUsage` for any other order."""
    return write_table([encode_range_ref(ref) for ref in ranges], {"type": "metaranges"})


def write_commits(commits: Iterable[Commit]) -> Dump:
    """A dump of commits, in any order."""
    return _write_dump("commit", commits, encode_commit)


def write_branches(branches: Iterable[Branch]) -> Dump:
    """A dump of branches, in any order."""
    return _write_dump("branch", branches, encode_branch)


def write_tags(tags: Iterable[Tag]) -> Dump:
    """A dump of tags, in any order."""
    return _write_dump("tag", tags, encode_tag)


def _write_dump(entity: str, values: Iterable[_T], encode: Callable[[_T], Record]) -> Dump:
    """A metarange and its range. If there is nothing to dump, there is no range."""
    records = sorted(encode(value) for value in values)
    user_properties = {"entity": entity, **DUMP_SCHEMAS[entity]}
    tables: dict[str, bytes] = {}
    refs: list[Record] = []
    if records:
        builder = TableBuilder(records, {"type": "ranges", **user_properties})
        tables[builder.id] = builder.finish()
        refs.append(encode_range_ref(builder.ref()))
    metarange = write_table(refs, {"type": "metaranges", **user_properties})
    return Dump(metarange.id, {**tables, metarange.id: metarange.data})


def write_table(records: Sequence[Record], user_properties: Mapping[str, str]) -> WrittenTable:
    """Any table, from records in the order of their keys and the user properties that are part of its id."""
    builder = TableBuilder(records, user_properties)
    return WrittenTable(builder.id, builder.finish())


class BlockBuilder:
    """Builds one block: records with shared prefixes, restart points, and the number of restart points."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._body = bytearray()
        self._restarts: list[int] = []
        self.count = 0
        self.last_key = b""

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self.count % self._interval == 0:
            self._restarts.append(len(self._body))
        else:
            shared = _shared_prefix_length(self.last_key, key)
        self._body += as_uvarint(shared) + as_uvarint(len(key) - shared) + as_uvarint(len(value))
        self._body += key[shared:] + value
        self.last_key = key
        self.count += 1

    @property
    def size(self) -> int:
        return len(self._body) + 4 * len(self._restarts) + 4

    def is_full_for(self, key_length: int, value_length: int) -> bool:
        """Whether the next record, with these lengths in bytes, belongs in a new block."""
        if self.count == 0 or self.size >= _BLOCK_SIZE:
            return self.count > 0
        if self.size <= _NEARLY_FULL:
            return False
        record_size = key_length + value_length + 4 + _varint_length(key_length) + _varint_length(value_length)
        size_after = self.size + record_size
        if self.count % self._interval == 0:
            size_after += 4
        return size_after > _BLOCK_SIZE

    def contents(self) -> bytes:
        restarts = self._restarts or [0]
        return bytes(self._body) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


class TableBuilder:
    """Builds a table from records: data blocks first, then index, properties, metaindex and footer."""

    def __init__(self, records: Sequence[Record], user_properties: Mapping[str, str]) -> None:
        if any(later.key <= earlier.key for earlier, later in pairwise(records)):
            raise WrongUsage("the records of a table must be sorted by key, without duplicates")
        self.id = content_id(map(record_content, records), user_properties)
        self._records, self._user_properties = records, user_properties
        self._out = bytearray()
        self._index = BlockBuilder(_EVERY_RECORD)
        self._full_indexes: list[BlockBuilder] = []
        self._write_data()

    def ref(self) -> RangeRef:
        """This table as listed in a metarange."""
        keys = [record.key for record in self._records] or [b""]
        return RangeRef(self.id, keys[0], keys[-1], self._estimated_size, len(self._records))

    def finish(self) -> bytes:
        properties = self._properties() | self._write_index()
        block = BlockBuilder(_NEVER)
        for name, value in sorted((name.encode(), value) for name, value in properties.items()):
            block.add(name, value)
        metaindex = BlockBuilder(_EVERY_RECORD)
        metaindex.add(b"rocksdb.properties", encode_handle(self._write_block(block.contents(), _uncompressed)))
        handles = encode_handle(self._write_block(metaindex.contents(), _uncompressed)) + encode_handle(
            self._index_handle
        )
        footer = bytes([CRC32C]) + handles.ljust(HANDLES_LENGTH, b"\x00") + struct.pack("<I", VERSION) + MAGIC
        if len(footer) != FOOTER_LENGTH:
            raise AssertionError(f"the footer has {len(footer)} bytes instead of {FOOTER_LENGTH}")
        return bytes(self._out) + footer

    def _write_data(self) -> None:
        block = BlockBuilder(RESTART_INTERVAL)
        for key, value in self._records:
            if block.is_full_for(len(key) + KEY_TRAILER, len(value)):
                self._add_to_index(
                    _separator(block.last_key, key), self._write_block(block.contents(), _compressed_if_smaller)
                )
                block = BlockBuilder(RESTART_INTERVAL)
            block.add(key + SET_TRAILER, value)
        # lakeFS estimates the size before the last block is closed
        self._estimated_size = len(self._out) + block.size + self._index.size
        self._add_to_index(_successor(block.last_key), self._write_block(block.contents(), _compressed_if_smaller))
        self._data_size = len(self._out)

    def _add_to_index(self, separator: bytes, handle: Handle) -> None:
        if self._index.is_full_for(len(separator), _HANDLE_ESTIMATE):
            self._full_indexes.append(self._index)
            self._index = BlockBuilder(_EVERY_RECORD)
        self._index.add(separator, encode_handle(handle))

    def _write_index(self) -> dict[str, bytes]:
        """Write the index, in one level or two; returns the properties that describe it."""
        parts = [*self._full_indexes, self._index]
        properties = {
            "rocksdb.num.data.blocks": as_uvarint(sum(part.count for part in parts)),
            "rocksdb.block.based.table.index.type": struct.pack("<I", ONE_LEVEL),
        }
        size = sum(part.size for part in parts) + BLOCK_TRAILER
        top = self._index
        if self._full_indexes:
            top = BlockBuilder(_EVERY_RECORD)
            for part in parts:
                top.add(part.last_key, encode_handle(self._write_block(part.contents(), _compressed_if_smaller)))
            properties["rocksdb.block.based.table.index.type"] = struct.pack("<I", TWO_LEVELS)
            properties["rocksdb.index.partitions"] = as_uvarint(len(parts))
            properties["rocksdb.top-level.index.size"] = as_uvarint(top.size)
            size += top.size
        properties["rocksdb.index.size"] = as_uvarint(size)
        self._index_handle = self._write_block(top.contents(), _compressed_if_smaller)
        return properties

    def _properties(self) -> dict[str, bytes]:
        ref = self.ref()
        return {
            **_FIXED_PROPERTIES,
            **{name: value.encode() for name, value in self._user_properties.items()},
            "min_key": ref.min_key,
            "max_key": ref.max_key,
            "count": b"%d" % ref.count,
            "estimated_size_bytes": b"%d" % ref.estimated_size,
            "rocksdb.data.size": as_uvarint(self._data_size),
            "rocksdb.num.entries": as_uvarint(ref.count),
            "rocksdb.raw.key.size": as_uvarint(sum(len(key) + KEY_TRAILER for key, _ in self._records)),
            "rocksdb.raw.value.size": as_uvarint(sum(len(value) for _, value in self._records)),
        }

    def _write_block(self, contents: bytes, compress: Callable[[bytes], tuple[bytes, int]]) -> Handle:
        stored, compression_type = compress(contents)
        handle = Handle(len(self._out), len(stored))
        checksummed = stored + bytes([compression_type])
        self._out += checksummed + struct.pack("<I", masked_crc(checksummed))
        return handle


def _uncompressed(contents: bytes) -> tuple[bytes, int]:
    return contents, NO_COMPRESSION


def _compressed_if_smaller(contents: bytes) -> tuple[bytes, int]:
    """The block, compressed if that saves more than an eighth, and its compression type."""
    stored = bytes(_CODEC.compress(contents, asbytes=True))
    return (stored, SNAPPY) if len(stored) < len(contents) - len(contents) // 8 else (contents, NO_COMPRESSION)


def _varint_length(value: int) -> int:
    return len(as_uvarint(value))


def _shared_prefix_length(one: bytes, other: bytes) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _separator(last_key: bytes, next_key: bytes) -> bytes:
    """An index key at or after `last_key` (with trailer) and before `next_key`, shortened by pebble's rule."""
    key = last_key[:-KEY_TRAILER]
    at = _shared_prefix_length(key, next_key)
    if at >= min(len(key), len(next_key)) or key[at] >= next_key[at]:
        return last_key
    if at < len(next_key) - 1 or key[at] + 1 < next_key[at]:
        return key[:at] + bytes([key[at] + 1]) + _SEPARATOR_TRAILER
    return _increment(key, at + 1) or last_key


def _successor(last_key: bytes) -> bytes:
    """An index key at or after `last_key` (with trailer), or the marker of a table without records."""
    return _increment(last_key[:-KEY_TRAILER], 0) or last_key or _NO_KEY


def _increment(key: bytes, at: int) -> bytes:
    """The key truncated after its first non-0xFF byte from `at` on, with that byte incremented, plus a separator's
    trailer.

    Empty if there is no such byte.
    """
    for place in range(at, len(key)):
        if key[place] != 0xFF:
            return key[:place] + bytes([key[place] + 1]) + _SEPARATOR_TRAILER
    return b""
