"""Checks of the folders that lakegc writes to on this machine: are they writable, and is there enough space?"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lakegc_assets.doctor.findings import Result, ok, problem, warning
from lakegc_assets.formatting import size

GROUP = "folders"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, what it is for, and its free space in bytes: how much is needed, and how much is advised.

    `setting` is the environment variable that selects another folder. `otherwise` says what happens if the folder isn't
    writable; "" if lakegc doesn't work in that case.
    """

    name: str
    use: str
    path: Path
    setting: str
    needed: int
    advised: int
    otherwise: str = ""


def temporary(path: Path) -> Folder:
    use = "data that Spark can't hold in memory"
    return Folder("temporary files", use, path, "TMPDIR", needed=256 << 20, advised=2 << 30)


def cache(path: Path) -> Folder:
    return Folder(
        "cache", "compiled functions and classes", path, "XDG_CACHE_HOME", needed=16 << 20, advised=256 << 20,
        otherwise="lakegc uses a temporary folder instead, and starts more slowly after that folder was removed.",
    )  # fmt: skip


def dagster(path: Path, *, configured: bool) -> Folder:
    """Dagster's home. `configured` means that DAGSTER_HOME names the folder, so lakegc uses no other one."""
    history_is_lost = "lakegc uses a temporary folder instead, and the history is lost when that folder is removed."
    return Folder(
        "Dagster's home", "Dagster's history", path, "DAGSTER_HOME", needed=16 << 20, advised=512 << 20,
        otherwise="" if configured else history_is_lost,
    )  # fmt: skip


def usable(folder: Folder, free_bytes: Callable[[Path], int]) -> Result:
    """Whether a folder, or the one in which it can be created, is writable and has enough space. Leaves no file
    behind."""
    existing = nearest_existing(folder.path)
    other = f"set {folder.setting} to another folder."
    reason = why_not_writable(existing)
    if reason:
        text = f"{folder.path}, the folder for {folder.use}, isn't writable: {reason}"
        advice = f"Make the folder writable, or {other}"
        return warning(f"{text}; {folder.otherwise}", advice) if folder.otherwise else problem(f"{text}.", advice)
    free = free_bytes(existing)
    text = f"{folder.path}: {size(free)} free"
    if free < folder.needed:
        return problem(
            f"{text}; at least {size(folder.needed)} are needed for {folder.use}.", f"Free some space, or {other}"
        )
    if free < folder.advised:
        return warning(
            f"{text}, which may be too little for {folder.use} (advised: {size(folder.advised)}).",
            f"Free some space, or {other}",
        )
    return ok(text)


def nearest_existing(path: Path) -> Path:
    """The path itself, or the closest parent that exists."""
    return next((parent for parent in (path, *path.parents) if parent.exists()), Path("/"))


def why_not_writable(path: Path) -> str:
    """Why no file can be created in a folder; "" if one can."""
    if not path.is_dir():
        return f"{path} is not a folder"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"this user has no permission to write to {path}"
    try:
        with tempfile.TemporaryFile(dir=path):
            return ""
    except OSError as error:
        return str(error.strerror or error)
