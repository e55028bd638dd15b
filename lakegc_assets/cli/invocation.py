"""How lakegc was invoked, so that the commands in its output can be pasted into a shell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path

import typer

TEST_PACKAGE = "pytest"
"""A package that is missing from environments made with `uv run --no-dev`."""


def command(*arguments: str) -> str:
    """A command line that invokes lakegc the way this process was invoked, quoted for a shell."""
    return f"{_invocation()} {shlex.join(arguments)}"


def as_invoked(text: str, commands: Collection[str]) -> str:
    """Wherever one of these commands follows `lakegc` in a text, replace `lakegc` with the way this process was
    invoked.

    Messages from outside this package, such as errors of a sweep, name commands without knowing how lakegc was invoked.
    """
    invocation = _invocation()
    if invocation == "lakegc":
        return text
    names = "|".join(sorted(map(re.escape, commands)))
    return re.sub(rf"(?<![\w/.-])(?<!run )(?<!--no-dev )lakegc (?=(?:{names})\b)", lambda _: f"{invocation} ", text)


def command_names(app: typer.Typer) -> set[str]:
    """The names of an app's commands, including command groups."""
    names = {
        registered.name or registered.callback.__name__ for registered in app.registered_commands if registered.callback
    }
    return names | {str(group.name) for group in app.registered_groups}


def _invocation() -> str:
    return invocation_prefix(sys.argv[0], os.environ, Path.cwd(), has_test_packages=find_spec(TEST_PACKAGE) is not None)


def invocation_prefix(program: str, environ: Mapping[str, str], cwd: Path, *, has_test_packages: bool) -> str:
    """The command that runs lakegc: `lakegc` if it is on the PATH, otherwise its path, an interpreter, or `uv run`.

    `program` is sys.argv[0]; uv sets the environment variable UV. If the test packages aren't installed, `--no-dev`
    keeps uv from downloading them.
    """
    path = Path(program)
    if path.parts[-2:] == ("cli", "__main__.py"):
        return f"{shlex.quote(relative_if_inside(sys.executable, cwd))} -m lakegc_assets.cli"
    if path.stem != "lakegc":  # lakegc runs within another program
        return "lakegc"
    if uv := environ.get("UV", ""):
        return f"{shlex.quote(relative_if_inside(uv, cwd))} run {'' if has_test_packages else '--no-dev '}lakegc"
    on_path = shutil.which("lakegc", path=environ.get("PATH", ""))
    if on_path is not None and Path(on_path).samefile(shutil.which(program) or program):
        return "lakegc"
    return shlex.quote(relative_if_inside(program, cwd))


def relative_if_inside(program: str, cwd: Path) -> str:
    """A program's path relative to `cwd` if it is inside, otherwise unchanged."""
    path = Path(program)
    if path.is_absolute() and path.is_relative_to(cwd):
        return str(path.relative_to(cwd))
    return program
