"""Lets a test act in the middle of a mark or sweep, at one of its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakegc_assets.progress import listening


@contextmanager
def on_first_message(words: str, act: Callable[[], object]) -> Iterator[None]:
    """Call a function at the first message with these words. Fails if no message has them."""
    matching: list[str] = []

    def listen(message: str) -> None:
        if words in message and not matching:
            matching.append(message)
            act()

    with listening(listen):
        yield
    assert matching, f"no message had the words '{words}'"
