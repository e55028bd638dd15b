"""The readable decoder: complete and in plain Python. It is the specification for other decoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_resources.sstable.blocks import Table, records
from spark_resources.sstable.content_ids import record_content
from spark_resources.sstable.records import ENTRY_SCHEMA
from spark_resources.sstable.values import EntryMessage

_READERS: dict[str, Callable[[bytes, EntryMessage], Any]] = {
    "path": lambda path, entry: path,
    "address": lambda path, entry: entry.address(),
    "address_type": lambda path, entry: entry.address_type(),
    "size": lambda path, entry: entry.size(),
    "checksum": lambda path, entry: entry.checksum(),
    "last_modified": lambda path, entry: entry.last_modified(),
}


class ReadableDecoder:
    """Decodes one record at a time, at 30,000 to 50,000 records per second."""

    name = "readable"

    def entries(self, table: Table, columns: Sequence[str]) -> pa.RecordBatch:
        readers = [_READERS[column] for column in columns]
        values_by_column: list[list[Any]] = [[] for _ in columns]
        for path, value in records(table):
            entry = EntryMessage(value)
            for values, read in zip(values_by_column, readers, strict=True):
                values.append(read(path, entry))
        schema = pa.schema([ENTRY_SCHEMA.field(column) for column in columns])
        arrays = [pa.array(values, field.type) for values, field in zip(values_by_column, schema, strict=True)]
        return pa.record_batch(arrays, schema=schema)

    def entries_and_content(self, table: Table, columns: Sequence[str]) -> tuple[pa.RecordBatch, Iterator[bytes]]:
        return self.entries(table, columns), self.content(table)

    def content(self, table: Table) -> Iterator[bytes]:
        return map(record_content, records(table))
