"""Streaming whole objects with their metadata between stores, for backups and restores.

A `Store` is opened on one namespace and copies only within it. `Streams` copy from one namespace to another:
server-side if both are on one server, otherwise in pieces through this machine. No function here replaces an object.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import google_crc32c

from spark_resources.errors import NotFound, Transient, Unavailable
from spark_resources.stores.base import AlreadyExists, Store, StoredObject
from spark_resources.stores.retry import RetryPolicy, delete_own_files

PIECE_SIZE = 1024 * 1024  # bytes read at a time
PART_SIZE = 8 * 1024 * 1024  # bytes sent in one request, and held in memory by one copy
HEADERS = ("Content-Type", "Content-Encoding", "Content-Disposition", "Content-Language", "Cache-Control")
"""The headers that stores keep with an object and return to its readers, by their HTTP names."""

_ASCII = re.compile(r"^[\x20-\x7e]*\Z")


class InArchiveTier(Unavailable):
    """Raised for an object in an archive tier, which can't be read until it is restored."""


@dataclass(frozen=True, slots=True)
class ObjectProperties:
    """The properties of one object. `tag` identifies exactly this content, in the store's notation.

    `checksum` is the one in listings; `headers` are those of HEADERS that the object has; `metadata` is user-defined.
    """

    size: int
    modified: datetime
    checksum: str | None
    tag: str
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WrittenObject:
    """A written object: its `tag` as in `ObjectProperties`, or None if the store didn't report it.

    An object listed with one of `checksums` has exactly the written bytes. `checksums` is empty if no listed checksum
    guarantees that.
    """

    tag: str | None
    checksums: frozenset[str] = frozenset()


class Streams(Protocol):
    """Reads and writes the objects of one namespace in pieces. Thread-safe.

    Its methods raise the errors of `Store`, and `InArchiveTier`.
    """

    where: str

    @property
    def server(self) -> str:
        """Identifies the server; equal for two namespaces with the same provider, endpoint and account."""
        ...

    def properties(self, key: str) -> ObjectProperties: ...

    def pieces(self, key: str, properties: ObjectProperties) -> Iterator[bytes]:
        """The bytes of the object that `properties` describes. Raises `Changed` if it has been replaced since."""
        ...

    def put(self, key: str, pieces: Iterable[bytes], properties: ObjectProperties) -> WrittenObject:
        """Write an object, or raise `AlreadyExists` if the key exists. Holds about PART_SIZE bytes in memory.

        Headers and metadata are stored if the store supports them.
        """
        ...

    def copy(self, source: Streams, original: StoredObject, key: str) -> WrittenObject:
        """Copy an object on the same server with its headers and metadata, provided it is still `original`.

        Raises `AlreadyExists` if the key exists (`copy_never_replaces` tests whether the store checks that), and
        `Changed` or `NotFound` if the source was replaced or is gone. The result's `checksums` contains the one that
        the store reports for the copy, if any.
        """
        ...

    def remove(self, key: str, tag: str) -> None:
        """Delete the object that was written here with this tag, if it is still there.

        Raises `Changed` for a different object, which stays.
        """
        ...


# --- receiving --------------------------------------------------------------------------------------------------------


class HashingIterator:
    """Passes pieces through and computes their SHA-256, MD5 and CRC32C, each in the format used by stores."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self._sha256, self._md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        self._crc32c: Any = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._sha256.update(piece)
            self._md5.update(piece)
            self._crc32c.update(piece)
            self.size += len(piece)
            yield piece

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def md5(self) -> str:
        return self._md5.hexdigest()

    @property
    def crc32c(self) -> str:
        return f"crc32c={base64.b64encode(self._crc32c.digest()).decode()}"

    def drain(self) -> HashingIterator:
        """Consume all pieces; returns itself."""
        for _ in self:
            pass
        return self


def require_size(pieces: Iterable[bytes], size: int, key: str, where: str) -> Iterator[bytes]:
    """Passes the pieces through. Raises `Transient` after the last one unless they have `size` bytes in total."""
    received = 0
    for piece in pieces:
        received += len(piece)
        yield piece
    if received != size:
        raise Transient(f"{key!r} in {where} has {size} bytes, but {received} were received. Try again.")


def read_with_resume(
    policy: RetryPolicy,
    open_at: Callable[[int], AbstractContextManager[Callable[[], bytes]]],
    translated_errors: Callable[[], AbstractContextManager[None]],
    size: int,
) -> Iterator[bytes]:
    """The pieces of an object of this size. A retry resumes where reading failed.

    `open_at` opens the object at an offset and yields a function that returns the next piece, or no bytes after the
    last one. `translated_errors` translates the client's errors into lakegc's.
    """
    with ExitStack() as stack:
        start, read_next = 0, None

        def next_piece() -> bytes:
            nonlocal read_next
            if read_next is None and 0 < start == size:
                return b""
            try:
                with translated_errors():
                    if read_next is None:
                        read_next = stack.enter_context(open_at(start))
                    return read_next()
            except BaseException:
                read_next = None
                stack.close()
                raise

        while piece := policy.call(next_piece):
            start += len(piece)
            yield piece


def require_start(status: int, start: int, key: str, where: str) -> None:
    """Raise `Unavailable` if a response doesn't start at the requested offset."""
    if start and status != 206:
        raise Unavailable(
            f"{key!r} in {where} can't be read from byte {start}: the store ignored the range (HTTP {status} "
            "instead of 206). Check the endpoint."
        )


def split_into_parts(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Regroup the bytes into parts of this size; the last one may be shorter. Without any bytes, there are no parts."""
    buffered: list[bytes] = []
    length = 0
    for piece in pieces:
        rest = memoryview(piece)
        while length + len(rest) >= size:
            cut = size - length
            yield b"".join([*buffered, rest[:cut]])
            rest, buffered, length = rest[cut:], [], 0
        if len(rest):
            buffered.append(bytes(rest))
            length += len(rest)
    if length:
        yield b"".join(buffered)


def header_metadata(values: Mapping[str, str], names: re.Pattern[str]) -> dict[str, str]:
    """Metadata that headers can carry: names that match `names`, and printable ASCII values without spaces at the
    ends."""
    return {
        name: value
        for name, value in values.items()
        if names.match(name) and _ASCII.match(value) and value == value.strip(" ")
    }


# --- conditional copies -----------------------------------------------------------------------------------------------


def copy_never_replaces(streams: Streams, store: Store, scratch: str, properties: ObjectProperties) -> bool:
    """Whether a server-side copy never replaces an existing object: tested with two files under the prefix `scratch`,
    which are deleted afterwards. Also False if the test fails. Only the time in `properties` is used."""
    first_key, second_key = f"{scratch}one", f"{scratch}two"
    try:
        for key, data in ((first_key, b"one"), (second_key, b"two")):
            streams.put(key, [data], properties_for_data(data, properties))
        original = store.stat(first_key)
        with suppress(AlreadyExists):
            streams.copy(streams, original, second_key)
            return False
        return store.read(second_key) == b"two"
    except Unavailable:
        return False
    finally:
        delete_own_files(store, [first_key, second_key])


def properties_for_data(data: bytes, properties: ObjectProperties) -> ObjectProperties:
    """The properties of a new object with this content; only its time is taken from `properties`."""
    return ObjectProperties(len(data), properties.modified, None, "")


def stat_or_none(store: Store, key: str) -> StoredObject | None:
    try:
        return store.stat(key)
    except NotFound:
        return None
