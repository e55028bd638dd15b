"""Tables (formats §3), as files and as blocks.

As files, their checksums and ids have to detect every change: a changed table is refused, or has exactly the rows of
the original. The footer has no checksum; what it says is compared with the rest of the table. As blocks, a table is put
together with correct checksums, so that changes reach the code behind them. Both decoders must then agree. The compiled
one is fuzzed as plain Python (NUMBA_DISABLE_JIT), in which an index outside of an array is an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from itertools import pairwise
from random import Random
from typing import Any

from spark_resources import sstable
from spark_resources.errors import DamagedData
from spark_resources.model import Commit
from spark_resources.sstable import ENTRY_SCHEMA, Branch, Entry, RangeRef, Tag, WrittenTable
from spark_resources.sstable.blocks import FOOTER_LENGTH, InvalidTable, block_records, open_table, read_block
from spark_resources.sstable.decoders import READABLE, Decoder, vectorized_decoder
from spark_resources.sstable.wire import as_uvarint, uvarint
from tests.fuzz.mutations import mutate_bytes
from tests.fuzz.target import Kind, Target, Violation, require, value_or_refusal
from tests.support.sstable_cases import (
    DAMAGED,
    ONE_LEVEL,
    PLAIN,
    SNAPPY,
    TWO_LEVELS,
    WHOLE,
    Assembly,
    Stored,
    all_blocks,
    block,
    footer_of,
    metaindex_of,
    one_level,
    own_properties,
    snappy,
    two_levels,
)

COLUMNS = tuple(ENTRY_SCHEMA.names)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MAX_BLOCKS = 12


# --- as files ---------------------------------------------------------------------------------------------------------


def _entries(count: int) -> list[Entry]:
    return [
        Entry(b"path/%05d" % n, f"data/slice/{n * 7919:08d}", size=n, checksum=f"{n:032x}", last_modified=NOON,
              metadata={"k": "v" * (n % 3)}, content_type="text/csv" * (n % 2))
        for n in range(count)
    ]  # fmt: skip


@dataclass(frozen=True)
class _Reader:
    """A function that reads a table, given its name. `verifies` says whether the table's id has to be the name."""

    read: Callable[[bytes, str], Any]
    verifies: bool = False


def _rows(data: bytes, name: str, decoder: Decoder) -> list[Any]:
    rows: list[Any] = sstable.read_entries(data, name=name, columns=COLUMNS, decoder=decoder).to_pylist()
    return rows


def _verified_rows(data: bytes, name: str, decoder: Decoder) -> list[Any]:
    batch, _ = sstable.read_verified_entries(data, name=name, columns=COLUMNS, decoder=decoder)
    rows: list[Any] = batch.to_pylist()
    return rows


def _verified(data: bytes, name: str, decoder: Decoder) -> str:
    sstable.verify_table(data, name=name, decoder=decoder)
    return name


def _readers() -> dict[str, _Reader]:
    readers = {
        "whole entries": _Reader(lambda data, name: sstable.read_whole_entries(data, name=name)),
        "ranges": _Reader(lambda data, name: sstable.read_ranges(data, name=name)),
        "verified ranges": _Reader(lambda data, name: sstable.read_verified_ranges(data, name=name), verifies=True),
        "commits": _Reader(lambda data, name: sstable.read_commits(data, name=name)),
        "branches": _Reader(lambda data, name: sstable.read_branches(data, name=name)),
        "tags": _Reader(lambda data, name: sstable.read_tags(data, name=name)),
        "records": _Reader(lambda data, name: sstable.read_records(data, name=name)),
    }
    for decoder in (READABLE, vectorized_decoder()):
        readers[f"rows, {decoder.name}"] = _Reader(partial(_rows, decoder=decoder))
        readers[f"verified rows, {decoder.name}"] = _Reader(partial(_verified_rows, decoder=decoder), verifies=True)
        readers[f"id, {decoder.name}"] = _Reader(partial(_verified, decoder=decoder), verifies=True)
    return readers


@cache
def _tables() -> list[WrittenTable]:
    ranges = [sstable.write_range(_entries(count)) for count in (0, 1, 3, 40, 900)]
    refs = [RangeRef(f"{n:064x}", b"%03d" % n, b"%03d" % (n + 1), 9, 3) for n in range(30)]
    commits = [
        Commit(f"{n:064x}", (f"{n + 1:064x}",), NOON, f"{n:064x}", version=1, generation=n, committer="ann",
               message="m", metadata={"a": "b"})
        for n in range(9)
    ]  # fmt: skip
    dumps = [
        sstable.write_commits(commits),
        sstable.write_branches([Branch(f"b{n}", f"{n:064x}", "token", ("sealed",), hidden=n == 1) for n in range(3)]),
        sstable.write_tags([Tag(f"t{n}", f"{n:064x}") for n in range(3)]),
    ]
    tables = [WrittenTable(name, data) for dump in dumps for name, data in dump.tables.items()]
    return [*ranges, sstable.write_metarange(refs), *tables]


@cache
def _intact() -> dict[str, dict[str, Any]]:
    """The value of each reader for each table that it can read, by the table's id."""
    values: dict[str, dict[str, Any]] = {name: {} for name in _readers()}
    for table in _tables():
        for name, reader in _readers().items():
            with suppress(DamagedData):
                values[name][table.id] = reader.read(table.data, table.id)
    return values


def _check_file(number: int, data: bytes) -> None:
    """The file is refused under the name of table `number`, or is read like the original."""
    name = _tables()[number].id
    for what, reader in _readers().items():
        value = value_or_refusal(partial(reader.read, data, name), name)
        if value is None:
            continue
        intact = _intact()[what]
        expected = [intact[name]] if reader.verifies else intact.values()
        require(value in expected, f"{what} of a changed table {name} were read: {value!r:.500}")
    properties = value_or_refusal(partial(sstable.read_properties, data, name=name), name)
    known = [sstable.read_properties(table.data, name=table.id) for table in _tables()]
    require(properties is None or properties in known, f"changed properties were read: {properties}")


def _file_kind(number: int) -> Kind:
    return Kind(f"table {number}", lambda: [_tables()[number].data], partial(_check_file, number))


FILES = Target("table-files", [_file_kind(number) for number in range(len(_tables()))])


# --- as blocks --------------------------------------------------------------------------------------------------------
# one byte (bit 0: two levels, bit 1: properties that fit the blocks), and for each block, of which the last has the
# properties: one byte for its compression, the length of its contents, its contents

_FITTING = 2
_COMPRESSED_HERE = 2


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    with suppress(InvalidTable):
        while at < len(data):
            kind = data[at]
            length, at = uvarint(data, at + 1, len(data))
            yield kind % 4, data[at : at + length]
            at += length


def _joined(flags: int, parts: list[tuple[int, bytes]]) -> bytes:
    return bytes([flags]) + b"".join(bytes([kind]) + as_uvarint(len(part)) + part for kind, part in parts)


def _stored(kind: int, contents: bytes) -> Stored:
    return snappy(contents) if kind == _COMPRESSED_HERE else Stored(contents, kind)


def table_of(data: bytes) -> bytes:
    """The table of an input, with correct checksums and an index that lists its blocks."""
    flags, parts = data[0] if data else 0, list(_parts(data[1:]))[: MAX_BLOCKS + 1]
    assembly = Assembly()
    handles = [assembly.add(_stored(*part)) for part in parts[:-1]]
    top = two_levels(assembly, handles) if flags & 1 and handles else one_level(assembly, handles)
    properties = parts[-1][1] if parts else b""
    if flags & _FITTING:
        with suppress(InvalidTable, IndexError):
            properties = _fitting_properties([contents for _, contents in parts[:-1]], two=bool(flags & 1 and handles))
    meta = assembly.add(metaindex_of(assembly.add(properties)))
    return bytes(assembly.out) + footer_of(meta, top)


def _fitting_properties(blocks: list[bytes], *, two: bool) -> bytes:
    stated = own_properties(blocks) | {"rocksdb.block.based.table.index.type": TWO_LEVELS if two else ONE_LEVEL}
    return block(*sorted((name.encode(), value) for name, value in stated.items()), interval=1 << 30)


def _input_of(table: bytes) -> bytes | None:
    """The input that gives this table; None for one with blocks that can't be found."""
    try:
        blocks, levels = all_blocks(table), int(open_table(table).two_levels)
        data = [where for where in blocks if where.end <= open_table(table).index.offset]
        if levels:
            count = len(list(block_records(read_block(table, open_table(table).index))))
            data = data[: len(data) - count]
        chosen = [*data[:MAX_BLOCKS], blocks[-2]]
        parts = [(table[where.offset + where.length], table[where.offset : where.end - 5]) for where in chosen]
    except (InvalidTable, AssertionError, IndexError):
        return None
    return _joined(levels, parts)


def _block_seeds() -> list[bytes]:
    tables = [case.data for case in (*WHOLE, *DAMAGED) if len(case.data) < 20_000]
    inputs = [found for table in tables if (found := _input_of(table)) is not None]
    fitting = [bytes([found[0] | _FITTING]) + found[1:] for found in inputs[::3]]
    plain = [_joined(_FITTING, [(PLAIN, read_block(table, where)) for where in all_blocks(table)[:1]] + [(PLAIN, b"")])
             for table in (sstable.write_range(_entries(count)).data for count in (1, 5, 40))]  # fmt: skip
    compressed = [plain[-1][:1] + bytes([_COMPRESSED_HERE]) + plain[-1][2:]]
    return [*inputs, *fitting, *plain, *compressed]


def _mutate_blocks(data: bytes, random: Random) -> bytes:
    """A change to the contents of one block, or to its compression."""
    parts = list(_parts(data[1:]))
    if not parts or random.random() < 0.1:
        return mutate_bytes(data, random)
    at = random.randrange(len(parts))
    kind, contents = parts[at]
    if random.random() < 0.1:
        kind = random.choice((PLAIN, SNAPPY, _COMPRESSED_HERE))
    parts[at] = kind, mutate_bytes(contents, random)
    return _joined(data[0] if random.random() < 0.9 else random.randrange(4), parts)


def _outcome(read: Callable[[], Any]) -> Any:
    """The value, or the message of the refusal."""
    try:
        return read()
    except DamagedData as error:
        return str(error)


def check_decoders(data: bytes) -> None:
    """Both decoders give the same rows and the same id of a table, or the same error."""
    name = "5" * 64
    for columns in (COLUMNS, ("address", "address_type"), ("path",)):
        batches = [
            _outcome(partial(sstable.read_entries, data, name=name, columns=columns, decoder=decoder))
            for decoder in (READABLE, vectorized_decoder())
        ]
        for batch in batches:
            if not isinstance(batch, str):
                batch.validate(full=True)
        require(batches[0] == batches[1], f"decoders disagree on {columns}: {batches!r:.800}")
        _require_order(batches[0])
    ids = [_outcome(partial(sstable.table_id, data, name=name, decoder=d)) for d in (READABLE, vectorized_decoder())]
    require(ids[0] == ids[1], f"decoders disagree on the id: {ids!r:.800}")
    if len(ids[0]) == len(name):
        verified = _outcome(partial(_verified_rows, data, ids[0], vectorized_decoder()))
        require(
            verified == _outcome(partial(_verified_rows, data, ids[0], READABLE)), "decoders disagree on verified rows"
        )


def _require_order(batch: Any) -> None:
    if not isinstance(batch, str) and "path" in batch.schema.names:
        paths = batch.column("path").to_pylist()
        require(all(left < right for left, right in pairwise(paths)), "the paths aren't in order")


def _check_blocks(data: bytes) -> None:
    table = table_of(data)
    check_decoders(table)
    name = "5" * 64
    for what, reader in _readers().items():
        if not reader.verifies:
            try:
                value_or_refusal(partial(reader.read, table, name), name)
            except Violation as error:
                raise Violation(f"{what}: {error}") from error


BLOCKS = Target("table-blocks", [Kind("blocks", _block_seeds, _check_blocks, _mutate_blocks)])
TARGETS = [FILES, BLOCKS]
assert FOOTER_LENGTH == 53, "the seeds of FILES end with a footer"
