"""A folder of this machine as a store, as lakeFS's local block adapter lays it out (formats §4).

Listing is `local_tree`'s, changing is `local_files`'; here they become a store, with its errors and its clock.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

from spark_resources.errors import Forbidden, LakegcError, NotThere, Unavailable, WrongUsage
from spark_resources.stores import keys
from spark_resources.stores.base import (
    AlreadyThere,
    Changed,
    DeleteResult,
    Deleting,
    Deletion,
    Page,
    Quirks,
    StoredObject,
)
from spark_resources.stores.local.files import Changes, NotAnObject, file_of
from spark_resources.stores.local.listing import HIDDEN, descended, walk
from spark_resources.stores.retry import NO_RETRIES

CLOCK_FILE = ".clock"
_PASSED = getattr(os, "O_PATH", os.O_RDONLY)  # a folder that is only gone through need not be readable

_QUIRKS = Quirks(
    tells_missing_deletes=True,
    time_resolution=timedelta(milliseconds=10),  # the kernel stamps files with a clock that ticks this coarsely
    unholdable=frozenset(
        {
            keys.EMPTY_SEGMENT,
            keys.LEADING_SLASH,
            keys.TRAILING_SLASH,
            keys.DOT_SEGMENT,
            keys.NUL,
            keys.LONG_SEGMENT,
            keys.BOTH,
        }
    ),
)


class LocalStore:
    """The files under `<local_path>/<inside>` as objects. The root must be there already; links are never followed."""

    retry = NO_RETRIES  # what a folder says doesn't pass

    def __init__(self, local_path: str, inside: str) -> None:
        self._base = Path(local_path)
        self._inside = keys.check_key(inside, f"the folder {local_path}", _QUIRKS.unholdable).encode().split(b"/")
        self._root_path = self._base / inside
        self.where = f"the folder {self._root_path}"

    @property
    def quirks(self) -> Quirks:
        return _QUIRKS

    @property
    def clock_offset(self) -> timedelta:
        """What `<local_path>/.clock` says, zero without it. Raises `Unavailable` where it can't be read."""
        path = self._base / CLOCK_FILE
        try:
            return timedelta(seconds=float(json.loads(path.read_bytes())["offset_seconds"]))
        except FileNotFoundError:
            return timedelta(0)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise Unavailable(f'{path} must hold {{"offset_seconds": <number>}} and does not: {error}') from error

    def now(self) -> datetime:
        return datetime.now(UTC) + self.clock_offset

    def etag_is_md5(self, key: str) -> bool:
        return False

    def deleting(self) -> Deleting:
        return Deleting.FINAL

    # --- reading ----------------------------------------------------------------------------------------------------

    def pages(
        self, prefix: str, *, start_after: str | None = None, delimiter: str | None = None, page_size: int = 1000
    ) -> Iterator[Page]:
        if delimiter is not None and start_after is not None:
            raise WrongUsage("a listing takes start_after or a delimiter, not both: stores disagree on the meaning")
        if delimiter not in (None, "/"):
            raise WrongUsage(f"{self.where} can be listed with the delimiter '/' only, not {delimiter!r}")
        start = keys.check_prefix(prefix, self.where, _QUIRKS.unholdable).encode()
        after = keys.as_bytes(start_after or "", self.where)
        objects: list[StoredObject] = []
        prefixes: list[str] = []
        unreadable = 0
        with self._told("list", prefix), self._root() as root:
            for key, status in walk(root, start, after=after, fold=delimiter is not None):
                if key is None:
                    unreadable += 1
                elif status is None:
                    prefixes.append(key)
                else:
                    objects.append(_stored(key, status))
                if len(objects) + len(prefixes) >= page_size:
                    yield Page(objects, prefixes, unreadable)
                    objects, prefixes, unreadable = [], [], 0
            if objects or prefixes or unreadable:
                yield Page(objects, prefixes, unreadable)

    def stat(self, key: str) -> StoredObject:
        with self._file("look at", key) as descriptor:
            return _stored(key, os.fstat(descriptor))

    def read(self, key: str) -> bytes:
        with self._file("read", key) as descriptor, open(descriptor, "rb", buffering=0, closefd=False) as file:
            return file.readall()  # in one piece, which nobody has to put together

    def read_with_tag(self, key: str) -> tuple[bytes, str]:
        data = self.read(key)
        return data, _tag(data)

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, key: str, data: bytes) -> str:
        with self._changing("write", key) as changes, changes.staged([data], self._stamp()) as staged, changes.lock():
            changes.place(staged, key)
        return _tag(data)

    def write_if_absent(self, key: str, data: bytes) -> str:
        with self._changing("write", key) as changes, changes.staged([data], self._stamp()) as staged, changes.lock():
            if not changes.place_if_free(staged, key):
                raise AlreadyThere(f"{key!r} exists already in {self.where}")
        return _tag(data)

    def replace_if_unchanged(self, key: str, data: bytes, tag: str) -> str:
        with self._changing("replace", key) as changes, changes.staged([data], self._stamp()) as staged, changes.lock():
            try:
                current = _tag(self.read(key))
            except NotThere:
                current = None
            if current != tag:
                what = "is gone" if current is None else "is another object by now"
                raise Changed(f"{key!r} in {self.where} {what}, so it was not replaced")
            changes.place(staged, key)
        return _tag(data)

    def copy(self, source: str, target: str) -> None:
        if source == target:
            raise WrongUsage(f"{source!r} in {self.where} can't be copied onto itself")
        with (
            self._changing("copy to", target) as changes,
            self._file("copy", source) as descriptor,
            changes.staged(_pieces(descriptor), self._stamp()) as staged,
            changes.lock(),
        ):
            changes.place(staged, target)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteResult]:
        return [self._deleted(key) for key in keys]

    def _deleted(self, key: str) -> DeleteResult:
        try:
            with self._changing("delete", key) as changes, changes.lock():
                was_there = changes.remove(key)
        except LakegcError as error:
            return DeleteResult(key, Deletion.FAILED, type(error).__name__, str(error))
        return DeleteResult(key, Deletion.DELETED if was_there else Deletion.ALREADY_GONE)

    # --- below ------------------------------------------------------------------------------------------------------

    def _check(self, key: str) -> None:
        keys.check_key(key, self.where, _QUIRKS.unholdable)
        if HIDDEN in key.encode().split(b"/"):
            raise WrongUsage(f"{key!r} can't be a key in {self.where}: lakegc keeps unfinished writes there")

    def _stamp(self) -> float | None:
        """The time that a written file is to show, in seconds since the epoch; None for the machine's own."""
        offset = self.clock_offset
        return (datetime.now(UTC) + offset).timestamp() if offset else None

    @contextmanager
    def _root(self) -> Iterator[int]:
        """The namespace's folder. The configured path may be a link; what a namespace names below it may not."""
        try:
            base = os.open(self._base, _PASSED | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                root = descended(base, self._inside)
            finally:
                os.close(base)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotThere(
                f"{self.where} does not exist. Check LAKEGC_LOCAL_PATH: it is the local block adapter's path as this "
                "machine sees it."
            ) from error
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def _file(self, doing: str, key: str) -> Iterator[int]:
        self._check(key)
        with self._told(doing, key), self._root() as root, file_of(root, key) as descriptor:
            yield descriptor

    @contextmanager
    def _changing(self, doing: str, key: str) -> Iterator[Changes]:
        self._check(key)
        try:
            with self._root() as root, Changes.under(root) as changes:
                yield changes
        except NotAnObject as error:
            raise WrongUsage(f"{key!r} can't be a key in {self.where}: {error}") from error
        except OSError as error:
            self._fail(doing, key, error)

    @contextmanager
    def _told(self, doing: str, key: str) -> Iterator[None]:
        """Turns the system's errors on reading into the project's."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotThere(f"{key!r} does not exist in {self.where}") from error
        except OSError as error:
            self._fail(doing, key, error)

    def _fail(self, doing: str, key: str, error: OSError) -> NoReturn:
        what = f"could not {doing} {key!r} in {self.where}: {error.strerror or error}"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Forbidden(f"{what}. Run as a user who may, or give this one the right to.") from error
        if error.errno == errno.ENAMETOOLONG:
            raise WrongUsage(what) from error
        raise Unavailable(what) from error


def _stored(key: str, status: os.stat_result) -> StoredObject:
    return StoredObject(key, status.st_size, datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC))


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _pieces(descriptor: int) -> Iterator[bytes]:
    while piece := os.read(descriptor, 1 << 20):
        yield piece
