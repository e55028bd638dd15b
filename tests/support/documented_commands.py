"""Commands as the README and the pages of `docs/` show them: found, split into arguments, and parsed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
import typer.main

from lakegc_assets.cli import commands as cli

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = (
    "lakegc", "lakectl", "dagster", "dagster-daemon", "python", "python3", "pip", "uv", "pytest", "rclone", "conda",
    "docker", "kubectl", "systemctl", "apt-get", "npm", "nice",
)  # fmt: skip
"""A code span or an indented line that begins with one of these is a command."""

_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # click's, or that of Typer's own copy of it
_PIECES = re.compile(
    r"^```(?P<language>\w*)\n(?P<block>.*?)^```$|^    (?P<line>[^\s-][^\n]*)$|`(?P<span>[^`\n]+)`",
    re.MULTILINE | re.DOTALL,
)
_BEFORE_LAKEGC = r"(?:[A-Z_]+=\S+ )*(?:(?:docker|kubectl) .* (?:code|--) )?(?:\S+/uv run )?(?:--no-dev )?(?:\S+/)?"
_MODULE = re.compile(r"tests\.\w+\.\w+ -")


def commands_of(page: str) -> Iterator[str]:
    """The commands of a page, in its order: those in shell blocks, on indented lines, after a `$` in other blocks, and
    in code spans, including those in tables. Comments are removed, and a command over several lines becomes one
    line."""
    for piece in _PIECES.finditer(page):
        if piece["block"] is not None:
            lines = piece["block"].splitlines()
            is_shell = piece["language"] == "sh"
            yield from joined(lines if is_shell else [line[2:] for line in lines if line.startswith("$ ")])
        elif piece["line"] is not None:
            if piece["line"].split()[0] in PROGRAMS:
                yield from joined([piece["line"]])
        elif is_command(piece["span"]):
            yield piece["span"]


def joined(lines: Sequence[str]) -> Iterator[str]:
    """The commands on these lines. One continues on the next line after a backslash, and within quotes."""
    command = ""
    for line in lines:
        command += line
        if command.endswith("\\"):
            command = f"{command[:-1].rstrip()} "
            continue
        try:
            shlex.split(command, comments=True)
        except ValueError:  # a quote is still open
            command += "\n"
            continue
        command = re.sub(r"\s+#\s.*$", "", " ".join(command.split()) if "'" not in command else command)
        if command.strip():
            yield re.sub(r"\s*\n\s*", " ", command.strip())
        command = ""


def is_command(span: str) -> bool:
    """Whether a code span can be run as it is. One with an ellipsis is a part of a command, and one with only the name
    of a command is a mention of it."""
    if "…" in span or span.endswith(" -m"):
        return False
    words = span.split()
    arguments = next(shown_commands([span]), None)
    if arguments is not None:
        return len(arguments) > 1
    return (len(words) > 1 and words[0].rpartition("/")[2] in PROGRAMS) or bool(_MODULE.match(span))


def shown_commands(lines: Sequence[str]) -> Iterator[list[str]]:
    """The arguments of each line that calls lakegc. Comments are removed, and optional arguments become given ones.

    Lines with an ellipsis are parts of commands, and left out. A line that ends with a backslash continues on the next
    one.
    """
    joined_lines = "\n".join(lines).replace("\\\n", " ").splitlines()
    for line in joined_lines:
        match = re.match(rf"{_BEFORE_LAKEGC}lakegc (.*)", line.strip())
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
