"""The largest objects and responses that lakegc reads into memory, by kind.

Anyone who may write to a namespace could otherwise put a file there that fills the memory of every process that reads
it. Each limit is far above what lakeFS and lakegc write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from spark_resources.errors import DamagedData

PIECE_SIZE = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """A kind of object: its name for messages, a pattern that matches the end of its keys, and its maximum size."""

    kind: str
    pattern: str
    max_bytes: int


#: The first one that matches a key applies.
LIMITS = (
    SizeLimit("a record", r"\.(json|yaml)\Z", 32 << 20),
    SizeLimit("a table", r"(^|/)[0-9a-f]{64}\Z", 1 << 30),  # lakeFS ends a range at about 20 MB
    SizeLimit("a Parquet file", r"\.parquet\Z", 1 << 30),
    SizeLimit("any other file", "", 4 << 30),
)
#: For one response of the lakeFS server, decompressed: a page has a thousand items.
MAX_RESPONSE_BYTES = 256 << 20


def size_limit(key: str) -> SizeLimit:
    """The limit for the object with this key."""
    return next(limit for limit in LIMITS if re.search(limit.pattern, key))


def check_size(size: int, key: str, where: str) -> None:
    """Raise `DamagedData` if an object of this size, in bytes, is too large to be read. `where` is its store."""
    limit = size_limit(key)
    if size > limit.max_bytes:
        raise DamagedData(
            f"{key} in {where} has {size:,} bytes or more, but {limit.kind} has at most {limit.max_bytes:,}, so it was "
            "not read. Find out who wrote it, and move it elsewhere."
        )


def joined(pieces: Iterator[bytes], key: str, where: str) -> bytes:
    """The pieces of an object of unknown size. Raises as `check_size` does, as soon as they are too large."""
    content, size = [], 0
    for piece in pieces:
        size += len(piece)
        check_size(size, key, where)
        content.append(piece)
    return b"".join(content)
