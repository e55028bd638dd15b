"""Reading tables: every decoder reads the same list of intact and broken tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spark_resources.errors import DamagedData, WrongUsage
from spark_resources.model import Commit
from spark_resources.sstable import (
    ENTRY_SCHEMA,
    Branch,
    Decoder,
    Entry,
    RangeRef,
    Record,
    Tag,
    read_branches,
    read_commits,
    read_entries,
    read_properties,
    read_ranges,
    read_records,
    read_tags,
    read_verified_entries,
    read_verified_ranges,
    read_whole_entries,
    table_id,
    verify_table,
    write_branches,
    write_range,
    write_table,
)
from spark_resources.sstable.blocks import open_table
from spark_resources.sstable.decoders import READABLE, decoders
from spark_resources.sstable.values import (
    encode_branch,
    encode_commit,
    encode_range_ref,
    encode_tag,
    encode_value,
    split_value,
)
from spark_resources.sstable.wire import bytes_field, varint_field
from tests.support.sstable_cases import (
    DAMAGED,
    GOOD,
    NUMBERED,
    REARRANGED,
    WHOLE,
    Damaged,
    Whole,
    assemble,
    data_block,
    message,
    range_of_one,
    rearranged,
)

NAME = "5" * 64
COLUMNS = tuple(ENTRY_SCHEMA.names)
DECODERS = decoders()

every_decoder = pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
whole = pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.what)


@contextmanager
def named(case: Damaged) -> Iterator[None]:
    """Name the case if the test fails. One test has all of them, since there are hundreds."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"the damaged table: {case.what}")
        raise


def _small() -> bytes:
    return write_range([Entry(b"p/%d" % n, f"data/s/{n}", checksum="c" * 8) for n in range(3)]).data


def _id_or_error(data: bytes, decoder: Decoder) -> str:
    try:
        return table_id(data, name=NAME, decoder=decoder)
    except DamagedData as error:
        return str(error)


def test_both_the_readable_and_the_vectorized_decoder_are_tested() -> None:
    """The tests below run with each of them."""
    assert [decoder.name for decoder in DECODERS] == ["readable", "vectorized"]


@every_decoder
@whole
def test_every_row_of_an_intact_table_is_read(case: Whole, decoder: Decoder) -> None:
    """Rows come in order, with the types of the schema."""
    batch = read_entries(case.data, name=NAME, columns=COLUMNS, decoder=decoder)
    batch.validate(full=True)

    assert batch.schema == ENTRY_SCHEMA
    assert case.rows == [tuple(row[column] for column in COLUMNS) for row in batch.to_pylist()]


@every_decoder
@whole
def test_a_column_is_the_same_whichever_others_are_read(case: Whole, decoder: Decoder) -> None:
    """The order in which columns are requested doesn't matter either."""
    everything = read_entries(case.data, name=NAME, columns=COLUMNS[::-1], decoder=decoder)

    for column in COLUMNS:
        alone = read_entries(case.data, name=NAME, columns=[column], decoder=decoder)
        assert everything.column(column).equals(alone.column(0)), column
        assert [column] == alone.schema.names


@every_decoder
@pytest.mark.parametrize("case", REARRANGED, ids=lambda case: case.what)
def test_a_table_with_reordered_blocks_is_read_if_its_content_hashes_to_its_name(case: Whole, decoder: Decoder) -> None:
    """Reordered blocks alone are no reason to stop. If the hash doesn't match, they are, because a block may have been
    left out."""
    name = table_id(case.data, name=NAME, decoder=decoder)
    verify_table(case.data, name=name, decoder=decoder)

    for batch in (
        read_verified_entries(case.data, name=name, columns=COLUMNS, decoder=decoder)[0],
        read_entries(case.data, name=name, columns=COLUMNS, decoder=decoder),
    ):
        assert case.rows == [tuple(row[column] for column in COLUMNS) for row in batch.to_pylist()]
    assert name == table_id(assemble([data_block(*NUMBERED)]), name=NAME)
    assert len(read_records(case.data, name=name)) == len(case.rows)
    assert read_properties(case.data, name=name).count == len(case.rows)
    for read in (read_entries, read_whole_entries, read_records):
        with pytest.raises(DamagedData, match=f"{NAME} can't be read: its "):
            read(case.data, name=NAME)
    with pytest.raises(DamagedData, match="its content hash is "):
        verify_table(case.data, name=NAME, decoder=decoder)


@every_decoder
def test_a_table_with_reordered_blocks_and_an_unknown_field_or_version_is_refused(decoder: Decoder) -> None:
    """The matching hash excuses only the order of the blocks."""
    index_last = [0, 2, 3, 1]
    unknown = rearranged([data_block((b"a", encode_value(b"", message(b"x", varint_field(8, 1)))))], index_last)
    newer = bytearray(rearranged([data_block(*NUMBERED)], index_last))
    newer[-12] = 3  # the version

    name = table_id(unknown, name=NAME, decoder=decoder)
    with pytest.raises(DamagedData, match="unknown field"):
        read_verified_entries(unknown, name=name, columns=COLUMNS, decoder=decoder)
    with pytest.raises(DamagedData, match="table version 3"):
        table_id(bytes(newer), name=NAME, decoder=decoder)


@every_decoder
@pytest.mark.parametrize("what", ["an index with one block twice", "a part of the index twice"])
def test_an_index_that_refers_to_a_block_twice_is_refused(what: str, decoder: Decoder) -> None:
    """A small file that refers to one block over and over would take forever to read before its hash is known."""
    (data,) = (case.data for case in DAMAGED if case.what == what)
    with pytest.raises(DamagedData, match="two of its blocks overlap"):
        table_id(data, name=NAME, decoder=decoder)


@every_decoder
def test_a_broken_table_raises_an_error_and_yields_no_rows(decoder: Decoder) -> None:
    """The error names the table and says what to do. With verification, the requested columns don't matter."""
    for case in DAMAGED:
        with named(case):
            columns = (case.only_with,) if case.only_with else COLUMNS
            with pytest.raises(DamagedData) as caught:
                read_entries(case.data, name=NAME, columns=columns, decoder=decoder)

            assert NAME in str(caught.value)
            assert "Nothing was deleted" in str(caught.value)
            assert "disagree" not in str(caught.value)
            assert caught.value.invariant == 4
            with pytest.raises(DamagedData):
                read_verified_entries(case.data, name=NAME, columns=COLUMNS, decoder=decoder)


UNKNOWN = ("an unknown field", "an unknown text field", "an unknown address type", "a new version", "an old version")


@every_decoder
@pytest.mark.parametrize("case", [case for case in DAMAGED if case.what in UNKNOWN], ids=lambda case: case.what)
def test_unknown_metadata_fields_or_versions_stop_the_run(case: Damaged, decoder: Decoder) -> None:
    """A field, kind or version that lakegc doesn't know may keep an object alive, so it is never skipped.

    lance-format/lance#8956
    """
    assert read_entries(range_of_one(message()), name=NAME, decoder=decoder).num_rows == 1
    with pytest.raises(DamagedData):
        read_entries(case.data, name=NAME, decoder=decoder)


@every_decoder
@pytest.mark.parametrize("case", [case for case in DAMAGED if case.only_with], ids=lambda case: case.what)
def test_columns_that_were_not_requested_are_not_decoded(case: Damaged, decoder: Decoder) -> None:
    """With every decoder, a broken column doesn't affect the others."""
    others = [column for column in COLUMNS if column != case.only_with]

    assert read_entries(case.data, name=NAME, columns=others, decoder=decoder).num_rows > 0


def test_decoders_agree_on_the_id_or_the_error_of_a_broken_table() -> None:
    """The id never matches the name of another table."""
    for case in DAMAGED:
        with named(case):
            assert len({_id_or_error(case.data, decoder) for decoder in DECODERS}) == 1
            for decoder in DECODERS:
                with pytest.raises(DamagedData):
                    verify_table(case.data, name=NAME, decoder=decoder)


@every_decoder
def test_reading_with_verification_requires_a_name_that_is_the_hash_of_the_content(decoder: Decoder) -> None:
    """With that id, reading gives the same entries as reading without verification."""
    data = _small()
    name = table_id(data, name=NAME, decoder=decoder)

    for columns in (ENTRY_SCHEMA.names, ("address", "address_type")):
        verified, properties = read_verified_entries(data, name=name, columns=columns, decoder=decoder)
        assert verified.equals(read_entries(data, name=name, columns=columns, decoder=decoder))
        assert properties == read_properties(data, name=name)
    with pytest.raises(DamagedData, match=f"its content hash is {name}"):
        read_verified_entries(data, name=NAME, columns=COLUMNS, decoder=decoder)


@every_decoder
def test_ranges_read_by_several_threads_are_not_mixed_up(decoder: Decoder) -> None:
    """A decoder reads large and small ranges in any order. Entries that it returned don't change when it reads the next
    range."""
    counts = (400, 3, 900, 1, 40)
    ranges = [
        write_range([Entry(b"p/%06d" % n, f"data/{count}/{n}", checksum=f"{n:08}") for n in range(count)])
        for count in counts
    ]

    def read(place: int) -> tuple[int, Any]:
        table = ranges[place % len(ranges)]
        return place, read_verified_entries(table.data, name=table.id, columns=COLUMNS, decoder=decoder)[0]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(read, range(40)))

    for place, entries in results:
        count = counts[place % len(counts)]
        assert entries["address"].to_pylist() == [f"data/{count}/{n}" for n in range(count)]
        assert entries["checksum"].to_pylist() == [f"{n:08}" for n in range(count)]


@every_decoder
def test_a_table_truncated_anywhere_raises_an_error(decoder: Decoder) -> None:
    """A table truncated at either end is never read as a shorter one, even if the hash of its content is known."""
    data = _small()
    name = table_id(data, name=NAME, decoder=decoder)
    for length in range(len(data)):
        for part in (data[:length], data[length + 1 :]):
            with pytest.raises(DamagedData):
                read_verified_entries(part, name=name, columns=COLUMNS, decoder=decoder)


@every_decoder
def test_every_flipped_bit_raises_an_error(decoder: Decoder) -> None:
    """A checksum or another check covers each bit, even if the hash of the content is known."""
    data = bytearray(_small())
    name = table_id(_small(), name=NAME, decoder=decoder)
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            with pytest.raises(DamagedData):
                read_verified_entries(bytes(data), name=name, columns=COLUMNS, decoder=decoder)
            data[place] ^= 1 << bit


@pytest.mark.parametrize("columns", [(), ("adress",), ("address", "metadata")])
def test_requesting_a_column_that_does_not_exist_is_wrong_usage(columns: tuple[str, ...]) -> None:
    """It is a mistake of the caller, not damage, if ranges don't have the column."""
    with pytest.raises(WrongUsage, match="columns"):
        read_entries(_small(), name=NAME, columns=columns)


def test_a_table_of_one_kind_is_not_read_as_another() -> None:
    """Ranges, metaranges and the dumps of each entity are distinguished."""
    dump = write_branches([])
    top = dump.tables[dump.id]

    assert read_ranges(top, name=dump.id, entity="branch") == []
    for read in (read_entries, read_whole_entries, read_ranges, read_commits, read_branches, read_tags):
        with pytest.raises(DamagedData, match="it contains branch metaranges, not"):
            read(top, name=dump.id)
    with pytest.raises(DamagedData, match="not tag metaranges"):
        read_ranges(top, name=dump.id, entity="tag")
    for read in (read_ranges, read_commits, read_branches, read_tags):
        with pytest.raises(DamagedData, match="it contains object ranges, not"):
            read(_small(), name=NAME)


RANGE = RangeRef("a" * 64, b"a", b"m", 10, 2)
BRANCH = encode_branch(Branch("main", "c" * 64))
COMMIT = encode_commit(Commit("c" * 64, (), datetime(2026, 1, 1, tzinfo=UTC), ""))


def _metarange(**changes: Any) -> bytes:
    record = encode_range_ref(replace(RANGE, **changes))
    return write_table([record], {"type": "metaranges"}).data


def _dump(record: Record, entity: str) -> bytes:
    return write_table([record], {"type": "ranges", "entity": entity}).data


def _extended(record: Record, *more: bytes) -> Record:
    identity, data = split_value(record.value)
    return Record(record.key, encode_value(identity, data + b"".join(more)))


def _pair(key: bytes, value: bytes) -> bytes:
    return bytes_field(6, bytes_field(1, key) + bytes_field(2, value))


BROKEN_METADATA = {
    "a range with an id in upper case": (read_ranges, _metarange(id="A" * 64)),
    "a range whose id is short": (read_ranges, _metarange(id="a" * 63)),
    "a range whose id is a path": (read_ranges, _metarange(id="../" + "a" * 61)),
    "a range whose id ends with a newline": (read_ranges, _metarange(id="a" * 64 + "\n")),
    "a range of negative size": (read_ranges, _metarange(estimated_size=-1)),
    "a range of negative count": (read_ranges, _metarange(count=-1)),
    "a range under another key": (
        read_ranges,
        write_table([Record(b"n", encode_range_ref(RANGE).value)], {"type": "metaranges"}).data,
    ),
    "a range with an unknown field": (
        read_ranges,
        write_table([_extended(encode_range_ref(RANGE), varint_field(5, 1))], {"type": "metaranges"}).data,
    ),
    "a branch under another name": (read_branches, _dump(Record(b"dev", BRANCH.value), "branch")),
    "a branch with an unknown field": (read_branches, _dump(_extended(BRANCH, varint_field(6, 1)), "branch")),
    "a branch with two commits": (read_branches, _dump(_extended(BRANCH, bytes_field(2, b"d")), "branch")),
    "a tag with an unknown field": (
        read_tags,
        _dump(_extended(encode_tag(Tag("v1", "c")), varint_field(3, 1)), "tag"),
    ),
    "a commit under another id": (read_commits, _dump(Record(b"d" * 64, COMMIT.value), "commit")),
    "a commit with an unknown field": (read_commits, _dump(_extended(COMMIT, varint_field(10, 1)), "commit")),
    "a commit without a date": (
        read_commits,
        _dump(Record(b"c", encode_value(b"c", bytes_field(1, b"c"))), "commit"),
    ),
    "a commit with an impossible date": (
        read_commits,
        _dump(
            Record(b"c", encode_value(b"c", bytes_field(1, b"c") + bytes_field(4, varint_field(1, 1 << 60)))),
            "commit",
        ),
    ),
    "a commit with a key twice": (
        read_commits,
        _dump(_extended(COMMIT, _pair(b"k", b"1"), _pair(b"k", b"2")), "commit"),
    ),
    "a message that is not UTF-8": (read_commits, _dump(_extended(COMMIT, bytes_field(3, b"\xff")), "commit")),
    "a parent that is not UTF-8": (read_commits, _dump(_extended(COMMIT, bytes_field(7, b"\xff")), "commit")),
}


@pytest.mark.parametrize(("read", "data"), BROKEN_METADATA.values(), ids=BROKEN_METADATA.keys())
def test_broken_metadata_raises_an_error(read: Callable[..., Any], data: bytes) -> None:
    """One invalid record is enough to refuse a whole metarange or dump."""
    with pytest.raises(DamagedData, match=NAME):
        read(data, name=NAME)
    if read is read_ranges:
        name = table_id(data, name=NAME)
        with pytest.raises(DamagedData, match=name):
            read_verified_ranges(data, name=name)


def test_intact_metadata_is_read() -> None:
    """Without this test, the one above might pass for another reason."""
    assert read_ranges(_metarange(), name=NAME) == [RANGE]
    assert [branch.id for branch in read_branches(_dump(BRANCH, "branch"), name=NAME)] == ["main"]
    assert [commit.id for commit in read_commits(_dump(_extended(COMMIT, _pair(b"k", b"1")), "commit"), name=NAME)] == [
        "c" * 64
    ]


@pytest.mark.parametrize(("largest", "words"), [(5000, "decompresses to more than"), (30, "keys of one block")])
def test_the_memory_used_to_read_a_table_is_bounded(largest: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of blocks and keys are checked before they are read."""
    data = assemble([data_block(*NUMBERED[at : at + 10]) for at in range(0, 100, 10)])
    monkeypatch.setattr("spark_resources.sstable.blocks.MAX_BYTES", largest)
    with pytest.raises(DamagedData, match=words):
        read_entries(data, name=NAME, decoder=READABLE)


def test_the_error_for_an_empty_file_says_that_it_is_empty() -> None:
    """An empty file is the most common damage."""
    with pytest.raises(DamagedData, match="it is empty"):
        read_entries(b"", name=NAME)


@pytest.mark.parametrize(
    ("index_type", "words"),
    [
        (b"\x03\x00\x00\x00", r"its index has type 3; lakegc supports types 0 \(one level\) and 2 \(two levels\)"),
        (b"\x00", "it doesn't state a valid index type"),
        (None, "it doesn't state a valid index type"),
    ],
)
def test_the_error_for_an_unsupported_index_names_its_type(index_type: bytes | None, words: str) -> None:
    data = assemble([GOOD], says={"rocksdb.block.based.table.index.type": index_type})
    with pytest.raises(DamagedData, match=words):
        read_entries(data, name=NAME)


def test_properties_are_read_without_reading_the_records() -> None:
    """The properties lie at the end of a table, so a broken record doesn't affect them."""
    data = bytearray(_small())
    data[0] ^= 1

    stated = read_properties(bytes(data), name=NAME)

    assert (
        stated.type, stated.entity, stated.count, stated.num_entries, stated.min_key, stated.max_key,
        stated.user_properties,
    ) == ("ranges", "", 3, 3, b"p/0", b"p/2", {"type": "ranges"})  # fmt: skip
    with pytest.raises(DamagedData):
        read_records(bytes(data), name=NAME)


def test_a_few_entries_are_decoded_without_compiling() -> None:
    """Compiled loops decode large tables. Once they are compiled, they also decode small tables."""
    code = """
from spark_resources.sstable.decoders import VECTORIZED_MIN_BYTES, default_decoder
print(*(default_decoder(size).name for size in (0, VECTORIZED_MIN_BYTES - 1, VECTORIZED_MIN_BYTES, 0)))
"""

    assert _python(code) == "readable readable vectorized vectorized"


def test_the_compiled_loops_use_the_constants_of_the_format() -> None:
    """The compiled loops repeat some constants of the format, and the values must agree."""
    from spark_resources.sstable import blocks, kernels, values

    for module, names in {
        blocks: ("BLOCK_TRAILER", "KEY_TRAILER", "MIN_BLOCK_BYTES", "SNAPPY_RATIO", "MAX_BYTES"),
        values: ("FIRST_SECOND", "LAST_SECOND"),
    }.items():
        assert {name: getattr(module, name) for name in names} == {name: getattr(kernels, name) for name in names}


def _python(code: str, **environment: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()


def test_reading_a_small_table_does_not_load_numba() -> None:
    """A process that reads little doesn't even import the compiler."""
    code = """
import sys
from spark_resources.sstable import Entry, read_entries, write_range
table = write_range([Entry(b"a", "data/a")])
print(read_entries(table.data, name=table.id).num_rows, "numba" in sys.modules)
"""

    assert _python(code) == "1 False"


_FALLING_BACK = """
import sys, warnings
{prelude}
from spark_resources.sstable import default_decoder
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    names = [default_decoder(1 << 40).name for _ in range(2)]
print(names, [str(warning.message) for warning in caught])
"""


@pytest.mark.parametrize(
    ("prelude", "environment"),
    [
        ("sys.modules['numba'] = None", {}),
        ("", {"NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator"}),
    ],
    ids=["no numba", "no place for its cache"],
)
def test_if_numba_cannot_be_used_the_readable_decoder_is_used_with_a_warning(
    prelude: str, environment: dict[str, str]
) -> None:
    """There is only one warning, which says what to do."""
    output = _python(_FALLING_BACK.format(prelude=prelude), **environment).replace('"', "'")

    assert output.startswith("['readable', 'readable'] ['numba can't be used")
    assert output.count("tables are decoded in plain Python") == 1
    assert "NUMBA_CACHE_DIR" in output


def test_compiled_loops_never_read_or_write_outside_their_arrays() -> None:
    """The loops run as plain Python, which checks each index, over every table."""
    code = """
from functools import partial
from spark_resources.sstable import ENTRY_SCHEMA
from spark_resources.sstable.blocks import open_table
from spark_resources.sstable.vectorized_decoder import Unreadable, VectorizedDecoder
from spark_resources.sstable.wire import InvalidTable
from tests.support.sstable_cases import DAMAGED, WHOLE
decoder, refused = VectorizedDecoder(), 0
for case in [*WHOLE, *DAMAGED]:
    try:
        table = open_table(case.data)
    except InvalidTable:
        continue
    entries = partial(decoder.attempt_entries, table, ENTRY_SCHEMA.names, with_content=True)
    for attempt in (entries, partial(decoder.attempt_content, table)):
        try:
            attempt()
        except Unreadable:
            refused += 1
print(refused > 100)
"""

    assert _python(code, NUMBA_DISABLE_JIT="1") == "True"


def test_the_vectorized_decoder_refuses_a_broken_table_on_its_own() -> None:
    """The readable decoder is needed only for the message."""
    from spark_resources.sstable.vectorized_decoder import Unreadable, VectorizedDecoder
    from spark_resources.sstable.wire import InvalidTable

    for case in DAMAGED:
        try:
            table = open_table(case.data)
        except InvalidTable:
            continue
        if (table.properties.type, table.properties.entity) == ("ranges", ""):  # no other table is passed to a decoder
            with named(case), pytest.raises(Unreadable):
                VectorizedDecoder().attempt_entries(table, (case.only_with,) if case.only_with else COLUMNS)
