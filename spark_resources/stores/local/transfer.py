"""Streams local files in pieces. A folder stores no metadata, so a caller has to store it elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_resources.errors import NotFound, WrongUsage
from spark_resources.stores.base import AlreadyExists, Changed, StoredObject
from spark_resources.stores.local.files import modified_at
from spark_resources.stores.transfer import PIECE_SIZE, ObjectProperties, Streams, WrittenObject, require_size

if TYPE_CHECKING:
    from spark_resources.stores.local.store import LocalStore


class LocalStreams:
    """The streams of one folder."""

    def __init__(self, store: LocalStore) -> None:
        self._folder = store.folder
        self.where = store.where

    @property
    def server(self) -> str:
        return "local"

    def properties(self, key: str) -> ObjectProperties:
        with self._folder.file("look up", key) as descriptor:
            return _properties(os.fstat(descriptor))

    def pieces(self, key: str, properties: ObjectProperties) -> Iterator[bytes]:
        return require_size(self._pieces(key, properties), properties.size, key, self.where)

    def _pieces(self, key: str, properties: ObjectProperties) -> Iterator[bytes]:
        with self._folder.file("read", key) as descriptor:
            if _properties(os.fstat(descriptor)).tag != properties.tag:
                raise Changed(f"{key!r} in {self.where} was replaced before lakegc could read it")
            while piece := os.read(descriptor, PIECE_SIZE):
                yield piece
            if _properties(os.fstat(descriptor)).tag != properties.tag:
                raise Changed(f"{key!r} in {self.where} was modified while it was being read")

    def put(self, key: str, pieces: Iterable[bytes], properties: ObjectProperties) -> WrittenObject:
        with self._folder.writing("write", key, pieces) as (changes, temp_file):
            # the tag depends on the file, not on its name
            tag = _properties(os.stat(temp_file, dir_fd=changes.hidden)).tag
            if not changes.move_if_absent(temp_file, key):
                raise AlreadyExists(f"{key!r} already exists in {self.where}")
        return WrittenObject(tag)

    def copy(self, source: Streams, original: StoredObject, key: str) -> WrittenObject:
        if not isinstance(source, LocalStreams):
            raise WrongUsage(f"{source.where} is not a folder on this machine")
        properties = source.properties(original.key)
        return self.put(key, source.pieces(original.key, properties), properties)

    def remove(self, key: str, tag: str) -> None:
        with self._folder.changing("delete", key) as changes, changes.lock(), suppress(NotFound):
            if self.properties(key).tag != tag:
                raise Changed(f"{key!r} in {self.where} was replaced before lakegc could delete it")
            changes.remove(key)


def _properties(status: os.stat_result) -> ObjectProperties:
    tag = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
    return ObjectProperties(status.st_size, modified_at(status), None, tag)
