"""A recorded repository, moved to Azure, is marked and swept there with the same result."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.mark_store.mark import Mark
from spark_resources.stores import open_store
from tests.support.azurite import Azurite
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of
from tests.support.moved_recordings import move_recording
from tests.support.recording_folders import PROJECT_RECORDINGS
from tests.support.replay_server import ACCESS_KEY_ID, SECRET_ACCESS_KEY, Recording, replaying, upload_to_store


def test_a_sweep_in_azure_deletes_exactly_the_expired_set(azurite: Azurite, tmp_path: Path) -> None:
    """The mark finds the true expired set there."""
    to = f"https://{azurite.account}.blob.core.windows.net/golden/{uuid.uuid4().hex}"
    recording = move_recording(Recording(PROJECT_RECORDINGS / "same-bytes"), tmp_path, to=to, blockstore="azure")
    azurite.make_container("golden")
    store = open_store(recording.namespace, azurite.settings())
    upload_to_store(recording, store)
    before = {entry.key for page in store.pages("data/") for entry in page.objects}
    with replaying(recording) as endpoint:
        settings = {
            "endpoint_url": endpoint,
            "access_key_id": ACCESS_KEY_ID,
            "secret_access_key": SECRET_ACCESS_KEY,
            "azure_endpoint_url": azurite.endpoint_url,
            "azure_account_key": azurite.account_key,
            "max_clock_skew": "5000w",  # the recorded server's clock is paused
        }
        marked = Marker().mark(settings, recording.repository, "m1", ANY_AGE)
        sweeper = Sweeper()
        sweeper.approve(settings, recording.repository, "m1")
        report = sweeper.sweep(settings, recording.repository, "m1", SweepOptions())
        target = target_of(settings, recording.repository)
    after = {entry.key for page in store.pages("data/") for entry in page.objects}

    assert target.blockstore == "azure"
    assert marked.expired == recording.expired()
    assert before - after == recording.expired()
    assert Counter(report.objects) == Counter(deleted=len(recording.expired()))
    assert Mark.open(target.place, "m1").record.mark_id == "m1"
