"""Recorded marks of the real reference collector, swept by lakegc: live objects in them are rescued."""

from __future__ import annotations

import io
import json
import re
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.rules.brakes import BRAKES
from spark_resources.stores.base import Store
from tests.support.clocks import later
from tests.support.command_line import Lakegc
from tests.support.mark_runs import target_of
from tests.support.recording_folders import PROJECT_RECORDINGS
from tests.support.replay_server import Recording, replaying, settings_over, upload_to_s3
from tests.support.s3_servers import SeaweedFS

MARK = "_lakefs/retention/gc/unified/theirs/"


def parquet(addresses: list[str]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"address": pa.array(addresses, pa.string())}), buffer)
    return buffer.getvalue()


def approve(lakegc: Lakegc, settings: dict[str, str], repository: str, store: Store) -> None:
    """Approve the mark and release all tripped brakes."""
    later(store, store.now())
    command = ("approve", repository, "theirs", "--yes", "--digest")
    error_output = lakegc(settings, *command, "another").err
    (digest,) = re.findall(r"is ([0-9a-f]{64})", error_output) or [error_output]
    refused = lakegc(settings, *command, digest)
    for brake in BRAKES if refused.code == 3 else ():
        if f"\n  {brake}: " in refused.err:
            command = (*command[:3], "--release", brake, "--because", "it is a test", *command[3:])
    if refused.code:
        lakegc.output(settings, *command, digest)


@pytest.mark.parametrize("name", ["same-bytes", "random-20", "shared-parent"])
def test_only_truly_expired_objects_of_a_recorded_reference_mark_are_deleted(
    name: str, lakegc: Lakegc, seaweedfs: SeaweedFS
) -> None:
    """The reference collector would delete live objects by mistake. lakegc rescues them, and the report's counts add
    up."""
    recording = Recording(PROJECT_RECORDINGS / name)
    expected = recording.path / "expected"
    deleted_by_reference = set((expected / "reference_deleted.txt").read_text(encoding="utf-8").splitlines())
    upload_to_s3(recording, seaweedfs.client())
    with replaying(recording) as endpoint:
        settings = settings_over(endpoint, seaweedfs)
        store = target_of(settings, recording.repository).place.store()
        before = {stored.key for page in store.pages("data/") for stored in page.objects}
        store.write(f"{MARK}deleted/part-0.snappy.parquet", parquet(sorted(deleted_by_reference)))
        summary = json.loads((expected / "reference_summary.json").read_text(encoding="utf-8"))
        # the objects were just uploaded, but were old when the mark was made
        summary["cutoff_time"] = (store.now() + timedelta(hours=1)).isoformat()
        store.write(f"{MARK}summary.json", json.dumps(summary).encode())
        approve(lakegc, settings, recording.repository, store)
        report = json.loads(lakegc.output(settings, "sweep", recording.repository, "theirs", "--format", "json"))
        after = {stored.key for page in store.pages("data/") for stored in page.objects}

    assert before - after == deleted_by_reference & recording.expired()
    assert report["objects"].get("rescued", 0) == len(deleted_by_reference - recording.expired())
    assert sum(report["objects"].values()) == report["approved"] == len(deleted_by_reference)
