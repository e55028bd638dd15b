"""Numbers, times and names as people read them."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.text import Text

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


def size(count: int) -> str:
    """Bytes with a binary unit: 1.5 MiB."""
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024 or unit == "PiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def age(span: timedelta) -> str:
    """A span by its largest unit: 3 days, 4 hours, 20 seconds."""
    seconds = max(0, int(span.total_seconds()))
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            count = seconds // length
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return f"{seconds} second{'s' if seconds != 1 else ''}"


def cell(name: str) -> Text:
    """A name from outside as a table's cell: shown harmlessly, and brackets in it are brackets, not colours."""
    return Text(harmless(name))


def harmless(name: str) -> str:
    """A key as a terminal can show it: characters that would move the cursor or change colours are escaped."""
    return "".join(
        char
        if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else char.encode("unicode_escape").decode()
        for char in name
    )
