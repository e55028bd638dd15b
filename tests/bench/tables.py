"""Ranges of synthetic entries, written by lakegc's own writer from records that are made many at a time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from spark_resources.sstable import Entry, RangeRef, Record, WrittenTable, entry_identity, range_ref, write_table
from spark_resources.sstable.values import encode_entry, encode_value
from tests.bench import names
from tests.bench.history import History
from tests.bench.names import Bytes, Numbers

_CONTENT_TYPE = "application/octet-stream"
_WRITTEN = datetime(2026, 1, 1, tzinfo=UTC)
_SIZE_BYTES = 5  # of every size from `names.LEAST_SIZE` up to 2^35, as a varint


def path_of(trunk: int, place: int, slot: int) -> bytes:
    return b"warehouse-%05d/table-%04d/day=%04d/part-%06d.parquet" % (trunk, place, slot // 200, slot)


@dataclass(frozen=True, slots=True)
class _Template:
    """The value of one entry as lakegc writes it, and the positions of size, address and checksum in it."""

    value: Bytes
    content: Bytes
    size_at: int
    address_at: int
    checksum_at: int

    @classmethod
    def made(cls) -> _Template:
        entry = _entry(b"", "a" * names.ADDRESS, names.LEAST_SIZE, "b" * 32)
        value = encode_value(entry_identity(entry), encode_entry(entry))
        size = bytes([0x80] * (_SIZE_BYTES - 1) + [names.LEAST_SIZE >> 28])
        head = b"\x02\x08" + names.LEAST_SIZE.to_bytes(8, "big") + b"\x01\x02\x08" + (32).to_bytes(8, "big") + b"b" * 32
        text = _CONTENT_TYPE.encode()
        tail = b"\x04\x02\x08" + bytes(8) + b"\x01\x02\x08" + len(text).to_bytes(8, "big") + text
        if hashlib.sha256(head + tail).digest() != entry_identity(entry):
            raise AssertionError("an entry's identity is now made differently (formats §3)")
        places = (value.index(size), value.index(b"a" * names.ADDRESS), value.index(b"b" * 32))
        return cls(np.frombuffer(value, np.uint8), np.frombuffer(head + tail, np.uint8), *places)

    def values(self, addresses: Bytes, sizes: Numbers, checksums: Bytes) -> list[bytes]:
        count = len(sizes)
        rows, content = np.tile(self.value, (count, 1)), np.tile(self.content, (count, 1))
        for place in range(_SIZE_BYTES):
            more = 0x80 if place < _SIZE_BYTES - 1 else 0
            rows[:, self.size_at + place] = (sizes >> (7 * place)) & 0x7F | more
        rows[:, self.address_at : self.address_at + names.ADDRESS] = addresses
        rows[:, self.checksum_at : self.checksum_at + 32] = checksums
        content[:, 2:10] = sizes.astype(">i8").view(np.uint8).reshape(count, 8)
        content[:, 21:53] = checksums
        width, bytes_of = content.shape[1], content.tobytes()
        digests = [hashlib.sha256(bytes_of[at : at + width]).digest() for at in range(0, len(bytes_of), width)]
        rows[:, 1:33] = np.frombuffer(b"".join(digests), np.uint8).reshape(count, 32)
        width, bytes_of = rows.shape[1], rows.tobytes()
        return [bytes_of[at : at + width] for at in range(0, len(bytes_of), width)]


def _entry(path: bytes, address: str, size: int, checksum: str) -> Entry:
    return Entry(path, address, size=size, checksum=checksum, last_modified=_WRITTEN, content_type=_CONTENT_TYPE)


_TEMPLATE = _Template.made()


def values(history: History, objects: Numbers) -> list[bytes]:
    """The values of objects as the server writes them in tables and staging."""
    addresses, checksums = history.addresses(objects), names.checksums(objects)
    encoded = _TEMPLATE.values(addresses, names.sizes(objects), checksums)
    for place in np.flatnonzero(history.sizes(objects) == 0).tolist():  # few: empty objects are encoded differently
        entry = _entry(b"", addresses[place].tobytes().decode(), 0, checksums[place].tobytes().decode())
        encoded[place] = encode_value(entry_identity(entry), encode_entry(entry))
    return encoded


def written_range(history: History, paths: list[bytes], objects: Numbers) -> tuple[RangeRef, WrittenTable]:
    """A range with these objects at these paths, which must be in byte order."""
    records = list(map(Record, paths, values(history, objects)))
    table = write_table(records, {"type": "ranges"})
    return range_ref(table.data, name=table.id), table
