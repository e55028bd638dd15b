"""Reading, writing, copying and deleting single objects, and the errors of failed operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from spark_resources.errors import DamagedData, Forbidden, NotFound, WrongUsage
from spark_resources.stores import Store, size_limits
from spark_resources.stores.base import AlreadyExists, Changed, Deletion, read_to_verify
from tests.support.store_providers import Provider, all_keys, write_all


def test_objects_are_read_back_as_written(store: Store) -> None:
    """The objects are empty, binary, or larger than what a server stores in one piece."""
    for data in (b"", b"\x00\xff\r\n", bytes(range(256)) * 20_000):
        store.write("data/x", data)

        assert store.read("data/x") == data
        assert store.stat("data/x").size == len(data)
        assert store.read_with_tag("data/x")[0] == data


def test_an_object_that_is_larger_than_its_limit_is_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone who may write to the namespace can put a file there that would fill the memory of a process."""
    limits = tuple(replace(limit, max_bytes=100) for limit in size_limits.LIMITS)
    monkeypatch.setattr(size_limits, "LIMITS", limits)
    reads: list[Callable[[str], object]] = [store.read, store.read_with_tag, partial(read_to_verify, store)]

    for key in ("_lakefs/retention/gc/lakegc/m1/mark.json", f"_lakefs/{'a' * 64}"):
        store.write(key, b"x" * 100)
        assert store.read(key) == read_to_verify(store, key) == b"x" * 100

        store.write(key, b"x" * 101)
        for read in reads:
            with pytest.raises(DamagedData, match=rf"{key} in .* has 101 bytes or more, but .* at most 100, so it"):
                read(key)


def test_reading_looking_up_or_copying_a_missing_object_raises_not_found(store: Store) -> None:
    """The error names the object."""
    store.write("data/folder/x", b"")

    for key in ("data/none", "none", "data/folder", "data/folder/x/y"):
        for look in (store.read, store.stat, store.read_with_tag, lambda key: store.copy(key, "copy")):
            with pytest.raises(NotFound, match=key):
                look(key)
    assert all_keys(store) == ["data/folder/x"]


def test_every_method_reports_a_missing_bucket_as_missing(provider: Provider) -> None:
    """Methods that look up a single key also report the missing bucket or root."""
    store = provider.open(provider.nowhere())

    for act in (
        lambda: store.stat("data/x"),
        lambda: store.read("data/x"),
        lambda: store.write("data/x", b""),
        lambda: store.write_if_absent("data/x", b""),
        lambda: store.replace_if_unchanged("data/x", b"", "tag"),
        lambda: store.copy("data/x", "data/y"),
    ):
        with pytest.raises(NotFound, match=r"no-such-place.*does not exist"):
            act()
    assert [result.deletion for result in store.delete_many(["data/x"])] == [Deletion.FAILED]


@pytest.mark.parametrize("which", [0, 1])
def test_every_method_names_refused_credentials_as_the_cause(provider: Provider, which: int) -> None:
    """The error names the setting to check. Refused credentials never make an object seem absent."""
    provider.needs("credentials", has=which < len(provider.wrong_credentials))
    uri = provider.uri()
    provider.open(uri).write("data/x", b"")
    known = {name: getattr(provider.settings, name) for name in provider.settings.model_fields_set}
    settings = type(provider.settings).model_validate(known | provider.wrong_credentials[which])
    store = replace(provider, settings=settings).open(uri)

    for act in (
        lambda: list(store.pages("")),
        lambda: store.read("data/x"),
        lambda: store.write("data/x", b""),
        lambda: store.write_if_absent("data/y", b""),
        store.now,
    ):
        with pytest.raises(Forbidden, match=provider.credentials):
            act()
    for act in (lambda: store.stat("data/x"), lambda: store.stat("data/none")):
        with pytest.raises(Forbidden):
            act()
    [result] = store.delete_many(["data/x"])
    assert result.deletion is Deletion.FAILED
    assert result.code


def test_a_copy_has_the_content_of_its_source_and_replaces_its_target(store: Store) -> None:
    """The source stays unchanged. Copying an object onto itself is refused."""
    write_all(store, ["data/x", "data/y"])

    store.copy("data/x", "data/y")
    store.copy("data/x", "data/deeper/z")

    assert [store.read(key) for key in ("data/x", "data/y", "data/deeper/z")] == [b"data/x"] * 3
    with pytest.raises(WrongUsage, match="onto itself"):
        store.copy("data/x", "data/x")


def test_objects_are_dated_by_the_stores_clock(store: Store, provider: Provider) -> None:
    """The store's clock has a time zone. In these tests it is this machine's clock."""
    before = store.now()
    store.write("data/x", b"")
    after = store.now()
    modified = store.stat("data/x").modified

    assert abs(before - datetime.now(UTC)) < timedelta(seconds=5)
    assert modified.utcoffset() == timedelta(0)
    assert before - provider.capabilities.time_resolution <= modified <= after + provider.capabilities.time_resolution
    assert store.clock_offset == timedelta(0)
    assert [entry.modified for page in store.pages("") for entry in page.objects] == [modified]


def test_a_listing_and_a_lookup_agree_about_an_object(store: Store) -> None:
    """The listing and the lookup report the same size, time and checksum."""
    store.write("data/x", b"12345")

    [entry] = [entry for page in store.pages("") for entry in page.objects]

    assert entry == store.stat("data/x")
    assert entry.size == 5


def test_conditional_writes_are_refused_if_their_condition_does_not_hold(store: Store) -> None:
    """One kind of write requires the object to be absent, the other requires it to be unchanged."""
    first = store.write_if_absent("lease", b"one")
    with pytest.raises(AlreadyExists, match="lease"):
        store.write_if_absent("lease", b"two")

    assert store.read_with_tag("lease") == (b"one", first)

    second = store.replace_if_unchanged("lease", b"three", first)
    with pytest.raises(Changed, match="lease"):
        store.replace_if_unchanged("lease", b"four", first)

    assert store.read_with_tag("lease") == (b"three", second)

    third = store.write("lease", b"five")

    assert third not in (first, second)
    assert store.read_with_tag("lease")[1] == third


def test_replacing_a_missing_object_is_refused(store: Store) -> None:
    """No object is written."""
    tag = store.write("lease", b"one")
    store.delete_many(["lease"])

    with pytest.raises(Changed, match=r"deleted|no longer exists"):
        store.replace_if_unchanged("lease", b"two", tag)
    assert all_keys(store) == []
