"""Deleting many keys: each key gets exactly one result, and no other object is deleted."""

from __future__ import annotations

from spark_resources.stores import Store
from spark_resources.stores.base import Deletion
from spark_resources.stores.keys import kinds_of
from tests.support.store_providers import Provider, all_keys, write_all


def missing_result(provider: Provider) -> Deletion:
    """The result that a store reports for a key that didn't exist."""
    return Deletion.ALREADY_GONE if provider.capabilities.reports_missing_deletes else Deletion.DELETED


def test_one_result_per_key_is_returned_in_the_given_order(store: Store, provider: Provider) -> None:
    """More than a thousand keys are deleted: existing, missing, hostile and repeated ones."""
    present = [f"data/s/{number}" for number in range(40)]
    hostile = ["data/s/control\x01", "data/s/return\r", "data/s/&<>", "data/s/tab\t", "data/s/é %2F+"]
    hostile = [key for key in hostile if not provider.capabilities.unsupported_keys & kinds_of(key)]
    write_all(store, [*present, *hostile, "data/kept"])
    missing = [f"data/missing/{number}" for number in range(1_100)]
    requested = [*missing[:700], *hostile, *reversed(present), *missing[700:], present[0], "\ud800"]

    results = store.delete_many(requested)

    assert [result.key for result in results] == requested
    assert all_keys(store) == ["data/kept"]
    by_key = {result.key: result.deletion for result in results[:-2]}
    assert {by_key[key] for key in [*present[1:], *hostile]} == {Deletion.DELETED}
    assert {by_key[key] for key in missing} == {missing_result(provider)}
    assert results[-1].deletion is Deletion.FAILED
    assert results[-1].code


def test_deleting_a_key_leaves_keys_that_begin_with_it(store: Store) -> None:
    """A key is neither a folder nor a pattern."""
    write_all(store, ["data/x/1", "data/x/2", "data/x-1", "data/xy"])

    store.delete_many(["data/x", "data", "da", "data/x/", "data/x/1/"])

    assert sorted(all_keys(store)) == ["data/x-1", "data/x/1", "data/x/2", "data/xy"]


def test_deleting_a_missing_object_is_not_a_failure(store: Store, provider: Provider) -> None:
    """A killed sweep must be able to finish when it is run again."""
    store.write("data/x", b"")

    assert [result.deletion for result in store.delete_many(["data/x"])] == [Deletion.DELETED]
    assert [result.deletion for result in store.delete_many(["data/x"])] == [missing_result(provider)]
    assert store.delete_many([]) == []
