"""What a run is doing, for whoever looks: steps say it in sentences, a terminal or a log shows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_resources.errors import LakegcError

LogMessage = Callable[[str], None]
LOG_EVERY_S = 5.0

_listeners: list[LogMessage] = []


def tell(sentence: str) -> None:
    """Hand a sentence to everybody who listens in this process."""
    for listener in _listeners:
        listener(sentence)


@contextmanager
def listening(listener: LogMessage) -> Iterator[None]:
    """Hear what is told while the context lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def logging_progress(log_message: LogMessage, doing: str, how_far: Callable[[], str]) -> Iterator[None]:
    """Say what is done while the context lasts, and every few seconds `how_far` it is, where that can be found out."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(LOG_EVERY_S):
            try:
                sentence = how_far()
            except LakegcError:
                continue  # only the telling is disturbed
            log_message(sentence)

    log_message(doing)
    thread = threading.Thread(target=repeat, name="lakegc-telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def logged_and_published(log: LogMessage) -> LogMessage:
    """Say it to Dagster's log of this run, and to whoever listens in this process."""

    def log_message(sentence: str) -> None:
        log(sentence)
        tell(sentence)

    return log_message
