"""What a delete means in a store is told before anybody approves one."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from spark_resources.model import Namespace
from spark_resources.stores import open_store
from spark_resources.stores.base import Deleting
from spark_resources.stores.settings import StoreSettings
from tests.servers import MotoServer, SeaweedFS


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
def test_a_bucket_that_keeps_versions_is_said_to_free_space(moto_server: MotoServer, status: str) -> None:
    """A delete there leaves a marker, and what it hides goes on costing."""
    bucket = f"versions-{uuid.uuid4().hex}"
    moto_server.make_bucket(bucket)
    moto_server.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})  # type: ignore[typeddict-item]

    assert open_store(Namespace(f"s3://{bucket}/lake"), moto_server.settings()).deleting() is Deleting.HIDES


def test_a_plain_store_is_said_to_keep_versions(moto_server: MotoServer, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    """A bucket without versioning, and a folder, free the space at once."""
    for server in (moto_server, seaweedfs):
        server.make_bucket("plain-deletes")
        assert open_store(Namespace("s3://plain-deletes/lake"), server.settings()).deleting() is Deleting.FINAL
    (tmp_path / "lake").mkdir()
    assert open_store(Namespace("local://lake"), StoreSettings(local_path=str(tmp_path))).deleting() is Deleting.FINAL


def test_a_store_that_does_not_say_is_said_to_free_space(moto_server: MotoServer) -> None:
    """A bucket that can't be asked is one of which it isn't known."""
    nowhere = open_store(Namespace("s3://no-such-bucket-here/lake"), moto_server.settings())

    assert nowhere.deleting() is Deleting.UNKNOWN
