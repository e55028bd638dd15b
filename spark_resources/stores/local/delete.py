"""Deletes files and the folders that become empty, with exactly one result per key."""

from __future__ import annotations

from collections.abc import Iterable

from spark_resources.errors import LakegcError
from spark_resources.stores.base import DeleteResult, Deletion
from spark_resources.stores.local.client import Folder


def delete_keys(folder: Folder, keys: Iterable[str]) -> list[DeleteResult]:
    """Delete keys. Returns one result per key, in the given order, and never raises for a single key."""
    return [_delete_key(folder, key) for key in keys]


def _delete_key(folder: Folder, key: str) -> DeleteResult:
    try:
        with folder.changing("delete", key) as changes, changes.lock():
            existed = changes.remove(key)
    except LakegcError as error:
        return DeleteResult(key, Deletion.FAILED, type(error).__name__, str(error))
    return DeleteResult(key, Deletion.DELETED if existed else Deletion.ALREADY_GONE)
