"""The replay server sends recorded responses, and refuses any other request."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from spark_resources.errors import Forbidden, NotFound
from spark_resources.lakefs import LakeFS, LakeFSSettings, RefsDump
from spark_resources.model import AddressType, Commit, Rules
from spark_resources.sstable import Entry, range_ref, write_commits, write_metarange, write_range
from tests.support.replay_server import (
    ACCESS_KEY_ID,
    SECRET_ACCESS_KEY,
    Recording,
    load_recording,
    replaying,
    upload_to_s3,
)
from tests.support.retry_policies import no_wait_policy

RECORDED_AT = datetime(2026, 11, 21, 8, 50, tzinfo=UTC)
NAMESPACE = "s3://golden/tiny"
ENTRIES = [
    Entry(b"a", "data/s/1", AddressType.RELATIVE, size=3, checksum="1a", last_modified=RECORDED_AT),
    Entry(b"b/c d", "s3://elsewhere/x", AddressType.FULL, size=4, checksum="2b", last_modified=RECORDED_AT),
    Entry("é".encode(), "data/s/3", AddressType.RELATIVE, size=5, checksum="3c", last_modified=RECORDED_AT),
]
SERVED = {"path": "z", "physical_address": f"{NAMESPACE}/data/s/9", "size_bytes": 9, "checksum": "9f", "mtime": 1}


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """A recording with one branch, a dangling commit, and an object whose bytes were not recorded."""
    return load_recording(_record(tmp_path / "tiny"))


def _record(folder: Path) -> Path:
    lakefs = folder / "namespace" / "_lakefs"
    lakefs.mkdir(parents=True)

    part = write_range(ENTRIES)
    whole = write_metarange([range_ref(part.data, name=part.id)])
    first = Commit("1" * 64, (), RECORDED_AT - timedelta(days=2), "")
    dangling = Commit("2" * 64, (first.id,), RECORDED_AT - timedelta(days=1), whole.id)
    head = Commit("3" * 64, (first.id,), RECORDED_AT, whole.id)
    dump = write_commits([first, dangling, head])
    for table_id, data in {part.id: part.data, whole.id: whole.data, **dump.tables}.items():
        (lakefs / table_id).write_bytes(data)
    reachable = {
        "commits": [_body(head), _body(first)],
        "log": {"main": [head.id, first.id]},
    }
    uncommitted = {"run_id": "r", "gc_uncommitted_location": f"{NAMESPACE}/_lakefs/u/"}
    recorded = {
        "config": _recorded_response(200, {"storage_config": {"blockstore_type": "s3"}}),
        "repository": _recorded_response(
            200, {"id": "tiny", "storage_namespace": NAMESPACE, "default_branch": "main", "creation_date": 1}
        ),
        "gc_rules": _recorded_response(200, {"default_retention_days": 5, "branches": None}),
        "branches": _recorded_response(200, {"results": [{"id": "main", "commit_id": head.id}]}),
        "tags": _recorded_response(200, {"results": [{"id": "v1", "commit_id": first.id}]}),
        "prepare_commits_async": _recorded_response(202, {"id": "t"}),
        "prepare_commits_status": _recorded_response(
            200, {"task_id": "t", "completed": True, "result": {"gc_commits_location": f"{NAMESPACE}/_lakefs/c.csv"}}
        ),
        "prepare_uncommitted": {"status": 201, "pages": [uncommitted | {"continuation_token": "more"}, uncommitted]},
        "refs_dump": _recorded_response(
            201, {"branches_meta_range_id": "b", "commits_meta_range_id": dump.id, "tags_meta_range_id": "t"}
        ),
        "commits_reachable_from_branches": reachable,
    }
    (folder / "api").mkdir()
    for name, content in recorded.items():
        (folder / "api" / f"{name}.json").write_text(json.dumps(content))
    with (folder / "listing.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["key", "size", "last_modified_ms"], ["data/s/1,token", "100", "0"]])
    meta = {"repository": "tiny", "storage_namespace": NAMESPACE, "recorded_at": int(RECORDED_AT.timestamp())}
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "expected").mkdir()
    (folder / "expected" / "expired.txt").write_text("data/s/1,token\n")
    return folder


def _recorded_response(status: int, body: Any) -> dict[str, Any]:
    return {"status": status, "body": body}


def _body(commit: Commit) -> dict[str, Any]:
    return {
        "id": commit.id,
        "parents": list(commit.parents),
        "creation_date": int(commit.created.timestamp()),
        "meta_range_id": commit.metarange_id,
        "version": 1,
    }


@pytest.fixture
def lake(recording: Recording) -> Iterator[LakeFS]:
    with replaying(recording) as endpoint:
        yield LakeFS(
            LakeFSSettings(endpoint, ACCESS_KEY_ID, SECRET_ACCESS_KEY, retry=no_wait_policy(1), first_poll_wait_s=0.001)
        )


def test_every_recorded_call_gets_the_recorded_response(recording: Recording, lake: LakeFS) -> None:
    """The server's clock is the recording's."""
    dumped = recording.api("refs_dump")["body"]["commits_meta_range_id"]

    assert lake.config().blockstore("") == "s3"
    assert lake.repository("tiny").storage_namespace == NAMESPACE
    assert [repository.id for repository in lake.repositories()] == ["tiny"]
    assert lake.rules("tiny") == Rules(5, {})
    assert lake.branches("tiny") == {"main": "3" * 64}
    assert lake.tags("tiny") == {"v1": "1" * 64}
    assert lake.prepare_commits("tiny") == f"{NAMESPACE}/_lakefs/c.csv"
    assert lake.prepare_uncommitted("tiny").files_by_location == {f"{NAMESPACE}/_lakefs/u/": 2}
    assert lake.dump_refs("tiny") == RefsDump("b", dumped, "t")
    assert lake.server_time() == RECORDED_AT


def test_dangling_commits_are_served_from_the_dump(lake: LakeFS) -> None:
    """A log can also begin at such a commit."""
    assert lake.commit("tiny", "2" * 64).parents == ("1" * 64,)
    assert [commit.id[0] for commit in lake.log("tiny", "main")] == ["3", "1"]
    assert [commit.id[0] for commit in lake.log("tiny", "v1")] == ["1"]
    assert [commit.id[0] for commit in lake.log("tiny", "2" * 64)] == ["2", "1"]


def test_a_branch_serves_the_entries_of_its_head(lake: LakeFS) -> None:
    """The head's entries are served if no served objects were recorded. Addresses are full, and paths in order."""
    page = lake.list_objects("tiny", "main", amount=2)
    rest = lake.list_objects("tiny", "main", after="b/c d")

    entries = [(entry.path, entry.physical_address, entry.size) for entry in (*page.objects, *rest.objects)]
    assert entries == [
        ("a", f"{NAMESPACE}/data/s/1", 3),
        ("b/c d", "s3://elsewhere/x", 4),
        ("é", f"{NAMESPACE}/data/s/3", 5),
    ]
    assert (page.next_after, rest.next_after) == ("b/c d", None)
    assert [entry.path for entry in lake.list_objects("tiny", "main", prefix="b/").objects] == ["b/c d"]
    assert lake.stat("tiny", "main", "é") == rest.objects[0]
    assert lake.stat("tiny", "main", "b") is None


def test_a_branch_serves_the_objects_recorded_as_served(recording: Recording, lake: LakeFS) -> None:
    """Some recordings have these objects, including staged ones."""
    (recording.path / "api" / "objects_served_by_branches.json").write_text(json.dumps({"objects": {"main": [SERVED]}}))

    served = lake.stat("tiny", "main", "z")

    assert served is not None
    assert served.physical_address == f"{NAMESPACE}/data/s/9"
    assert lake.stat("tiny", "main", "a") is None


def test_requests_that_were_not_recorded_are_refused(lake: LakeFS) -> None:
    """Examples are another repository, a missing branch, another call, and unknown credentials."""
    with pytest.raises(NotFound):
        lake.repository("other")
    with pytest.raises(NotFound):
        lake.stat("tiny", "other", "a")
    with pytest.raises(NotFound):
        list(lake.uncommitted_diff("tiny", "other"))
    with pytest.raises(Forbidden):
        LakeFS(LakeFSSettings(lake.where, ACCESS_KEY_ID, "guessed", retry=no_wait_policy(1))).repository("tiny")


def test_every_recorded_object_is_uploaded(recording: Recording) -> None:
    """Bytes that were not recorded are replaced by filler. Afterwards, the store's clock has advanced."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{host}:{port}",
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="s",
        )
        upload_to_s3(recording, client)

        response = client.list_objects_v2(Bucket="golden")
    finally:
        server.stop()
    stored = {stored_object["Key"]: stored_object["Size"] for stored_object in response["Contents"]}
    assert stored == {f"tiny/{key}": len(data) for key, data in recording.objects()}
    assert stored["tiny/data/s/1,token"] == 100
    date = datetime.strptime(response["ResponseMetadata"]["HTTPHeaders"]["date"], "%a, %d %b %Y %H:%M:%S %Z")
    assert date.replace(tzinfo=UTC) - max(
        stored_object["LastModified"] for stored_object in response["Contents"]
    ) > timedelta(seconds=1)


def test_the_expected_set_is_read_back_unchanged(recording: Recording) -> None:
    """A key in it contains a comma."""
    assert recording.expired() == {"data/s/1,token"}
