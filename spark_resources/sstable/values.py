"""The value of a record: a pair of identity and data, and the protobuf messages in it (formats §3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from spark_resources.model import AddressType, Commit
from spark_resources.sstable.records import Branch, Entry, RangeRef, Record, Tag
from spark_resources.sstable.wire import (
    LENGTH_DELIMITED,
    VARINT,
    InvalidTable,
    as_uvarint,
    bytes_field,
    fields,
    signed,
    text,
    text_field,
    uvarint,
    varint_field,
)

ENTRY_FIELDS = {1: LENGTH_DELIMITED, 2: LENGTH_DELIMITED, 3: VARINT, 4: LENGTH_DELIMITED, 5: LENGTH_DELIMITED,
                6: VARINT, 7: LENGTH_DELIMITED}  # fmt: skip
_RANGE_FIELDS = {1: LENGTH_DELIMITED, 2: LENGTH_DELIMITED, 3: VARINT, 4: VARINT}
_COMMIT_FIELDS = {1: LENGTH_DELIMITED, 2: LENGTH_DELIMITED, 3: LENGTH_DELIMITED, 4: LENGTH_DELIMITED,
                  5: LENGTH_DELIMITED, 6: LENGTH_DELIMITED, 7: LENGTH_DELIMITED, 8: VARINT, 9: VARINT}  # fmt: skip
_BRANCH_FIELDS = {1: LENGTH_DELIMITED, 2: LENGTH_DELIMITED, 3: LENGTH_DELIMITED, 4: LENGTH_DELIMITED, 5: VARINT}
_TAG_FIELDS = {1: LENGTH_DELIMITED, 2: LENGTH_DELIMITED}
_TIME_FIELDS = {1: VARINT, 2: VARINT}
_PAIR_FIELDS = {1: LENGTH_DELIMITED, 2: LENGTH_DELIMITED}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_SECOND, LAST_SECOND = -62135596800, 253402300799  # years 1 to 9999, as specified for protobuf's Timestamp
_HEX_ID = re.compile(r"[0-9a-f]{64}")


class Value(NamedTuple):
    """A record's value: the identity by which it is compared, and its data."""

    identity: bytes
    data: bytes


def split_value(stored: bytes) -> Value:
    """The two parts of a stored value. Raises `InvalidTable` if anything follows them."""
    identity, at = _part(stored, 0)
    data, at = _part(stored, at)
    if at != len(stored):
        raise InvalidTable("a value has trailing bytes")
    return Value(identity, data)


def _part(stored: bytes, at: int) -> tuple[bytes, int]:
    zigzag, at = uvarint(stored, at, len(stored))
    length = zigzag >> 1
    if zigzag & 1 or length > len(stored) - at:
        raise InvalidTable("a part of a value runs past the value's end")
    return stored[at : at + length], at + length


def encode_value(identity: bytes, data: bytes) -> bytes:
    return as_uvarint(len(identity) << 1) + identity + as_uvarint(len(data) << 1) + data


class _Message:
    """A message's fields by number. Raises `InvalidTable` if a field that isn't repeated occurs twice."""

    def __init__(
        self, data: bytes, kinds: dict[int, int], what: str, *, repeated: frozenset[int] = frozenset()
    ) -> None:
        self.what = what
        self._numbers: dict[int, int] = {}
        self._bytes: dict[int, list[bytes]] = {}
        for number, value, content in fields(data, kinds, what):
            if number not in repeated and (number in self._numbers or number in self._bytes):
                raise InvalidTable(f"{what} has field {number} twice")
            if kinds[number] == VARINT:
                self._numbers[number] = value
            else:
                self._bytes.setdefault(number, []).append(content)

    def has(self, number: int) -> bool:
        return number in self._bytes

    def number(self, number: int) -> int:
        return signed(self._numbers.get(number, 0))

    def bytes(self, number: int) -> bytes:
        return self._bytes.get(number, [b""])[0]

    def text(self, number: int) -> str:
        return text(self.bytes(number), f"field {number} of {self.what}")

    def texts(self, number: int) -> tuple[str, ...]:
        return tuple(text(data, f"field {number} of {self.what}") for data in self._bytes.get(number, ()))

    def text_map(self, number: int) -> dict[str, str]:
        pairs = [_Message(data, _PAIR_FIELDS, f"a pair of {self.what}") for data in self._bytes.get(number, ())]
        texts = {pair.text(1): pair.text(2) for pair in pairs}
        if len(texts) != len(pairs):
            raise InvalidTable(f"field {number} of {self.what} has a key twice")
        return texts


def _micros(data: bytes, what: str) -> int:
    """A protobuf Timestamp in microseconds since 1970; finer digits are truncated."""
    message = _Message(data, _TIME_FIELDS, what)
    seconds, nanos = message.number(1), message.number(2)
    if not (FIRST_SECOND <= seconds <= LAST_SECOND and 0 <= nanos < 1_000_000_000):
        raise InvalidTable(f"{what} is not a valid time")
    return seconds * 1_000_000 + nanos // 1000


def _time(data: bytes, what: str) -> datetime:
    return _EPOCH + timedelta(microseconds=_micros(data, what))


def _time_field(number: int, time: datetime) -> bytes:
    micros = (time - _EPOCH) // timedelta(microseconds=1)
    seconds, rest = divmod(micros, 1_000_000)
    return bytes_field(number, varint_field(1, seconds) + varint_field(2, rest * 1000))


def _map_field(number: int, pairs: Mapping[str, str]) -> bytes:
    """A map field, in byte order of the keys; both parts of a pair are always written."""
    in_order = sorted((key.encode(), value.encode()) for key, value in pairs.items())
    return b"".join(bytes_field(number, bytes_field(1, key) + bytes_field(2, value)) for key, value in in_order)


# --- entries --------------------------------------------------------------------------------------------------------


class EntryMessage:
    """The protobuf message of an entry.

    Its structure is checked immediately, and a field's content when that field is read.
    """

    def __init__(self, stored: bytes) -> None:
        self._message = _Message(split_value(stored).data, ENTRY_FIELDS, "an entry", repeated=frozenset({5}))
        if not self._message.bytes(1):
            raise InvalidTable("an entry has no address")
        if self._message.number(6) not in (0, 1, 2):
            raise InvalidTable(f"an entry has address type {self._message.number(6)}, which is unknown")

    def address(self) -> str:
        return self._message.text(1)

    def address_type(self) -> int:
        return self._message.number(6)

    def size(self) -> int:
        return self._message.number(3)

    def checksum(self) -> str:
        return self._message.text(4)

    def last_modified(self) -> int | None:
        """Microseconds since 1970, or None if the entry has no time."""
        return _micros(self._message.bytes(2), "an entry's time") if self._message.has(2) else None

    def to_entry(self, path: bytes) -> Entry:
        micros = self.last_modified()
        return Entry(
            path=path,
            address=self.address(),
            address_type=AddressType(self.address_type()),
            size=self.size(),
            checksum=self.checksum(),
            last_modified=None if micros is None else _EPOCH + timedelta(microseconds=micros),
            metadata=self._message.text_map(5),
            content_type=self._message.text(7),
        )


def encode_entry(entry: Entry) -> bytes:
    """The protobuf message of an entry, with its fields in the server's order."""
    return b"".join(
        [
            text_field(1, entry.address),
            b"" if entry.last_modified is None else _time_field(2, entry.last_modified),
            varint_field(3, entry.size),
            text_field(4, entry.checksum),
            _map_field(5, entry.metadata),
            varint_field(6, entry.address_type),
            text_field(7, entry.content_type),
        ]
    )


# --- ranges of a metarange ------------------------------------------------------------------------------------------


def range_ref(record: Record) -> RangeRef:
    """The range in a metarange's record. The record's key must be the range's largest key."""
    identity, data = split_value(record.value)
    range_id = text(identity, "a range's id")
    if _HEX_ID.fullmatch(range_id) is None:
        raise InvalidTable(f"it lists a range with the invalid id '{range_id}'")
    message = _Message(data, _RANGE_FIELDS, f"range {range_id}")
    if message.bytes(2) != record.key:
        raise InvalidTable(f"range {range_id} is stored under a key other than its largest key")
    if message.number(3) < 0 or message.number(4) < 0:
        raise InvalidTable(f"range {range_id} has a negative size or count")
    return RangeRef(range_id, message.bytes(1), message.bytes(2), message.number(3), message.number(4))


def encode_range_ref(ref: RangeRef) -> Record:
    data = b"".join(
        [
            bytes_field(1, ref.min_key) if ref.min_key else b"",
            bytes_field(2, ref.max_key) if ref.max_key else b"",
            varint_field(3, ref.estimated_size),
            varint_field(4, ref.count),
        ]
    )
    return Record(ref.max_key, encode_value(ref.id.encode(), data))


# --- refs dumps -----------------------------------------------------------------------------------------------------


def _dump_message(record: Record, kinds: dict[int, int], what: str, repeated: frozenset[int] = frozenset()) -> _Message:
    """The message in a dump's record, which must be stored under its id."""
    message = _Message(split_value(record.value).data, kinds, what, repeated=repeated)
    if message.bytes(1) != record.key:
        raise InvalidTable(f"{what} is stored under a key other than its id")
    return message


def commit(record: Record) -> Commit:
    """The commit in a dump's record."""
    message = _dump_message(record, _COMMIT_FIELDS, "a commit", frozenset({6, 7}))
    if not message.has(4):
        raise InvalidTable(f"commit {message.text(1)} has no creation date")
    return Commit(
        id=message.text(1),
        parents=message.texts(7),
        created=_time(message.bytes(4), f"the creation date of commit {message.text(1)}"),
        metarange_id=message.text(5),
        version=message.number(8),
        generation=message.number(9),
        committer=message.text(2),
        message=message.text(3),
        metadata=message.text_map(6),
    )


def encode_commit(commit: Commit) -> Record:
    data = b"".join(
        [
            text_field(1, commit.id),
            text_field(2, commit.committer),
            text_field(3, commit.message),
            _time_field(4, commit.created),
            text_field(5, commit.metarange_id),
            _map_field(6, commit.metadata),
            *(bytes_field(7, parent.encode()) for parent in commit.parents),
            varint_field(8, commit.version),
            varint_field(9, commit.generation),
        ]
    )
    return Record(commit.id.encode(), encode_value(commit.id.encode(), data))


def branch(record: Record) -> Branch:
    """The branch in a dump's record."""
    message = _dump_message(record, _BRANCH_FIELDS, "a branch", frozenset({4}))
    return Branch(message.text(1), message.text(2), message.text(3), message.texts(4), bool(message.number(5)))


def encode_branch(branch: Branch) -> Record:
    data = b"".join(
        [
            text_field(1, branch.id),
            text_field(2, branch.commit_id),
            text_field(3, branch.staging_token),
            *(bytes_field(4, token.encode()) for token in branch.sealed_tokens),
            varint_field(5, int(branch.hidden)),
        ]
    )
    return Record(branch.id.encode(), encode_value(branch.commit_id.encode(), data))


def tag(record: Record) -> Tag:
    """The tag in a dump's record."""
    message = _dump_message(record, _TAG_FIELDS, "a tag")
    return Tag(message.text(1), message.text(2))


def encode_tag(tag: Tag) -> Record:
    data = text_field(1, tag.id) + text_field(2, tag.commit_id)
    return Record(tag.id.encode(), encode_value(tag.commit_id.encode(), data))
