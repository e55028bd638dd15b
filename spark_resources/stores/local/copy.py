"""Copies a file within its folder, atomically like every write."""

from __future__ import annotations

import os
from collections.abc import Iterator

from spark_resources.errors import WrongUsage
from spark_resources.stores.local.client import Folder

_PIECE = 1 << 20  # bytes read at a time


def copy_object(folder: Folder, source: str, target: str) -> None:
    """Copy an object to another key, replacing any object there. Raises `WrongUsage` if both keys are the same."""
    if source == target:
        raise WrongUsage(f"{source!r} in {folder.where} can't be copied onto itself")
    with (
        folder.changing("copy to", target) as changes,
        folder.file("copy", source) as descriptor,
        changes.temp_file(_pieces(descriptor), folder.modification_time()) as temp_file,
        changes.lock(),
    ):
        changes.move_into_place(temp_file, target)


def _pieces(descriptor: int) -> Iterator[bytes]:
    while piece := os.read(descriptor, _PIECE):
        yield piece
