"""Every recording of a real server, marked by the Dagster job over a real S3 server: exactly the true expired set."""

from __future__ import annotations

import uuid

import pytest

from tests.support.mark_runs import NO_MINIMUM_AGE, marked_by_job
from tests.support.recording_folders import recordings
from tests.support.replay_server import Recording, replaying, settings_over, upload_to_s3
from tests.support.s3_servers import SeaweedFS


@pytest.mark.parametrize("recording", recordings(), ids=lambda recording: str(recording.name))
def test_the_expired_set_of_a_recorded_repository_is_exactly_the_expected_one(
    recording: Recording, seaweedfs: SeaweedFS
) -> None:
    """No object is missing, and none is added."""
    upload_to_s3(recording, seaweedfs.client())
    with replaying(recording) as endpoint:
        settings = settings_over(endpoint, seaweedfs)
        mark = marked_by_job(settings, recording.repository, f"replay-{uuid.uuid4().hex}", NO_MINIMUM_AGE)

    assert recording.expired() == mark.expired
