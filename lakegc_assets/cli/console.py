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

__all__ = [
    "EscapingConsole", "age", "cell", "console", "harmless", "outcomes", "print_command", "print_sentence",
    "print_table", "printing", "size", "typed",
]  # fmt: skip

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


def print_sentence(text: str) -> None:
    """A sentence or paragraph. A terminal gets it wrapped between words, and a key or digest is never cut into; a file
    gets each line as one line."""
    out = console()
    out.print(Text(harmless_lines(text), overflow="ignore"), soft_wrap=not out.is_terminal, crop=False)


def print_command(what: str, line: str) -> None:
    """A command to be copied, after what it does; on a line of its own where both are wider than the terminal.

    It is never broken by lakegc: what a terminal itself wraps is copied as one line.
    """
    out = console()
    one_line = not out.is_terminal or len(what) + len(line) + 2 <= out.width
    out.print(Text(harmless_lines(f"{what}: {line}" if one_line else f"{what}:\n  {line}")), soft_wrap=True)


def print_table(title: str, table: Table) -> None:
    """A table under its title, which may be wider than the table."""
    out = console()
    out.print(Text(harmless(title), style="italic", overflow="ignore"), soft_wrap=not out.is_terminal, crop=False)
    out.print(table)


def harmless_lines(text: str) -> str:
    return "\n".join(map(harmless, text.split("\n")))


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
    names: type[StrEnum], objects: Mapping[str, int], sizes: Mapping[str, int], total: tuple[str, int, int]
) -> Table:
    """Objects and bytes by outcome, those that there are, and a last row with its name."""
    table = Table()
    table.add_column("outcome")
    table.add_column("objects", justify="right")
    table.add_column("bytes", justify="right")
    for name in names:
        if count := objects.get(name.value):
            table.add_row(name.value, f"{count:,}", size(sizes.get(name.value, 0)))
    table.add_section()
    table.add_row(total[0], f"{total[1]:,}", size(total[2]))
    return table
