"""Every recording of a real server, marked by the Dagster job over a real S3 server: exactly the true expired set."""

from __future__ import annotations

import uuid

import pytest

from tests.marking import NO_MINIMUM_AGE, marked
from tests.recordings.folders import recordings
from tests.recordings.replay import ACCESS_KEY_ID, SECRET_ACCESS_KEY, Recording, replaying, upload_to_s3
from tests.servers import SeaweedFS


@pytest.mark.parametrize("recording", recordings(), ids=lambda recording: str(recording.name))
def test_the_expired_set_of_a_real_repository_is_exactly_the_true_one(
    recording: Recording, seaweedfs: SeaweedFS
) -> None:
    """What a mark says may go is what may go: not an object more, and none less."""
    upload_to_s3(recording, seaweedfs.client())
    with replaying(recording) as endpoint:
        settings = {
            "endpoint_url": endpoint,
            "access_key_id": ACCESS_KEY_ID,
            "secret_access_key": SECRET_ACCESS_KEY,
            "s3_endpoint_url": seaweedfs.endpoint_url,
            "s3_access_key_id": seaweedfs.access_key,
            "s3_secret_access_key": seaweedfs.secret_key,
            "s3_region": "us-east-1",
            "max_clock_skew": "5000w",  # the recorded server's clock stands still
        }
        mark = marked(settings, recording.repository, f"replay-{uuid.uuid4().hex}", NO_MINIMUM_AGE)

    assert recording.expired() == mark.expired
