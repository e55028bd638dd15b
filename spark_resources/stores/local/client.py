"""A local folder, opened for each use: its files, its clock, and the translation of OS errors into lakegc's."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

from spark_resources.errors import Forbidden, NotFound, Unavailable, WrongUsage, parse_problem
from spark_resources.stores import keys
from spark_resources.stores.base import Capabilities
from spark_resources.stores.local.files import Changes, NotAnObject, open_object
from spark_resources.stores.local.listing import HIDDEN, open_path

CLOCK_FILE = ".clock"
_TRAVERSE_FLAG = getattr(os, "O_PATH", os.O_RDONLY)  # a folder that is only traversed need not be readable

CAPABILITIES = Capabilities(
    reports_missing_deletes=True,
    time_resolution=timedelta(milliseconds=10),  # the granularity of the kernel's file timestamps
    unsupported_keys=frozenset(
        {
            keys.EMPTY_SEGMENT,
            keys.LEADING_SLASH,
            keys.TRAILING_SLASH,
            keys.DOT_SEGMENT,
            keys.NUL,
            keys.LONG_SEGMENT,
            keys.OBJECT_AND_FOLDER,
        }
    ),
)


class Folder:
    """The files under `<local_path>/<subfolder>`, which must exist. Symbolic links are never followed."""

    def __init__(self, local_path: str, subfolder: str) -> None:
        self._base = Path(local_path)
        self._subfolders = (
            keys.check_key(subfolder, f"the folder {local_path}", CAPABILITIES.unsupported_keys).encode().split(b"/")
        )
        self.where = f"the folder {self._base / subfolder}"

    @property
    def clock_offset(self) -> timedelta:
        """The offset in `<local_path>/.clock`; zero if that file is missing. Raises `Unavailable` if it is invalid."""
        path = self._base / CLOCK_FILE
        try:
            return timedelta(seconds=float(json.loads(path.read_bytes())["offset_seconds"]))
        except FileNotFoundError:
            return timedelta(0)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise Unavailable(
                f'{path} must contain {{"offset_seconds": <number>}} ({parse_problem(error)}). Correct or delete it.'
            ) from error

    def modification_time(self) -> float | None:
        """The modification time to set on a written file, in seconds since the epoch; None for the machine's clock."""
        offset = self.clock_offset
        return (datetime.now(UTC) + offset).timestamp() if offset else None

    def check(self, key: str) -> None:
        """Raise `WrongUsage` for a key that a folder can't hold."""
        keys.check_key(key, self.where, CAPABILITIES.unsupported_keys)
        if HIDDEN in key.encode().split(b"/"):
            raise WrongUsage(
                f"{key!r} can't be a key in {self.where}: lakegc uses the folder name {HIDDEN.decode()} for unfinished "
                "writes"
            )

    @contextmanager
    def root(self) -> Iterator[int]:
        """The descriptor of the namespace's folder. Raises `NotFound` if it doesn't exist.

        The configured path may be a symbolic link; no folder below it may be one.
        """
        try:
            base = os.open(self._base, _TRAVERSE_FLAG | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                root = open_path(base, self._subfolders)
            finally:
                os.close(base)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(
                f"{self.where} does not exist. Check LAKEGC_LOCAL_PATH: it must be the local block adapter's "
                "folder on this machine."
            ) from error
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def file(self, action: str, key: str) -> Iterator[int]:
        """A file descriptor for reading an object. Raises `NotFound` if there is none."""
        self.check(key)
        with self.translated_read_errors(action, key), self.root() as root, open_object(root, key) as descriptor:
            yield descriptor

    @contextmanager
    def changing(self, action: str, key: str) -> Iterator[Changes]:
        """The folder, opened for a change at this key. Translates OS errors into lakegc's."""
        self.check(key)
        try:
            with self.root() as root, Changes.under(root) as changes:
                yield changes
        except NotAnObject as error:
            raise WrongUsage(f"{key!r} can't be a key in {self.where}: {error}") from error
        except OSError as error:
            self._fail(action, key, error)

    @contextmanager
    def writing(self, action: str, key: str, pieces: Iterable[bytes]) -> Iterator[tuple[Changes, bytes]]:
        """The locked folder, and the name of a temporary file with this content, ready to be moved to the key."""
        with (
            self.changing(action, key) as changes,
            changes.temp_file(pieces, self.modification_time()) as temp_file,
            changes.lock(),
        ):
            yield changes, temp_file

    @contextmanager
    def translated_read_errors(self, action: str, key: str) -> Iterator[None]:
        """Translates OS errors that occur while reading into lakegc's."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(f"{key!r} does not exist in {self.where}") from error
        except OSError as error:
            self._fail(action, key, error)

    def _fail(self, action: str, key: str, error: OSError) -> NoReturn:
        what = f"could not {action} {key!r} in {self.where}: {error.strerror or error}"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Forbidden(
                f"{what}. Run lakegc as a user with the necessary permissions, or grant them to this user."
            ) from error
        if error.errno == errno.ENAMETOOLONG:
            raise WrongUsage(what) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable(f"{what}. Free some space there, and run the same command again.") from error
        raise Unavailable(what) from error
