"""Finds Azurite, or installs it once with npm in the user's cache folder. It needs no test tools, so that CI can start
it before they are installed.

    python -m tests.support.azurite_installation
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import warnings
from pathlib import Path

from spark_resources.host.user_folders import cache_folder

VERSION = "3.37.0"
INSTALL_LIMIT = 300.0  # seconds


def find_or_install() -> str | None:
    """The path of Azurite's blob service; None if it is neither installed nor installable with npm."""
    path = os.environ.get("LAKEGC_TEST_AZURITE") or shutil.which("azurite-blob")
    if path:
        return path
    npm = shutil.which("npm")
    if npm is None:
        return None
    folder = cache_folder() / f"azurite-{VERSION}"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not program.exists():
            _install(npm, folder)
    return str(program) if program.exists() else None


def _install(npm: str, folder: Path) -> None:
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        subprocess.run(
            [*command, f"azurite@{VERSION}"], timeout=INSTALL_LIMIT, check=True, capture_output=True, text=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        warnings.warn(f"Azurite could not be installed: {getattr(error, 'stderr', '') or error}", stacklevel=1)
        shutil.rmtree(folder / "node_modules", ignore_errors=True)


if __name__ == "__main__":
    print(find_or_install() or "No npm: the store in Azure will not be tested.")
