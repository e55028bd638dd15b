"""Items are fetched before they are used: in order, and as many as fit. An error is raised when its item is reached."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spark_resources.stores.prefetch import ALWAYS_AHEAD, MAX_BYTES_AHEAD, fetch_in_parallel, prefetch

WAIT_S = 20


class Source:
    """Counts how many items are requested."""

    def __init__(self) -> None:
        self.asked, self._lock = 0, threading.Lock()

    def fetch(self, item: int) -> int:
        with self._lock:
            self.asked += 1
        return item * 10


@pytest.mark.parametrize("ahead", [1, 3, 50])
def test_items_are_yielded_in_order_with_what_was_fetched(ahead: int) -> None:
    assert list(prefetch(range(20), lambda item: item * 10, ahead, size_of=lambda _: 1)) == [
        (item, item * 10) for item in range(20)
    ]
    assert list(prefetch([], len, ahead)) == []


def test_a_single_item_is_fetched_without_starting_a_thread() -> None:
    """Most lists of small repositories have one item."""
    caller = threading.get_ident()

    assert list(fetch_in_parallel(["only"], lambda _: threading.get_ident())) == [caller]
    assert caller not in list(fetch_in_parallel(["one", "two"], lambda _: threading.get_ident()))


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 16), (MAX_BYTES_AHEAD // 8, 8), (MAX_BYTES_AHEAD // 2, ALWAYS_AHEAD), (MAX_BYTES_AHEAD * 9, ALWAYS_AHEAD)],
)
def test_as_many_items_are_fetched_ahead_as_fit_into_the_limit(size: int, expected: int) -> None:
    source = Source()
    items = prefetch(range(100), source.fetch, 16, size_of=lambda _: size, expected_size=size)
    for used in range(1, 6):
        next(items)
        assert source.asked <= used + expected
    assert source.asked >= expected
    items.close()  # type: ignore[attr-defined]


def test_an_unexpectedly_large_item_reduces_how_many_are_fetched_ahead() -> None:
    source = Source()
    items = prefetch(range(100), source.fetch, 16, size_of=lambda _: MAX_BYTES_AHEAD, expected_size=1)
    for _ in range(13):
        next(items)
    assert source.asked <= 13 + ALWAYS_AHEAD
    items.close()  # type: ignore[attr-defined]


def test_requests_are_sent_concurrently() -> None:
    """Each request waits for the others, so that sequential requests would never end."""
    together = threading.Barrier(8, timeout=WAIT_S)
    assert list(fetch_in_parallel(range(8), lambda _: together.wait() >= 0)) == [True] * 8


def test_an_error_is_raised_when_its_item_is_reached() -> None:
    def fetch(item: int) -> int:
        if item == 2:
            raise ValueError("no item 2")
        return item

    items: Iterator[int] = fetch_in_parallel(range(5), fetch)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="no item 2"):
        next(items)
