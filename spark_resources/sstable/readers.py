"""The readers: they turn a table's bytes and its name into values, and raise `DamagedData` for an invalid table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import pyarrow as pa

from spark_resources.errors import WrongUsage
from spark_resources.model import Commit
from spark_resources.sstable import values
from spark_resources.sstable.blocks import OutOfOrder, Table, open_in_any_order, open_table, records
from spark_resources.sstable.content_ids import content_id, record_content
from spark_resources.sstable.decoders import READABLE, Decoder, default_decoder
from spark_resources.sstable.records import ENTRY_SCHEMA, Branch, Entry, RangeRef, Record, TableProperties, Tag
from spark_resources.sstable.wire import InvalidTable, naming_table

_T = TypeVar("_T")
RANGES, METARANGES = "ranges", "metaranges"
# most ranges of a commit are its parent's, too, so most records of a metarange have been parsed before
_known_range_ref = lru_cache(maxsize=1 << 14)(values.range_ref)


def read_properties(data: bytes, *, name: str) -> TableProperties:
    """The properties of the table `name`. Reads only the footer and the properties, so no records are verified."""
    with naming_table(name):
        return open_in_any_order(data).properties


def read_entries(
    data: bytes,
    *,
    name: str,
    columns: Sequence[str] = ("address", "address_type"),
    decoder: Decoder | None = None,
) -> pa.RecordBatch:
    """The requested columns (of `ENTRY_SCHEMA`) of all entries of the range `name`, in the order of their paths.

    Checks every block's checksum, the order of keys, the number of entries and the structure of every entry; a column's
    values are decoded and checked only if it is requested. Raises `DamagedData`, and `WrongUsage` for other columns.
    """
    _check_columns(columns)

    def read(table: Table, decoder: Decoder) -> pa.RecordBatch:
        return decoder.entries(_typed(table, RANGES, ""), columns)

    return _read(data, name, read, decoder)


def read_verified_entries(
    data: bytes, *, name: str, columns: Sequence[str], decoder: Decoder | None = None
) -> tuple[pa.RecordBatch, TableProperties]:
    """Like `read_entries`, with the range's properties; in the same pass, verifies that it was committed as `name`."""
    _check_columns(columns)

    def read(table: Table, decoder: Decoder) -> tuple[pa.RecordBatch, TableProperties]:
        entries, content = decoder.entries_and_content(_typed(table, RANGES, ""), columns)
        _check_id(content_id(content, table.properties.user), name)
        return entries, table.properties

    return _read(data, name, read, decoder)


def read_whole_entries(data: bytes, *, name: str) -> list[Entry]:
    """All entries of the range `name` with every field, one `Entry` each: for single ranges, not for many."""
    return _each(data, name, RANGES, "", lambda record: values.EntryMessage(record.value).whole(record.key))


def read_ranges(data: bytes, *, name: str, entity: str = "") -> list[RangeRef]:
    """The ranges of the metarange `name` in order. `entity` is that of a refs dump: commit, branch or tag."""
    return _each(data, name, METARANGES, entity, values.range_ref)


def read_verified_ranges(data: bytes, *, name: str) -> list[RangeRef]:
    """Like `read_ranges`; in the same pass, verifies that the metarange was committed as `name`."""

    def read(table: Table, _: Decoder) -> list[RangeRef]:
        found = list(records(_typed(table, METARANGES, "")))
        _check_id(content_id(map(record_content, found), table.properties.user), name)
        return list(map(_known_range_ref, found))

    return _read(data, name, read)


def read_commits(data: bytes, *, name: str) -> list[Commit]:
    """The commits in the range `name` of a refs dump, with creation dates to the microsecond."""
    return _each(data, name, RANGES, "commit", values.commit)


def read_branches(data: bytes, *, name: str) -> list[Branch]:
    """The branches in the range `name` of a refs dump."""
    return _each(data, name, RANGES, "branch", values.branch)


def read_tags(data: bytes, *, name: str) -> list[Tag]:
    """The tags in the range `name` of a refs dump."""
    return _each(data, name, RANGES, "tag", values.tag)


def read_records(data: bytes, *, name: str) -> list[Record]:
    """The records of any table as they are stored, keys without trailer."""
    return _read(data, name, lambda table, _: list(records(table)))


def range_ref(data: bytes, *, name: str) -> RangeRef:
    """The range `name` as a metarange lists it."""
    found = read_properties(data, name=name)
    return RangeRef(name, found.min_key, found.max_key, found.estimated_size, found.count)


def table_id(data: bytes, *, name: str, decoder: Decoder | None = None) -> str:
    """The id computed from the content of the table `name`. Reads and checks every record."""
    with naming_table(name):
        try:
            return _id_of(open_table(data), decoder or default_decoder(len(data)))
        except OutOfOrder:
            return _id_of(open_in_any_order(data), READABLE)


def verify_table(data: bytes, *, name: str, decoder: Decoder | None = None) -> None:
    """Verify that the table is the one that was committed as `name`; raises `DamagedData` otherwise."""
    found = table_id(data, name=name, decoder=decoder)
    with naming_table(name):
        _check_id(found, name)


def _check_id(found: str, name: str) -> None:
    if found != name:
        raise InvalidTable(f"its content hash is that of {found}")


def _check_columns(columns: Sequence[str]) -> None:
    unknown = [column for column in columns if column not in ENTRY_SCHEMA.names]
    if unknown or not columns:
        raise WrongUsage(f"a range has the columns {ENTRY_SCHEMA.names}, not {list(columns)}")


def _each(data: bytes, name: str, kind: str, entity: str, read: Callable[[Record], _T]) -> list[_T]:
    return _read(data, name, lambda table, _: [read(record) for record in records(_typed(table, kind, entity))])


def _read(data: bytes, name: str, read: Callable[[Table, Decoder], _T], decoder: Decoder | None = None) -> _T:
    """The result of `read` for the table `name`.

    A table whose blocks are not in the order that lakeFS writes is accepted only if the id of its content is its name;
    otherwise it might be incomplete.
    """
    with naming_table(name):
        try:
            return read(open_table(data), decoder or default_decoder(len(data)))
        except OutOfOrder as broken:
            table = open_in_any_order(data)
            if _id_of(table, READABLE) != name:
                raise broken from None
            return read(table, READABLE)


def _id_of(table: Table, decoder: Decoder) -> str:
    return content_id(decoder.content(table), table.properties.user)


def _typed(table: Table, kind: str, entity: str) -> Table:
    found = table.properties
    if (found.type, found.entity) != (kind, entity):
        is_, wanted = (f"{each[0]} of {each[1] or 'objects'}" for each in ((found.type, found.entity), (kind, entity)))
        raise InvalidTable(f"it contains {is_}, not {wanted}")
    return table
