"""A table's outer structure: footer, blocks, index, properties (formats §3), with every check that needs no schema.

The blocks must cover the file without gaps from its first byte to the footer, in the order in which lakeFS writes them.
So a checksum covers every byte of a table, and the index contains every block exactly once. Another order is accepted
if the content is verified by its hash, which covers every record. In that case no two blocks may overlap.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import google_crc32c
import pyarrow as pa

from spark_resources.sstable.records import Record, TableProperties
from spark_resources.sstable.wire import InvalidTable, as_uvarint, text, uvarint

FOOTER_LENGTH = 53
HANDLES_LENGTH = 40
BLOCK_TRAILER = 5
KEY_TRAILER = 8
MAGIC = bytes.fromhex("f7cff485b741e288")  # the last bytes of the file
VERSION = 2
CRC32C = 1
NO_COMPRESSION, SNAPPY = 0, 1
ONE_LEVEL, TWO_LEVELS = 0, 2
MIN_BLOCK_BYTES = 8  # one restart point and the number of restart points
SET_TRAILER = bytes([1, 0, 0, 0, 0, 0, 0, 0])  # kind "set", sequence 0: the only one in tables

#: The maximum number of bytes of keys, or of blocks, in a decompressed table. lakeFS ends a range at about 20 MB.
MAX_BYTES = 1 << 30
#: Snappy's densest element expands 3 bytes to 64, so a larger declared length is rejected before memory is allocated.
SNAPPY_RATIO = 22

LAKEFS_PROPERTIES = frozenset({"min_key", "max_key", "count", "estimated_size_bytes"})
_MULTI_BYTE = 0x80  # smaller numbers take one byte
_PREFIX = "rocksdb."
_PROPERTIES_BLOCK = b"rocksdb.properties"
_DECIMAL = re.compile(rb"0|[1-9][0-9]{0,17}")
_CODEC = pa.Codec("snappy")


class OutOfOrder(InvalidTable):
    """Raised for a table whose blocks are not in the order in which lakeFS writes them."""


class Handle(NamedTuple):
    """The position of a block's contents, in bytes. The block's trailer follows them."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length + BLOCK_TRAILER


@dataclass(frozen=True, slots=True)
class Table:
    """A table after reading and checking its footer, metaindex and properties, but not its index and data.

    `key_bytes` is the total size of its keys according to its properties, with trailers and without prefix sharing.
    `last_blocks` are the blocks that only the footer and the metaindex refer to. With `any_order`, the table's blocks
    may be in any order.
    """

    data: bytes
    properties: TableProperties
    key_bytes: int
    index: Handle
    two_levels: bool
    last_blocks: tuple[Handle, ...]
    any_order: bool = False


def masked_crc(contents: bytes) -> int:
    """The checksum of a block's contents and compression byte, in the form stored in tables (formats §3, Block)."""
    crc: int = google_crc32c.value(contents)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def open_table(data: bytes) -> Table:
    """The table in `data`.

    Raises `InvalidTable` if its footer, metaindex or properties are invalid, and `OutOfOrder` if its blocks
    are not in the order in which lakeFS writes them.
    """
    table = open_unordered_table(data)
    _check_contiguous([table.index, *table.last_blocks])
    if table.last_blocks[-1].end != len(data) - FOOTER_LENGTH:
        raise OutOfOrder("its blocks aren't contiguous up to the footer")
    return replace(table, any_order=False)


def open_unordered_table(data: bytes) -> Table:
    """Like `open_table`, for a table with blocks in any order.

    In such a table, only the hash of its content verifies that no block is missing.
    """
    if not data:
        raise InvalidTable("it is empty")
    metaindex, index = _footer(data)
    entries = list(block_records(read_block(data, metaindex)))
    if [record.key for record in entries] != [_PROPERTIES_BLOCK]:
        raise InvalidTable("its metaindex should list exactly one block, the properties")
    handle = parse_handle(entries[0].value)
    return _build_table(data, index, (handle, metaindex), _read_properties(read_block(data, handle)))


def _footer(data: bytes) -> tuple[Handle, Handle]:
    footer = data[-FOOTER_LENGTH:]
    if len(footer) < FOOTER_LENGTH or not footer.endswith(MAGIC):
        raise InvalidTable("it doesn't end like a table, so it is truncated, or not a table")
    (version,) = struct.unpack_from("<I", footer, FOOTER_LENGTH - 12)
    if version != VERSION or footer[0] != CRC32C:
        raise InvalidTable(
            f"it has table version {version} and checksum type {footer[0]}; lakegc supports version 2 and type 1"
        )
    handles = footer[1 : 1 + HANDLES_LENGTH]
    metaindex, at = _read_handle(handles, 0)
    index, _ = _read_handle(handles, at)
    if handles != (encode_handle(metaindex) + encode_handle(index)).ljust(HANDLES_LENGTH, b"\x00"):
        raise InvalidTable("its footer is malformed")
    return metaindex, index


def _read_handle(data: bytes, at: int) -> tuple[Handle, int]:
    offset, at = uvarint(data, at, len(data))
    length, at = uvarint(data, at, len(data))
    return Handle(offset, length), at


def parse_handle(value: bytes) -> Handle:
    """Parse a value of an index or metaindex, which is a block handle."""
    handle, at = _read_handle(value, 0)
    if at != len(value):
        raise InvalidTable("a block handle has trailing bytes")
    return handle


def encode_handle(handle: Handle) -> bytes:
    return as_uvarint(handle.offset) + as_uvarint(handle.length)


def read_block(data: bytes, handle: Handle) -> bytes:
    """A block's contents, checked and decompressed."""
    if handle.end > len(data) - FOOTER_LENGTH:
        raise InvalidTable(f"a block of {handle.length} bytes at {handle.offset} runs past the table's end")
    checksum_at = handle.offset + handle.length + 1
    if masked_crc(data[handle.offset : checksum_at]) != int.from_bytes(data[checksum_at : checksum_at + 4], "little"):
        raise InvalidTable(f"the block at {handle.offset} doesn't match its checksum")
    contents, compression = data[handle.offset : checksum_at - 1], data[checksum_at - 1]
    if compression == SNAPPY:
        contents = _decompress(contents)
    elif compression != NO_COMPRESSION:
        raise InvalidTable(
            f"the block at {handle.offset} has compression {compression}; lakegc supports 0 and 1 (snappy)"
        )
    if len(contents) < MIN_BLOCK_BYTES:
        raise InvalidTable(f"the block at {handle.offset} is too short")
    return contents


def snappy_length(contents: bytes) -> int:
    """The decompressed length in a snappy block's header. Raises `InvalidTable` if it is impossible."""
    length, at = uvarint(contents, 0, len(contents))
    if at > 5 or not MIN_BLOCK_BYTES <= length <= min(MAX_BYTES, SNAPPY_RATIO * len(contents)):
        raise InvalidTable("a compressed block declares an impossible length")
    return length


def _decompress(contents: bytes) -> bytes:
    try:
        return bytes(_CODEC.decompress(contents, decompressed_size=snappy_length(contents), asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise InvalidTable("a compressed block can't be decompressed") from error


def block_records(block: bytes) -> Iterator[Record]:
    """The records of a block. Keys include their trailer, if this kind of block has trailers."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if restarts < 1 or end < 0:
        raise InvalidTable("a block's restart points exceed the block")
    at, key, key_bytes = 0, b"", 0
    while at < end:
        shared, unshared, length = block[at : at + 3] if at + 3 <= end else (_MULTI_BYTE, 0, 0)
        if shared | unshared | length < _MULTI_BYTE:  # nearly always one byte each
            at += 3
        else:
            shared, at = uvarint(block, at, end)
            unshared, at = uvarint(block, at, end)
            length, at = uvarint(block, at, end)
        if shared > len(key) or unshared + length > end - at:
            raise InvalidTable("a record runs past its block's end, or shares too long a prefix")
        key = key[:shared] + block[at : at + unshared]
        at += unshared
        key_bytes += len(key)
        if key_bytes > MAX_BYTES:
            raise InvalidTable(f"the keys of one block add up to more than {MAX_BYTES} bytes")
        yield Record(key, block[at : at + length])
        at += length


def data_blocks(table: Table) -> list[Handle]:
    """The data blocks in key order, from an index with one or two levels.

    Together with the index blocks, they must cover the file from its first byte up to the last blocks. In a table with
    blocks in any order, no two blocks may share a byte.
    """
    check = _check_disjoint if table.any_order else _check_contiguous
    parts = _handles(table, table.index) if table.two_levels else []
    rest = [*parts, table.index, *table.last_blocks]
    check(rest)
    blocks = [handle for part in (parts if table.two_levels else [table.index]) for handle in _handles(table, part)]
    check([*blocks, *rest])
    if not blocks:
        raise InvalidTable("its index lists no blocks")
    if not table.any_order and blocks[0].offset != 0:
        raise OutOfOrder(f"its index skips bytes (the first block begins at {blocks[0].offset})")
    return blocks


def _handles(table: Table, index: Handle) -> list[Handle]:
    return [parse_handle(record.value) for record in block_records(read_block(table.data, index))]


def _check_contiguous(blocks: list[Handle]) -> None:
    """Each block must begin where the previous one ended, so none is read twice and none is left out."""
    for previous, handle in pairwise(blocks):
        if handle.offset != previous.end:
            raise OutOfOrder(
                f"its index skips or repeats bytes (a block begins at {handle.offset}, not at {previous.end})"
            )


def _check_disjoint(blocks: list[Handle]) -> None:
    """No two blocks may share a byte, so none is read twice, and together they are no larger than the file."""
    end = 0
    for handle in sorted(blocks):
        if handle.offset < end:
            raise InvalidTable(f"two of its blocks overlap at {handle.offset}")
        end = handle.end


def records(table: Table) -> Iterator[Record]:
    """All records in order, without their keys' trailers. May raise `InvalidTable` even after the last record."""
    totals, raw = Totals(), 0
    for handle in data_blocks(table):
        block = read_block(table.data, handle)
        raw += len(block)
        if raw > MAX_BYTES:
            raise InvalidTable(f"it decompresses to more than {MAX_BYTES} bytes")
        for stored, value in block_records(block):
            if stored[-KEY_TRAILER:] != SET_TRAILER:
                raise InvalidTable("a record is of an unknown kind")
            key = stored[:-KEY_TRAILER]
            if totals.count == 0:
                totals.first = key
            elif key <= totals.last:
                raise InvalidTable("its keys are not in order")
            totals.count, totals.key_bytes, totals.last = totals.count + 1, totals.key_bytes + len(stored), key
            if totals.count > table.properties.count or totals.key_bytes > table.key_bytes:
                raise InvalidTable(f"it has more than the {table.properties.count} records that its properties state")
            yield Record(key, value)
    check_totals(table, totals)


@dataclass(slots=True)
class Totals:
    """Totals of the records read: their number, the bytes of their keys with trailers, and the first and last key."""

    count: int = 0
    key_bytes: int = 0
    first: bytes = b""
    last: bytes = b""


def check_totals(table: Table, totals: Totals) -> None:
    """Compare the totals with the table's properties. Raises `InvalidTable` if they differ."""
    stated = table.properties
    if totals.count != stated.count or totals.count != stated.num_entries or totals.key_bytes != table.key_bytes:
        raise InvalidTable(
            f"it has {totals.count} records with keys of {totals.key_bytes} bytes, but its properties state "
            f"{stated.count} records (num.entries: {stated.num_entries}) with keys of {table.key_bytes} bytes"
        )
    if (totals.first, totals.last) != (stated.min_key, stated.max_key):
        raise InvalidTable("its first and last keys are not those that its properties state")


def _read_properties(block: bytes) -> dict[str, bytes]:
    properties: dict[str, bytes] = {}
    last = b""
    for key, value in block_records(block):
        if key <= last:
            raise InvalidTable("its properties are not in order")
        properties[text(key, "a property's name")] = value
        last = key
    return properties


def _build_table(data: bytes, index: Handle, last_blocks: tuple[Handle, ...], stored: dict[str, bytes]) -> Table:
    index_type = stored.get(f"{_PREFIX}block.based.table.index.type", b"")
    if index_type not in (struct.pack("<I", ONE_LEVEL), struct.pack("<I", TWO_LEVELS)):
        problem = (
            f"its index has type {int.from_bytes(index_type, 'little')}"
            if len(index_type) == struct.calcsize("<I")
            else "it doesn't state a valid index type"
        )
        raise InvalidTable(f"{problem}; lakegc supports types 0 (one level) and 2 (two levels)")
    order = stored.get(f"{_PREFIX}comparator", b"")
    if order != b"leveldb.BytewiseComparator":
        raise InvalidTable(f"its keys have the unknown order {order.decode(errors='backslashreplace')!r}")
    properties = TableProperties(
        type=text(_property(stored, "type"), "property type"),
        entity=text(stored.get("entity", b""), "property entity"),
        count=_number(stored, "count"),
        num_entries=_varint_property(stored, f"{_PREFIX}num.entries"),
        min_key=_property(stored, "min_key"),
        max_key=_property(stored, "max_key"),
        estimated_size=_number(stored, "estimated_size_bytes"),
        user_properties={
            name: text(value, f"property {name}")
            for name, value in stored.items()
            if not name.startswith(_PREFIX) and name not in LAKEFS_PROPERTIES
        },
    )
    key_bytes = _varint_property(stored, f"{_PREFIX}raw.key.size")
    if key_bytes > MAX_BYTES:
        raise InvalidTable(f"its properties state keys of more than {MAX_BYTES} bytes")
    return Table(data, properties, key_bytes, index, index_type[0] == TWO_LEVELS, last_blocks, any_order=True)


def _property(stored: dict[str, bytes], name: str) -> bytes:
    if name not in stored:
        raise InvalidTable(f"its property {name} is missing")
    return stored[name]


def _number(stored: dict[str, bytes], name: str) -> int:
    value = _property(stored, name)
    if _DECIMAL.fullmatch(value) is None:
        raise InvalidTable(f"its property {name} is not a number")
    return int(value)


def _varint_property(stored: dict[str, bytes], name: str) -> int:
    value = _property(stored, name)
    number, at = uvarint(value, 0, len(value))
    if at != len(value):
        raise InvalidTable(f"its property {name} is not a number")
    return number
