"""Deleting files: exactly one result per key, and no empty folder is left."""

from __future__ import annotations

from collections.abc import Iterable

from spark_resources.errors import LakegcError
from spark_resources.stores.base import DeleteResult, Deletion
from spark_resources.stores.local.client import Folder


def delete_keys(folder: Folder, wanted: Iterable[str]) -> list[DeleteResult]:
    """One result per key, in the given order. Never raises for a single key."""
    return [_deleted(folder, key) for key in wanted]


def _deleted(folder: Folder, key: str) -> DeleteResult:
    try:
        with folder.changing("delete", key) as changes, changes.lock():
            was_there = changes.remove(key)
    except LakegcError as error:
        return DeleteResult(key, Deletion.FAILED, type(error).__name__, str(error))
    return DeleteResult(key, Deletion.DELETED if was_there else Deletion.ALREADY_GONE)
