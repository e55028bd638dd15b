"""The content of listings, their order, and their pages."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_resources.errors import NotFound, WrongUsage
from spark_resources.stores import Store, keys
from spark_resources.stores.base import Deletion
from spark_resources.stores.keys import kinds_of
from tests.support.store_providers import Provider, all_keys, write_all

TREE = ["A", "a-b", "a/b", "a/b-c", "a/c/d", "a/c/e", "a0", "b", "data/x", "é", "\uffee", "😀"]  # in byte order


def in_bytes(wanted: object) -> list[str]:
    return sorted(wanted, key=str.encode)  # type: ignore[call-overload,no-any-return]


def test_an_empty_namespace_has_an_empty_listing(store: Store) -> None:
    """The bucket or root exists, so an empty listing isn't an error."""
    assert all_keys(store) == []
    assert all_keys(store, "data/") == []
    assert all_keys(store, "data/", delimiter="/") == []


def test_listing_a_missing_bucket_raises_an_error(provider: Provider) -> None:
    """A missing bucket never gives an empty listing."""
    store = provider.open(provider.nowhere())

    with pytest.raises(NotFound, match="no-such-place"):
        list(store.pages(""))
    with pytest.raises(NotFound, match="no-such-place"):
        list(store.pages("data/", delimiter="/"))


def test_keys_beside_the_namespace_are_neither_listed_nor_deleted(provider: Provider) -> None:
    """A namespace includes its final slash, so that keys like `ns-other/data/x` and `ns0` don't belong to `ns`.

    treeverse/dvc#1300, treeverse/dvc#7610
    """
    uri = provider.uri("ns")
    bucket = provider.open(uri.removesuffix("/ns"))
    write_all(bucket, ["ns/data/x", "ns-other/data/x", "ns.old/x", "ns0", "other/ns/x"])

    store = provider.open(uri)

    assert all_keys(store) == ["data/x"]
    assert all_keys(store, "data/x") == ["data/x"]
    assert store.delete_many(["data/x"])[0].key == "data/x"
    assert sorted(all_keys(bucket)) == ["ns-other/data/x", "ns.old/x", "ns0", "other/ns/x"]


def test_a_namespace_without_a_path_lists_the_whole_bucket(provider: Provider) -> None:
    """If the namespace is a whole bucket, its listing has every object. No key begins with a slash.

    earth-mover/icechunk: Changelog.python.md
    """
    uri = provider.bucket_uri()
    store = provider.open(uri)
    write_all(store, ["data/x", "dummy"])
    below = provider.open(f"{uri}/data")  # the same keys, in a namespace further down
    below.write("y", b"in it")

    assert all_keys(store) == ["data/x", "data/y", "dummy"]
    assert all_keys(store, "data/") == ["data/x", "data/y"]
    assert store.read("data/y") == b"in it"
    assert store.read("dummy") == b"dummy"
    assert all_keys(below) == ["x", "y"]
    assert [result.deletion for result in store.delete_many(["data/x", "data/y"])] == [Deletion.DELETED] * 2
    assert all_keys(below) == []


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_a_namespace_has_the_same_objects_however_many_slashes_it_ends_with(provider: Provider, slashes: str) -> None:
    """The objects are listed and deleted in the same way.

    treeverse/lakeFS#4989
    """
    uri = provider.uri("ns")
    write_all(provider.open(uri), ["data/s/x", "legacy"])

    store = provider.open(uri + slashes)

    assert all_keys(store) == ["data/s/x", "legacy"]
    assert [result.deletion for result in store.delete_many(["data/s/x", "legacy"])] == [Deletion.DELETED] * 2
    assert all_keys(provider.open(uri)) == []


@pytest.mark.parametrize("path", ["a//b", "/a", "a/./b"])
def test_a_namespace_with_unusual_slashes_is_used_as_written_or_refused(provider: Provider, path: str) -> None:
    """A store that would normalize the path refuses it. In other stores it is a namespace of its own."""
    bucket = provider.bucket_uri()
    uri = f"{bucket}/{path}"
    provider.open(bucket).write("a/b/data/x", b"not in it")

    if provider.capabilities.unsupported_keys & kinds_of(path):
        with pytest.raises(WrongUsage, match="can't be a key"):
            provider.open(uri)
    else:
        store = provider.open(uri)
        store.write("data/y", b"in it")
        assert all_keys(store) == ["data/y"]


def test_every_key_is_listed_once_for_any_page_size(store: Store) -> None:
    """No page has more keys than requested."""
    write_all(store, TREE)

    for page_size in (1, 2, 3, 1000):
        pages = list(store.pages("", page_size=page_size))
        listed = [entry.key for page in pages for entry in page.objects]

        assert in_bytes(listed) == TREE
        assert all(len(page.objects) <= page_size for page in pages)
        assert all(page.unreadable_names == 0 for page in pages)


@pytest.mark.parametrize("provider", ["local", "seaweedfs"], indirect=True)
def test_a_listing_continues_after_a_thousand_keys(store: Store) -> None:
    """A page has at most a thousand keys, as S3 allows."""
    wanted = [f"data/slice/{number:05}" for number in range(1_050)]
    write_all(store, wanted)

    pages = list(store.pages("data/"))

    assert [entry.key for page in pages for entry in page.objects] == wanted
    assert max(len(page.objects) for page in pages) <= 1_000
    assert len(pages) >= 2


def test_keys_are_listed_in_byte_order(store: Store, provider: Provider) -> None:
    """`a-b` comes before `a/b`, which comes before `a0`."""
    provider.needs("byte_order", has=provider.capabilities.byte_order)
    write_all(store, TREE)

    assert all_keys(store) == TREE
    assert all_keys(store, page_size=2) == TREE


def test_start_after_lists_exactly_the_keys_after_it(store: Store, provider: Provider) -> None:
    """The key may or may not exist."""
    provider.needs("byte_order", has=provider.capabilities.byte_order)
    write_all(store, TREE)

    for after in ("", "0", "A", "a", "a-", "a-b", "a.", "a/", "a/b", "a/bz", "a/c/", "a/c/d", "z", "😀"):
        for prefix in ("", "a/"):
            expected = [key for key in TREE if key.startswith(prefix) and key.encode() > after.encode()]
            assert all_keys(store, prefix, start_after=after) == expected, after


def test_start_after_is_refused_if_listings_are_not_in_byte_order(store: Store, provider: Provider) -> None:
    """In such a store, keys after the given one could be missed."""
    if provider.capabilities.byte_order:
        pytest.skip(f"{provider.name} lists in byte order")
    with pytest.raises(WrongUsage, match="order"):
        list(store.pages("", start_after="a"))


def test_start_after_with_a_delimiter_is_refused(store: Store) -> None:
    """Stores handle the combination differently."""
    with pytest.raises(WrongUsage, match="start_after or a delimiter"):
        list(store.pages("", start_after="a", delimiter="/"))


def test_with_a_delimiter_each_key_is_listed_or_represented_by_its_prefix(store: Store) -> None:
    """Each prefix is listed once."""
    write_all(store, TREE)

    for page_size in (1, 3, 1000):
        pages = list(store.pages("", delimiter="/", page_size=page_size))
        listed = in_bytes(entry.key for page in pages for entry in page.objects)

        assert listed == [key for key in TREE if "/" not in key], page_size
        assert in_bytes(prefix for page in pages for prefix in page.prefixes) == ["a/", "data/"], page_size

    [below] = store.pages("a/", delimiter="/")

    assert in_bytes(entry.key for entry in below.objects) == ["a/b", "a/b-c"]
    assert list(below.prefixes) == ["a/c/"]


def test_a_prefix_may_end_within_a_name(store: Store) -> None:
    """Every key that begins with the prefix is listed, whether or not the prefix ends with a slash."""
    write_all(store, TREE)

    assert in_bytes(all_keys(store, "a")) == ["a-b", "a/b", "a/b-c", "a/c/d", "a/c/e", "a0"]
    assert in_bytes(all_keys(store, "a/b")) == ["a/b", "a/b-c"]
    assert all_keys(store, "a/b/") == []
    [page] = store.pages("dat", delimiter="/")
    assert list(page.prefixes) == ["data/"]


_runs = itertools.count()
_names = st.text(st.sampled_from("a-/0.é"), min_size=1, max_size=5)


def test_a_listing_has_exactly_the_keys_that_its_arguments_select(provider: Provider) -> None:
    """A listing has the keys with the prefix, greater than `start_after`, in order, grouped at the delimiter."""
    namespace = provider.uri()

    @settings(
        max_examples=150 if provider.name == "local" else 15,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(st.sets(_names, max_size=8), st.just("") | _names, st.none() | _names, st.integers(1, 4))
    def run(names: set[str], prefix: str, after: str | None, page_size: int) -> None:
        store, root = provider.open(namespace), f"run-{next(_runs)}/"
        supported = {name for name in names if not provider.capabilities.unsupported_keys & kinds_of(name)}
        # SeaweedFS skips a folder if a page ends at the object of the same name
        if keys.OBJECT_AND_FOLDER in provider.capabilities.unsupported_keys or provider.name == "seaweedfs":
            supported = {name for name in supported if not any(other.startswith(name + "/") for other in supported)}
        for name in supported:
            store.write(root + name, b"")
        if provider.capabilities.unsupported_keys & kinds_of(root + prefix + "x"):
            with pytest.raises(WrongUsage, match="can't be a key"):
                list(store.pages(root + prefix))
            return
        wanted = [root + name for name in in_bytes(supported) if name.startswith(prefix)]

        if provider.capabilities.byte_order:
            behind = [key for key in wanted if after is None or key.encode() > (root + after).encode()]
            start_after = None if after is None else root + after
            assert all_keys(store, root + prefix, start_after=start_after, page_size=page_size) == behind
        else:
            assert in_bytes(all_keys(store, root + prefix, page_size=page_size)) == wanted

        pages = list(store.pages(root + prefix, delimiter="/", page_size=page_size))
        cut = len(root + prefix)
        assert in_bytes(entry.key for page in pages for entry in page.objects) == [
            key for key in wanted if "/" not in key[cut:]
        ]
        assert in_bytes(folded for page in pages for folded in page.prefixes) == in_bytes(
            {key[: key.index("/", cut) + 1] for key in wanted if "/" in key[cut:]}
        )

    run()
