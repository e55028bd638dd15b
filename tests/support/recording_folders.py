"""The folders of recordings: those that `LAKEGC_RECORDINGS` names, separated by colons, or the one in this project."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.replay_server import Recording, load_recording

PROJECT_RECORDINGS = Path(__file__).parents[1] / "recordings" / "data"


def recording_folders() -> list[Path]:
    """Every subfolder with a `meta.json`. Raises if a named folder is missing, so that no recording is silently
    skipped."""
    named = os.environ.get("LAKEGC_RECORDINGS") or str(PROJECT_RECORDINGS)
    roots = [Path(name) for name in named.split(":") if name]
    return [child for root in roots for child in sorted(root.iterdir()) if (child / "meta.json").is_file()]


def recordings() -> list[Recording]:
    return [load_recording(folder) for folder in recording_folders()]
