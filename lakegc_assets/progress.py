"""The progress of a run: its steps publish sentences, which a terminal or a log shows."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spark_resources.errors import LakegcError, LakegcWarning

LogMessage = Callable[[str], None]
LOG_EVERY_S = 5.0

_listeners: list[LogMessage] = []


@dataclass(frozen=True, slots=True)
class RunFields:
    """What a log line is about, as far as it is known: a run in Dagster, a repository and a mark."""

    run_id: str | None = None
    repository: str | None = None
    mark_id: str | None = None


_about = RunFields()


def set_run_fields(about: RunFields) -> None:
    """Set the fields of all log lines that this process writes from now on."""
    global _about  # noqa: PLW0603 (a process runs one command)
    _about = about


def run_fields() -> RunFields:
    return _about


def publish(sentence: str) -> None:
    """Publish a sentence to all listeners in this process."""
    for listener in _listeners:
        listener(sentence)


@contextmanager
def listening(listener: LogMessage) -> Iterator[None]:
    """Pass each published sentence to this listener while the context lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def logging_progress(log_message: LogMessage, title: str, progress: Callable[[], str]) -> Iterator[None]:
    """Log `title` once, and the result of `progress` every few seconds (LOG_EVERY_S) while the context lasts.

    A `LakegcError` from `progress` is ignored.
    """
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(LOG_EVERY_S):
            try:
                sentence = progress()
            except LakegcError:
                continue  # harmless: only this progress report is lost
            log_message(sentence)

    log_message(title)
    thread = threading.Thread(target=repeat, name="lakegc-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def publishing_logger(log: LogMessage) -> LogMessage:
    """A function that writes a sentence to a log, such as the Dagster log of this run, and publishes it in this
    process."""

    def log_message(sentence: str) -> None:
        log(sentence)
        publish(sentence)

    return log_message


def warning_logger(log_warning: LogMessage) -> LogMessage:
    """A function that writes a warning to a log, such as the Dagster log of this run, and to stderr."""

    def log_message(sentence: str) -> None:
        log_warning(sentence)
        warnings.warn(sentence, LakegcWarning, stacklevel=2)

    return log_message
