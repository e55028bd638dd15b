"""The output functions of all commands."""

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
from lakegc_assets.formatting import age, escaped_name, outcome_in_words, size

__all__ = [
    "EscapingConsole",
    "age",
    "cell",
    "console",
    "escaped_name",
    "outcomes_table",
    "print_command",
    "print_sentence",
    "print_table",
    "printing",
    "read_answer",
    "size",
]  # fmt: skip

WIDTH_WITHOUT_TERMINAL = 130


class EscapingConsole(Console):
    """Rich's console, but with escape sequences in the output neutralized. Rich itself lets them through."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escaped(segment.text))


def console() -> Console:
    """The console on standard output; if standard output isn't a terminal, it is wide enough for tables."""
    return EscapingConsole() if sys.stdout.isatty() else EscapingConsole(width=WIDTH_WITHOUT_TERMINAL)


@contextmanager
def printing() -> Iterator[None]:
    """A context for output. If the reader closes the pipe, as `head` does, raises `BrokenPipeError` and discards later
    output, so that Python prints no error at exit."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def print_sentence(text: str) -> None:
    """Print a sentence or paragraph. On a terminal, it is wrapped between words, without breaking a key or digest; in a
    file, each line stays one line."""
    _print_wrapped(Text(escaped(text), overflow="ignore"))


def print_command(purpose: str, command_line: str) -> None:
    """Print a command to be copied, after its purpose; on a separate line if both don't fit on one line.

    lakegc never breaks the command: text wrapped by the terminal itself is copied as one line.
    """
    out = console()
    fits_on_one_line = not out.is_terminal or len(purpose) + len(command_line) + 2 <= out.width
    out.print(
        Text(escaped(f"{purpose}: {command_line}" if fits_on_one_line else f"{purpose}:\n  {command_line}")),
        soft_wrap=True,
    )


def print_table(title: str, table: Table) -> None:
    """Print a table under its title, which may be wider than the table."""
    _print_wrapped(Text(escaped_name(title), style="italic", overflow="ignore"))
    console().print(table)


def _print_wrapped(text: Text) -> None:
    out = console()
    out.print(text, soft_wrap=not out.is_terminal, crop=False)


def read_answer(prompt: str) -> str:
    """Show a prompt and return the typed line; "" at the end of input."""
    try:
        return input(prompt)
    except EOFError:
        return ""


def cell(name: str) -> Text:
    """An external name as a table cell: escaped, and with brackets shown literally instead of read as markup."""
    return Text(escaped_name(name))


def outcomes_table(
    outcomes: type[StrEnum], objects: Mapping[str, int], sizes: Mapping[str, int], total_row: tuple[str, int, int]
) -> Table:
    """A table of objects and bytes by outcome, without empty outcomes. `total_row` is the last row: its label, and the
    number and bytes of the objects that it counts."""
    label, total_objects, total_bytes = total_row
    table = Table()
    table.add_column("outcome")
    table.add_column("objects", justify="right")
    table.add_column("bytes", justify="right")
    for outcome in outcomes:
        if count := objects.get(outcome.value):
            table.add_row(outcome_in_words(outcome.value), f"{count:,}", size(sizes.get(outcome.value, 0)))
    table.add_section()
    table.add_row(label, f"{total_objects:,}", size(total_bytes))
    return table
