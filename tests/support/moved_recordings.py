"""Recordings moved to a different kind of store. The recorded responses then name the new namespace."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.replay_server import Recording


def move_recording(recording: Recording, folder: Path, *, to: str, blockstore: str) -> Recording:
    """Copy a recording to `folder`, with its repository at the namespace `to` in a block store of this type."""
    shutil.copytree(recording.path, folder / recording.name)
    for file in (folder / recording.name / "meta.json", *(folder / recording.name / "api").iterdir()):
        text = file.read_text(encoding="utf-8").replace(recording.namespace.uri, to)
        text = text.replace('"blockstore_type": "s3"', f'"blockstore_type": "{blockstore}"')
        file.write_text(text, encoding="utf-8")
    return Recording(folder / recording.name)
