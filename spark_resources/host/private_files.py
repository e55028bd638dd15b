"""Files and folders that only this user may open: logs, settings with secrets, sockets, files that a later run reuses.

Others can write to a temporary folder, so files there are not trusted: links are not followed, and another user's files
are refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO

from spark_resources.errors import Refused


def private_folder(folder: Path) -> Path:
    """Create a folder, with its parents, if it is missing, and return it. From then on, only this user may enter it.

    Raises `Refused` for a link, a file or another user's folder, and `OSError` if it can't be created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        os.close(_open(folder, os.O_RDONLY, stat.S_ISDIR))
    return folder


def open_private(file: Path, flags: int = os.O_APPEND) -> IO[bytes]:
    """Open, for writing, a file that only this user may read. Creates it if it is missing.

    Raises `Refused` for a link, for anything but a regular file, and for another user's file.
    """
    return os.fdopen(_open(file, os.O_WRONLY | os.O_CREAT | flags, stat.S_ISREG), "wb")


def is_protected(file: Path, *, forbidden: int = 0o022) -> bool:
    """Whether this is a regular file owned by this user, with none of the `forbidden` permission bits (by default,
    those that let the group or others write)."""
    try:
        status = file.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & forbidden


def _open(path: Path, flags: int, is_kind: Callable[[int], bool]) -> int:
    """A descriptor of the file or folder, after other users' permissions have been removed."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if path.is_symlink():
            raise Refused(
                f"{path} is a symbolic link, which lakegc doesn't follow here. Remove it, and run the same "
                "command again."
            ) from error
        raise
    try:
        status = os.fstat(descriptor)
        if not is_kind(status.st_mode):
            raise Refused(
                f"{path} is not a {'folder' if is_kind is stat.S_ISDIR else 'regular file'}, so lakegc can't use it. "
                "Remove it, and run the same command again."
            )
        if status.st_uid != os.geteuid():
            raise Refused(
                f"{path} belongs to another user. Remove it or have it removed, and run the same command again."
            )
        if status.st_mode & 0o077:
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & 0o700)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
