"""The store for a local folder, in the layout of lakeFS's local block adapter (formats §4).

It combines `listing`, which walks the folder, `files`, which changes it, and `client`, which has its clock and
translates errors.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property

from spark_resources.errors import NotFound, WrongUsage
from spark_resources.stores import keys
from spark_resources.stores.base import (
    AlreadyExists,
    Capabilities,
    Changed,
    DeleteEffect,
    DeleteResult,
    Page,
    StoredObject,
)
from spark_resources.stores.local.client import CAPABILITIES, Folder
from spark_resources.stores.local.copy import copy_object
from spark_resources.stores.local.delete import delete_keys
from spark_resources.stores.local.files import modified_at
from spark_resources.stores.local.listing import walk
from spark_resources.stores.local.transfer import LocalStreams
from spark_resources.stores.retry import NO_RETRIES
from spark_resources.stores.size_limits import check_size


class LocalStore:
    """The files under `<local_path>/<subfolder>`, which must exist, as objects. Symbolic links are never followed."""

    retry = NO_RETRIES  # a local folder's errors are not temporary

    def __init__(self, local_path: str, subfolder: str) -> None:
        self.folder = Folder(local_path, subfolder)
        self.where = self.folder.where

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def clock_offset(self) -> timedelta:
        """The offset in `<local_path>/.clock`; zero if that file is missing. Raises `Unavailable` if it is invalid."""
        return self.folder.clock_offset

    @cached_property
    def streams(self) -> LocalStreams:
        return LocalStreams(self)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.clock_offset

    def etag_is_md5(self, key: str) -> bool:
        return False

    def delete_effect(self) -> DeleteEffect:
        return DeleteEffect.FINAL

    # --- reading ----------------------------------------------------------------------------------------------------

    def pages(
        self, prefix: str, *, start_after: str | None = None, delimiter: str | None = None, page_size: int = 1000
    ) -> Iterator[Page]:
        if delimiter is not None and start_after is not None:
            raise WrongUsage(
                "a listing takes start_after or a delimiter, not both: stores disagree on what the combination means"
            )
        if delimiter not in (None, "/"):
            raise WrongUsage(f"{self.where} can be listed only with the delimiter '/', not {delimiter!r}")
        start = keys.check_prefix(prefix, self.where, CAPABILITIES.unsupported_keys).encode()
        after = keys.as_bytes(start_after or "", self.where)
        objects: list[StoredObject] = []
        prefixes: list[str] = []
        unreadable = 0
        with self.folder.translated_read_errors("list", prefix), self.folder.root() as root:
            for key, status in walk(root, start, after=after, group_folders=delimiter is not None):
                if key is None:
                    unreadable += 1
                elif status is None:
                    prefixes.append(key)
                else:
                    objects.append(_to_stored_object(key, status))
                if len(objects) + len(prefixes) >= page_size:
                    yield Page(objects, prefixes, unreadable)
                    objects, prefixes, unreadable = [], [], 0
            if objects or prefixes or unreadable:
                yield Page(objects, prefixes, unreadable)

    def stat(self, key: str) -> StoredObject:
        with self.folder.file("look up", key) as descriptor:
            return _to_stored_object(key, os.fstat(descriptor))

    def read(self, key: str) -> bytes:
        with self.folder.file("read", key) as descriptor, open(descriptor, "rb", buffering=0, closefd=False) as file:
            check_size(os.fstat(descriptor).st_size, key, self.where)
            return file.readall()  # in one piece, so that no buffers have to be joined

    def read_with_tag(self, key: str) -> tuple[bytes, str]:
        data = self.read(key)
        return data, _tag(data)

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, key: str, data: bytes) -> str:
        with self.folder.writing("write", key, [data]) as (changes, temp_file):
            changes.move_into_place(temp_file, key)
        return _tag(data)

    def write_if_absent(self, key: str, data: bytes) -> str:
        with self.folder.writing("write", key, [data]) as (changes, temp_file):
            if not changes.move_if_absent(temp_file, key):
                raise AlreadyExists(f"{key!r} already exists in {self.where}")
        return _tag(data)

    def replace_if_unchanged(self, key: str, data: bytes, tag: str) -> str:
        with self.folder.writing("replace", key, [data]) as (changes, temp_file):
            try:
                current = _tag(self.read(key))
            except NotFound:
                current = None
            if current != tag:
                what = "no longer exists" if current is None else "was replaced after it was read"
                raise Changed(f"{key!r} in {self.where} {what}, so it was not overwritten")
            changes.move_into_place(temp_file, key)
        return _tag(data)

    def copy(self, source: str, target: str) -> None:
        copy_object(self.folder, source, target)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteResult]:
        return delete_keys(self.folder, keys)


def _to_stored_object(key: str, status: os.stat_result) -> StoredObject:
    return StoredObject(key, status.st_size, modified_at(status))


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
