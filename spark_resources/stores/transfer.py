"""Streaming whole objects with their metadata between stores, for backups and restores.

A `Store` is opened on one namespace and copies only within it. Streams copy from one namespace to another: server-side
if one provider has both, otherwise in pieces through this machine. Nothing here replaces an object.
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
from spark_resources.stores.retry import RetryPolicy, delete_own

PIECE = 1024 * 1024  # bytes read at a time
PART = 8 * 1024 * 1024  # bytes sent in one request; one copy holds that many in memory
HEADERS = ("Content-Type", "Content-Encoding", "Content-Disposition", "Content-Language", "Cache-Control")
"""The headers that stores keep with an object and return to its readers, by their HTTP names."""

_ASCII = re.compile(r"^[\x20-\x7e]*$")


class Cold(Unavailable):
    """Raised for an object in an archive tier, which can't be read until it is restored."""


@dataclass(frozen=True, slots=True)
class ObjectProperties:
    """The properties of one object. `tag` identifies exactly this content, in the store's notation.

    `checksum` is the one that a listing shows; `headers` are those of HEADERS that it has, `metadata` is the user's.
    """

    size: int
    modified: datetime
    checksum: str | None
    tag: str
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Written:
    """An object that was written: its `tag` as in `ObjectProperties`, None if the store didn't report it.

    `checksums` are those that the store shows for exactly these bytes; empty if it doesn't show any.
    """

    tag: str | None
    checksums: frozenset[str] = frozenset()


class Streams(Protocol):
    """The objects of one namespace, to be read and written in pieces. Thread-safe.

    Raises the errors of `Store`, and `Cold`.
    """

    where: str

    @property
    def server(self) -> str:
        """The server that makes the copies: equal if both namespaces have the same provider, endpoint and account."""
        ...

    def properties(self, key: str) -> ObjectProperties: ...

    def pieces(self, key: str, properties: ObjectProperties) -> Iterator[bytes]:
        """The bytes of the object that `properties` describes. Raises `Changed` if it was replaced in the meantime."""
        ...

    def put(self, key: str, pieces: Iterable[bytes], properties: ObjectProperties) -> Written:
        """Write an object, or raise `AlreadyExists` if one exists. Holds PART bytes, or little more, in memory.

        Headers and metadata are kept as far as the store supports them.
        """
        ...

    def copy(self, source: Streams, found: StoredObject, key: str) -> Written:
        """Copy an object of the same server with its headers and metadata, provided it is unchanged since `found`.

        Raises `AlreadyExists` if the key exists (`copies_if_absent` checks whether that is atomic), `Changed` and
        `NotFound` for the source. The checksum is the one that the store reports for the copy.
        """
        ...

    def remove(self, key: str, tag: str) -> None:
        """Delete the object that was written here with this tag, if it is still there.

        Raises `Changed` for a different object, which stays.
        """
        ...


# --- receiving --------------------------------------------------------------------------------------------------------


class Hashed:
    """Passes pieces through and computes their SHA-256, MD5 and CRC32C, each in the format that stores show."""

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

    def drained(self) -> Hashed:
        """Consumes all pieces, and returns itself."""
        for _ in self:
            pass
        return self


def require_size(pieces: Iterable[bytes], size: int, key: str, where: str) -> Iterator[bytes]:
    """The same pieces. Raises `Transient` after the last one unless they have `size` bytes in total."""
    seen = 0
    for piece in pieces:
        seen += len(piece)
        yield piece
    if seen != size:
        raise Transient(f"{key!r} in {where} has {size} bytes, but {seen} were received. Try again.")


def resumed(
    policy: RetryPolicy,
    open_at: Callable[[int], AbstractContextManager[Callable[[], bytes]]],
    translated_errors: Callable[[], AbstractContextManager[None]],
    size: int,
) -> Iterator[bytes]:
    """The pieces of an object of this size, with retries by the policy that resume where reading failed.

    `open_at` opens the object at an offset, and yields a function that returns the next piece, empty after the last
    one. `translated_errors` translates the client's errors into lakegc's.
    """
    with ExitStack() as stack:
        start, following = 0, None

        def next_piece() -> bytes:
            nonlocal following
            if following is None and 0 < start == size:
                return b""
            try:
                with translated_errors():
                    if following is None:
                        following = stack.enter_context(open_at(start))
                    return following()
            except BaseException:
                following = None
                stack.close()
                raise

        while piece := policy.call(next_piece):
            start += len(piece)
            yield piece


def refuse_other_start(status: int, start: int, key: str, where: str) -> None:
    """Raise `Unavailable` if a response doesn't start at the requested offset."""
    if start and status != 206:
        raise Unavailable(f"{key!r} in {where} can't be read from byte {start}: the store returned HTTP {status}")


def parts(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in parts of this size; the last one may be shorter. No bytes yield no parts."""
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
    """The metadata that fits into headers: names that match a pattern, printable ASCII values without outer spaces."""
    return {
        name: value
        for name, value in values.items()
        if names.match(name) and _ASCII.match(value) and value == value.strip(" ")
    }


# --- conditional copies -----------------------------------------------------------------------------------------------


def copies_if_absent(streams: Streams, store: Store, scratch: str, properties: ObjectProperties) -> bool:
    """Whether a server-side copy never replaces an existing object, tested under a prefix of lakegc's own.

    The prefix must be new, and is cleared afterwards.
    """
    one, two = f"{scratch}one", f"{scratch}two"
    try:
        for key, data in ((one, b"one"), (two, b"two")):
            streams.put(key, [data], properties_of(data, properties))
        found = store.stat(one)
        with suppress(AlreadyExists):
            streams.copy(streams, found, two)
            return False
        return store.read(two) == b"two"
    except Unavailable:
        return False
    finally:
        delete_own(store, [one, two])


def properties_of(data: bytes, properties: ObjectProperties) -> ObjectProperties:
    return ObjectProperties(len(data), properties.modified, None, "")


def stat_or_none(store: Store, key: str) -> StoredObject | None:
    try:
        return store.stat(key)
    except NotFound:
        return None
