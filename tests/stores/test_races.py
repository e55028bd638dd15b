"""Concurrent conditional writes: exactly one of them succeeds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from spark_resources.stores import Store
from spark_resources.stores.base import AlreadyExists, Changed
from tests.support.store_providers import Provider

WRITERS = 8
TURNS = 3


def winners(act: Callable[[bytes], object]) -> list[bytes]:
    """The contents of the writers that were not refused. All writers start at the same time with different contents."""
    start = threading.Barrier(WRITERS)

    def wins(number: int) -> bytes | None:
        content = f"writer {number}".encode()
        start.wait()
        try:
            act(content)
        except (AlreadyExists, Changed):
            return None
        return content

    with ThreadPoolExecutor(WRITERS) as writers:
        return [content for content in writers.map(wins, range(WRITERS)) if content is not None]


def test_exactly_one_of_many_concurrent_writes_if_absent_wins(store: Store, provider: Provider) -> None:
    """The stored content is the winner's."""
    provider.needs("conditional_writes", has=provider.capabilities.conditional_writes)
    for turn in range(TURNS):
        won = winners(partial(store.write_if_absent, f"lease-{turn}"))

        assert len(won) == 1
        assert store.read(f"lease-{turn}") == won[0]


def test_exactly_one_of_many_conditional_replaces_wins(store: Store, provider: Provider) -> None:
    """The stored content is the winner's."""
    provider.needs("conditional_writes", has=provider.capabilities.conditional_writes)
    store.write("lease", b"nobody's")
    for turn in range(TURNS):
        _, tag = store.read_with_tag("lease")

        def renew(content: bytes, turn: int = turn, tag: str = tag) -> None:
            store.replace_if_unchanged("lease", content + f" in turn {turn}".encode(), tag)

        won = winners(renew)

        assert len(won) == 1
        assert store.read("lease").startswith(won[0])


def test_no_increment_by_conditional_replace_is_lost(store: Store, provider: Provider) -> None:
    """Several threads count by reading and replacing an object."""
    provider.needs("conditional_writes", has=provider.capabilities.conditional_writes)
    store.write("counter", b"0")

    def count(times: int) -> None:
        while times:
            data, tag = store.read_with_tag("counter")
            try:
                store.replace_if_unchanged("counter", str(int(data) + 1).encode(), tag)
            except Changed:
                continue
            times -= 1

    with ThreadPoolExecutor(3) as counters:
        list(counters.map(count, [4] * 3))

    assert store.read("counter") == b"12"
