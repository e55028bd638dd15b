"""A table's outer structure: footer, blocks, index, properties (formats §3), with every check that needs no schema.

The blocks have to cover the file without gaps from its first byte to the footer, in the order in which lakeFS writes
them, so every byte of a table is covered by a checksum, and no block is missing in the index or named twice. Another
order is accepted if the content is verified by its hash, which covers every record: then no two blocks may overlap.
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
from spark_resources.sstable.wire import InvalidTable, put_uvarint, text, uvarint

FOOTER_LENGTH = 53
HANDLES_LENGTH = 40
BLOCK_TRAILER = 5
KEY_TRAILER = 8
MAGIC = bytes.fromhex("f7cff485b741e288")  # the last bytes of the file
VERSION = 2
CRC32C = 1
NO_COMPRESSION, SNAPPY = 0, 1
ONE_LEVEL, TWO_LEVELS = 0, 2
SMALLEST_BLOCK = 8  # one restart point and the number of restart points
SET_TRAILER = bytes([1, 0, 0, 0, 0, 0, 0, 0])  # kind "set", sequence 0: a table's writer uses no other

#: The most bytes of keys, or of blocks, in a decompressed table. lakeFS closes a range at about 20 MB.
LARGEST = 1 << 30
#: Snappy's densest element expands 3 bytes to 64, so a header with a larger length is rejected before allocating.
SNAPPY_RATIO = 22

OWN_PROPERTIES = frozenset({"min_key", "max_key", "count", "estimated_size_bytes"})
_LONG = 0x80  # a number of one byte is less than this
_PREFIX = "rocksdb."
_PROPERTIES_BLOCK = b"rocksdb.properties"
_DECIMAL = re.compile(rb"0|[1-9][0-9]{0,17}")
_CODEC = pa.Codec("snappy")


class OutOfOrder(InvalidTable):
    """Raised for a table whose blocks are not in the order in which lakeFS writes them, whatever their content."""


class Handle(NamedTuple):
    """The position of a block's contents, in bytes; its trailer follows them."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length + BLOCK_TRAILER


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose footer, metaindex and properties are read and checked; its index and data are not yet.

    `key_bytes` is the total size of its keys by its own properties, with trailers and without prefix sharing. `ends`
    are the blocks that only the footer and the metaindex name. With `any_order`, its blocks may be in any order.
    """

    data: bytes
    properties: TableProperties
    key_bytes: int
    index: Handle
    two_levels: bool
    ends: tuple[Handle, ...]
    any_order: bool = False


def masked_crc(contents: bytes) -> int:
    """The checksum of a block's contents and compression byte, as tables store it (formats §3, Block)."""
    crc: int = google_crc32c.value(contents)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def open_table(data: bytes) -> Table:
    """The table in `data`.

    Raises `InvalidTable` if its footer, metaindex or properties are invalid, `OutOfOrder` if they are in another order.
    """
    table = open_in_any_order(data)
    _check_contiguous([table.index, *table.ends])
    if table.ends[-1].end != len(data) - FOOTER_LENGTH:
        raise OutOfOrder("its blocks aren't contiguous up to the footer")
    return replace(table, any_order=False)


def open_in_any_order(data: bytes) -> Table:
    """Like `open_table`, for a table whose blocks may be in any order.

    Only the hash of its content then verifies that no block is missing.
    """
    if not data:
        raise InvalidTable("it is empty")
    metaindex, index = _footer(data)
    found = list(block_records(read_block(data, metaindex)))
    if [record.key for record in found] != [_PROPERTIES_BLOCK]:
        raise InvalidTable("its metaindex has entries other than the properties")
    where = handle(found[0].value)
    return _with_properties(data, index, (where, metaindex), _stored_properties(read_block(data, where)))


def _footer(data: bytes) -> tuple[Handle, Handle]:
    footer = data[-FOOTER_LENGTH:]
    if len(footer) < FOOTER_LENGTH or not footer.endswith(MAGIC):
        raise InvalidTable("it doesn't end like a table: it is truncated, or not a table")
    (version,) = struct.unpack_from("<I", footer, FOOTER_LENGTH - 12)
    if version != VERSION or footer[0] != CRC32C:
        raise InvalidTable(
            f"it has table version {version} and checksum type {footer[0]}; lakegc supports version 2 and type 1"
        )
    handles = footer[1 : 1 + HANDLES_LENGTH]
    metaindex, at = _handle_at(handles, 0)
    index, _ = _handle_at(handles, at)
    if handles != (put_handle(metaindex) + put_handle(index)).ljust(HANDLES_LENGTH, b"\x00"):
        raise InvalidTable("its footer is malformed")
    return metaindex, index


def _handle_at(data: bytes, at: int) -> tuple[Handle, int]:
    offset, at = uvarint(data, at, len(data))
    length, at = uvarint(data, at, len(data))
    return Handle(offset, length), at


def handle(value: bytes) -> Handle:
    """The block handle that an index or metaindex value consists of."""
    found, at = _handle_at(value, 0)
    if at != len(value):
        raise InvalidTable("a block handle has trailing bytes")
    return found


def put_handle(where: Handle) -> bytes:
    return put_uvarint(where.offset) + put_uvarint(where.length)


def read_block(data: bytes, where: Handle) -> bytes:
    """A block's contents, checked and decompressed."""
    if where.end > len(data) - FOOTER_LENGTH:
        raise InvalidTable(f"a block at {where.offset} of {where.length} bytes runs past its end")
    checked = where.offset + where.length + 1
    if masked_crc(data[where.offset : checked]) != int.from_bytes(data[checked : checked + 4], "little"):
        raise InvalidTable(f"the block at {where.offset} doesn't match its checksum")
    contents, kind = data[where.offset : checked - 1], data[checked - 1]
    if kind == SNAPPY:
        contents = _decompressed(contents)
    elif kind != NO_COMPRESSION:
        raise InvalidTable(f"the block at {where.offset} has compression {kind}; lakegc supports 0 and 1 (snappy)")
    if len(contents) < SMALLEST_BLOCK:
        raise InvalidTable(f"the block at {where.offset} is too short")
    return contents


def snappy_length(contents: bytes) -> int:
    """The decompressed length in a snappy block's header. Raises `InvalidTable` if it is impossible."""
    length, at = uvarint(contents, 0, len(contents))
    if at > 5 or not SMALLEST_BLOCK <= length <= min(LARGEST, SNAPPY_RATIO * len(contents)):
        raise InvalidTable("a compressed block declares an impossible length")
    return length


def _decompressed(contents: bytes) -> bytes:
    try:
        return bytes(_CODEC.decompress(contents, decompressed_size=snappy_length(contents), asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise InvalidTable("a compressed block can't be decompressed") from error


def block_records(block: bytes) -> Iterator[Record]:
    """The records of a block; keys still have their trailer, if their kind of block has any."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if restarts < 1 or end < 0:
        raise InvalidTable("a block's restart points exceed the block")
    at, key, keys = 0, b"", 0
    while at < end:
        shared, unshared, length = block[at : at + 3] if at + 3 <= end else (_LONG, 0, 0)
        if shared | unshared | length < _LONG:  # nearly always one byte each
            at += 3
        else:
            shared, at = uvarint(block, at, end)
            unshared, at = uvarint(block, at, end)
            length, at = uvarint(block, at, end)
        if shared > len(key) or unshared + length > end - at:
            raise InvalidTable("a record runs past its block or shares too long a prefix")
        key = key[:shared] + block[at : at + unshared]
        at += unshared
        keys += len(key)
        if keys > LARGEST:
            raise InvalidTable(f"the keys of one block have more than {LARGEST} bytes")
        yield Record(key, block[at : at + length])
        at += length


def data_blocks(table: Table) -> list[Handle]:
    """The data blocks in key order, from an index with one or two levels.

    Together with the index blocks, they must cover the file from its first byte up to the last blocks; in a table that
    may be in any order, no two blocks may share a byte.
    """
    check = _check_disjoint if table.any_order else _check_contiguous
    parts = _handles(table, table.index) if table.two_levels else []
    rest = [*parts, table.index, *table.ends]
    check(rest)
    found = [where for part in (parts if table.two_levels else [table.index]) for where in _handles(table, part)]
    check([*found, *rest])
    if not found:
        raise InvalidTable("its index lists no blocks")
    if not table.any_order and found[0].offset != 0:
        raise OutOfOrder(f"its index skips bytes: the first block begins at {found[0].offset}")
    return found


def _handles(table: Table, index: Handle) -> list[Handle]:
    return [handle(record.value) for record in block_records(read_block(table.data, index))]


def _check_contiguous(blocks: list[Handle]) -> None:
    """Each block must begin where the one before ended, so none is read twice and none is left out."""
    for before, where in pairwise(blocks):
        if where.offset != before.end:
            raise OutOfOrder(f"its index skips or repeats bytes: a block begins at {where.offset}, not at {before.end}")


def _check_disjoint(blocks: list[Handle]) -> None:
    """No two blocks may share a byte, so none is read twice, and together they are no larger than the file."""
    end = 0
    for where in sorted(blocks):
        if where.offset < end:
            raise InvalidTable(f"two of its blocks share bytes at {where.offset}")
        end = where.end


def records(table: Table) -> Iterator[Record]:
    """All records in order, keys without trailers. Raises `InvalidTable`, perhaps only after the last one."""
    ends, raw = Ends(), 0
    for where in data_blocks(table):
        block = read_block(table.data, where)
        raw += len(block)
        if raw > LARGEST:
            raise InvalidTable(f"it has more than {LARGEST} bytes")
        for stored, value in block_records(block):
            if stored[-KEY_TRAILER:] != SET_TRAILER:
                raise InvalidTable("a record is of an unknown kind")
            key = stored[:-KEY_TRAILER]
            if ends.count == 0:
                ends.first = key
            elif key <= ends.last:
                raise InvalidTable("its keys are not in order")
            ends.count, ends.key_bytes, ends.last = ends.count + 1, ends.key_bytes + len(stored), key
            if ends.count > table.properties.count or ends.key_bytes > table.key_bytes:
                raise InvalidTable(f"it has more than the {table.properties.count} records that its properties state")
            yield Record(key, value)
    check_ends(table, ends)


@dataclass(slots=True)
class Ends:
    """Totals of the records read: their number, bytes of keys with trailers, first and last key without trailers."""

    count: int = 0
    key_bytes: int = 0
    first: bytes = b""
    last: bytes = b""


def check_ends(table: Table, found: Ends) -> None:
    """Compare the totals with the table's properties. Raises `InvalidTable` if they differ."""
    stated = table.properties
    if found.count != stated.count or found.count != stated.num_entries or found.key_bytes != table.key_bytes:
        raise InvalidTable(
            f"it has {found.count} records with keys of {found.key_bytes} bytes, but its properties state "
            f"{stated.count} (or {stated.num_entries}) with {table.key_bytes}"
        )
    if (found.first, found.last) != (stated.min_key, stated.max_key):
        raise InvalidTable("its first and last key are not those that its properties state")


def _stored_properties(block: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    last = b""
    for key, value in block_records(block):
        if key <= last:
            raise InvalidTable("its properties are not in order")
        found[text(key, "a property's name")] = value
        last = key
    return found


def _with_properties(data: bytes, index: Handle, ends: tuple[Handle, ...], stored: dict[str, bytes]) -> Table:
    levels = stored.get(f"{_PREFIX}block.based.table.index.type", b"")
    if levels not in (struct.pack("<I", ONE_LEVEL), struct.pack("<I", TWO_LEVELS)):
        raise InvalidTable(f"it has an index of type 0x{levels.hex()}; lakegc supports 0 (one level) and 2 (two)")
    order = stored.get(f"{_PREFIX}comparator", b"")
    if order != b"leveldb.BytewiseComparator":
        raise InvalidTable(f"its keys have an unknown order: {order!r}")
    properties = TableProperties(
        type=text(_property(stored, "type"), "property type"),
        entity=text(stored.get("entity", b""), "property entity"),
        count=_number(stored, "count"),
        num_entries=_varint_property(stored, f"{_PREFIX}num.entries"),
        min_key=_property(stored, "min_key"),
        max_key=_property(stored, "max_key"),
        estimated_size=_number(stored, "estimated_size_bytes"),
        user={
            name: text(value, f"property {name}")
            for name, value in stored.items()
            if not name.startswith(_PREFIX) and name not in OWN_PROPERTIES
        },
    )
    key_bytes = _varint_property(stored, f"{_PREFIX}raw.key.size")
    if key_bytes > LARGEST:
        raise InvalidTable(f"its properties state keys of more than {LARGEST} bytes")
    return Table(data, properties, key_bytes, index, levels[0] == TWO_LEVELS, ends, any_order=True)


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
