"""A recorded repository, moved to Cloud Storage, is marked and quarantined there with the same result."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.deleting.quarantine import key_in_quarantine
from spark_resources.stores import open_store
from tests.support.fake_gcs import FakeGCS
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of
from tests.support.moved_recordings import move_recording
from tests.support.recording_folders import PROJECT_RECORDINGS
from tests.support.replay_server import ACCESS_KEY_ID, SECRET_ACCESS_KEY, Recording, replaying, upload_to_store


def test_a_sweep_in_cloud_storage_quarantines_exactly_the_expired_set(fake_gcs: FakeGCS, tmp_path: Path) -> None:
    """The mark finds the true expired set there, and every byte of it is in quarantine."""
    to = f"gs://golden/{uuid.uuid4().hex}"
    recording = move_recording(Recording(PROJECT_RECORDINGS / "same-bytes"), tmp_path, to=to, blockstore="gs")
    fake_gcs.make_bucket("golden")
    store = open_store(recording.namespace, fake_gcs.settings())
    upload_to_store(recording, store)
    before = {entry.key for page in store.pages("data/") for entry in page.objects}
    contents = {key: store.read(key) for key in recording.expired()}
    with replaying(recording) as endpoint:
        settings = {
            "endpoint_url": endpoint,
            "access_key_id": ACCESS_KEY_ID,
            "secret_access_key": SECRET_ACCESS_KEY,
            "gcs_endpoint_url": fake_gcs.endpoint_url,
            "gcs_anonymous": "true",
            "max_clock_skew": "5000w",  # the recorded server's clock is paused
        }
        marked = Marker().mark(settings, recording.repository, "m1", ANY_AGE)
        sweeper = Sweeper()
        sweeper.approve(settings, recording.repository, "m1")
        report = sweeper.sweep(settings, recording.repository, "m1", SweepOptions(quarantine=True))
        target = target_of(settings, recording.repository)
    after = {entry.key for page in store.pages("data/") for entry in page.objects}

    assert target.blockstore == "gs"
    assert marked.expired == recording.expired()
    assert before - after == recording.expired()
    assert Counter(report.objects) == Counter(quarantined=len(recording.expired()))
    assert {key: store.read(key_in_quarantine("m1", key)) for key in recording.expired()} == contents
