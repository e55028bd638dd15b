"""Fetches what is needed next while the current item is processed: a response from a distant store takes time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Fetched = TypeVar("_Fetched")

CONCURRENT_REQUESTS = 16  # for small files
ALWAYS_AHEAD = 4
MAX_BYTES_AHEAD = 32 << 20
UNKNOWN_SIZE = MAX_BYTES_AHEAD // ALWAYS_AHEAD


def prefetch(
    items: Iterable[_Item],
    fetch: Callable[[_Item], _Fetched],
    ahead: int,
    *,
    size_of: Callable[[Any], int] = len,
    expected_size: int = UNKNOWN_SIZE,
) -> Iterator[tuple[_Item, _Fetched]]:
    """Yield each item with what `fetch` returns for it, in order, while up to `ahead` more are fetched in the
    background.

    Fewer are fetched ahead if the results are large: as many as fit into MAX_BYTES_AHEAD, assuming that each is as
    large as the largest so far (or as `expected_size`, if that is given and larger); but never fewer than ALWAYS_AHEAD,
    unless `ahead` is smaller. `size_of` returns the size of a result in bytes. An error of `fetch` is raised when its
    item is reached.
    """
    source = iter(items)
    first = list(islice(source, 2))
    if len(first) < 2:  # nothing to fetch ahead, and starting a thread takes longer than many a request
        yield from ((item, fetch(item)) for item in first)
        return
    source, pending = chain(first, source), deque[tuple[_Item, Future[_Fetched]]]()
    assumed_size, largest_seen = expected_size, 1 if expected_size == UNKNOWN_SIZE else expected_size
    with ThreadPoolExecutor(max_workers=ahead) as pool:

        def fill() -> None:
            wanted = min(ahead, max(ALWAYS_AHEAD, MAX_BYTES_AHEAD // max(assumed_size, 1)))
            pending.extend((item, pool.submit(fetch, item)) for item in islice(source, max(wanted - len(pending), 0)))

        fill()
        while pending:
            item, future = pending.popleft()
            fetched = future.result()
            largest_seen = assumed_size = max(largest_seen, size_of(fetched))
            fill()
            yield item, fetched


def fetch_in_parallel(items: Iterable[_Item], fetch: Callable[[_Item], _Fetched]) -> Iterator[_Fetched]:
    """What `fetch` returns for each item, in order. CONCURRENT_REQUESTS are fetched in parallel, so the results must be
    small."""
    return (fetched for _, fetched in prefetch(items, fetch, CONCURRENT_REQUESTS, size_of=lambda _: 1, expected_size=1))
