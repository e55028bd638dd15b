"""Folders for files that outlive a process: in the user's home, or in a private temporary folder.

The temporary folder is used if the home isn't writable. No other user may enter these folders. lakegc doesn't depend on
the files in them.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

from spark_resources.errors import Refused
from spark_resources.host.private_files import private_folder

NAME = "lakegc"
NO_HOME = Path("/nonexistent")  # Debian's entry in passwd for users without a home


def home_folder() -> Path:
    """This user's home folder, which might not exist; NO_HOME if it is unknown."""
    try:
        return Path.home()
    except RuntimeError:  # HOME isn't set, and the user has no entry in passwd, as in containers
        return NO_HOME


def cache_folder() -> Path:
    """The folder for files that can be recreated: Spark's classes, fonts, compiled functions."""
    try:
        return writable_folder(platformdirs.user_cache_path(NAME))
    except (OSError, RuntimeError, Refused):
        return writable_folder(temporary_folder() / "cache")


def data_folder(name: str, on_fallback: Callable[[Path], None]) -> Path:
    """A folder for files that should be kept. If a temporary folder is used instead, `on_fallback` is called with it.

    Raises `Refused` if a link or another user's folder has its name.
    """
    try:
        return writable_folder(platformdirs.user_data_path(NAME) / name)
    except (OSError, RuntimeError):
        folder = writable_folder(temporary_folder() / name)
        on_fallback(folder)
        return folder


def writable_folder(folder: Path) -> Path:
    """A private folder, which is created if it is missing.

    Raises `Refused` like `private_folder`, and `OSError` if it can't be created or written to.
    """
    if not folder.is_absolute():  # "~/…", if the home is unknown: newer platformdirs raise RuntimeError
        raise FileNotFoundError(f"{folder} is not an absolute path: this user's home folder is unknown")
    private_folder(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} isn't writable")
    return folder


def temporary_folder() -> Path:
    """lakegc's folder for temporary files, shared by all processes of this user.

    If another user has taken its name, this is a new folder for this process only.
    """
    try:
        return writable_folder(Path(tempfile.gettempdir()).absolute() / f"{NAME}-{os.geteuid()}")
    except (OSError, Refused):
        return _process_folder(os.getpid())


@functools.cache
def _process_folder(_: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"{NAME}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
