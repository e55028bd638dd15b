"""The interface to the storage of a repository's objects. Implementations use a folder or a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import NamedTuple, Protocol

Write = Callable[[str, bytes], None]


class ExternalObject(NamedTuple):
    """An object that can be imported: full address, key after the requested prefix, and the store's metadata."""

    address: str
    key: str
    size: int
    modified: datetime
    checksum: str


class Objects(Protocol):
    """The objects of one storage namespace, and read access to other objects in the same block store.

    Raises `Problem` 410 for a missing object, and 400 for a key or an address that is invalid here.
    """

    storage_namespace: str

    def location(self, key: str) -> str:
        """The location of a key as the server reports it."""
        ...

    def resolve_address(self, address: str) -> str:
        """A full address as the server resolves it."""
        ...

    def has(self, key: str) -> bool: ...

    def read(self, key: str) -> bytes: ...

    def read_external(self, address: str) -> bytes:
        """The object at a full address in the same block store."""
        ...

    def external_objects(self, address: str) -> Iterator[ExternalObject]:
        """The objects whose full address has this prefix, sorted by key."""
        ...

    def write(self, key: str, data: bytes) -> None: ...

    def writing(self) -> AbstractContextManager[Write]:
        """A context manager that yields a function like `write`, for many objects in a row."""
        ...


class BlockStore(Protocol):
    """The store of the sandbox's objects. `kind` is its lakeFS type; default namespaces begin with `default_prefix`."""

    kind: str
    scheme: str
    default_prefix: str

    def objects(self, storage_namespace: str) -> Objects: ...
