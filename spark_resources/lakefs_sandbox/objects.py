"""Where a repository's objects lie, as the rest of the sandbox sees it; a folder and a bucket are behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import NamedTuple, Protocol

Write = Callable[[str, bytes], None]


class Outside(NamedTuple):
    """An object that can be imported: its full address, its key behind what was asked for, and what its store says."""

    address: str
    key: str
    size: int
    modified: datetime
    checksum: str


class Objects(Protocol):
    """The objects of one storage namespace, and reading of others beside it.

    Raises `Problem` 410 for an object that isn't there, 400 for a key or an address that can't be one here.
    """

    storage_namespace: str

    def location(self, key: str) -> str:
        """The place as the server announces it."""
        ...

    def resolved(self, address: str) -> str:
        """The full address that the server reads a full address as."""
        ...

    def has(self, key: str) -> bool: ...

    def read(self, key: str) -> bytes: ...

    def read_elsewhere(self, address: str) -> bytes:
        """The object at a full address in the same block store."""
        ...

    def listed_elsewhere(self, address: str) -> Iterator[Outside]:
        """The objects whose full address begins so, in the order of their keys."""
        ...

    def write(self, key: str, data: bytes) -> None: ...

    def writing(self) -> AbstractContextManager[Write]:
        """Writes like `write`, for many objects in a row."""
        ...


class BlockStore(Protocol):
    """What the sandbox keeps its objects in; `kind` is the block store's type, `default` where repositories go."""

    kind: str
    scheme: str
    default: str

    def objects(self, storage_namespace: str) -> Objects: ...
