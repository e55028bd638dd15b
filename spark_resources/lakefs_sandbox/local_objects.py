"""A folder of objects in the layout of lakeFS's local block adapter: `<configured path>/<name>/<key>` (formats §4).

No key or address can lead outside the configured path: folders are opened one by one, and symbolic links aren't
followed.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spark_resources.errors import Refused, WrongUsage
from spark_resources.lakefs_sandbox.clock import Clock
from spark_resources.lakefs_sandbox.errors import bad_request, no_data
from spark_resources.lakefs_sandbox.objects import ExternalObject, Write
from spark_resources.stores.keys import (
    DOT_SEGMENT,
    EMPTY_SEGMENT,
    LEADING_SLASH,
    LONG_KEY,
    LONG_SEGMENT,
    NUL,
    TRAILING_SLASH,
    check_key,
)
from spark_resources.stores.local.files import open_object, split_key
from spark_resources.stores.local.listing import open_folder, refuse_symlink, walk

LOCAL = "local://"
_UNSUPPORTED_KEYS = frozenset({EMPTY_SEGMENT, LEADING_SLASH, TRAILING_SLASH, DOT_SEGMENT, NUL, LONG_SEGMENT, LONG_KEY})
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalBlockStore:
    """A folder of namespaces, with files that are dated by the sandbox's clock."""

    kind = "local"
    scheme = LOCAL
    default_prefix = LOCAL

    def __init__(self, configured_path: Path, clock: Clock) -> None:
        self.configured_path = configured_path
        self._clock = clock

    def objects(self, storage_namespace: str) -> LocalObjects:
        return LocalObjects(self.configured_path, storage_namespace, self._clock)


class LocalObjects:
    """The objects under `<configured path>/<name>`."""

    def __init__(self, configured_path: Path, storage_namespace: str, clock: Clock) -> None:
        self._configured_path = configured_path
        self._subfolder = storage_namespace.removeprefix(LOCAL).strip("/")
        if any(part in (".", "..") for part in self._subfolder.split("/")):
            raise bad_request(f"{storage_namespace}: bad path traversal blocked")
        _check(self._subfolder)
        self.storage_namespace = storage_namespace.rstrip("/")
        self._clock = clock

    def location(self, key: str) -> str:
        """The location as the server reports it: scheme, configured path, namespace and key, normalized like a path."""
        return LOCAL + os.path.normpath(self.file(key))

    def resolve_address(self, address: str) -> str:
        return address

    def file(self, key: str) -> Path:
        return self._configured_path / self._subfolder / key

    def has(self, key: str) -> bool:
        try:
            with self._open(f"{self._subfolder}/{key}"):
                return True
        except FileNotFoundError:
            return False

    def read(self, key: str) -> bytes:
        return self._read(f"{self._subfolder}/{key}")

    def read_external(self, address: str) -> bytes:
        return self._read(self._key_below_root(address))

    def external_objects(self, address: str) -> Iterator[ExternalObject]:
        prefix = self._key_below_root(address)
        with self._root() as root, _translated_link_errors():
            for key, status in walk(root, prefix.encode()):
                if key is None or status is None or not key.startswith(prefix):
                    continue
                checksum = hashlib.md5(self._read(key), usedforsecurity=False).hexdigest()
                modified = datetime.fromtimestamp(status.st_mtime, UTC)
                yield ExternalObject(
                    address + key[len(prefix) :], key[len(prefix) :], status.st_size, modified, checksum
                )

    def write(self, key: str, data: bytes) -> None:
        with self.writing() as write:
            write(key, data)

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """Yields a faster `write` for many objects: a folder is opened only once for consecutive objects in it."""
        is_shifted = self._clock.offset() != timedelta(0)
        now = self._clock.now
        with self._root() as root, _OpenFolder(root) as folder:

            def write(key: str, data: bytes) -> None:
                full_key = f"{self._subfolder}/{key}"
                _check(full_key)
                try:
                    with _translated_link_errors():
                        folder.write(full_key, data, now() if is_shifted else None)
                except (NotADirectoryError, IsADirectoryError):
                    raise bad_request(
                        f"{key!r} can't be a file: a parent is a file, or a folder has this name"
                    ) from None

            yield write

    def _key_below_root(self, address: str) -> str:
        """A full address as a key below the configured path. Raises `Problem` 400 for an address outside it."""
        rest = address.removeprefix(LOCAL)
        key = rest.removeprefix(f"{self._configured_path}/")
        if rest == address or key.startswith("/"):
            raise bad_request(f"{address}: the sandbox reads only addresses under {LOCAL}{self._configured_path}")
        return key

    def _read(self, key: str) -> bytes:
        try:
            with self._open(key) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise no_data() from None

    @contextmanager
    def _open(self, key: str) -> Iterator[int]:
        """Yields the descriptor of a file. Raises `FileNotFoundError` if it doesn't exist."""
        _check(key)
        try:
            with _translated_link_errors(), self._root() as root, open_object(root, key) as descriptor:
                yield descriptor
        except (NotADirectoryError, IsADirectoryError):
            raise FileNotFoundError(key) from None

    @contextmanager
    def _root(self) -> Iterator[int]:
        root = os.open(self._configured_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield root
        finally:
            os.close(root)


class _OpenFolder:
    """Writes files below a root. Keeps the folder of the last file open for the next one."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._folders: list[bytes] = []
        self._descriptor = os.dup(root)

    def __enter__(self) -> _OpenFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, key: str, data: bytes, modification_time: datetime | None) -> None:
        folders, name = split_key(key)
        if folders != self._folders:
            self._enter(folders)
        try:
            descriptor = os.open(name, _WRITE, 0o666, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                refuse_symlink(name, self._descriptor)
            raise
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if modification_time is not None:
                nanoseconds = int(modification_time.timestamp() * 1_000_000_000)
                os.utime(descriptor, ns=(nanoseconds, nanoseconds))
        finally:
            os.close(descriptor)

    def _enter(self, folders: list[bytes]) -> None:
        folder = os.dup(self._root)
        for name in folders:
            try:
                child = _open_or_create_folder(name, folder)
            finally:
                os.close(folder)
            folder = child
        os.close(self._descriptor)
        self._descriptor, self._folders = folder, folders


def _open_or_create_folder(name: bytes, parent: int) -> int:
    """The descriptor of a folder, which is created if it is missing."""
    try:
        return open_folder(name, parent)
    except FileNotFoundError:
        with suppress(FileExistsError):  # another writer has just created it
            os.mkdir(name, dir_fd=parent)
        return open_folder(name, parent)


@contextmanager
def _translated_link_errors() -> Iterator[None]:
    """Translates the `Refused` raised for a symbolic link into `Problem` 400, because the request is at fault."""
    try:
        yield
    except Refused as error:
        raise bad_request(str(error)) from None


def _check(key: str) -> None:
    """Raise `Problem` 400 for a key that no file can have, or that would name another file."""
    try:
        check_key(key, "the local block store", _UNSUPPORTED_KEYS)
    except WrongUsage as error:
        raise bad_request(f"bad path traversal blocked: {error}") from None
