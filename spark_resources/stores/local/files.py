"""Changes a folder of objects so that neither a crash nor a concurrent writer leaves a partial object or loses one.

A write is completed in a hidden folder, synced to disk, and moved into place in one step. Every change holds one lock
across threads and processes, so conditional writes are atomic among all lakegc processes. A crash may leave a hidden
file (before the move) or an empty folder (after creating it, or after deleting its last object).
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from spark_resources.stores.local.listing import HIDDEN, open_chain, open_folder, open_path, refuse_symlink
from spark_resources.stores.polling import poll

_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_serial = itertools.count()
LOCK_WAIT_S = 60.0  # another process holds the lock only while it moves or removes one file


class NotAnObject(OSError):
    """Raised if no object can be written or deleted at a key, e.g. because a folder has its name."""


def modified_at(status: os.stat_result) -> datetime:
    """The modification time of a file. One that no datetime can hold becomes the latest possible time, so the file
    counts as young."""
    try:
        return datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def split_key(key: str) -> tuple[list[bytes], bytes]:
    """The folders of a key, and its name in the innermost one."""
    *folders, name = key.encode().split(b"/")
    return folders, name


@contextmanager
def open_object(root: int, key: str) -> Iterator[int]:
    """The file descriptor of an object. Raises `IsADirectoryError` if the key is a folder or a special file."""
    folders, name = split_key(key)
    folder = open_path(root, folders)
    try:
        refuse_symlink(name, folder)
        descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(key)
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Changes:
    """One folder of objects, opened for changes: its root and the hidden folder in it."""

    root: int
    hidden: int

    @classmethod
    @contextmanager
    def under(cls, root: int) -> Iterator[Changes]:
        with suppress(FileExistsError):  # the hidden folder usually exists
            os.mkdir(HIDDEN, dir_fd=root)
        hidden = open_folder(HIDDEN, root)
        try:
            yield cls(root, hidden)
        finally:
            os.close(hidden)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder's lock. Raises `TimeoutError` if another process doesn't release it."""
        refuse_symlink(b"lock", self.hidden)
        descriptor = os.open(b"lock", _LOCK_FLAGS, 0o666, dir_fd=self.hidden)
        try:
            locked = poll(lambda: _try_lock(descriptor), timeout_s=LOCK_WAIT_S, first_wait_s=0.001, longest_wait_s=0.05)
            if locked is None:
                raise TimeoutError(
                    errno.ETIMEDOUT,
                    f"another process has held the lock {HIDDEN.decode()}/lock for {LOCK_WAIT_S:g} s. Find it with "
                    "lsof, end it if it hangs, and run the same command again",
                )
            yield
        finally:
            os.close(descriptor)  # this also releases the lock

    @contextmanager
    def temp_file(self, content: Iterable[bytes], modification_time: float | None) -> Iterator[bytes]:
        """The name of a complete hidden file with this content, synced to disk.

        The file is removed afterwards, unless it was moved. Its time is `modification_time` in seconds since the epoch,
        or now if None.
        """
        descriptor, name = self._new_file()
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in content:
                    file.write(piece)
                file.flush()
                if modification_time is not None:
                    os.utime(file.fileno(), (modification_time, modification_time))
                os.fsync(file.fileno())
            yield name
        finally:
            with suppress(FileNotFoundError):  # moved into place
                os.unlink(name, dir_fd=self.hidden)

    def move_into_place(self, temp_file: bytes, key: str) -> None:
        """Move a temporary file to the key, replacing any object there."""
        with self._parent(key) as (folder, name):
            self._refuse_non_file(folder, name)
            os.replace(temp_file, name, src_dir_fd=self.hidden, dst_dir_fd=folder)
            os.fsync(folder)

    def move_if_absent(self, temp_file: bytes, key: str) -> bool:
        """Move a temporary file to the key; False if the key already exists."""
        with self._parent(key) as (folder, name):
            self._refuse_non_file(folder, name)
            try:  # atomic: the file system refuses the link if any program has created a file of this name
                os.link(temp_file, name, src_dir_fd=self.hidden, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return False
            os.fsync(folder)
        return True

    def remove(self, key: str) -> bool:
        """Delete an object and the parent folders that become empty; False if there is no object with that key."""
        folders, name = split_key(key)
        try:
            with open_chain(self.root, folders, create=False) as chain:
                refuse_symlink(name, chain[-1])
                mode = os.stat(name, dir_fd=chain[-1], follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    return False  # a folder is part of other objects' keys, not an object
                if not stat.S_ISREG(mode):
                    raise NotAnObject("it is neither a file nor a folder")
                os.unlink(name, dir_fd=chain[-1])
                _remove_empty(chain, folders)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _new_file(self) -> tuple[int, bytes]:
        while True:
            name = f"{os.getpid()}-{threading.get_ident()}-{next(_serial)}".encode()
            with suppress(FileExistsError):  # left by a killed process with the same id
                return os.open(name, _NEW_FILE_FLAGS, 0o666, dir_fd=self.hidden), name

    @contextmanager
    def _parent(self, key: str) -> Iterator[tuple[int, bytes]]:
        folders, name = split_key(key)
        try:
            folder = open_path(self.root, folders, create=True)
        except NotADirectoryError:
            raise NotAnObject("a part of its path is an object, not a folder") from None
        try:
            yield folder, name
        finally:
            os.close(folder)

    @staticmethod
    def _refuse_non_file(folder: int, name: bytes) -> None:
        refuse_symlink(name, folder)
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise NotAnObject("a folder or a special file has that name")


def _try_lock(descriptor: int) -> bool | None:
    """True if the lock was taken; None if another process or thread holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    return True


def _remove_empty(chain: Sequence[int], folders: Sequence[bytes]) -> None:
    """Remove the folders that are now empty, innermost first. They are not objects, so a failure is harmless."""
    for parent, name in reversed(list(zip(chain, folders, strict=False))):
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError:
            return
