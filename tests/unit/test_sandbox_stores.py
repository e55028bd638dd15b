"""The sandbox with its objects in an object store: it serves the same repository, and a mark of it is correct."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from lakefs_sdk import models

from spark_resources.errors import WrongUsage
from spark_resources.lakefs_sandbox import ImportSource, Problem, Sandbox, StorePlace
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.model import AddressType, Rules
from spark_resources.settings import Settings
from tests.support.mark_runs import marked
from tests.support.s3_servers import SeaweedFS
from tests.support.sandbox_client import client, refused
from tests.support.store_providers import Provider


@pytest.fixture
def bucket(seaweedfs: SeaweedFS) -> str:
    name = f"sandbox-{uuid.uuid4().hex[:12]}"
    seaweedfs.make_bucket(name)
    return name


@pytest.fixture
def sandbox(seaweedfs: SeaweedFS, bucket: str, tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "sandbox", place=StorePlace(f"s3://{bucket}/under", seaweedfs.settings())) as running:
        yield running


def stored(seaweedfs: SeaweedFS, bucket: str) -> set[str]:
    return {stored["Key"] for stored in seaweedfs.client().list_objects_v2(Bucket=bucket).get("Contents", [])}


def test_objects_tables_and_prepared_lists_are_in_the_bucket(
    sandbox: Sandbox, seaweedfs: SeaweedFS, bucket: str
) -> None:
    """All of them lie under the name of the repository. Only the sandbox's own state is on this machine."""
    api, lake = client(sandbox), sandbox.create("lake")
    assert api.config_api.get_config().storage_config.blockstore_type == "s3"
    assert api.repositories_api.get_repository("lake").storage_namespace == f"s3://{bucket}/under/lake"
    entry = lake.put("main", "a b", b"1")
    commit = lake.commit("main", "m")
    lake.put("main", "staged", b"2")
    page = api.internal_api.prepare_garbage_collection_uncommitted("lake")
    keys = stored(seaweedfs, bucket)
    assert {f"under/lake/{key}" for key in ("_lakefs/dummy", entry.address, f"_lakefs/{commit.metarange_id}")} <= keys
    assert any(f"s3://{bucket}/{key}".startswith(page.gc_uncommitted_location) for key in keys)
    assert not any(sandbox.local_path.iterdir())
    stats = api.objects_api.stat_object("lake", "main", "a b")
    assert stats.physical_address == f"s3://{bucket}/under/lake/{entry.address}"
    assert bytes(api.objects_api.get_object("lake", "main", "a b")) == b"1"
    seaweedfs.client().delete_object(Bucket=bucket, Key=f"under/lake/{entry.address}")
    with refused(410, "No data"):
        api.objects_api.get_object("lake", "main", "a b")
    assert api.objects_api.head_object_with_http_info("lake", "main", "a b").status_code == 200


def test_a_linked_object_in_s3_has_a_relative_address_and_is_listed(
    sandbox: Sandbox, seaweedfs: SeaweedFS, bucket: str
) -> None:
    """The announced address is in the namespace, unlike with the local adapter."""
    api, lake = client(sandbox), sandbox.create("lake")
    location = api.staging_api.get_physical_address("lake", "main", "a").physical_address
    key = location.removeprefix(f"s3://{bucket}/")
    seaweedfs.client().put_object(Bucket=bucket, Key=key, Body=b"1")
    staging = models.StagingMetadata(
        staging=models.StagingLocation(physical_address=location), checksum="abc", size_bytes=1
    )
    with refused(400, "address"):
        api.staging_api.link_physical_address("lake", "main", "b", staging)
    api.staging_api.link_physical_address("lake", "main", "a", staging)
    entry = lake.stat("main", "a")
    assert (entry.address_type, f"under/lake/{entry.address}") == (AddressType.RELATIVE, key)
    assert lake.read("main", "a")[1] == b"1"
    assert api.internal_api.prepare_garbage_collection_uncommitted("lake").gc_uncommitted_location


@pytest.mark.parametrize("provider", ["seaweedfs", "gcs", "azure"], indirect=True)
def test_imported_objects_are_read_by_their_full_addresses(provider: Provider, tmp_path: Path) -> None:
    """The imported objects lie beside the namespace, in each kind of store. Objects in another store are refused."""
    outside = provider.uri("outside")
    provider.open(outside).write("of a client/x", b"theirs")
    with Sandbox(tmp_path, place=StorePlace(provider.uri(), provider.settings)) as running:
        lake = running.create("lake")
        lake.import_objects("main", [ImportSource(f"{outside}/of a client/", "in/")])
        entry = lake.stat("main", "in/x")
        assert entry.address == f"{outside}/of a client/x"
        assert lake.read("main", "in/x")[1] == b"theirs"
        with pytest.raises(Problem, match="only"):
            lake.import_objects("main", [ImportSource("local://elsewhere/", "in/")])


def test_the_clock_of_a_sandbox_in_s3_cannot_be_set(sandbox: Sandbox) -> None:
    """The store dates objects by its own clock. Restoring the machine's time is allowed."""
    with pytest.raises(WrongUsage, match="objects are in an object store"):
        sandbox.set_clock(datetime(2022, 3, 31, tzinfo=UTC))
    sandbox.set_clock(None)
    assert abs((sandbox.now() - datetime.now(UTC)).total_seconds()) < 60


def test_a_repository_in_a_missing_bucket_or_in_another_kind_of_store_is_not_created(sandbox: Sandbox) -> None:
    """Both requests get a 400 with a reason. A place that isn't a URI is wrong usage."""
    api = client(sandbox)
    for namespace, reason in (("s3://no-such-bucket/x", "bucket"), ("local://lake", "must match")):
        with refused(400, reason):
            api.repositories_api.create_repository(models.RepositoryCreation(name="lake", storage_namespace=namespace))
    with pytest.raises(Problem):
        sandbox.repository("lake")
    with pytest.raises(WrongUsage, match="s3://bucket/prefix"):
        StorePlace("bucket", Settings().store_settings())


def test_the_printed_environment_contains_no_secrets(sandbox: Sandbox, seaweedfs: SeaweedFS) -> None:
    """The settings of the sandbox open the store. The environment variables printed for other terminals contain only
    the address of the store."""
    store_settings = Settings.load({}, Path("/nowhere"), **sandbox.settings).store_settings()
    assert (store_settings.s3_endpoint_url, store_settings.s3_access_key_id) == (
        seaweedfs.endpoint_url,
        seaweedfs.access_key,
    )
    assert sandbox.environment["LAKEGC_S3_ENDPOINT_URL"] == seaweedfs.endpoint_url
    assert not any(seaweedfs.secret_key in value for value in sandbox.environment.values())


def test_a_mark_of_a_sandbox_in_s3_expires_exactly_the_unreferenced_objects(
    sandbox: Sandbox, seaweedfs: SeaweedFS, bucket: str
) -> None:
    """Objects that were overwritten long ago or reset expire. Imported objects are outside the namespace, and a shallow
    copy keeps its object."""
    seaweedfs.client().put_object(Bucket=bucket, Key="outside/x", Body=b"x")
    lake = sandbox.create("lake")
    old, day = lake.put("main", "a", b"old"), datetime(2020, 1, 1, tzinfo=UTC)
    lake.commit("main", "old", date=day)
    lake.put("main", "a", b"new")
    lake.commit("main", "new", date=day)
    lake.import_objects("main", [ImportSource(f"s3://{bucket}/outside/", "in/")])
    copied = lake.put("main", "c", b"copied")
    lake.copy("main", "c2", "c", shallow=True)
    lake.delete("main", ["c"])
    dropped = lake.put("main", "d", b"dropped")
    lake.reset_path("main", "d")
    set_rules(lake, Rules(7))
    mark = marked(sandbox.settings, "lake")
    assert mark.expired == {old.address, dropped.address}
    assert lake.stat("main", "c2").address == copied.address
