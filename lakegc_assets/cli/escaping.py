"""The only output path to a terminal. Keys, hold files and server messages can contain sequences that move the
cursor, change colors or hide text, so all output is escaped here, and no other module prints."""

from __future__ import annotations

import io
import os
import sys
import warnings
from datetime import UTC, datetime
from typing import TextIO

from lakegc_assets.formatting import escaped_name
from lakegc_assets.progress import run_fields
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


def print_log(message: str, *, level: str, color: str = "") -> None:
    """Print a message to standard error: for people, or as a line of JSON if the setting `log_format` is json."""
    if is_json():
        print_json_line(message, level=level)
    else:
        print_error(f"lakegc: {message}", color=color)


def is_json() -> bool:
    """Whether messages on standard error are lines of JSON."""
    from spark_resources.host.user_folders import home_folder
    from spark_resources.settings import has_json_logs

    return has_json_logs(os.environ, home_folder())


def print_json_line(message: str, *, level: str) -> None:
    """Print a line of JSON to standard error, with the run, repository and mark of this command."""
    from lakegc_assets.notifications.log_lines import json_line

    print_text(json_line(datetime.now(UTC), level, message, run_fields()), file=sys.stderr)


def show_warnings() -> None:
    """From now on, show lakegc's own warnings like its errors. Python still shows warnings from libraries as usual."""
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
            print_log(str(message), level="WARNING", color="yellow")
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
