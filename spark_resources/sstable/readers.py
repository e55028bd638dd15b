"""Functions that read a table from its bytes, given its name. They raise `DamagedData` if it is invalid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import pyarrow as pa

from spark_resources.errors import WrongUsage
from spark_resources.model import Commit
from spark_resources.sstable import values
from spark_resources.sstable.blocks import OutOfOrder, Table, open_table, open_unordered_table, records
from spark_resources.sstable.content_ids import content_id, record_content
from spark_resources.sstable.decoders import READABLE, Decoder, default_decoder
from spark_resources.sstable.records import ENTRY_SCHEMA, Branch, Entry, RangeRef, Record, TableProperties, Tag
from spark_resources.sstable.wire import InvalidTable, errors_for_table

_T = TypeVar("_T")
RANGES, METARANGES = "ranges", "metaranges"
# a commit shares most ranges with its parent, so most records of a metarange have been parsed before
_cached_range_ref = lru_cache(maxsize=1 << 14)(values.range_ref)


def read_properties(data: bytes, *, name: str) -> TableProperties:
    """The properties of the table `name`. Reads only the footer and the properties, so no records are verified."""
    with errors_for_table(name):
        return open_unordered_table(data).properties


def read_entries(
    data: bytes,
    *,
    name: str,
    columns: Sequence[str] = ("address", "address_type"),
    decoder: Decoder | None = None,
) -> pa.RecordBatch:
    """The requested columns (of `ENTRY_SCHEMA`) of all entries of the range `name`, in path order.

    Checks every block's checksum, the order of keys, the number of entries and the structure of every entry. A column's
    values are decoded and checked only if it is requested. Raises `DamagedData`, and `WrongUsage` for unknown columns.
    """
    _check_columns(columns)

    def read(table: Table, decoder: Decoder) -> pa.RecordBatch:
        return decoder.entries(_check_type(table, RANGES, ""), columns)

    return _read(data, name, read, decoder)


def read_verified_entries(
    data: bytes, *, name: str, columns: Sequence[str], decoder: Decoder | None = None
) -> tuple[pa.RecordBatch, TableProperties]:
    """Like `read_entries`, also returning the range's properties. Verifies in the same pass that its id is `name`."""
    _check_columns(columns)

    def read(table: Table, decoder: Decoder) -> tuple[pa.RecordBatch, TableProperties]:
        entries, content = decoder.entries_and_content(_check_type(table, RANGES, ""), columns)
        _check_id(content_id(content, table.properties.user_properties), name)
        return entries, table.properties

    return _read(data, name, read, decoder)


def read_whole_entries(data: bytes, *, name: str) -> list[Entry]:
    """All entries of the range `name` with every field, one `Entry` each. Only for a few ranges, because it is slow."""
    return _read_each(data, name, RANGES, "", lambda record: values.EntryMessage(record.value).to_entry(record.key))


def read_ranges(data: bytes, *, name: str, entity: str = "") -> list[RangeRef]:
    """The ranges of the metarange `name` in order. `entity` is commit, branch or tag for a refs dump, else ""."""
    return _read_each(data, name, METARANGES, entity, values.range_ref)


def read_verified_ranges(data: bytes, *, name: str) -> list[RangeRef]:
    """Like `read_ranges`. Verifies in the same pass that the metarange's id is `name`."""

    def read(table: Table, _: Decoder) -> list[RangeRef]:
        ranges = list(records(_check_type(table, METARANGES, "")))
        _check_id(content_id(map(record_content, ranges), table.properties.user_properties), name)
        return list(map(_cached_range_ref, ranges))

    return _read(data, name, read)


def read_commits(data: bytes, *, name: str) -> list[Commit]:
    """The commits in the range `name` of a refs dump, with creation dates to the microsecond."""
    return _read_each(data, name, RANGES, "commit", values.commit)


def read_branches(data: bytes, *, name: str) -> list[Branch]:
    """The branches in the range `name` of a refs dump."""
    return _read_each(data, name, RANGES, "branch", values.branch)


def read_tags(data: bytes, *, name: str) -> list[Tag]:
    """The tags in the range `name` of a refs dump."""
    return _read_each(data, name, RANGES, "tag", values.tag)


def read_records(data: bytes, *, name: str) -> list[Record]:
    """The records of any table as stored, without their keys' trailers."""
    return _read(data, name, lambda table, _: list(records(table)))


def range_ref(data: bytes, *, name: str) -> RangeRef:
    """The range `name` as a metarange lists it."""
    properties = read_properties(data, name=name)
    return RangeRef(name, properties.min_key, properties.max_key, properties.estimated_size, properties.count)


def table_id(data: bytes, *, name: str, decoder: Decoder | None = None) -> str:
    """The id computed from the content of the table `name`. Reads and checks every record."""
    with errors_for_table(name):
        try:
            return _id_of(open_table(data), decoder or default_decoder(len(data)))
        except OutOfOrder:
            return _id_of(open_unordered_table(data), READABLE)


def verify_table(data: bytes, *, name: str, decoder: Decoder | None = None) -> None:
    """Verify that the table's content has the id `name`. Raises `DamagedData` otherwise."""
    actual = table_id(data, name=name, decoder=decoder)
    with errors_for_table(name):
        _check_id(actual, name)


def _check_id(actual: str, name: str) -> None:
    if actual != name:
        raise InvalidTable(f"its content hash is {actual}")


def _check_columns(columns: Sequence[str]) -> None:
    unknown = [column for column in columns if column not in ENTRY_SCHEMA.names]
    if unknown or not columns:
        raise WrongUsage(f"can't read the columns {list(columns)} of a range: choose some of {ENTRY_SCHEMA.names}")


def _read_each(data: bytes, name: str, kind: str, entity: str, read: Callable[[Record], _T]) -> list[_T]:
    return _read(data, name, lambda table, _: [read(record) for record in records(_check_type(table, kind, entity))])


def _read(data: bytes, name: str, read: Callable[[Table, Decoder], _T], decoder: Decoder | None = None) -> _T:
    """The result of `read` for the table `name`.

    A table with blocks in an order other than lakeFS's is accepted only if its content has the id `name`; otherwise it
    might be incomplete.
    """
    with errors_for_table(name):
        try:
            return read(open_table(data), decoder or default_decoder(len(data)))
        except OutOfOrder as error:
            table = open_unordered_table(data)
            if _id_of(table, READABLE) != name:
                raise error from None
            return read(table, READABLE)


def _id_of(table: Table, decoder: Decoder) -> str:
    return content_id(decoder.content(table), table.properties.user_properties)


def _check_type(table: Table, kind: str, entity: str) -> Table:
    properties = table.properties
    if (properties.type, properties.entity) != (kind, entity):
        actual, expected = (
            f"{pair[1] or 'object'} {pair[0]}" for pair in ((properties.type, properties.entity), (kind, entity))
        )
        raise InvalidTable(f"it contains {actual}, not {expected}")
    return table
