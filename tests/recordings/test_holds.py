"""Holds on tags of recorded repositories keep exactly the objects of the tagged commits, with or without history."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_resources.mark_store.holds import HOLDS_KEY
from spark_resources.sstable import read_commits, read_entries, read_ranges
from tests.support import oracle
from tests.support.mark_runs import NO_MINIMUM_AGE, marked
from tests.support.recording_folders import recordings
from tests.support.replay_server import Recording, replaying, settings_over, upload_to_s3
from tests.support.s3_servers import SeaweedFS

KEPT = {("random-2", False): 1, ("random-1", True): 4}
"""The number of objects that only the hold keeps, by recording, and by whether the hold includes the history."""


def graph(recording: Recording) -> tuple[dict[str, oracle.C], dict[str, str]]:
    """All commits in the oracle's form, and the metarange of each."""
    dump = recording.api("refs_dump")["body"]["commits_meta_range_id"]
    table = lambda table_id: recording.recorded_bytes(f"_lakefs/{table_id}")  # noqa: E731
    refs = read_ranges(table(dump), name=dump, entity="commit")
    commits = [commit for ref in refs for commit in read_commits(table(ref.id), name=ref.id)]
    return {commit.id: oracle.C(commit.parents, 0, commit.version) for commit in commits}, {
        commit.id: commit.metarange_id for commit in commits
    }


def keys_of(recording: Recording, metarange_id: str) -> Iterator[str]:
    """The objects of a commit, as keys of the namespace."""
    parts = read_ranges(recording.recorded_bytes(f"_lakefs/{metarange_id}"), name=metarange_id) if metarange_id else []
    for part in parts:
        batch = read_entries(recording.recorded_bytes(f"_lakefs/{part.id}"), name=part.id)
        for address, kind in zip(batch["address"].to_pylist(), batch["address_type"].to_pylist(), strict=True):
            key = oracle.inside(kind, address, [recording.namespace.uri])
            if key is not None:
                yield key


def held_keys(recording: Recording, *, history: bool) -> set[str]:
    commits, metaranges = graph(recording)
    tags = {tag["id"]: tag["commit_id"] for tag in recording.api("tags")["body"]["results"]}
    hold = oracle.H("history" if history else "tag", "t*")
    named = oracle.commits_of_hold(
        hold, commits, heads={}, tags=tags, metadata={}, branch_days={}, default_days=0, now=0
    )
    return {key for commit in named for key in keys_of(recording, metaranges[commit])}


@pytest.mark.parametrize(
    ("recording", "history"),
    [
        (recording, history)
        for recording in recordings()
        for history in (False, True)
        if (recording.name, history) in KEPT
    ],
    ids=lambda value: str(value.name) if isinstance(value, Recording) else "with-history" if value else "tagged",
)
def test_a_hold_on_tags_keeps_exactly_the_objects_of_the_tagged_commits(
    recording: Recording, history: bool, seaweedfs: SeaweedFS
) -> None:
    """No other object leaves the expired set."""
    upload_to_s3(recording, seaweedfs.client())
    text = f'holds: [{{id: tagged, tags: "t*", history: {str(history).lower()}, owner: ada, reason: because}}]'
    key = f"{recording.namespace.path}/{HOLDS_KEY}"
    seaweedfs.client().put_object(Bucket=recording.namespace.bucket, Key=key, Body=text.encode())
    try:
        with replaying(recording) as endpoint:
            settings = settings_over(endpoint, seaweedfs)
            mark = marked(settings, recording.repository, f"held-{history}".lower(), NO_MINIMUM_AGE)
    finally:
        seaweedfs.client().delete_object(Bucket=recording.namespace.bucket, Key=key)

    on_hold = recording.expired() & held_keys(recording, history=history)
    assert mark.expired == recording.expired() - on_hold
    assert mark.facts("expired_set")["objects_on_hold"] == len(on_hold) == KEPT[recording.name, history]
