"""Where lakegc keeps what outlives a process: below the user's home, or, where nothing can be written there, in a
private temporary folder. Nobody else may enter any of it, and none of it is needed to go on.
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
NO_HOME = Path("/nonexistent")  # as Debian's passwd has it for users without one


def home_folder() -> Path:
    """This user's home folder, which need not be there; NO_HOME where nothing says which it is."""
    try:
        return Path.home()
    except RuntimeError:  # HOME isn't set, and the user has no entry in passwd, as in containers
        return NO_HOME


def cache_folder() -> Path:
    """The folder for what can be made again: Spark's classes, fonts, compiled functions."""
    try:
        return writable_folder(platformdirs.user_cache_path(NAME))
    except (OSError, RuntimeError, Refused):
        return writable_folder(temporary_folder() / "cache")


def data_folder(name: str, fallen_back: Callable[[Path], None]) -> Path:
    """A folder for what should last. `fallen_back` gets the one that is taken where none can be made in the home.

    Raises `Refused` where a link or somebody else's folder has its place.
    """
    try:
        return writable_folder(platformdirs.user_data_path(NAME) / name)
    except (OSError, RuntimeError):
        folder = writable_folder(temporary_folder() / name)
        fallen_back(folder)
        return folder


def writable_folder(folder: Path) -> Path:
    """A private folder, made where it isn't there. Raises `Refused` like `private_folder`, `OSError` where it can't be
    made or written to."""
    if not folder.is_absolute():  # "~/…", where nothing says which home: newer versions raise RuntimeError
        raise FileNotFoundError(f"{folder} is no place for files")
    private_folder(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} can't be written to")
    return folder


def temporary_folder() -> Path:
    """lakegc's folder among temporary files, the same for all processes of this user; one of this process's own where
    its name was taken by somebody else."""
    try:
        return writable_folder(Path(tempfile.gettempdir()).absolute() / f"{NAME}-{os.geteuid()}")
    except (OSError, Refused):
        return _new_folder(os.getpid())


@functools.cache
def _new_folder(_: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"{NAME}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
