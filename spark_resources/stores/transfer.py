"""Whole objects between stores, in pieces, with what is kept beside their bytes: for backups and their way back.

A `Store` is opened on one namespace and copies inside it only. Streams copy from one namespace to another: on the
store's side where one provider has both, in pieces through this machine otherwise. Nothing here replaces an object.
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

from spark_resources.errors import NotThere, Transient, Unavailable
from spark_resources.stores.base import AlreadyThere, Store, StoredObject
from spark_resources.stores.retry import RetryPolicy, delete_own

PIECE = 1024 * 1024  # bytes read at a time
PART = 8 * 1024 * 1024  # bytes sent in one request; what one copy holds in memory
HEADERS = ("Content-Type", "Content-Encoding", "Content-Disposition", "Content-Language", "Cache-Control")
"""What stores keep beside an object and give to its readers, by the names of HTTP."""

_ASCII = re.compile(r"^[\x20-\x7e]*$")


class Cold(Unavailable):
    """Raised for an object in a tier that can't be read before somebody has it brought back."""


@dataclass(frozen=True, slots=True)
class About:
    """One object as a look at it shows it. `tag` names this very content, as the store writes it.

    `checksum` is what a listing shows; `headers` are those of HEADERS that it has, `metadata` its user's.
    """

    size: int
    modified: datetime
    checksum: str | None
    tag: str
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


class Streams(Protocol):
    """The objects of one namespace, to be read and written in pieces. Safe to call from several threads.

    Raises what stores raise, and `Cold`.
    """

    where: str

    @property
    def server(self) -> str:
        """Whose side copies are made on: equal where one provider, end point and account has both namespaces."""
        ...

    def about(self, key: str) -> About: ...

    def pieces(self, key: str, about: About) -> Iterator[bytes]:
        """The bytes of the object that was looked at. Raises `Changed` where it is another one by now."""
        ...

    def put(self, key: str, pieces: Iterable[bytes], about: About) -> frozenset[str]:
        """Write an object unless one is there: then `AlreadyThere`. Holds PART bytes, or little more, at a time.

        Returns the checksums by which the store shows that it has these bytes; none where it doesn't show that. Of
        headers and metadata it keeps what it can.
        """
        ...

    def copy(self, source: Streams, found: StoredObject, key: str) -> str | None:
        """Copy an object of the same server that is still as it was found, with all that is kept beside it.

        Raises `AlreadyThere` where something is there (whether atomically, `copies_if_absent` finds out), `Changed`
        and `NotThere` of the source. Returns the checksum that the store tells of the copy, None where it doesn't.
        """
        ...


# --- what arrives -----------------------------------------------------------------------------------------------------


class Hashed:
    """Pieces that pass by, hashed: their SHA-256, their MD5 and their CRC32C, each as stores show it."""

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
        """The same after all pieces have passed."""
        for _ in self:
            pass
        return self


def whole(pieces: Iterable[bytes], size: int, key: str, where: str) -> Iterator[bytes]:
    """The pieces, if they are so many bytes in all. Raises `Unavailable` behind the last one otherwise."""
    seen = 0
    for piece in pieces:
        seen += len(piece)
        yield piece
    if seen != size:
        raise Transient(f"{key!r} in {where} has {size} bytes, and {seen} arrived. Try again.")


def resumed(
    policy: RetryPolicy,
    open_at: Callable[[int], AbstractContextManager[Callable[[], bytes]]],
    translated_errors: Callable[[], AbstractContextManager[None]],
    size: int,
) -> Iterator[bytes]:
    """The pieces of an object of this size, read on from where they broke off, by the policy.

    `open_at` opens it from an offset on, and gives what returns the next piece, empty behind the last one.
    `translated_errors` turns the client's errors into the project's.
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
    """Raise `Unavailable` where an answer begins at another place than it was asked to."""
    if start and status != 206:
        raise Unavailable(f"{key!r} in {where} can't be read from byte {start} on: the store answered {status}")


def parts(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in parts of this size; the last one is shorter. Nothing for no bytes."""
    held: list[bytes] = []
    length = 0
    for piece in pieces:
        rest = memoryview(piece)
        while length + len(rest) >= size:
            cut = size - length
            yield b"".join([*held, rest[:cut]])
            rest, held, length = rest[cut:], [], 0
        if len(rest):
            held.append(bytes(rest))
            length += len(rest)
    if length:
        yield b"".join(held)


def plain_text(values: Mapping[str, str], names: re.Pattern[str]) -> dict[str, str]:
    """The metadata that fit into a header: names by a pattern, values of printable ASCII without blanks at the ends."""
    return {
        name: value
        for name, value in values.items()
        if names.match(name) and _ASCII.match(value) and value == value.strip(" ")
    }


# --- what a store does with conditions --------------------------------------------------------------------------------


def copies_if_absent(streams: Streams, store: Store, scratch: str, about: About) -> bool:
    """Whether a copy on the server's side never replaces what is there: tried out under a prefix of lakegc's own.

    The prefix must be new, and is cleared afterwards.
    """
    one, two = f"{scratch}one", f"{scratch}two"
    try:
        for key, data in ((one, b"one"), (two, b"two")):
            streams.put(key, [data], about_bytes(data, about))
        found = store.stat(one)
        with suppress(AlreadyThere):
            streams.copy(streams, found, two)
            return False
        return store.read(two) == b"two"
    except Unavailable:
        return False
    finally:
        delete_own(store, [one, two])


def about_bytes(data: bytes, about: About) -> About:
    return About(len(data), about.modified, None, "")


def stat_or_none(store: Store, key: str) -> StoredObject | None:
    try:
        return store.stat(key)
    except NotThere:
        return None
