"""Listings that are split into ranges of keys and run in parallel: each key is listed exactly once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spark_resources.errors import Unavailable, WrongUsage
from spark_resources.stores import Store
from spark_resources.stores.arrow_pages import LISTED_OBJECTS, arrow_pages, to_record_batch
from spark_resources.stores.base import Page
from spark_resources.stores.parallel_listing import Part, can_split_listings, key_between, pages_of_parts, split_part
from tests.support.store_providers import Provider, all_keys, write_all

NAMES = [
    "A",
    "a-b",
    "a/b",
    "a/b-c",
    "a/c/d",
    "a0",
    "b",
    "c",
    "data/s/1",
    "data/s/2",
    "data/t/1",
    "data/z",
    "e",
    "é",
    "😀",
]
LONG = [f"data/{a:x}{b:x}/{c:x}" for a in range(6) for b in range(3) for c in range(2)]


@dataclass
class SmallPages:
    """A store that lists a few keys at a time, whatever page size is requested, and counts its pages."""

    store: Store
    size: int = 3
    pages_read: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def pages(self, prefix: str, **how: Any) -> Iterator[Page]:
        for page in self.store.pages(prefix, **{**how, "page_size": min(self.size, how["page_size"])}):
            self.pages_read += 1
            yield page


def listed_keys(store: Any, parts: Sequence[Part], **how: Any) -> list[tuple[str, str]]:
    """The folder and key of each object, in byte order."""
    pages = pages_of_parts(store, parts, **how)
    rows = [(folder, key) for folder, page in pages for key in page.objects.column("address").to_pylist()]
    return sorted(rows, key=lambda row: (row[0].encode(), row[1].encode()))


def ranges(part: Part, boundaries: Sequence[str]) -> list[Part]:
    bounds = [None, *sorted(boundaries, key=str.encode), None]
    return [replace(part, after=after, up_to=up_to) for after, up_to in itertools.pairwise(bounds)]


def plain_listing(store: Store, part: Part) -> list[tuple[str, str]]:
    """The keys of a plain listing."""
    keys = all_keys(store, part.folder, delimiter="/" if part.flat else None)
    return sorted(((part.folder, key) for key in keys), key=lambda row: row[1].encode())


@pytest.fixture
def splittable_store(store: Store, provider: Provider) -> Store:
    provider.needs("byte_order", has=provider.capabilities.byte_order)
    return store


def test_ranges_list_every_key_once_for_any_split_of_a_folder(splittable_store: Store, provider: Provider) -> None:
    """No other key is listed."""
    write_all(splittable_store, NAMES)
    wanted = {
        part: plain_listing(splittable_store, part)
        for part in (Part(""), Part("", flat=True), Part("data/"), Part("a/", True))
    }
    texts = st.sampled_from(NAMES) | st.text(st.sampled_from("0Aab-/dt1zé~"), min_size=1, max_size=6)

    @settings(max_examples=200 if provider.name == "local" else 10, deadline=None)
    @given(st.sampled_from(sorted(wanted, key=repr)), st.lists(texts, max_size=5, unique=True), st.integers(2, 5))
    @example(Part("", flat=True), ["data/", "data/z", "a/"], 2)
    def run(part: Part, boundaries: list[str], page_size: int) -> None:
        assert listed_keys(splittable_store, ranges(part, boundaries), at_once=2, page_size=page_size) == wanted[part]

    run()


def test_a_listing_that_is_split_while_it_runs_lists_every_key_once(splittable_store: Store) -> None:
    """Idle threads repeatedly take over a part of another thread's range."""
    names = [f"{a:x}{b:x}" for a in range(8) for b in range(8)]
    write_all(splittable_store, [*names, *LONG[:10], "data/right", "other/a/b", "z"])
    small = SmallPages(splittable_store, size=3)

    for part, at_once in itertools.product((Part(""), Part("", flat=True)), (2, 8)):
        listed = listed_keys(small, [part], at_once=at_once, pages_before_first_split=1)
        assert listed == plain_listing(splittable_store, part), (part, at_once)


def test_each_row_of_a_parallel_listing_names_its_folder(store: Store) -> None:
    write_all(store, [*LONG, "root", "data/right"])
    folders = sorted({key[: key.index("/", 5) + 1] for key in LONG})
    parts = [Part("", flat=True), Part("data/", flat=True), *map(Part, folders)]

    assert listed_keys(store, parts) == sorted(
        [("", "root"), ("data/", "data/right"), *((key[: key.index("/", 5) + 1], key) for key in LONG)]
    )
    assert listed_keys(store, []) == []


def test_a_large_folder_is_split_into_about_the_requested_number_of_ranges(splittable_store: Store) -> None:
    """Together, the ranges list each key exactly once."""
    write_all(splittable_store, [*LONG[:24], *(f"{number:02}" for number in range(24))])

    for part in (Part(""), Part("", flat=True), Part("data/")):
        parts = split_part(splittable_store, part, count=6, page_size=4)
        if not can_split_listings(splittable_store):
            assert parts == [part]
            continue

        assert 3 <= len(parts) <= 6
        assert listed_keys(splittable_store, parts) == plain_listing(splittable_store, part)
        assert sum(1 for part in parts if listed_keys(splittable_store, [part])) >= len(parts) - 1
        assert split_part(splittable_store, part, count=6) == [part]  # less than one full page


def test_ranges_are_refused_if_listings_are_not_in_byte_order(store: Store, provider: Provider) -> None:
    """In such a store, ranges would lose keys."""
    if provider.capabilities.byte_order:
        pytest.skip(f"{provider.name} lists in byte order")
    for part in (Part("", after="a"), Part("", up_to="a")):
        with pytest.raises(WrongUsage, match="order"):
            list(pages_of_parts(store, [part]))


def test_a_range_that_is_not_listed_in_the_declared_order_raises_an_error(provider: Provider) -> None:
    """The declared capabilities wrongly say that the store lists in byte order."""
    if provider.capabilities.byte_order:
        pytest.skip(f"{provider.name} lists in byte order")
    uri = provider.uri()
    write_all(provider.open(uri), ["a/b", "a-b", "b"])
    store = provider.open(uri, capabilities=replace(provider.capabilities, byte_order=True))
    if all_keys(store) == ["a-b", "a/b", "b"]:
        pytest.skip(f"{provider.name} lists these keys in byte order")

    assert listed_keys(store, [Part("")], at_once=1) == [("", "a-b"), ("", "a/b"), ("", "b")]
    with pytest.raises(Unavailable, match="order"):
        list(pages_of_parts(store, [Part("", up_to="b")]))


@pytest.mark.parametrize("at_once", [1, 4])
def test_one_failing_page_fails_the_whole_listing(store: Store, at_once: int) -> None:
    """If a range just ended early, its remaining keys would seem to be absent."""
    write_all(store, LONG)

    class Breaking(SmallPages):
        def pages(self, prefix: str, **how: Any) -> Iterator[Page]:
            for number, page in enumerate(super().pages(prefix, **how)):
                if prefix == "data/3" and number == 1:
                    raise Unavailable("away")
                yield page

    with pytest.raises(Unavailable, match="away"):
        listed_keys(Breaking(store), [Part(f"data/{number}") for number in range(6)], at_once=at_once)


def test_an_abandoned_listing_stops_its_threads(store: Store) -> None:
    """The threads request no more pages."""
    write_all(store, LONG)
    small = SmallPages(store, size=1)
    pages = pages_of_parts(small, [Part(f"data/{number}") for number in range(6)], at_once=2)  # type: ignore[arg-type]
    next(pages)
    pages.close()  # type: ignore[attr-defined]
    pages_before = small.pages_read

    assert pages_before < 20
    assert small.pages_read == pages_before


def test_arrow_pages_agree_with_plain_pages(store: Store, provider: Provider) -> None:
    """Both kinds of pages have the same keys, sizes, times and tags, including unusual ones."""
    write_all(store, [*NAMES, "data/+ %2F", "data/a,b=c!d", "data/%", "data/100%25", "data/é+"])

    for how in ({}, {"page_size": 4}, {"delimiter": "/"}):
        pages, arrow = list(store.pages("", **how)), list(arrow_pages(store, "", **how))  # type: ignore[arg-type]
        assert [to_record_batch(page.objects) for page in pages] == [page.objects for page in arrow]
        assert [(list(page.prefixes), page.unreadable_names) for page in pages] == [
            (list(page.prefixes), page.unreadable_names) for page in arrow
        ]
        assert all(page.objects.schema == LISTED_OBJECTS for page in arrow)


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.sampled_from(["", "data/", "é"]), _texts, st.none() | _texts)
def test_key_between_returns_a_key_between_two_keys(shared: str, low: str, high: str | None) -> None:
    """The returned key lies between the two in byte order, and begins with their common prefix."""
    low, high = shared + low, None if high is None else shared + high
    middle = key_between(low, high, len(shared))

    if middle is not None:
        assert middle.startswith(shared)
        assert low.encode() < middle.encode()
        assert high is None or middle.encode() < high.encode()


def test_halving_a_range_ends_after_a_limited_number_of_steps() -> None:
    """Keys of lakeFS have a long common prefix."""
    low, steps = "data/s/cpj2k6c8kq2h3m1v0a1g", 0
    high: str | None = None
    while (high := key_between(low, high, len("data/s/"))) is not None:
        steps += 1
    assert 20 < steps < 20 * 7
