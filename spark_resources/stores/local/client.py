"""A local folder, opened for each use: its files, its clock, and the translation of system errors into lakegc's."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

from spark_resources.errors import Forbidden, NotFound, Unavailable, WrongUsage
from spark_resources.stores import keys
from spark_resources.stores.base import Capabilities
from spark_resources.stores.local.files import Changes, NotAnObject, file_of
from spark_resources.stores.local.listing import HIDDEN, descended

CLOCK_FILE = ".clock"
_TRAVERSE = getattr(os, "O_PATH", os.O_RDONLY)  # a folder that is only traversed need not be readable

CAPABILITIES = Capabilities(
    reports_missing_deletes=True,
    time_resolution=timedelta(milliseconds=10),  # the granularity of the kernel's file timestamps
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


class Folder:
    """The files under `<local_path>/<inside>`. The root must exist already; symbolic links are never followed."""

    def __init__(self, local_path: str, inside: str) -> None:
        self._base = Path(local_path)
        self._inside = keys.check_key(inside, f"the folder {local_path}", CAPABILITIES.unholdable).encode().split(b"/")
        self.where = f"the folder {self._base / inside}"

    @property
    def clock_offset(self) -> timedelta:
        """The offset in `<local_path>/.clock`, zero without that file. Raises `Unavailable` if it can't be read."""
        path = self._base / CLOCK_FILE
        try:
            return timedelta(seconds=float(json.loads(path.read_bytes())["offset_seconds"]))
        except FileNotFoundError:
            return timedelta(0)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise Unavailable(f'{path} must contain {{"offset_seconds": <number>}}: {error}') from error

    def stamp(self) -> float | None:
        """The modification time for a written file, in seconds since the epoch; None for the machine's own clock."""
        offset = self.clock_offset
        return (datetime.now(UTC) + offset).timestamp() if offset else None

    def check(self, key: str) -> None:
        """Raise `WrongUsage` for a key that a folder can't hold."""
        keys.check_key(key, self.where, CAPABILITIES.unholdable)
        if HIDDEN in key.encode().split(b"/"):
            raise WrongUsage(f"{key!r} can't be a key in {self.where}: lakegc uses it for unfinished writes")

    @contextmanager
    def root(self) -> Iterator[int]:
        """The namespace's folder. The configured path may be a symbolic link; no folder below it may be one."""
        try:
            base = os.open(self._base, _TRAVERSE | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                root = descended(base, self._inside)
            finally:
                os.close(base)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(
                f"{self.where} does not exist. Check LAKEGC_LOCAL_PATH: it is the local block adapter's path as this "
                "machine sees it."
            ) from error
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def file(self, doing: str, key: str) -> Iterator[int]:
        """A file descriptor for reading an object."""
        self.check(key)
        with self.reading(doing, key), self.root() as root, file_of(root, key) as descriptor:
            yield descriptor

    @contextmanager
    def changing(self, doing: str, key: str) -> Iterator[Changes]:
        """The folder, opened for a change at this key. Translates system errors on writing into lakegc's."""
        self.check(key)
        try:
            with self.root() as root, Changes.under(root) as changes:
                yield changes
        except NotAnObject as error:
            raise WrongUsage(f"{key!r} can't be a key in {self.where}: {error}") from error
        except OSError as error:
            self._fail(doing, key, error)

    @contextmanager
    def writing(self, doing: str, key: str, pieces: Iterable[bytes]) -> Iterator[tuple[Changes, bytes]]:
        """The locked folder, and a staged file with this content, ready to be placed at the key."""
        with self.changing(doing, key) as changes, changes.staged(pieces, self.stamp()) as staged, changes.lock():
            yield changes, staged

    @contextmanager
    def reading(self, doing: str, key: str) -> Iterator[None]:
        """Translates system errors on reading into lakegc's."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(f"{key!r} does not exist in {self.where}") from error
        except OSError as error:
            self._fail(doing, key, error)

    def _fail(self, doing: str, key: str, error: OSError) -> NoReturn:
        what = f"could not {doing} {key!r} in {self.where}: {error.strerror or error}"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Forbidden(f"{what}. Run lakegc as a user with permission, or grant it to this user.") from error
        if error.errno == errno.ENAMETOOLONG:
            raise WrongUsage(what) from error
        raise Unavailable(what) from error
