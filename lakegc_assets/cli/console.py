"""What every command prints with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

from rich.console import Console, ConsoleOptions, RenderableType  # noqa: TID251
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lakegc_assets.cli.escaping import escaped
from lakegc_assets.formatting import age, harmless, size

__all__ = ["EscapingConsole", "age", "cell", "console", "harmless", "outcomes", "printing", "size", "typed"]

NOT_A_TERMINAL = 130


class EscapingConsole(Console):
    """Rich's console, which by itself lets escape sequences through that stand in what it prints."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escaped(segment.text))


def console() -> Console:
    """Standard output; wide enough for tables where it isn't a terminal."""
    return EscapingConsole() if sys.stdout.isatty() else EscapingConsole(width=NOT_A_TERMINAL)


@contextmanager
def printing() -> Iterator[None]:
    """Around what prints: where the reader went away, as `head` does, it stops, and Python has nothing left to say."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def typed(question: str) -> str:
    """What somebody types at a question; nothing where they end the input."""
    try:
        return input(question)
    except EOFError:
        return ""


def cell(name: str) -> Text:
    """A name from outside as a table's cell: shown harmlessly, and brackets in it are brackets, not colours."""
    return Text(harmless(name))


def outcomes(
    title: str, names: type[StrEnum], objects: Mapping[str, int], sizes: Mapping[str, int], total: tuple[str, int, int]
) -> Table:
    """Objects and bytes by outcome, those that there are, and a last row with its name."""
    table = Table(title=title, title_justify="left")
    table.add_column("outcome")
    table.add_column("objects", justify="right")
    table.add_column("bytes", justify="right")
    for name in names:
        if count := objects.get(name.value):
            table.add_row(name.value, f"{count:,}", size(sizes.get(name.value, 0)))
    table.add_section()
    table.add_row(total[0], f"{total[1]:,}", size(total[2]))
    return table
