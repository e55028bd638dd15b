"""Marks of recorded repositories, made once a process and shared by all tests of recordings."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.mark_runs import NO_MINIMUM_AGE, Marked, marked
from tests.support.replay_server import Recording, replaying, settings_over, upload_to_s3
from tests.support.s3_servers import SeaweedFS

_marks: dict[str, Marked] = {}


@contextmanager
def recorded_mark(recording: Recording, seaweedfs: SeaweedFS) -> Iterator[tuple[dict[str, str], Marked]]:
    """The settings for a recording that is being replayed, and a mark of it with minimum age 0."""
    known = _marks.get(recording.name)
    if known is None:
        upload_to_s3(recording, seaweedfs.client())
    with replaying(recording) as endpoint:
        settings = settings_over(endpoint, seaweedfs)
        if known is None:
            name = f"replay-{uuid.uuid4().hex}"
            known = _marks[recording.name] = marked(settings, recording.repository, name, NO_MINIMUM_AGE)
        yield settings, known
