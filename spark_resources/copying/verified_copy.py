"""Copies one object from one store to another, and compares it with its source. Never overwrites anything."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from spark_resources.errors import LakegcError, NotFound, Unavailable
from spark_resources.stores.base import Changed, Store, StoredObject
from spark_resources.stores.transfer import HashingIterator, ObjectProperties, Streams, WrittenObject

_TIME_TOLERANCE = timedelta(milliseconds=1)  # less than any change to a file's time
_MD5 = re.compile(r"^[0-9a-f]{32}\Z")


class Differs(LakegcError):
    """Raised when a copy differs from its source."""


class KeyConflict(Differs):
    """Raised when another object is at the target key."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A verified copy. `checksum` is that of the copy, `source_checksum` that of the source, each by its own store.

    `sha256` is that of the bytes, or None if they weren't read. `preserved` are the headers and metadata, or None if
    the store copied them itself."""

    size: int
    checksum: str | None
    source_checksum: str | None
    sha256: str | None = None
    preserved: ObjectProperties | None = None


@dataclass(slots=True)
class Throttle:
    """Limits the bytes per second over all threads of a task; `max_rate` None means no limit. `clock` is in seconds."""

    max_rate: float | None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _busy_until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, size: int) -> None:
        """Wait until this many bytes may be sent."""
        if self.max_rate is None:
            return
        with self._lock:
            now = self.clock()
            starts_at = max(now, self._busy_until)
            self._busy_until = starts_at + size / self.max_rate
        self.sleep(max(0.0, starts_at - now))

    def limit(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.take(len(piece))
            yield piece


@dataclass(slots=True)
class Copier:
    """Copies objects from one store to another. `server_side` means that the store makes the copy itself."""

    source: Store
    target: Store
    server_side: bool
    throttle: Throttle

    @property
    def _from(self) -> Streams:
        return self.source.streams

    @property
    def _to(self) -> Streams:
        return self.target.streams

    def copy(
        self, original: StoredObject, key: str, *, recorded: ObjectProperties | None = None, sha256: str | None = None
    ) -> Copy:
        """Copy an object, provided it is still `original`, to a key where no object exists.

        `recorded` has the headers and metadata for the copy, if the source can't store them. Raises `AlreadyExists`,
        `Changed`, `NotFound` and `InArchiveTier` as streams do, and `Differs` for a copy that isn't identical, which is
        removed; `KeyConflict` if another object may have replaced that copy, in which case nothing is removed. If a
        SHA-256 is given, streamed bytes that don't match it are never written.
        """
        return self.source.retry.call(lambda: self._copy_once(original, key, recorded, sha256))

    def _copy_once(
        self, original: StoredObject, key: str, recorded: ObjectProperties | None, sha256: str | None
    ) -> Copy:
        if self.server_side and recorded is None:
            self.throttle.take(original.size)
            return self._copy_server_side(original, key)
        return self._copy_streamed(original, key, recorded, sha256)

    def _copy_server_side(self, original: StoredObject, key: str) -> Copy:
        written = self._to.copy(self._from, original, key)
        if original.checksum in written.checksums:
            return Copy(original.size, original.checksum, original.checksum)
        source, copy = self._from.properties(original.key), self._to.properties(key)
        with self._removed_if_different(key, written):
            self._refuse_changed(original, source)
            sha256 = self._sha256_if_identical(original.key, source, key, copy)
            if sha256 is None:
                raise Differs(
                    f"the copy of {original.key!r} at {key!r} in {self.target.where} differed from its source"
                )
        return Copy(copy.size, copy.checksum, source.checksum, sha256 or None)

    def _refuse_changed(self, original: StoredObject, properties: ObjectProperties) -> None:
        is_same = (
            properties.checksum == original.checksum
            if original.checksum
            else abs(properties.modified - original.modified) < _TIME_TOLERANCE
        )
        if properties.size != original.size or not is_same:
            raise Changed(f"{original.key!r} in {self.source.where} was replaced after lakegc looked it up")

    def _copy_streamed(
        self, original: StoredObject, key: str, recorded: ObjectProperties | None, sha256: str | None
    ) -> Copy:
        properties = self._from.properties(original.key)
        self._refuse_changed(original, properties)
        target_properties = (
            properties
            if recorded is None
            else replace(properties, headers=recorded.headers, metadata=recorded.metadata)
        )
        hashed = HashingIterator(self.throttle.limit(self._from.pieces(original.key, properties)))
        written = self._to.put(key, _verify_sha256(hashed, sha256, original.key, self.source.where), target_properties)
        copy = self._to.properties(key)
        verified = copy.size == properties.size and copy.checksum in written.checksums
        with self._removed_if_different(key, written):
            if not verified and (copy.size != properties.size or self._sha256(self._to, key, copy) != hashed.sha256):
                raise Differs(
                    f"the copy of {original.key!r} at {key!r} in {self.target.where} differed from its source"
                )
        return Copy(copy.size, copy.checksum, properties.checksum, hashed.sha256, target_properties)

    @contextmanager
    def _removed_if_different(self, key: str, written: WrittenObject) -> Iterator[None]:
        """Removes the copy if it turns out to differ from its source, but never another object.

        Raises `KeyConflict` if another object may have replaced the copy.
        """
        try:
            yield
        except (Differs, Changed) as error:
            conflict = KeyConflict(
                f"the new copy at {key!r} in {self.target.where} may have been replaced by another object, so it was "
                "not deleted"
            )
            if written.tag is None:
                raise conflict from error
            with suppress(Unavailable):  # `error` is more informative
                try:
                    self._to.remove(key, written.tag)
                except Changed:
                    raise conflict from error
            raise

    # --- existing copies --------------------------------------------------------------------------------------------

    def existing_copy(self, original: StoredObject, key: str) -> Copy | None:
        """The existing copy at the key; None if no object exists there. Raises `KeyConflict` for a different object."""
        try:
            copy = self._to.properties(key)
        except NotFound:
            return None
        source = self._from.properties(original.key)
        sha256 = self._sha256_if_identical(original.key, source, key, copy)
        if sha256 is None:
            raise KeyConflict(f"a different object already exists at {key!r} in {self.target.where}")
        return Copy(copy.size, copy.checksum, source.checksum, sha256 or None, source)

    def require_existing(self, original: StoredObject, key: str) -> Copy:
        """Like `existing_copy`, for a key that existed a moment ago."""
        copy = self.existing_copy(original, key)
        if copy is None:
            raise Unavailable(
                f"{key!r} in {self.target.where} existed a moment ago, but no longer does. Run the same command again."
            )
        return copy

    def _sha256_if_identical(
        self, source_key: str, source: ObjectProperties, copy_key: str, copy: ObjectProperties
    ) -> str | None:
        """The common SHA-256, or "" if equal checksums made reading unnecessary; None if the objects differ."""
        if source.size != copy.size:
            return None
        if is_comparable(source.checksum) and source.checksum == copy.checksum:
            return ""
        sha256 = self._sha256(self._from, source_key, source)
        return sha256 if sha256 == self._sha256(self._to, copy_key, copy) else None

    def _sha256(self, streams: Streams, key: str, properties: ObjectProperties) -> str:
        return HashingIterator(self.throttle.limit(streams.pieces(key, properties))).drain().sha256


def _verify_sha256(hashed: HashingIterator, sha256: str | None, key: str, where: str) -> Iterator[bytes]:
    """Passes the pieces through. Raises `Differs` after the last one if they don't have this SHA-256, so nothing is
    written."""
    yield from hashed
    if sha256 not in (None, hashed.sha256):
        raise Differs(f"the content of {key!r} in {where} doesn't match its recorded SHA-256: it was altered")


def is_comparable(checksum: str | None) -> bool:
    """Whether equal checksums of this kind mean equal content across stores: an MD5 (even of parts) or a CRC32C.

    An Azure ETag identifies only one write.
    """
    return checksum is not None and (
        _MD5.match(checksum.partition("-")[0]) is not None or checksum.startswith("crc32c=")
    )
