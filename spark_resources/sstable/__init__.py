"""Reads lakeFS's tables (formats §3) from bytes and writes them to bytes, without access to paths or stores.

`name` is always the table's id. Error messages contain it, and `verify_table` verifies it.
"""

from __future__ import annotations

from spark_resources.sstable.content_ids import commit_id, entry_identity
from spark_resources.sstable.decoders import Decoder, default_decoder
from spark_resources.sstable.readers import (
    range_ref,
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
)
from spark_resources.sstable.records import (
    ENTRY_SCHEMA,
    Branch,
    Dump,
    Entry,
    RangeRef,
    Record,
    TableProperties,
    Tag,
    WrittenTable,
)
from spark_resources.sstable.writer import (
    write_branches,
    write_commits,
    write_metarange,
    write_range,
    write_table,
    write_tags,
)

__all__ = [
    "ENTRY_SCHEMA",
    "Branch",
    "Decoder",
    "Dump",
    "Entry",
    "RangeRef",
    "Record",
    "TableProperties",
    "Tag",
    "WrittenTable",
    "commit_id",
    "default_decoder",
    "entry_identity",
    "range_ref",
    "read_branches",
    "read_commits",
    "read_entries",
    "read_properties",
    "read_ranges",
    "read_records",
    "read_tags",
    "read_verified_entries",
    "read_verified_ranges",
    "read_whole_entries",
    "table_id",
    "verify_table",
    "write_branches",
    "write_commits",
    "write_metarange",
    "write_range",
    "write_table",
    "write_tags",
]
