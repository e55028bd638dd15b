"""Commands of lakegc as pages show them: split into arguments and parsed, without being run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import typer
import typer.main

from lakegc_assets.cli import commands as cli

_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # click's, or that of Typer's own copy of it


def shown_commands(lines: Sequence[str]) -> Iterator[list[str]]:
    """The arguments of each line that calls lakegc; comments are cut off, and optional arguments become given ones.

    Lines with an ellipsis are parts of commands, and left out. A line that ends with a backslash continues.
    """
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    for line in joined:
        match = re.match(r"(?:\S+/uv run )?(?:\S+/)?lakegc (.*)", line.strip())
        if match is None or "…" in line:
            continue
        text = re.sub(r"\[([^][]*)\]", r"\1", match.group(1)) if "'" not in match.group(1) else match.group(1)
        arguments = shlex.split(text, comments=True)
        if arguments:
            yield arguments


def usage_error(arguments: Sequence[str]) -> str | None:
    """Why the command line doesn't accept these arguments; None if it does. Nothing is run."""
    command: Any = typer.main.get_command(cli.app)
    parent: Any = None
    rest = list(arguments)
    try:
        while True:
            context = command.make_context(command.name or "lakegc", rest, parent=parent)
            if not hasattr(command, "resolve_command"):
                return None
            left = [*context._protected_args, *context.args]
            if not left:
                return None
            _, inner, rest = command.resolve_command(context, left)
            command, parent = inner, context
    except _USAGE_ERROR as error:
        return f"{' '.join(arguments)}: {error.format_message()}"
