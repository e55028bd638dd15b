"""What every command prints with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from lakegc_assets.words import age, harmless, size

__all__ = ["age", "cell", "console", "harmless", "printing", "size"]

NOT_A_TERMINAL = 130


def console() -> Console:
    """Standard output; wide enough for tables where it isn't a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=NOT_A_TERMINAL)


@contextmanager
def printing() -> Iterator[None]:
    """Around what prints: where the reader went away, as `head` does, it stops, and Python has nothing left to say."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def cell(name: str) -> Text:
    """A name from outside as a table's cell: shown harmlessly, and brackets in it are brackets, not colours."""
    return Text(harmless(name))
