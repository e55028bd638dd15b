"""A namespace in memory, into which each input is put as a file before it is read."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from spark_resources.model import Namespace
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings


@cache
def _root() -> Path:
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="lakegc-fuzz-", dir=memory if memory.is_dir() else None))
    (root / "lake").mkdir()
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@cache
def place() -> Place:
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(_root())))


def path_of(key: str) -> Path:
    """The path of an object, in a folder that exists."""
    path = _root() / "lake" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def put(key: str, data: bytes) -> None:
    path_of(key).write_bytes(data)
