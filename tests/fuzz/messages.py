"""The protobuf messages of commits, branches, tags, ranges and entries, with correct tables around them: each is
refused, or equals what is read after it was written again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from spark_resources.model import Commit
from spark_resources.sstable import Branch, Entry, RangeRef, Record, Tag, values
from spark_resources.sstable.content_ids import entry_identity
from spark_resources.sstable.wire import InvalidTable, as_uvarint, uvarint
from tests.fuzz.target import Kind, Target, require, value_or_refusal

NOON = datetime(2026, 11, 21, 12, 0, 0, 5, UTC)
ID, OTHER = "a" * 64, "b" * 64


def _input(record: Record) -> bytes:
    return as_uvarint(len(record.key)) + record.key + record.value


def _record(data: bytes) -> Record:
    try:
        length, at = uvarint(data, 0, len(data))
    except InvalidTable:
        return Record(b"", data)
    return Record(data[at : at + length], data[at + length :])


def _entry(record: Record) -> Entry:
    return values.EntryMessage(record.value).to_entry(record.key)


def _encoded_entry(entry: Entry) -> Record:
    return Record(entry.path, values.encode_value(entry_identity(entry), values.encode_entry(entry)))


def _check(read: Callable[[Record], Any], encode: Callable[[Any], Record], data: bytes) -> None:
    value = value_or_refusal(lambda: read(_record(data)), "", (InvalidTable,))
    if value is not None:
        require(read(encode(value)) == value, f"{value!r} is another value after it was written again")


def _kind(name: str, read: Callable[[Record], Any], encode: Callable[[Any], Record], intact: Sequence[Any]) -> Kind:
    return Kind(name, lambda: [_input(encode(value)) for value in intact], partial(_check, read, encode))


COMMITS = [
    Commit(ID, (OTHER, ID), NOON, OTHER, 1, 9, "ann", "é", {"a": "1", "": ""}),
    Commit(ID, (), datetime(1, 1, 1, tzinfo=UTC), "", 0),
]
ENTRIES = [
    Entry(
        b"a/\xff", "data/x/y", size=-(2**63), checksum="é", last_modified=NOON, metadata={"k": "v"}, content_type="t"
    ),
    Entry(b"", "s3://b/k"),
]
KINDS = [
    _kind("commit", values.commit, values.encode_commit, COMMITS),
    _kind("branch", values.branch, values.encode_branch, [Branch("main", ID), Branch("b", ID, "t", ("s", "t"), True)]),
    _kind("tag", values.tag, values.encode_tag, [Tag("v1", ID)]),
    _kind("range", values.range_ref, values.encode_range_ref, [RangeRef(ID, b"a", b"z", 1 << 40, 9)]),
    _kind("entry", _entry, _encoded_entry, ENTRIES),
]
TARGETS = [Target("messages", KINDS)]
