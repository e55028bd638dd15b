"""A repository's files as lakeFS's local block adapter lays them out: `<configured path>/<name>/<key>` (formats §4)."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from spark_resources.sandbox.clock import SandboxClock
from spark_resources.sandbox.problems import bad_request, no_data

SCHEME = "local://"


class Objects:
    """The objects of one storage namespace. Files carry the sandbox's time of writing."""

    def __init__(self, configured_path: Path, storage_namespace: str, clock: SandboxClock) -> None:
        self._top = configured_path / storage_namespace.removeprefix(SCHEME).strip("/")
        if configured_path not in self._top.parents or ".." in self._top.parts:
            raise bad_request(f"{storage_namespace}: bad path traversal blocked")
        self.storage_namespace = storage_namespace.rstrip("/")
        self._clock = clock

    def location(self, key: str) -> str:
        """The place as the server announces it: scheme, configured path, namespace and key, cleaned like a path."""
        return SCHEME + os.path.normpath(self._top / key)

    def file(self, key: str) -> Path:
        return self._top / key

    def has(self, key: str) -> bool:
        return self.file(key).is_file()

    def read(self, key: str) -> bytes:
        """Raises `Problem` 410 where the object is gone."""
        try:
            return self.file(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise no_data() from None

    def write(self, key: str, data: bytes) -> None:
        self.writer()(key, data)

    def writer(self) -> Callable[[str, bytes], None]:
        """Writes like `write`, for many objects in a row: the clock's file is read once."""
        shifted = self._clock.offset() != timedelta(0)
        now = self._clock.now

        def write(key: str, data: bytes) -> None:
            file = self.file(key)
            try:
                file.write_bytes(data)
            except FileNotFoundError:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
            if shifted:
                _stamp(file, now())

        return write


def _stamp(file: Path, moment: datetime) -> None:
    nanoseconds = int(moment.timestamp() * 1_000_000_000)
    os.utime(file, ns=(nanoseconds, nanoseconds))
