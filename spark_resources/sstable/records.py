"""The contents of tables as value types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from spark_resources.model import AddressType

#: The columns that can be read from a range. `path` is binary, because lakeFS accepts any bytes. An address is protobuf
#: text, which is UTF-8. `size` is in bytes; `last_modified` is the time written by the client or server, or null.
ENTRY_SCHEMA = pa.schema(
    [
        pa.field("path", pa.binary(), nullable=False),
        pa.field("address", pa.string(), nullable=False),
        pa.field("address_type", pa.int8(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("last_modified", pa.timestamp("us", tz="UTC"), nullable=True),
    ]
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a range: a path in a commit, and its object.

    `last_modified` is precise to the microsecond, `size` is in bytes, and `checksum` is the content's MD5 computed by
    lakeFS, or any value provided by an import or a client.
    """

    path: bytes
    address: str
    address_type: AddressType = AddressType.RELATIVE
    size: int = 0
    checksum: str = ""
    last_modified: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class RangeRef:
    """One range as listed in its metarange, with its first and last key. `estimated_size` is in bytes."""

    id: str
    min_key: bytes
    max_key: bytes
    estimated_size: int
    count: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch in a refs dump. Dumps of current servers leave the tokens empty."""

    id: str
    commit_id: str
    staging_token: str = ""
    sealed_tokens: tuple[str, ...] = ()
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Tag:
    id: str
    commit_id: str


@dataclass(frozen=True, slots=True)
class TableProperties:
    """The properties of a table. `entity` is set only in refs dumps; the id covers `user_properties` (formats §3)."""

    type: str
    entity: str
    count: int
    num_entries: int
    min_key: bytes
    max_key: bytes
    estimated_size: int
    user_properties: Mapping[str, str]


class Record(NamedTuple):
    """A key without its trailer, and the value as stored."""

    key: bytes
    value: bytes


class WrittenTable(NamedTuple):
    """A table's id, which is its name under `_lakefs/`, and its bytes."""

    id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Dump:
    """A refs dump of one entity: the id that the server would report, and every table by id."""

    id: str
    tables: Mapping[str, bytes]
