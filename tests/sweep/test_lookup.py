"""Looking up keys again gives the same results as a full listing, with few requests and on every store."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from spark_resources.deleting.lookup import FOUND, MAX_SINGLE_LOOKUPS, Lookup, as_table
from spark_resources.errors import Unavailable
from spark_resources.model import PENDING
from spark_resources.stores import Store, keys
from spark_resources.stores.base import Page
from tests.stores.conftest import store
from tests.support.store_providers import Provider, write_all

__all__ = ["store"]

SLICES = ("", "data/", "data/one/", "data/two/", "data/two-more/")
NAMES = [f"{number:02}{tail}" for number in range(24) for tail in ("", "-x", "+/x", "é")]


@dataclass
class SmallPages:
    """A store that answers a few keys at a time, and counts its responses."""

    store: Store
    pages_read: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def pages(self, prefix: str, **how: Any) -> Iterator[Page]:
        for page in self.store.pages(prefix, **{**how, "page_size": 5}):
            self.pages_read += 1
            yield page


def keys_in(folder: str) -> list[str]:
    """Keys directly in a flat folder, or also in subfolders of a slice."""
    return [folder + name for name in NAMES if folder.count("/") == 2 or "/" not in name]


def chunk(keys: Sequence[tuple[str, str]]) -> pa.Table:
    rows = [{"slice": folder, "address": key, "intended": False} for folder, key in keys]
    rows.sort(key=lambda row: (str(row["slice"]).encode(), str(row["address"]).encode()))
    return pa.Table.from_pylist(rows, schema=PENDING)


def by_key(table: pa.Table) -> dict[str, tuple[int, int, str | None]]:
    """The size, time in whole seconds, and checksum of each key. A repeated key is an error."""
    rows = table.to_pylist()
    details = {row["address"]: (row["size"], int(row["modified"].timestamp()), row["checksum"]) for row in rows}
    assert len(details) == len(rows)
    return details


def test_lookups_return_the_same_objects_as_a_full_listing(store: Store) -> None:
    """Random keys, existing or not, few or many of a slice, are looked up in slices of any size."""
    chance = random.Random("lookups")
    every = [(folder, key) for folder in SLICES for key in keys_in(folder)]
    present = [key for _, key in every if chance.random() < 0.6]
    write_all(store, present)
    for key in chance.sample(present, 5):
        store.write(key, b"of another size")
    listed = by_key(as_table(stored for page in store.pages("") for stored in page.objects))
    for share in (0.02, 0.3, 1.0):
        lookup = Lookup(SmallPages(store))  # type: ignore[arg-type]
        wanted = chunk([key for key in every if chance.random() < share]).to_batches()[0]
        for start in range(0, wanted.num_rows, 37):
            part = pa.Table.from_batches([wanted.slice(start, 37)])
            addresses = set(part["address"].to_pylist())
            looked_up = {key: details for key, details in by_key(lookup.look_up(part)).items() if key in addresses}

            assert looked_up == {key: listed[key] for key in addresses & listed.keys()}, f"share {share}"


def test_a_few_keys_of_a_large_slice_are_looked_up_without_listing_it(store: Store, provider: Provider) -> None:
    """The store lists in byte order, and the keys are close together."""
    provider.needs("byte_order", has=provider.capabilities.byte_order)
    every = [f"data/one/{number:04}" for number in range(120)]
    write_all(store, every)
    paged = SmallPages(store)
    wanted = [
        ("data/one/", key) for key in [*every[40 : 40 + MAX_SINGLE_LOOKUPS], *every[100 : 100 + MAX_SINGLE_LOOKUPS]]
    ]
    results = Lookup(paged).look_up(chunk(wanted))  # type: ignore[arg-type]

    assert {key for _, key in wanted} <= set(by_key(results))
    assert paged.pages_read < 12


@pytest.mark.parametrize("kind", [keys.NUL, keys.CONTROL, keys.NOT_XML])
def test_keys_with_characters_that_xml_cannot_represent_are_looked_up(
    store: Store, provider: Provider, kind: str
) -> None:
    """The listing starts at such a key, but the store's response can't repeat it."""
    provider.needs("byte_order", has=provider.capabilities.byte_order)
    provider.needs("unsupported_keys", has=kind not in provider.capabilities.unsupported_keys)
    every = [f"data/one/{number:04}{keys.SAMPLES[kind]}s" for number in range(60)]
    write_all(store, every)
    wanted = every[:: len(every) // (2 * MAX_SINGLE_LOOKUPS)]
    results = Lookup(SmallPages(store)).look_up(chunk([("data/one/", key) for key in wanted]))  # type: ignore[arg-type]

    assert set(wanted) <= set(by_key(results))


def test_a_key_that_the_store_cannot_hold_counts_as_absent(store: Store, provider: Provider) -> None:
    """The store would fold the key into a different one, so no object with the key itself can be deleted. The sweep
    continues."""
    provider.needs("unsupported_keys", has="empty segment" in provider.capabilities.unsupported_keys)
    write_all(store, ["data/one/a"])
    results = Lookup(store).look_up(chunk([("data/one/", "data/one//a"), ("data/one/", "data/one/a")]))

    assert list(by_key(results)) == ["data/one/a"]


def test_a_failing_request_fails_the_lookup(store: Store) -> None:
    """A failed request never makes a key count as gone."""

    class Away(SmallPages):
        def pages(self, prefix: str, **how: Any) -> Iterator[Page]:
            yield from ()
            raise Unavailable("away")

        def stat(self, key: str) -> Any:
            raise Unavailable("away")

    for count in (1, MAX_SINGLE_LOOKUPS + 1):
        with pytest.raises(Unavailable):
            Lookup(Away(store)).look_up(chunk([("data/one/", f"data/one/{number}") for number in range(count)]))  # type: ignore[arg-type]


def test_a_lookup_of_no_keys_finds_nothing_and_sends_no_request(store: Store) -> None:
    assert Lookup(store).look_up(PENDING.empty_table()).equals(FOUND.empty_table())
