"""Tables assembled by hand: intact ones with their rows, and broken ones with a description of the fault.

All decoders use this one list. Every checksum is correct unless the case says otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa

from spark_resources.sstable.blocks import (
    FOOTER_LENGTH,
    MAGIC,
    SET_TRAILER,
    Handle,
    block_records,
    data_blocks,
    encode_handle,
    masked_crc,
    open_table,
    parse_handle,
    read_block,
)
from spark_resources.sstable.values import encode_value
from spark_resources.sstable.wire import as_uvarint, bytes_field, varint_field
from spark_resources.sstable.writer import BlockBuilder

PLAIN, SNAPPY = 0, 1
ONE_LEVEL, TWO_LEVELS = struct.pack("<I", 0), struct.pack("<I", 2)
IDENTITY = bytes(range(32))


@dataclass(frozen=True, slots=True)
class Stored:
    """A block as it is stored in the file: its compressed bytes, and the compression byte."""

    contents: bytes
    kind: int = PLAIN


@dataclass(frozen=True, slots=True)
class Whole:
    """A table that must be read, and its rows as (path, address, type, size, checksum, time)."""

    what: str
    data: bytes
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Damaged:
    """A table that must be refused. `only_with` names the broken column if only reading that column fails."""

    what: str
    data: bytes
    only_with: str = ""


# --- putting tables together ----------------------------------------------------------------------------------------


def block(*records: tuple[bytes, bytes], interval: int = 16) -> bytes:
    """A block of records with exactly these keys."""
    builder = BlockBuilder(interval)
    for key, value in records:
        builder.add(key, value)
    return builder.contents()


def data_block(*records: tuple[bytes, bytes]) -> bytes:
    """A data block. The trailer of a set is appended to each key."""
    return block(*((key + SET_TRAILER, value) for key, value in records))


def raw_block(body: bytes, restarts: Sequence[int] = (0,)) -> bytes:
    """A block whose body is given byte by byte."""
    return body + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def snappy(contents: bytes) -> Stored:
    return Stored(bytes(pa.Codec("snappy").compress(contents, asbytes=True)), SNAPPY)


class Assembly:
    """A file to which blocks are added one by one, each with its correct checksum."""

    def __init__(self) -> None:
        self.out = bytearray()

    def add(self, stored: Stored | bytes) -> Handle:
        part = stored if isinstance(stored, Stored) else Stored(stored)
        where = Handle(len(self.out), len(part.contents))
        checked = part.contents + bytes([part.kind])
        self.out += checked + struct.pack("<I", masked_crc(checked))
        return where


def own_properties(blocks: Sequence[bytes]) -> dict[str, bytes]:
    """The properties of a range with these (readable) blocks."""
    keys = [record.key for data in blocks for record in block_records(data)]
    users = [key[:-8] for key in keys] or [b""]
    return {
        "type": b"ranges",
        "count": b"%d" % len(keys),
        "estimated_size_bytes": b"1",
        "min_key": users[0],
        "max_key": users[-1],
        "rocksdb.comparator": b"leveldb.BytewiseComparator",
        "rocksdb.block.based.table.index.type": ONE_LEVEL,
        "rocksdb.num.entries": as_uvarint(len(keys)),
        "rocksdb.raw.key.size": as_uvarint(sum(map(len, keys))),
    }


def index_block(handles: Sequence[Handle]) -> bytes:
    return block(*((b"%08d" % number, encode_handle(handle)) for number, handle in enumerate(handles)), interval=1)


def assemble(
    blocks: Sequence[Stored | bytes],
    *,
    says: Mapping[str, bytes | None] | None = None,
    like: Sequence[bytes] | None = None,
    index: Callable[[Assembly, list[Handle]], Handle] | None = None,
    properties: Callable[[list[tuple[bytes, bytes]]], list[tuple[bytes, bytes]]] = sorted,
    metaindex: Callable[[Handle], bytes] | None = None,
    before_footer: bytes = b"",
    footer: Callable[[Handle, Handle], bytes] | None = None,
) -> bytes:
    """A table of these data blocks. `like` are the blocks from which the properties are computed if these are
    unreadable."""
    assembly = Assembly()
    handles = [assembly.add(item) for item in blocks]
    top = (index or one_level)(assembly, handles)
    source = like if like is not None else [item for item in blocks if isinstance(item, bytes)]
    stated = {**own_properties(source), **(says or {})}
    records = properties([(name.encode(), value) for name, value in stated.items() if value is not None])
    meta = assembly.add((metaindex or metaindex_of)(assembly.add(block(*records, interval=1 << 30))))
    assembly.out += before_footer
    return bytes(assembly.out) + (footer or footer_of)(meta, top)


def one_level(assembly: Assembly, handles: list[Handle]) -> Handle:
    return assembly.add(index_block(handles))


def two_levels(assembly: Assembly, handles: list[Handle], *, parts: int = 2) -> Handle:
    step = max(1, -(-len(handles) // parts))
    handles_of_parts = [assembly.add(index_block(handles[at : at + step])) for at in range(0, len(handles), step)]
    return assembly.add(index_block(handles_of_parts))


def rearranged(blocks: Sequence[bytes], order: Sequence[int], *, parts: int = 0, gap: int = 0) -> bytes:
    """An intact table of these data blocks, stored in another order with `gap` bytes between them.

    `order` has the numbers of all blocks: data, the parts of the index if there are any, index, properties, metaindex.
    """
    levels = {"rocksdb.block.based.table.index.type": TWO_LEVELS if parts else ONE_LEVEL}
    stated = sorted((name.encode(), value) for name, value in {**own_properties(blocks), **levels}.items())
    count, known = len(blocks), [Handle(0, 0)] * len(order)
    while True:  # a block's length can depend on where another one is stored
        cuts = [count * part // parts for part in range(parts + 1)] if parts else [0, count]
        leaves = [index_block(known[at:end]) for at, end in pairwise(cuts)]
        top = index_block(known[count:-3]) if parts else leaves[0]
        properties = block(*stated, interval=1 << 30)
        contents = [*blocks, *(leaves if parts else []), top, properties, metaindex_of(known[-2])]
        assembly, handles = Assembly(), dict[int, Handle]()
        for number in order:
            handles[number] = assembly.add(contents[number])
            assembly.out += bytes(gap)
        if (now := [handles[number] for number in range(len(contents))]) == known:
            return bytes(assembly.out) + footer_of(known[-1], known[-3])
        known = now


def metaindex_of(properties: Handle) -> bytes:
    return block((b"rocksdb.properties", encode_handle(properties)), interval=1)


def footer_of(meta: Handle, top: Handle, *, kind: int = 1, version: int = 2, magic: bytes = MAGIC) -> bytes:
    handles = (encode_handle(meta) + encode_handle(top)).ljust(40, b"\x00")
    return bytes([kind]) + handles + struct.pack("<I", version) + magic


def message(address: bytes = b"data/a", *more: bytes, kind: int = 1) -> bytes:
    """An entry's protobuf message, with additional fields at its end."""
    return bytes_field(1, address) + varint_field(6, kind) + b"".join(more)


def value(data: bytes) -> bytes:
    return encode_value(IDENTITY, data)


def a_range(*entries: tuple[bytes, bytes]) -> bytes:
    """A range of one block with these paths and messages."""
    return assemble([data_block(*((path, value(data)) for path, data in entries))])


def range_of_one(data: bytes) -> bytes:
    """A range of one entry with this message."""
    return a_range((b"a", data))


def stored_value(bytes_: bytes) -> bytes:
    """A range of one entry with exactly this value."""
    return assemble([data_block((b"a", bytes_))])


def wrong_block(contents: Stored | bytes) -> bytes:
    """A table whose data block doesn't match its properties, which are those of one intact entry."""
    return assemble([contents], like=[GOOD])


def with_right_checksum(data: bytes, where: Handle) -> bytes:
    """The table with the checksum of one block corrected."""
    end = where.offset + where.length + 1
    return data[:end] + struct.pack("<I", masked_crc(data[where.offset : end])) + data[end + 4 :]


def all_blocks(data: bytes) -> list[Handle]:
    """Every block of a whole table: data, index (both levels), properties, metaindex."""
    table = open_table(data)
    blocks = data_blocks(table)
    at = blocks[-1].end
    if table.two_levels:
        for record in block_records(read_block(data, table.index)):
            length = parse_handle(record.value).length
            blocks.append(Handle(at, length))
            at = blocks[-1].end
    blocks.append(table.index)
    properties = table.index.end
    for length in range(len(data) - FOOTER_LENGTH - properties):
        where = Handle(properties, length)
        end = where.offset + length + 1
        if data[end : end + 4] == struct.pack("<I", masked_crc(data[where.offset : end])):
            return [*blocks, where, Handle(where.end, len(data) - FOOTER_LENGTH - where.end - 5)]
    raise AssertionError("no properties block")


# --- whole tables ---------------------------------------------------------------------------------------------------

GOOD = data_block((b"a", value(message())))
NUMBERED = [(b"path/%04d" % n, value(message(b"data/slice/%04d" % n, varint_field(3, n)))) for n in range(100)]
TIME = bytes_field(2, varint_field(1, 1_700_000_000) + varint_field(2, 123_456_789))
ROW = (b"a", "data/a", 1, 0, "", None)


def _row(*, size: int = 0, time: datetime | None = None) -> tuple[Any, ...]:
    return (b"a", "x", 1, size, "", time)


def _numbered_rows(count: int) -> list[tuple[Any, ...]]:
    return [(b"path/%04d" % n, f"data/slice/{n:04d}", 1, n, "", None) for n in range(count)]


def _numbered_blocks(step: int) -> list[bytes]:
    return [data_block(*NUMBERED[at : at + step]) for at in range(0, len(NUMBERED), step)]


def _everything() -> bytes:
    fields = [varint_field(3, 7), bytes_field(4, "prüfsumme".encode()), TIME, bytes_field(7, b"text/x")]
    pair = bytes_field(5, bytes_field(1, b"k") + bytes_field(2, b"v"))
    return message(b"s3://b/x \xc3\xbc", pair, *fields, pair, kind=2)


def _literal(contents: bytes) -> Stored:
    """Snappy data built by hand: one literal with a length of two bytes."""
    return Stored(as_uvarint(len(contents)) + b"\xf4" + struct.pack("<H", len(contents) - 1) + contents, SNAPPY)


WHOLE = [
    Whole("one entry", assemble([GOOD]), [ROW]),
    Whole("no entries", assemble([block()]), []),
    Whole("an empty path", a_range((b"", message())), [(b"", *ROW[1:])]),
    Whole("a path that is not UTF-8", a_range((b"\xff\xfe", message())), [(b"\xff\xfe", *ROW[1:])]),
    Whole(
        "a path that begins with another one",
        a_range((b"a", message()), (b"a\x00", message()), (b"a\x01\x00\x00\x00\x00\x00\x00\x00", message())),
        [(path, *ROW[1:]) for path in (b"a", b"a\x00", b"a\x01\x00\x00\x00\x00\x00\x00\x00")],
    ),
    Whole(
        "every field",
        range_of_one(_everything()),
        [(b"a", "s3://b/x ü", 2, 7, "prüfsumme", datetime(2023, 11, 14, 22, 13, 20, 123456, UTC))],
    ),
    Whole("an address by prefix", range_of_one(bytes_field(1, b"x")), [(b"a", "x", 0, 0, "", None)]),
    Whole("the largest size", range_of_one(message(b"x", varint_field(3, 2**63 - 1))), [_row(size=2**63 - 1)]),
    Whole("a negative size", range_of_one(message(b"x", varint_field(3, -1))), [_row(size=-1)]),
    Whole(
        "a time of 1970",
        range_of_one(message(b"x", bytes_field(2, b""))),
        [_row(time=datetime(1970, 1, 1, tzinfo=UTC))],
    ),
    Whole(
        "a time before 1970",
        range_of_one(message(b"x", bytes_field(2, varint_field(1, -1) + varint_field(2, 999_999_999)))),
        [_row(time=datetime(1969, 12, 31, 23, 59, 59, 999999, UTC))],
    ),
    Whole(
        "the first time of all",
        range_of_one(message(b"x", bytes_field(2, varint_field(1, -62135596800)))),
        [_row(time=datetime(1, 1, 1, tzinfo=UTC))],
    ),
    Whole("a length in more bytes than it needs", range_of_one(b"\x0a\x81\x00x"), [(b"a", "x", 0, 0, "", None)]),
    Whole("no identity", stored_value(encode_value(b"", message())), [ROW]),
    Whole("a long address", range_of_one(message(b"x" * 5000)), [(b"a", "x" * 5000, 1, 0, "", None)]),
    Whole("several restart points", assemble(_numbered_blocks(100)), _numbered_rows(100)),
    Whole("several blocks", assemble(_numbered_blocks(7)), _numbered_rows(100)),
    Whole("an empty block among others", assemble([*_numbered_blocks(50), block()]), _numbered_rows(100)),
    Whole(
        "compressed blocks",
        assemble([*map(snappy, _numbered_blocks(20))], like=_numbered_blocks(20)),
        _numbered_rows(100),
    ),
    Whole("a compressed block without copies", assemble([_literal(GOOD)], like=[GOOD]), [ROW]),
    Whole(
        "two levels of index",
        assemble(_numbered_blocks(3), index=two_levels, says={"rocksdb.block.based.table.index.type": TWO_LEVELS}),
        _numbered_rows(100),
    ),
    Whole(
        "two levels of one part",
        assemble(
            _numbered_blocks(50),
            index=lambda assembly, handles: two_levels(assembly, handles, parts=1),
            says={"rocksdb.block.based.table.index.type": TWO_LEVELS},
        ),
        _numbered_rows(100),
    ),
]


# --- tables in another order ----------------------------------------------------------------------------------------


def _rearranged() -> list[Whole]:
    blocks = _numbered_blocks(20)  # 5 blocks
    orders = {
        "the index behind the metaindex": ([0, 1, 2, 3, 4, 6, 7, 5], 0),
        "properties behind the metaindex": ([0, 1, 2, 3, 4, 5, 7, 6], 0),
        "the index in front of the data": ([5, 0, 1, 2, 3, 4, 6, 7], 0),
        "everything from back to front": ([7, 6, 5, 4, 3, 2, 1, 0], 0),
        "data in another order": ([0, 1, 3, 2, 4, 5, 6, 7], 0),
        "two levels, the parts behind the top": ([0, 1, 2, 3, 4, 7, 5, 6, 8, 9], 2),
        "two levels, data between the parts": ([0, 5, 1, 2, 6, 3, 4, 7, 8, 9], 2),
    }
    tables = [
        Whole(what, rearranged(blocks, order, parts=parts), _numbered_rows(100))
        for what, (order, parts) in orders.items()
    ]
    return [*tables, Whole("bytes between the blocks", rearranged(blocks, range(8), gap=3), _numbered_rows(100))]


REARRANGED = _rearranged()


# --- broken tables --------------------------------------------------------------------------------------------------


def _footers() -> list[Damaged]:
    good = assemble([GOOD])

    def ends(what: str, footer: Callable[[Handle, Handle], bytes]) -> Damaged:
        return Damaged(what, assemble([GOOD], footer=footer))

    def names(what: str, *named: tuple[bytes, Callable[[bytes], bytes]]) -> Damaged:
        def metaindex(properties: Handle) -> bytes:
            return block(*((name, handled(encode_handle(properties))) for name, handled in named), interval=1)

        return Damaged(what, assemble([GOOD], metaindex=metaindex))

    def same(handled: bytes) -> bytes:
        return handled

    properties = b"rocksdb.properties"
    return [
        Damaged("nothing", b""),
        Damaged("a footer cut short", good[-FOOTER_LENGTH + 1 :]),
        Damaged("a footer alone", good[-FOOTER_LENGTH:]),
        Damaged("text", b"<Error><Code>NoSuchKey</Code></Error>" * 10),
        Damaged("one byte cut off", good[:-1]),
        Damaged("one byte cut off the front", good[1:]),
        Damaged("one byte more", good + b"\x00"),
        Damaged("one byte before", b"\x00" + good),
        Damaged("another table behind", good + good),
        Damaged("a gap before the footer", assemble([GOOD], before_footer=b"\x00")),
        ends("another magic", lambda meta, top: footer_of(meta, top, magic=bytes(8))),
        ends("an old version", lambda meta, top: footer_of(meta, top, version=1)),
        ends("a new version", lambda meta, top: footer_of(meta, top, version=3)),
        ends("another checksum", lambda meta, top: footer_of(meta, top, kind=2)),
        ends("something behind the handles", lambda meta, top: footer_of(meta, top).replace(b"\x00\x02", b"\x01\x02")),
        ends("a footer of endless numbers", lambda meta, top: b"\x01" + b"\xff" * 40 + footer_of(meta, top)[41:]),
        ends("an index in the dark", lambda meta, top: footer_of(meta, Handle(1 << 62, 9))),
        ends("a metaindex in the dark", lambda meta, top: footer_of(Handle(meta.offset, 1 << 63), top)),
        names("no properties"),
        names("a filter", (b"fullfilter.x", same), (properties, same)),
        names("range deletions", (properties, same), (b"rocksdb.range_del", same)),
        names("a handle with more", (properties, lambda handled: handled + b"\x00")),
        names("a handle with less", (properties, lambda handled: handled[:1])),
        names("the data for properties", (properties, lambda handled: encode_handle(Handle(0, len(GOOD))))),
    ]


def _properties() -> list[Damaged]:
    def says(what: str, **properties: bytes | None) -> Damaged:
        names = {
            "index": "rocksdb.block.based.table.index.type",
            "entries": "rocksdb.num.entries",
            "keys": "rocksdb.raw.key.size",
            "order": "rocksdb.comparator",
            "size": "estimated_size_bytes",
        }
        return Damaged(
            what, assemble([GOOD], says={names.get(name, name): value for name, value in properties.items()})
        )

    return [
        *(
            says(f"no {name}", **{name: None})
            for name in ("type", "count", "min_key", "max_key", "entries", "index", "keys", "order", "size")
        ),
        *(
            says(f"a count of {count!r}", count=count)
            for count in (b"", b"0", b"2", b"-1", b"01", b" 1", b"1x", "١".encode(), b"9" * 18, b"9" * 30)
        ),
        says("as many entries as never", entries=as_uvarint(1 << 62)),
        says("one entry more", entries=as_uvarint(2)),
        says("one entry more, twice", entries=as_uvarint(2), count=b"2"),
        says("one entry less, twice", entries=as_uvarint(0), count=b"0"),
        says("a number with more", entries=b"\x01\x00"),
        says("a number that doesn't end", entries=b"\x81"),
        says("another first key", min_key=b"A"),
        says("another last key", max_key=b"b"),
        says("longer keys", keys=as_uvarint(10)),
        says("shorter keys", keys=as_uvarint(8)),
        says("endless keys", keys=as_uvarint(1 << 40)),
        says("another type", type=b"metaranges"),
        says("no known type", type=b"rangez"),
        says("a type that is not UTF-8", type=b"\xff"),
        says("an entity", entity=b"commit"),
        says("an index by hash", index=struct.pack("<I", 1)),
        says("an index of type 3", index=struct.pack("<I", 3)),
        says("an index type cut short", index=b"\x00"),
        says("two levels that are one", index=TWO_LEVELS),
        says("another order of keys", order=b"rocksdb.ReverseBytewiseComparator"),
        says("a user property that is not UTF-8", more=b"\xff"),
        Damaged("properties in another order", assemble([GOOD], properties=lambda found: sorted(found, reverse=True))),
        Damaged(
            "a property twice",
            assemble([GOOD], properties=lambda found: sorted([*found, (b"type", b"metaranges"), (b"type", b"ranges")])),
        ),
        Damaged("much shorter keys", assemble(_numbered_blocks(20), says={"rocksdb.raw.key.size": b"\x09"})),
        Damaged(
            "far fewer entries", assemble(_numbered_blocks(20), says={"count": b"1", "rocksdb.num.entries": b"\x01"})
        ),
        Damaged("one level that is two", assemble(_numbered_blocks(3), index=two_levels)),
    ]


def _indexes() -> list[Damaged]:
    blocks = _numbered_blocks(20)

    def named(
        what: str, pick: Callable[[list[Handle]], Sequence[Handle]], like: Sequence[bytes] | None = None
    ) -> Damaged:
        def index(assembly: Assembly, handles: list[Handle]) -> Handle:
            return assembly.add(index_block(pick(handles)))

        return Damaged(what, assemble(blocks, index=index, like=like))

    def parts(what: str, pick: Callable[[list[Handle]], Sequence[Handle]], split: int = 2) -> Damaged:
        def index(assembly: Assembly, handles: list[Handle]) -> Handle:
            halves = [assembly.add(index_block(handles[:split])), assembly.add(index_block(handles[split:]))]
            return assembly.add(index_block(pick(halves)))

        return Damaged(what, assemble(blocks, index=index, says={"rocksdb.block.based.table.index.type": TWO_LEVELS}))

    def raw(what: str, stored: bytes) -> Damaged:
        return Damaged(what, assemble([GOOD], index=lambda assembly, _: assembly.add(stored)))

    where = encode_handle(Handle(0, len(GOOD)))
    return [
        named("an index without its first block", lambda handles: handles[1:]),
        named("an index without its last block", lambda handles: handles[:-1]),
        named("an index without one block", lambda handles: handles[:2] + handles[3:]),
        named("a first block that nothing counts", lambda handles: handles[1:], blocks[1:]),
        named("a last block that nothing counts", lambda handles: handles[:-1], blocks[:-1]),
        named("a block that nothing counts", lambda handles: handles[:2] + handles[3:], blocks[:2] + blocks[3:]),
        named("blocks that nothing counts", lambda handles: [], [block()]),
        Damaged("no block at all", assemble([], like=[block()])),
        named("an index with one block twice", lambda handles: [*handles[:2], *handles[1:]]),
        named("an index in another order", lambda handles: handles[::-1]),
        named("an index with an entry too many", lambda handles: [*handles, Handle(handles[-1].end, 8)]),
        named("an index of the whole", lambda handles: [Handle(0, handles[-1].end - 5)]),
        named("an empty index", lambda handles: []),
        named("an index with a negative block", lambda handles: [Handle(0, (1 << 64) - 5), *handles]),
        named("an index with an endless block", lambda handles: [Handle(0, 1 << 62)]),
        named("an index far away", lambda handles: [Handle(1 << 63, 8)]),
        parts("a part of the index twice", lambda found: [found[0], *found]),
        parts("a part of the index left out", lambda found: found[:1]),
        parts("the first part left out", lambda found: found[1:]),
        parts("parts in another order", lambda found: found[::-1]),
        parts("no parts", lambda found: []),
        parts("a part that is a data block", lambda found: [Handle(0, len(blocks[0])), *found]),
        raw("an index handle with more", block((b"k", where + b"\x00"), interval=1)),
        raw("an index handle with less", block((b"k", where[:1]), interval=1)),
        raw("an index value of nothing", block((b"k", b""), interval=1)),
        raw("an index without restarts", raw_block(b"\x00\x01\x02k" + where, ())),
        raw("an index that shares from nothing", raw_block(b"\x01\x01\x02k" + where)),
        Damaged(
            "parts of nothing",
            assemble(
                [],
                like=[GOOD],
                index=lambda assembly, _: assembly.add(index_block([assembly.add(block())])),
                says={"rocksdb.block.based.table.index.type": TWO_LEVELS},
            ),
        ),
    ]


def _padded(number: int, size: int) -> bytes:
    """A varint encoded in more bytes than it needs."""
    return bytes([*(number >> 7 * place & 0x7F | 0x80 for place in range(size - 1)), 0])


def _blocks() -> list[Damaged]:
    good = assemble([GOOD])
    length = as_uvarint(len(GOOD))
    literal = _literal(GOOD).contents
    far = b"\x00" * 7

    def packed(what: str, contents: bytes) -> Damaged:
        return Damaged(what, wrong_block(Stored(contents, SNAPPY)))

    def records(what: str, body: bytes) -> Damaged:
        return Damaged(what, wrong_block(raw_block(body)))

    return [
        Damaged("a wrong checksum", good[: len(GOOD) + 1] + bytes(4) + good[len(GOOD) + 5 :]),
        *(Damaged(f"compression {kind}", wrong_block(Stored(GOOD, kind))) for kind in (2, 4, 7, 255)),
        *(Damaged(f"compression {kind} that is snappy", wrong_block(Stored(literal, kind))) for kind in (2, 3, 255)),
        *(Damaged(f"a block of {size} bytes", wrong_block(bytes(size))) for size in range(8)),
        Damaged("no restart points", wrong_block(raw_block(GOOD[:-8], ()))),
        Damaged("more restart points than bytes", wrong_block(GOOD[:-4] + struct.pack("<I", len(GOOD)))),
        Damaged("endless restart points", wrong_block(GOOD[:-4] + b"\xff" * 4)),
        Damaged("negative room for records", wrong_block(bytes(4) + struct.pack("<I", 2))),
        packed("a compressed block of nothing", b""),
        packed("a compressed block of a length only", length),
        packed("a compressed block of zero bytes", b"\x00"),
        packed("a length that doesn't end", b"\xff" * 9),
        packed("a length of six bytes", b"\x80\x80\x80\x80\x80\x00" + literal[1:]),
        packed("the right length in six bytes", _padded(len(GOOD), 6) + literal[1:]),
        packed("a length of gigabytes", as_uvarint((1 << 32) - 1) + literal[1:]),
        packed("a length of 2**62", as_uvarint(1 << 62) + literal[1:]),
        packed("a length beyond what snappy can", as_uvarint(22 * len(literal) + 1) + literal[1:]),
        packed("one byte too few", as_uvarint(len(GOOD) + 1) + literal[1:]),
        packed("one byte too many", as_uvarint(len(GOOD) - 1) + literal[1:]),
        packed("a literal that runs out", literal[:-1]),
        packed("a literal of 16 that runs out", b"\x10\x3c" + bytes(15)),
        packed("a literal without its length", length + b"\xf4\x01"),
        packed("a literal of gigabytes", length + b"\xfc\xff\xff\xff\xff" + GOOD),
        packed("a copy of nothing yet", b"\x08\x01\x01" + bytes(4)),
        packed("a copy from before the beginning", b"\x10\x1c" + bytes(8) + b"\x1e\x09\x00"),
        packed("a copy from no distance", b"\x10\x1c" + bytes(8) + b"\x1e\x00\x00"),
        packed("a copy from far away", b"\x10\x1c" + bytes(8) + b"\x1f\xff\xff\xff\xff"),
        packed("a copy that does too much", b"\x10\x1c" + bytes(8) + b"\x22\x08\x00"),
        packed("copies that do far too much", b"\x10\x1c" + bytes(8) + b"\xfe\x08\x00" * 9),
        packed("a literal that does far too much", b"\x10\xf4\xff\x03" + bytes(1024)),
        packed("a copy cut short", b"\x10\x1c" + bytes(8) + b"\x1e\x08"),
        packed("a far copy cut short", b"\x10\x1c" + bytes(8) + b"\x1f\x08\x00\x00"),
        packed("a copy of one byte cut short", b"\x0c\x1c" + bytes(8) + b"\x01"),
        records("a record that shares from nothing", b"\x01\x09\x00" + b"a" + SET_TRAILER),
        records("a key beyond the block", b"\x00\x7f\x00a\x01" + far),
        records("a value beyond the block", b"\x00\x09\x7fa\x01" + far),
        records("key and value beyond the block", b"\x00\x09\x02a\x01" + far + b"x"),
        records("a key of 2**63", b"\x00" + as_uvarint(1 << 63) + b"\x00a\x01" + far),
        records("a value of 2**64 - 1", b"\x00\x09" + as_uvarint((1 << 64) - 1) + b"a\x01" + far),
        records("a key of 2**64 - 1 behind another", GOOD[:-8] + b"\x09" + as_uvarint((1 << 64) - 1) + b"\x00"),
        records("a value of 2**64 - 1 behind another", GOOD[:-8] + b"\x01\x08" + as_uvarint((1 << 64) - 1) + b"b" * 8),
        records("a length beyond 64 bits", b"\x00" + b"\xff" * 9 + b"\x02\x00a\x01" + far),
        records("a length of eleven bytes", b"\x80" * 10 + b"\x00\x09\x00a\x01" + far),
        records("a record cut off", b"\x00\x09"),
        records("something behind the records", GOOD[:-8] + b"\x00"),
        Damaged("half a second record", assemble([raw_block(GOOD[:-8] + b"\x01\x08")], like=[GOOD])),
    ]


def _keys() -> list[Damaged]:
    entry = value(message())

    def keyed(what: str, *keys: bytes) -> Damaged:
        blocks = [block(*((key, entry) for key in keys))]
        return Damaged(what, assemble(blocks))

    def apart(what: str, *paths: bytes) -> Damaged:
        return Damaged(what, assemble([data_block((path, entry)) for path in paths]))

    return [
        keyed("a key shorter than a trailer", SET_TRAILER[:-1]),
        keyed("a deletion", b"a\x00" + bytes(7)),
        keyed("a merge", b"a\x02" + bytes(7)),
        keyed("a sequence number", b"a\x01\x01" + bytes(6)),
        keyed("a last sequence number", b"a\x01" + bytes(6) + b"\x01"),
        keyed("no trailer", b"a" * 20),
        keyed("a key twice", b"a" + SET_TRAILER, b"a" + SET_TRAILER),
        keyed("keys falling", b"b" + SET_TRAILER, b"a" + SET_TRAILER),
        keyed("a longer key before its beginning", b"ab" + SET_TRAILER, b"a" + SET_TRAILER),
        keyed("keys falling behind a prefix", b"path/2" + SET_TRAILER, b"path/1" + SET_TRAILER),
        keyed("bytes above 127 falling", b"\xff" + SET_TRAILER, b"\x7f" + SET_TRAILER),
        apart("a key twice in two blocks", b"a", b"a"),
        apart("keys falling from block to block", b"b", b"a"),
        apart("keys falling from block to block behind a rise", b"a", b"c", b"b"),
    ]


def _values() -> list[Damaged]:
    data = message()
    size = as_uvarint(len(data) << 1)
    head = as_uvarint(len(IDENTITY) << 1) + IDENTITY
    fields = {1: b"\x0a\x01x", 2: TIME, 3: b"\x18\x01", 4: b"\x22\x01x", 6: b"\x30\x01", 7: b"\x3a\x01x"}
    return [
        *(
            Damaged(what, stored_value(stored))
            for what, stored in {
                "an empty value": b"",
                "an identity alone": head,
                "an identity beyond the value": b"\x7e" + data,
                "an identity of negative length": b"\x01" + size + data,
                "an identity of 2**62": as_uvarint(1 << 63) + data,
                "an identity of no length": b"\xff" * 11,
                "data of negative length": head + as_uvarint((len(data) << 1) + 1) + data,
                "data that is shorter": head + as_uvarint((len(data) + 1) << 1) + data,
                "data that is longer": head + as_uvarint((len(data) - 1) << 1) + data,
                "data of 2**62": head + as_uvarint(1 << 63) + data,
                "something behind the data": encode_value(IDENTITY, data) + b"\x00",
            }.items()
        ),
        *(
            Damaged(what, range_of_one(entry))
            for what, entry in {
                "nothing in an entry": b"",
                "no address": varint_field(6, 1),
                "an empty address": b"\x0a\x00\x30\x01",
                "an unknown field": message(b"x", varint_field(8, 1)),
                "an unknown text field": message(b"x", bytes_field(9, b"y")),
                "a field of number 0": message(b"x", b"\x00\x00"),
                "a field of a large number": message(b"x", as_uvarint(1000 << 3) + b"\x01"),
                "a fixed field": message(b"x", b"\x19" + bytes(8)),
                "a group": message(b"x", b"\x1b\x1c"),
                "a size that is text": message(b"x", b"\x1a\x01x"),
                "an address that is a number": b"\x08\x01",
                "a tag in two bytes": message(b"x", b"\xa2\x00\x01y"),
                "a tag without a value": message(b"x", b"\x18"),
                "a text without its length": message(b"x", b"\x22"),
                "a text beyond the entry": message(b"x", b"\x22\x02y"),
                "a text of 2**63": message(b"x", b"\x22" + as_uvarint(1 << 63) + b"y"),
                "metadata beyond the entry": message(b"x", b"\x2a\x02y"),
                "a size beyond 64 bits": message(b"x", b"\x18" + b"\xff" * 9 + b"\x02"),
                "a size of eleven bytes": message(b"x", b"\x18" + b"\x80" * 10 + b"\x00"),
                "an unknown address type": message(kind=3),
                "a far address type": message(kind=1 << 32 | 1),
                "a negative address type": message(kind=-1),
            }.items()
        ),
        *(
            Damaged(f"field {n} twice", range_of_one(b"".join([*fields.values(), again])))
            for n, again in fields.items()
        ),
    ]


def _columns() -> list[Damaged]:
    def time(what: str, content: bytes) -> Damaged:
        return Damaged(what, range_of_one(message(b"x", bytes_field(2, content))), "last_modified")

    bad_texts = {"a lone byte": b"\xff", "half a letter": b"\xc3", "a surrogate": b"\xed\xa0\x80",
                 "an overlong letter": b"\xc0\x80", "beyond Unicode": b"\xf4\x90\x80\x80"}  # fmt: skip
    return [
        *(
            Damaged(f"an address with {what}", range_of_one(message(text)), "address")
            for what, text in bad_texts.items()
        ),
        *(
            Damaged(f"a checksum with {what}", range_of_one(message(b"x", bytes_field(4, text))), "checksum")
            for what, text in bad_texts.items()
        ),
        Damaged(
            "a letter that begins in one address and ends in the next",
            a_range((b"a", message(b"x\xc3")), (b"b", message(b"\xbcy"))),
            "address",
        ),
        time("a second too late", varint_field(1, 253402300800)),
        time("a second too early", varint_field(1, -62135596801)),
        time("the last second of 64 bits", varint_field(1, 2**63 - 1)),
        time("the first second of 64 bits", varint_field(1, -(2**63))),
        time("a whole second of nanoseconds", varint_field(2, 1_000_000_000)),
        time("negative nanoseconds", varint_field(2, -1)),
        time("an unknown field in a time", b"\x18\x01"),
        time("seconds twice", b"\x08\x01\x08\x01"),
        time("nanoseconds twice", b"\x10\x01\x10\x01"),
        time("a time cut off", b"\x08"),
        time("a time that is text", b"\x0a\x01x"),
        time("a time that doesn't end", b"\x08" + b"\xff" * 12),
    ]


DAMAGED = [*_footers(), *_properties(), *_indexes(), *_blocks(), *_keys(), *_values(), *_columns()]
