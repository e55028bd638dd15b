"""Files and folders that only this user may open: logs, settings with secrets, sockets, what a later run takes over.

Others can write to a temporary folder, so nothing there is believed by its name: no link is followed, and what belongs
to somebody else is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO

from spark_resources.errors import Refused


def private_folder(folder: Path) -> Path:
    """Make a folder, and those above it, or take the one that is there; only this user may enter it from now on.

    Raises `Refused` for a link, a file and a folder of somebody else's, `OSError` where it can't be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        os.close(_opened(folder, os.O_RDONLY, stat.S_ISDIR))
    return folder


def open_private(file: Path, flags: int = os.O_APPEND) -> IO[bytes]:
    """Open a file to write to it, made where it isn't there, which only this user may read.

    Raises `Refused` for a link, for what is no plain file and for a file of somebody else's.
    """
    return os.fdopen(_opened(file, os.O_WRONLY | os.O_CREAT | flags, stat.S_ISREG), "wb")


def is_private(file: Path, *, others: int = 0o022) -> bool:
    """Whether a plain file of this user's lies there for which nobody else has these rights (those to write)."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & others


def _opened(path: Path, flags: int, is_kind: Callable[[int], bool]) -> int:
    """A descriptor of what lies there, with the rights of others taken away."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if path.is_symlink():
            raise Refused(f"{path} is a link, and lakegc follows none there: remove it, and run it again") from error
        raise
    try:
        found = os.fstat(descriptor)
        if not is_kind(found.st_mode):
            raise Refused(f"{path} is not what lakegc makes there: remove it, and run it again")
        if found.st_uid != os.geteuid():
            raise Refused(f"{path} belongs to another user: remove it, or have it removed, and run it again")
        if found.st_mode & 0o077:
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & 0o700)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
