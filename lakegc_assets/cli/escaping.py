"""The one way to a terminal: keys, a file of holds and a server's words can hold sequences that move the cursor, change
colours or hide text, so whatever is printed is escaped here, and nothing else prints."""

from __future__ import annotations

import io
import sys
import warnings
from typing import TextIO

from lakegc_assets.formatting import harmless
from spark_resources.errors import LakegcWarning

_COLOURS = {"red": "\x1b[31m", "yellow": "\x1b[33m"}


def escaped(text: str) -> str:
    """Text as a terminal can show it: all but its line breaks is harmless."""
    return text if text.isprintable() else "\n".join(map(harmless, text.split("\n")))


def print_text(text: str = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print to standard output, or another stream; lines stay lines."""
    print(escaped(text), end=end, file=file, flush=file is not None)


def print_error(text: str, *, colour: str = "") -> None:
    """Print a message to standard error; on a terminal in a colour, where one is named."""
    if colour and sys.stderr.isatty():
        print(f"{_COLOURS[colour]}{escaped(text)}\x1b[0m", file=sys.stderr, flush=True)  # noqa: T201
    else:
        print_text(text, file=sys.stderr)


def show_warnings() -> None:
    """From now on show lakegc's own warnings as it shows errors; those of libraries as Python does."""
    others = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, LakegcWarning):
            print_error(f"lakegc: {message}", colour="yellow")
        else:
            others(message, category, filename, lineno, file, line)

    warnings.showwarning = show


class EscapedOutput(io.TextIOBase):
    """Standard error for libraries that print by themselves, escaped line by line."""

    def write(self, text: str) -> int:
        print_text(text, end="", file=sys.stderr)
        return len(text)

    def isatty(self) -> bool:
        return False
