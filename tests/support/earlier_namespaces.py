"""Namespaces that an earlier version of lakegc wrote (see `tests/formats/README.md`), unpacked for tests."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.mark import MARKS_ROOT

ARCHIVE = Path(__file__).parent.parent / "formats" / "format_1.tar.xz"
REPOSITORY = "lake"
AN_HOUR_LATER = datetime(2026, 1, 25, 13, tzinfo=UTC)
# Python 3.14's default, which warns before; 3.11.0 to 3.11.3 don't have it
_FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


@contextmanager
def unpacked(folder: Path) -> Iterator[Sandbox]:
    """A sandbox over a copy of the namespace in this folder, with its clock set to an hour after the last mark."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, **_FILTER)
    with Sandbox(folder) as sandbox:
        sandbox.set_clock(AN_HOUR_LATER)
        yield sandbox


def record_file(sandbox: Sandbox, name: str) -> Path:
    """A file in lakegc's folder of the namespace, such as `lease.json`."""
    return sandbox.local_path / REPOSITORY / MARKS_ROOT / name
