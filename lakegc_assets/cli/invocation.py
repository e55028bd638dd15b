"""How lakegc was called, so that the commands that it prints can be pasted."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path

TESTS_ONLY = "pytest"
"""A package that an environment made with `uv run --no-dev` lacks."""


def command(*arguments: str) -> str:
    """A command line that calls lakegc as this process was called, quoted for a shell."""
    return f"{_called()} {shlex.join(arguments)}"


def as_called(text: str, commands: Collection[str]) -> str:
    """Replace `lakegc` in a text, if one of these commands follows, by the way this process was called.

    Modules outside the command line, such as errors of a sweep, name commands without knowing how lakegc was called.
    """
    called = _called()
    if called == "lakegc":
        return text
    named = "|".join(sorted(map(re.escape, commands)))
    return re.sub(rf"(?<![\w/.-])(?<!run )(?<!--no-dev )lakegc (?=(?:{named})\b)", lambda _: f"{called} ", text)


def _called() -> str:
    return prefix(sys.argv[0], os.environ, Path.cwd(), has_tests=find_spec(TESTS_ONLY) is not None)


def prefix(program: str, environ: Mapping[str, str], here: Path, *, has_tests: bool) -> str:
    """The command that runs lakegc: `lakegc` if it is on the PATH, otherwise its path, an interpreter, or `uv run`.

    `program` is sys.argv[0]; uv sets the variable UV. Without the tests' packages, uv gets an option not to fetch them.
    """
    path = Path(program)
    if path.parts[-2:] == ("cli", "__main__.py"):
        return f"{shlex.quote(nearest(sys.executable, here))} -m lakegc_assets.cli"
    if path.stem != "lakegc":  # within another program
        return "lakegc"
    if uv := environ.get("UV", ""):
        return f"{shlex.quote(nearest(uv, here))} run {'' if has_tests else '--no-dev '}lakegc"
    found = shutil.which("lakegc", path=environ.get("PATH", ""))
    if found is not None and Path(found).samefile(shutil.which(program) or program):
        return "lakegc"
    return shlex.quote(nearest(program, here))


def nearest(program: str, here: Path) -> str:
    """A program's path relative to this folder if it is inside, otherwise unchanged."""
    path = Path(program)
    if path.is_absolute() and path.is_relative_to(here):
        return str(path.relative_to(here))
    return program
