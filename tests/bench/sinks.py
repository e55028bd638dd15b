"""Where a synthetic repository is written: to a folder of files or to a bucket of SeaweedFS, in the fastest way for
each."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class Folder:
    """A namespace as the local block adapter lays it out. Files of objects have their size but no content."""

    root: Path

    def put(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():  # a table's name is the hash of its content, and overwriting files is slow
            path.write_bytes(data)

    def fill(self, objects: Iterable[tuple[str, int, int]]) -> None:
        """Write objects by key, size and time in seconds, in the order of their folders."""
        last = ""
        for key, size, written in objects:
            folder = key.rpartition("/")[0]
            if folder != last:
                (self.root / folder).mkdir(parents=True, exist_ok=True)
                last = folder
            descriptor = os.open(self.root / key, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.truncate(descriptor, size)
                os.utime(descriptor, (written, written))
            finally:
                os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A namespace in a bucket of SeaweedFS that anybody may write to. Objects are empty, and dated by when they are
    written."""

    port: int
    prefix: str  # includes the bucket, without slashes at its ends

    def put(self, key: str, data: bytes) -> None:
        with self._connected() as (sender, responses):
            self._send(sender, key, data)
            _read_response(responses)

    def fill(self, objects: Iterable[tuple[str, int, int]]) -> None:
        keys = [key for key, _, _ in objects]
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(self._fill, np.array_split(np.array(keys), CONNECTIONS)))

    def _fill(self, keys: Iterable[str]) -> None:
        with self._connected() as (sender, responses):
            for key in keys:
                self._send(sender, key, b"")
                _read_response(responses)

    @contextmanager
    def _connected(self) -> Iterator[tuple[socket.socket, BinaryIO]]:
        with socket.create_connection(("127.0.0.1", self.port)) as sender:
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with sender.makefile("rb") as responses:
                yield sender, responses

    def _send(self, sender: socket.socket, key: str, data: bytes) -> None:
        head = f"PUT /{self.prefix}/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
        sender.sendall(head.encode() + data)


def _read_response(responses: BinaryIO) -> None:
    """Read one response. Raises `OSError` if it isn't a success."""
    status, length = responses.readline(), 0
    while (line := responses.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    body = responses.read(length)
    if status[9:10] != b"2":
        raise OSError(f"the store answered {status!r} {body[:200]!r}")


Sink = Folder | Bucket
