"""Marks of recorded repositories, made once a process and shared by all tests of recordings."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from lakegc_assets.queries.history import History, open_history
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.settings import Settings
from tests.support.mark_runs import NO_HOME, NO_MINIMUM_AGE, Marked, marked, quick_environment, shared_session
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


def history_of(settings: dict[str, str], mark: Marked) -> History:
    """A mark opened for queries, with the process's Spark session."""
    loaded = Settings.load(quick_environment(settings), home=NO_HOME)
    lakefs = LakeFS(*LakeFSSettings.of(loaded))
    return open_history(lakefs, loaded, mark.record.repository, mark.record.mark_id, spark=shared_session)
