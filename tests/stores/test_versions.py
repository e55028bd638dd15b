"""lakegc reports the effect of a delete in a store before anybody approves one."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from spark_resources.model import Namespace
from spark_resources.stores import open_store
from spark_resources.stores.base import DeleteEffect
from spark_resources.stores.settings import StoreSettings
from tests.support.s3_servers import MotoServer, SeaweedFS


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
def test_deletes_in_a_versioned_bucket_only_hide_objects(moto_server: MotoServer, status: str) -> None:
    """A delete leaves a marker, and the hidden version still costs money."""
    bucket = f"versions-{uuid.uuid4().hex}"
    moto_server.make_bucket(bucket)
    moto_server.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})  # type: ignore[typeddict-item]

    assert (
        open_store(Namespace(f"s3://{bucket}/lake"), moto_server.settings()).delete_effect() is DeleteEffect.VERSIONED
    )


def test_deletes_in_a_plain_bucket_or_folder_are_final(
    moto_server: MotoServer, seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    """Deletes free the space at once."""
    for server in (moto_server, seaweedfs):
        server.make_bucket("plain-deletes")
        assert open_store(Namespace("s3://plain-deletes/lake"), server.settings()).delete_effect() is DeleteEffect.FINAL
    (tmp_path / "lake").mkdir()
    assert (
        open_store(Namespace("local://lake"), StoreSettings(local_path=str(tmp_path))).delete_effect()
        is DeleteEffect.FINAL
    )


def test_the_effect_of_deletes_is_unknown_if_the_store_cannot_report_it(moto_server: MotoServer) -> None:
    """If the effect is unknown, lakegc never claims that deletes free space."""
    nowhere = open_store(Namespace("s3://no-such-bucket-here/lake"), moto_server.settings())

    assert nowhere.delete_effect() is DeleteEffect.UNKNOWN
