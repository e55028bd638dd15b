"""The only output path to a terminal. Keys, hold files and server messages can contain sequences that move the
cursor, change colors or hide text, so all output is escaped here, and no other module prints."""

from __future__ import annotations

import io
import sys
import warnings
from typing import TextIO

from lakegc_assets.formatting import escaped_name
from spark_resources.errors import LakegcWarning

_COLORS = {"red": "\x1b[31m", "yellow": "\x1b[33m"}


def escaped(text: str) -> str:
    """Text that is safe to show on a terminal; line breaks are kept."""
    return text if text.isprintable() else "\n".join(map(escaped_name, text.split("\n")))


def print_text(text: str = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print to standard output, or another stream; line breaks are kept."""
    print(escaped(text), end=end, file=file, flush=file is not None)


def print_error(text: str, *, color: str = "") -> None:
    """Print a message to standard error, in a color if one is given and standard error is a terminal."""
    if color and sys.stderr.isatty():
        print(f"{_COLORS[color]}{escaped(text)}\x1b[0m", file=sys.stderr, flush=True)  # noqa: T201
    else:
        print_text(text, file=sys.stderr)


def show_warnings() -> None:
    """From now on, show lakegc's own warnings like its errors. Python still shows warnings of libraries as usual."""
    show_other = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, LakegcWarning):
            print_error(f"lakegc: {message}", color="yellow")
        else:
            show_other(message, category, filename, lineno, file, line)

    warnings.showwarning = show


class EscapedOutput(io.TextIOBase):
    """Standard error for libraries that print directly, escaped line by line."""

    def write(self, text: str) -> int:
        print_text(text, end="", file=sys.stderr)
        return len(text)

    def isatty(self) -> bool:
        return False
