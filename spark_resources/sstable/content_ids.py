"""Computes lakeFS's ids of tables, commits and entries' content, which are content hashes (formats §3)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from spark_resources.model import Commit
from spark_resources.sstable.records import Entry, Record

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _int64(value: int) -> bytes:
    return b"\x02\x08" + value.to_bytes(8, "big", signed=True)


def _bytes(value: bytes) -> bytes:
    return b"\x01" + _int64(len(value)) + value


def _string(value: str) -> bytes:
    return _bytes(value.encode("utf-8"))


def _strings(values: Sequence[str]) -> bytes:
    return b"\x03" + _int64(len(values)) + b"".join(map(_string, values))


def _string_map(values: Mapping[str, str]) -> bytes:
    in_order = sorted((key.encode("utf-8"), value.encode("utf-8")) for key, value in values.items())
    return b"\x04" + _int64(len(in_order)) + b"".join(_bytes(key) + _bytes(value) for key, value in in_order)


def _nested(digest: bytes) -> bytes:
    return b"\x05\x00" + _int64(len(digest)) + digest


def record_content(record: Record) -> bytes:
    """A record in the form from which its table's id is computed."""
    return b"%d%b|%d%b|" % (len(record.key), record.key, len(record.value), record.value)


def content_id(content: Iterable[bytes], user_properties: Mapping[str, str]) -> str:
    """The id of a table with these records (in the form of `record_content`) and user properties."""
    digest = hashlib.sha256()
    for chunk in content:
        digest.update(chunk)
    digest.update(_string_map(user_properties))
    return digest.hexdigest()


def commit_id(commit: Commit) -> str:
    """The id computed from a commit's content, independent of `commit.id`. Its date is truncated to whole seconds."""
    digest = hashlib.sha256()
    for text in ("commit:v1", commit.committer, commit.message, commit.metarange_id):
        digest.update(_string(text))
    digest.update(_int64((commit.created - _EPOCH) // timedelta(seconds=1)))
    digest.update(_string_map(commit.metadata))
    digest.update(_nested(hashlib.sha256(_strings(commit.parents)).digest()))
    return digest.hexdigest()


def entry_identity(entry: Entry) -> bytes:
    """The hash by which entries are compared: of size, checksum, metadata and (if set) content type, not of address."""
    content = _int64(entry.size) + _string(entry.checksum) + _string_map(entry.metadata)
    if entry.content_type:
        content += _string(entry.content_type)
    return hashlib.sha256(content).digest()
