"""A key is stored byte for byte or refused. No other key is ever stored in its place."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_resources.errors import WrongUsage
from spark_resources.stores import Store, keys
from spark_resources.stores.base import Deletion
from spark_resources.stores.keys import kinds_of
from tests.support.store_providers import SEAWEEDFS_UNSUPPORTED_KEYS, Provider, all_keys

HOSTILE = [
    "data/plain",
    "data/a b",
    "data/a+b",
    "data/a%2Fb",
    "data/a%b",
    "data/%",
    "data/+",
    "data/new\nline",
    "data/carriage\rreturn",
    "data/both\r\n",
    "data/tab\there",
    "data/control\x01",
    "data/escape\x1b[0m",
    "data/delete\x7f",
    "data/next\x85line",
    "data/not\ufffexml",
    "data/\u2028separator",
    "data/é",
    "data/e\u0301",  # looks the same, and is the same to a file system that normalizes
    "data/日本/語",
    "data/😀",
    "data/\u202egnp.exe",
    "data/?versionId=1",
    "data/#fragment",
    "data/&amp;<b>'\"",
    "data/;,=:@!$()*~",
    "data/back\\slash",
    "data/ leading",
    "data/trailing ",
    "data/ ",
    "data/UPPER",
    "data/upper",
    "data/a//b",
    "data//a",
    "data/a/",
    "/data/a",
    "/",
    "data/./a",
    "data/../a",
    "data/..",
    ".",
    "..",
    "data/.hidden",
    "data/...",
    "data/end./x.",
    "data/nul\0",
    "data/" + "x" * 255,
    "data/" + "é" * 128,
    "-",
    "root-object",
]

_runs = itertools.count()


@pytest.mark.parametrize("key", HOSTILE, ids=ascii)
def test_a_hostile_key_is_stored_exactly_or_refused(store: Store, provider: Provider, key: str) -> None:
    """Listing, lookups, reading, copying and deleting all use exactly the given key."""
    if provider.name == "moto" and not SEAWEEDFS_UNSUPPORTED_KEYS & kinds_of(key):
        pytest.skip("stored in SeaweedFS, by the same code")
    if provider.capabilities.unsupported_keys & kinds_of(key):
        _check_refused(store, key)
    else:
        _check_kept_exactly(store, key)


def _check_kept_exactly(store: Store, key: str) -> None:
    store.write(key, b"content")

    assert all_keys(store) == [key]
    assert all_keys(store, key) == [key]
    assert store.stat(key).key == key
    assert store.read(key) == b"content"

    store.copy(key, "data/copy-of-it")

    assert store.read("data/copy-of-it") == b"content"

    store.copy("data/copy-of-it", key)
    [first, second] = store.delete_many([key, "data/copy-of-it"])

    assert (first.key, first.deletion) == (key, Deletion.DELETED)
    assert second.deletion is Deletion.DELETED
    assert all_keys(store) == []


def _check_refused(store: Store, key: str) -> None:
    neighbors = sorted(
        {"data/a", "data/a/b", "a"}
        - ({"data/a"} if keys.OBJECT_AND_FOLDER in store.capabilities.unsupported_keys else set())
    )
    for neighbor in neighbors:
        store.write(neighbor, b"left alone")

    for change in (
        lambda: store.write(key, b"content"),
        lambda: store.write_if_absent(key, b"content"),
        lambda: store.replace_if_unchanged(key, b"content", "tag"),
        lambda: store.copy(neighbors[0], key),
        lambda: store.copy(key, "data/copy"),
        lambda: store.read(key),
        lambda: store.stat(key),
    ):
        with pytest.raises(WrongUsage, match="can't be a key"):
            change()
    [result] = store.delete_many([key])

    assert (result.key, result.deletion) == (key, Deletion.FAILED)
    assert sorted(all_keys(store)) == neighbors
    assert all(store.read(neighbor) == b"left alone" for neighbor in neighbors)


def test_keys_with_percent_signs_spaces_and_unicode_are_deleted(store: Store) -> None:
    """Exactly the given keys are deleted, not escaped, decoded or composed forms of them.

    delta-io/delta-rs#4646
    """
    wanted = ["data/a b", "data/100%", "data/x%20y", "data/c+d e", "data/\xfc", "data/\u65e5\u672c%", "legacy %41"]
    others = ["data/a%20b", "data/100%25", "data/x y", "data/c d e", "data/u\u0308", "data/%C3%BC", "legacy A"]
    for key in [*wanted, *others]:
        store.write(key, key.encode())

    results = store.delete_many(wanted)

    assert [(result.key, result.deletion) for result in results] == [(key, Deletion.DELETED) for key in wanted]
    assert sorted(all_keys(store)) == sorted(others)
    assert all(store.read(key) == key.encode() for key in others)


@pytest.mark.parametrize("key", ["", "half a pair \ud800"], ids=ascii)
def test_empty_keys_and_keys_that_cannot_be_encoded_as_utf8_are_refused(store: Store, key: str) -> None:
    """Every store refuses such keys."""
    with pytest.raises(WrongUsage):
        store.write(key, b"")
    with pytest.raises(WrongUsage):
        store.read(key)
    assert store.delete_many([key])[0].deletion is Deletion.FAILED
    assert all_keys(store) == []


def test_a_long_key_is_stored_in_full_or_refused(store: Store) -> None:
    """The key has 1,300 bytes in short segments. It is never truncated."""
    key = "/".join(["x" * 99] * 13)
    try:
        store.write(key, b"long")
    except WrongUsage:
        assert all_keys(store) == []
    else:
        assert all_keys(store) == [key]
        assert store.read(key) == b"long"


_segments = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
_nasty_segments = st.text(st.sampled_from("a+%/ .\\\n\r\x01é~&<?#"), max_size=6)
_keys = st.lists(_segments | _nasty_segments, min_size=1, max_size=4).map("/".join).filter(bool)


def test_arbitrary_keys_are_listed_and_deleted_exactly(provider: Provider) -> None:
    namespace = provider.uri()

    @settings(
        max_examples=60 if provider.name == "local" else 20,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(st.sets(_keys, min_size=1, max_size=5))
    def run(wanted: set[str]) -> None:
        store = provider.open(namespace)
        prefix = f"run-{next(_runs)}/"  # a leading slash behind it is an empty segment, as in any namespace
        supported = {prefix + key for key in wanted if not provider.capabilities.unsupported_keys & kinds_of(key)}
        if keys.OBJECT_AND_FOLDER in provider.capabilities.unsupported_keys:
            supported = {key for key in supported if not any(other.startswith(key + "/") for other in supported)}
        for key in supported:
            store.write(key, key.encode())

        assert set(all_keys(store, prefix)) == supported
        assert all(store.read(key) == key.encode() for key in supported)

        results = store.delete_many(sorted(supported))

        assert [(result.key, result.deletion) for result in results] == [
            (key, Deletion.DELETED) for key in sorted(supported)
        ]
        assert all_keys(store, prefix) == []

    run()
