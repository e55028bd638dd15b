"""All decoders agree on any bytes, and every written table is read back. `python -m tests.fuzz` tries more bytes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_resources.errors import DamagedData
from spark_resources.model import AddressType
from spark_resources.sstable import (
    ENTRY_SCHEMA,
    Decoder,
    Entry,
    read_entries,
    read_whole_entries,
    table_id,
    write_range,
    write_table,
)
from spark_resources.sstable.blocks import FOOTER_LENGTH, SET_TRAILER, Handle
from spark_resources.sstable.decoders import decoders
from spark_resources.sstable.records import Record
from spark_resources.sstable.values import encode_value
from spark_resources.sstable.wire import as_uvarint, bytes_field, varint_field
from spark_resources.sstable.writer import _separator, _successor
from tests.support.sstable_cases import (
    SNAPPY,
    WHOLE,
    Stored,
    all_blocks,
    assemble,
    data_block,
    message,
    raw_block,
    rearranged,
    with_right_checksum,
)

NAME = "5" * 64
COLUMNS = tuple(ENTRY_SCHEMA.names)
DECODERS = decoders()

_TEXT = st.text(max_size=20)
_TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
ENTRIES = st.lists(
    st.builds(
        Entry,
        path=st.binary(max_size=30),
        address=st.text(min_size=1, max_size=60),
        address_type=st.sampled_from(AddressType),
        size=st.integers(-(2**63), 2**63 - 1),
        checksum=_TEXT,
        last_modified=st.none() | _TIMES,
        metadata=st.dictionaries(_TEXT, _TEXT, max_size=3),
        content_type=_TEXT,
    ),
    max_size=60,
    unique_by=lambda entry: entry.path,
).map(lambda entries: sorted(entries, key=lambda entry: entry.path))


def _rows(data: bytes, decoder: Decoder, columns: tuple[str, ...]) -> Any:
    """The result of a decoder for a table: its rows, or the error and its message."""
    try:
        batch = read_entries(data, name=NAME, columns=columns, decoder=decoder)
    except DamagedData as error:
        return type(error), str(error)
    batch.validate(full=True)
    return batch.schema, batch.to_pydict()


def _id(data: bytes, decoder: Decoder) -> Any:
    try:
        return table_id(data, name=NAME, decoder=decoder)
    except DamagedData as error:
        return type(error), str(error)


def assert_decoders_agree(data: bytes) -> None:
    """Every decoder gives the same rows of each choice of columns, and the same id, or the same error."""
    for columns in (COLUMNS, ("address", "address_type"), ("path", "size")):
        expected, *others = (_rows(data, decoder, columns) for decoder in DECODERS)

        assert others == [expected] * len(others)
    expected, *others = (_id(data, decoder) for decoder in DECODERS)

    assert others == [expected] * len(others)


@given(ENTRIES)
@settings(deadline=None)
def test_entries_are_read_back_as_written(entries: list[Entry]) -> None:
    """Entries of any content, whole and by columns."""
    table = write_range(entries)

    assert read_whole_entries(table.data, name=table.id) == entries
    assert_decoders_agree(table.data)
    for decoder in DECODERS:
        batch = read_entries(table.data, name=table.id, columns=COLUMNS, decoder=decoder)

        assert batch.to_pylist() == [{column: getattr(entry, column) for column in COLUMNS} for entry in entries]
        assert table_id(table.data, name=table.id, decoder=decoder) == table.id


@given(
    paths=st.lists(st.binary(max_size=8), min_size=1, max_size=30, unique=True).map(sorted),
    step=st.integers(1, 8),
    parts=st.integers(0, 3),
    gap=st.integers(0, 9),
    data=st.data(),
)
@settings(deadline=None)
def test_a_table_has_the_same_id_and_rows_in_any_order_of_its_blocks(
    paths: list[bytes], step: int, parts: int, gap: int, data: st.DataObject
) -> None:
    """Rows are in path order."""
    records = [(path, encode_value(b"", message(b"data/" + path.hex().encode()))) for path in paths]
    blocks = [data_block(*records[at : at + step]) for at in range(0, len(records), step)]
    order = data.draw(st.permutations(range(len(blocks) + parts + 3)))
    table = rearranged(blocks, order, parts=parts, gap=gap)
    name = table_id(assemble(blocks), name=NAME)

    for decoder in DECODERS:
        assert table_id(table, name=NAME, decoder=decoder) == name
        batch = read_entries(table, name=name, columns=("path",), decoder=decoder)
        assert batch["path"].to_pylist() == paths
    assert_decoders_agree(table)


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=80)), max_size=40, unique_by=lambda pair: pair[0]))
@settings(deadline=None)
def test_decoders_agree_on_any_records(records: list[tuple[bytes, bytes]]) -> None:
    """Records that aren't entries have an id, and no rows."""
    table = write_table([Record(*pair) for pair in sorted(records)], {"type": "ranges"})

    assert_decoders_agree(table.data)
    assert table_id(table.data, name=table.id) == table.id


_SMALL = st.integers(0, 300) | st.integers(0, 2**64 - 1) | st.integers(-3, 3).map(lambda n: n % 2**64)
_FIELDS = st.one_of(
    st.builds(bytes_field, st.integers(0, 9), st.binary(max_size=12) | _TEXT.map(str.encode)),
    st.builds(lambda number, value: as_uvarint(number << 3) + as_uvarint(value), st.integers(0, 9), _SMALL),
    st.builds(
        lambda seconds, nanos: bytes_field(2, varint_field(1, seconds) + varint_field(2, nanos)),
        st.integers(-62135596801, 253402300800),
        st.integers(-1, 1_000_000_000),
    ),
    st.binary(max_size=4),
)


@given(st.lists(_FIELDS, max_size=6), st.binary(max_size=3), st.sampled_from([0, 0, 0, 1, -1]))
@settings(deadline=None, max_examples=200)
def test_decoders_agree_on_any_message(fields: list[bytes], behind: bytes, lie: int) -> None:
    """An entry of known and unknown fields, in any order and truncated anywhere, is valid for all decoders or for
    none."""
    message = bytes_field(1, b"data/x") + b"".join(fields)
    stored = (
        encode_value(b"identity", message) if lie == 0 else as_uvarint(2) + b"i" + as_uvarint((len(message) + lie) * 2)
    )
    assert_decoders_agree(assemble([data_block((b"a", stored + behind if lie == 0 else stored + message))]))


_RECORDS = st.lists(
    st.tuples(_SMALL, _SMALL, _SMALL, st.binary(max_size=12), st.booleans(), st.binary(max_size=12)), max_size=5
)


@given(_RECORDS, st.lists(st.integers(0, 2**32 - 1), max_size=3), st.sampled_from([b"", b"\x00", b"\x80"]))
@settings(deadline=None)
def test_decoders_agree_on_any_block(records: Any, restarts: list[int], behind: bytes) -> None:
    """A block of records with any lengths is refused or read by all decoders."""
    body = b""
    for shared, unshared, length, key, trailed, content in records:
        stored = key + (SET_TRAILER if trailed else b"")
        body += as_uvarint(shared % 3) + as_uvarint(len(stored) if unshared % 4 else unshared)
        body += as_uvarint(len(content) if length % 4 else length) + stored + content
    good = data_block((b"a", encode_value(b"", bytes_field(1, b"x"))))
    assert_decoders_agree(assemble([raw_block(body + behind, restarts)], like=[good]))


@given(
    st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=70)), max_size=12),
    st.integers(-2, 2),
    st.sampled_from([40, 200, 5000]),
)
@settings(deadline=None, max_examples=150)
def test_decoders_agree_on_any_compression(elements: list[tuple[int, bytes]], lie: int, base: int) -> None:
    """Snappy's elements in any order are decompressed alike, or refused. No other memory is touched."""
    good = data_block(*((b"%04d" % n, encode_value(b"", bytes_field(1, b"data/%d" % n))) for n in range(base // 20)))
    stream = b"\xf4" + (len(good) - 1).to_bytes(2, "little") + good
    for tag, rest in elements:
        stream = bytes([tag]) + rest + stream if lie else stream + bytes([tag]) + rest
    stored = Stored(as_uvarint(max(len(good) + sum(len(rest) for _, rest in elements) + lie, 0)) + stream, SNAPPY)
    assert_decoders_agree(assemble([stored], like=[good]))


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.what)
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_decoders_agree_on_any_changed_table(case: Any, data: st.DataObject) -> None:
    """All decoders refuse or read a table with changed bytes in any block, and with correct checksums."""
    changed = bytearray(case.data)
    where = data.draw(st.sampled_from(all_blocks(case.data)))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[where.offset + data.draw(st.integers(0, where.length))] = data.draw(st.integers(0, 255))
    assert_decoders_agree(with_right_checksum(bytes(changed), where))


@given(ENTRIES.filter(bool), st.data())
@settings(deadline=None)
def test_decoders_agree_on_any_changed_range(entries: list[Entry], data: st.DataObject) -> None:
    """The ranges are like those that are usually written: compressed, with shared prefixes and all fields."""
    table = write_range(entries).data
    where = data.draw(st.sampled_from(all_blocks(table)))
    changed = bytearray(table)
    changed[where.offset + data.draw(st.integers(0, where.length))] = data.draw(st.integers(0, 255))
    assert_decoders_agree(with_right_checksum(bytes(changed), where))


@given(st.binary(max_size=300), st.integers(0, 2))
@settings(deadline=None)
def test_decoders_agree_on_arbitrary_bytes(noise: bytes, kind: int) -> None:
    """All decoders refuse bytes that were never a table."""
    tail = WHOLE[0].data[-FOOTER_LENGTH:]
    assert_decoders_agree([noise, noise + tail, WHOLE[0].data + noise][kind] if noise else b"")


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_an_index_key_lies_between_two_blocks(left: bytes, right: bytes) -> None:
    """The key isn't before the last key of its block, and is before the first key of the next one."""
    if left == right:
        return
    last, following = sorted([left, right])

    assert last <= _separator(last + SET_TRAILER, following)[:-8] < following
    assert last <= _successor(last + SET_TRAILER)[:-8]


def test_the_changed_blocks_cover_the_whole_table() -> None:
    """The tests above can change any byte from the first one to the footer."""
    for case in WHOLE:
        blocks = all_blocks(case.data)

        assert blocks[0].offset == 0
        assert [block.end for block in blocks[:-1]] == [block.offset for block in blocks[1:]]
        assert blocks[-1].end == len(case.data) - FOOTER_LENGTH
        assert isinstance(blocks[0], Handle)
