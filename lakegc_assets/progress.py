"""What a run is doing, for whoever looks: steps say it in sentences, a terminal or a log shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]

_listeners: list[Say] = []


def tell(sentence: str) -> None:
    """Hand a sentence to everybody who listens in this process."""
    for listener in _listeners:
        listener(sentence)


@contextmanager
def listening(listener: Say) -> Iterator[None]:
    """Hear what is told while the context lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
