"""A disk of a few megabytes that a test can fill up: a file system in memory, which only root can mount."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SmallDisk:
    """A folder on a disk of its own."""

    folder: Path

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def fill(self) -> None:
        """Fill the disk to the last byte. Nothing happens if it is full already."""
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def free(self) -> None:
        """Remove what `fill` wrote."""
        self._ballast.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 12 MiB. Without permission to mount one, the test is skipped with a warning."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        warnings.warn("full disks were not tested, because only root can mount one in memory", stacklevel=1)
        pytest.skip("a file system in memory can't be mounted")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
