"""Streaming objects between namespaces, on every store: type and metadata are kept, and no object is overwritten."""

from __future__ import annotations

import pytest

from spark_resources.errors import NotFound
from spark_resources.model import Namespace
from spark_resources.stores import Store, open_store
from spark_resources.stores.base import AlreadyExists, Changed, StoredObject
from spark_resources.stores.local.transfer import LocalStreams
from spark_resources.stores.s3.transfer import S3Streams
from spark_resources.stores.transfer import (
    HashingIterator,
    ObjectProperties,
    Streams,
    copy_never_replaces,
    split_into_parts,
)
from tests.support.azurite import Azurite
from tests.support.s3_servers import MotoServer
from tests.support.store_providers import Provider

HEADERS = {"Content-Type": "text/x-lake", "Cache-Control": "max-age=7"}
METADATA = {"owner": "ada", "run_7": "a b"}
KEEPS_CONDITIONS = {"seaweedfs": True, "azure": True, "local": True, "moto": False, "gcs": False}
PART_SIZE = 5 * 1024 * 1024


def properties_for_data(store: Store, data: bytes) -> ObjectProperties:
    return ObjectProperties(len(data), store.now(), None, "", HEADERS, METADATA)


def two_stores(provider: Provider) -> tuple[Store, Store]:
    return provider.open(provider.uri()), provider.open(provider.uri())


def in_parts(store: Store) -> Streams:
    """Streams that split a few MB into several parts."""
    whole = store.streams
    return whole if isinstance(whole, LocalStreams) else type(whole)(store, part_size=PART_SIZE)  # type: ignore[call-arg]


@pytest.mark.parametrize("size", [0, 5, 2 * PART_SIZE + 7])
def test_objects_written_in_pieces_are_read_back_with_the_same_bytes_and_metadata(
    provider: Provider, size: int
) -> None:
    """Small and large objects keep their content type and user metadata."""
    store = provider.open(provider.uri())
    streams, data = in_parts(store), bytes(range(256)) * (size // 256) + bytes(size % 256)
    written = streams.put("a/b c", [data[:3], data[3:]], properties_for_data(store, data))
    properties = streams.properties("a/b c")

    assert store.read("a/b c") == data
    assert b"".join(streams.pieces("a/b c", properties)) == data
    assert (properties.size, properties.checksum) == (size, store.stat("a/b c").checksum)
    assert not written.checksums or properties.checksum in written.checksums
    assert written.tag == properties.tag
    if provider.name != "local":
        assert {name: properties.headers.get(name) for name in HEADERS} == HEADERS or provider.name == "gcs"
        assert properties.headers["Content-Type"] == "text/x-lake"
        assert properties.metadata == METADATA


@pytest.mark.parametrize("size", [5, PART_SIZE + 7])
def test_puts_and_copies_never_replace_an_object(provider: Provider, size: int) -> None:
    """Copies are tested only on stores that respect conditions of copies."""
    source, target = two_stores(provider)
    data = b"x" * size
    target.write("there", b"first")
    with pytest.raises(AlreadyExists):
        in_parts(target).put("there", [data], properties_for_data(target, data))

    assert target.read("there") == b"first"
    source.write("a", data)
    if KEEPS_CONDITIONS[provider.name]:
        with pytest.raises(AlreadyExists):
            target.streams.copy(source.streams, source.stat("a"), "there")
        assert target.read("there") == b"first"


@pytest.mark.parametrize("size", [5, PART_SIZE + 7])
def test_an_object_that_replaced_the_written_one_is_not_removed(provider: Provider, size: int) -> None:
    """Removal requires the tag of the written object; removing a missing object does nothing."""
    store = provider.open(provider.uri())
    streams, data = in_parts(store), b"x" * size
    own, replaced = (streams.put(key, [data], properties_for_data(store, data)) for key in ("ours", "replaced"))
    store.write("replaced", b"a client's")
    assert own.tag is not None
    assert replaced.tag is not None
    with pytest.raises(Changed):
        streams.remove("replaced", replaced.tag)
    for _ in range(2):
        streams.remove("ours", own.tag)

    assert [stored.key for page in store.pages("") for stored in page.objects] == ["replaced"]
    assert store.read("replaced") == b"a client's"


def test_the_probe_detects_whether_copies_respect_conditions(provider: Provider) -> None:
    """The probe leaves no objects behind."""
    store = provider.open(provider.uri())
    properties = ObjectProperties(0, store.now(), None, "")
    scratch = "_lakefs/retention/gc/lakegc/.probe/x/"

    respected = copy_never_replaces(store.streams, store, scratch, properties)

    assert respected is KEEPS_CONDITIONS[provider.name]
    assert [stored for page in store.pages(scratch) for stored in page.objects] == []


def test_a_server_side_copy_keeps_bytes_type_and_metadata(provider: Provider) -> None:
    """The copy is in another namespace."""
    source, target = two_stores(provider)
    source.streams.put("a", [b"hello"], properties_for_data(source, b"hello"))
    written = target.streams.copy(source.streams, source.stat("a"), "deep/er/b")
    copy, original = target.streams.properties("deep/er/b"), source.streams.properties("a")

    assert source.streams.server == target.streams.server
    assert target.read("deep/er/b") == b"hello"
    assert (copy.headers, copy.metadata) == (original.headers, original.metadata)
    assert written.checksums <= {target.stat("deep/er/b").checksum}
    assert written.tag == copy.tag


def test_an_object_replaced_or_removed_since_the_lookup_is_not_copied(provider: Provider) -> None:
    """Reads and copies require the object that was looked up."""
    source, target = two_stores(provider)
    source.write("a", b"first")
    streams = source.streams
    properties, looked_up = streams.properties("a"), source.stat("a")
    source.write("a", b"other bytes")
    with pytest.raises(Changed):
        list(streams.pieces("a", properties))
    # moto ignores the condition, and a local copy looks the object up again
    if provider.name not in ("moto", "local"):
        with pytest.raises(Changed):
            target.streams.copy(streams, looked_up, "b")
    source.delete_many(["a"])
    with pytest.raises(NotFound):
        list(streams.pieces("a", properties))
    with pytest.raises(NotFound):
        target.streams.copy(streams, looked_up, "c")


def test_an_object_too_large_for_one_request_is_copied_in_parts_with_its_metadata(moto_server: MotoServer) -> None:
    """A multipart copy doesn't replace an existing object either."""
    moto_server.make_bucket("large")
    stores = [open_store(Namespace.parse(f"s3://large/{name}"), moto_server.settings()) for name in ("from", "to")]
    source, target = (S3Streams(store, max_copy_bytes=PART_SIZE) for store in stores)  # type: ignore[arg-type]
    data = b"ab" * PART_SIZE
    source.put("a", [data], properties_for_data(stores[0], data))
    target.copy(source, stores[0].stat("a"), "b")

    assert stores[1].read("b") == data
    assert target.properties("b").metadata == METADATA
    with pytest.raises(AlreadyExists):
        target.copy(source, stores[0].stat("a"), "b")


def test_copying_or_reading_an_archived_object_raises_in_archive_tier(
    moto_server: MotoServer, azurite: Azurite
) -> None:
    """Callers can distinguish this error from all other failures."""
    from spark_resources.stores.transfer import InArchiveTier

    moto_server.make_bucket("cold")
    moto_server.client().put_object(Bucket="cold", Key="ns/a", Body=b"ice", StorageClass="GLACIER")
    azurite.make_container("cold")
    azurite.client().get_blob_client("cold", "ns/a").upload_blob(b"ice")
    azurite.client().get_blob_client("cold", "ns/a").set_standard_blob_tier("Archive")  # type: ignore[arg-type]
    account = f"https://{azurite.account}.blob.core.windows.net"
    for uri, settings in (("s3://cold", moto_server.settings()), (f"{account}/cold", azurite.settings())):
        source = open_store(Namespace.parse(f"{uri}/ns"), settings)
        target = open_store(Namespace.parse(f"{uri}/to"), settings)
        archived, streams = source.stat("a"), source.streams
        with pytest.raises(InArchiveTier, match="archive"):
            target.streams.copy(streams, archived, "a")
        with pytest.raises(InArchiveTier, match="archive"):
            list(streams.pieces("a", streams.properties("a")))


def test_all_parts_but_the_last_have_the_same_length() -> None:
    """Incoming pieces may have any length. Their hash covers all bytes."""
    pieces = [b"ab", b"", b"cdefghij", b"k"]

    assert list(split_into_parts(iter(pieces), 3)) == [b"abc", b"def", b"ghi", b"jk"]
    assert list(split_into_parts(iter([b"abcdef"]), 3)) == [b"abc", b"def"]
    assert list(split_into_parts(iter([]), 3)) == []
    assert HashingIterator([b"a", b"b"]).drain().md5 == "187ef4436122d1cc2f40dc2b92f0eba0"


def test_streaming_or_copying_a_missing_object_raises_not_found(provider: Provider) -> None:
    """Restores and sweeps rely on this."""
    source, target = two_stores(provider)
    streams = source.streams

    with pytest.raises(NotFound):
        streams.properties("nothing")
    with pytest.raises(NotFound):
        target.streams.copy(streams, StoredObject("nothing", 1, source.now()), "b")
