"""Every recording of a real server, marked over a real S3 server: exactly the true expired set."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tests.support.mark_runs import NO_MINIMUM_AGE, Marked, marked, marked_by_job
from tests.support.recording_folders import recordings
from tests.support.replay_server import Recording, replaying, settings_over, upload_to_s3
from tests.support.s3_servers import SeaweedFS

ALL = recordings()


def expired_by(mark: Callable[..., Marked], recording: Recording, seaweedfs: SeaweedFS) -> set[str]:
    upload_to_s3(recording, seaweedfs.client())
    with replaying(recording) as endpoint:
        settings = settings_over(endpoint, seaweedfs)
        return mark(settings, recording.repository, f"replay-{uuid.uuid4().hex}", NO_MINIMUM_AGE).expired


@pytest.mark.parametrize("recording", ALL, ids=lambda recording: str(recording.name))
def test_the_expired_set_of_a_recorded_repository_is_exactly_the_expected_one(
    recording: Recording, seaweedfs: SeaweedFS
) -> None:
    """No object is missing, and none is added."""
    assert recording.expired() == expired_by(marked, recording, seaweedfs)


@pytest.mark.parametrize("recording", ALL[-2:], ids=lambda recording: str(recording.name))
def test_the_dagster_job_expires_exactly_the_expected_objects(recording: Recording, seaweedfs: SeaweedFS) -> None:
    assert recording.expired() == expired_by(marked_by_job, recording, seaweedfs)
