"""Where recordings are: the folders that `LAKEGC_RECORDINGS` names (colons between them), or those at hand."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.replay_server import Recording, load_recording

AT_HAND = Path(__file__).parents[1] / "recordings" / "data"


def recording_folders() -> list[Path]:
    """Every child with a `meta.json` of each folder. Raises where a folder isn't there: no recording is skipped."""
    named = os.environ.get("LAKEGC_RECORDINGS") or str(AT_HAND)
    roots = [Path(name) for name in named.split(":") if name]
    return [child for root in roots for child in sorted(root.iterdir()) if (child / "meta.json").is_file()]


def recordings() -> list[Recording]:
    return [load_recording(folder) for folder in recording_folders()]
