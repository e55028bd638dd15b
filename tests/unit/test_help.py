"""`--help` is fast: packages that are slow to import are imported only by the commands that need them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pytest

HELP = """
import contextlib, io, json, sys, typer
from lakegc_assets.cli import main as cli

HEAVY = ("boto3", "botocore", "dagster", "lakefs_sdk", "numba", "numpy", "pandas", "pyarrow", "pyspark", "rich", "yaml")

def help_of(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = cli.run([*arguments, "--help"])
    return [code, out.getvalue(), sorted(name for name in (*HEAVY, "pydantic") if name in sys.modules)]

def every(group, path):
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from every(command, (*path, name, *(["lake"] if name == "holds" else [])))

found = {"": help_of()}
for path in every(typer.main.get_command(cli.app), ()):
    found[" ".join(path)] = help_of(*path)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The exit code and help of each command, and the slow packages that it has imported; the key "" is lakegc
    itself."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path_factory.mktemp("home"))}
    command = [sys.executable, "-c", HELP]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    outputs: dict[str, Any] = json.loads(ended.stdout)
    return outputs


def test_help_imports_no_slow_package(helps: dict[str, Any]) -> None:
    """The test covers `lakegc --help` and the help of every command."""
    assert helps[""][2] == []
    for _, _, heavy in helps.values():
        assert set(heavy) <= {"pydantic"}  # Typer itself reads the options of a command with it


def test_every_command_has_help(helps: dict[str, Any]) -> None:
    """Commands in a group also have help. The help begins with the usage, and the exit code is 0."""
    assert {"", "mark", "sweep", "holds", "holds lake add", "sandbox up"} <= set(helps)
    for code, text, _ in helps.values():
        assert code == 0
        assert text.startswith("Usage: ")


def test_no_summary_of_a_command_is_truncated(helps: dict[str, Any]) -> None:
    """The first sentence of each command fits into the list of commands, on a terminal of 80 columns."""
    for _, text, _ in helps.values():
        assert not [line for line in text.splitlines() if line.startswith("  ") and line.endswith("...")]


def lakegc(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "lakegc_assets.cli", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stdout


def test_the_version_is_printed_and_h_is_short_for_help() -> None:
    assert lakegc("--version") == (0, f"lakegc {metadata.version('lakegc')}\n")
    assert lakegc("mark", "-h") == lakegc("mark", "--help")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands(shell: str) -> None:
    """`lakegc --install-completion` adds a script to the shell's settings, and the script asks lakegc when Tab is
    pressed."""
    program = Path(sys.executable).with_name("lakegc")
    completion = {"_LAKEGC_COMPLETE": "complete_bash", "COMP_WORDS": "lakegc re", "COMP_CWORD": "1"}
    script, completed = (
        subprocess.run([program, *typed], env=environ, capture_output=True, text=True, timeout=60, check=False)
        for typed, environ in ((["--show-completion", shell], None), ([], {**os.environ, **completion}))
    )

    assert (script.returncode, "_LAKEGC_COMPLETE" in script.stdout) == (0, True)
    assert set(completed.stdout.split()) == {"review", "revoke", "report", "restore", "retire"}


def test_the_packages_are_marked_as_typed_and_classified() -> None:
    """Type checkers use a package's annotations only if it has `py.typed`; package indexes sort by classifiers."""
    for package in ("lakegc_assets", "spark_resources"):
        assert resources.files(package).joinpath("py.typed").is_file()
    about = metadata.metadata("lakegc")
    classifiers = about.get_all("Classifier") or []
    versions = {classifier.rpartition(" ")[2] for classifier in classifiers if "Python :: 3." in classifier}

    assert "Typing :: Typed" in classifiers
    assert versions == {"3.11", "3.12", "3.13", "3.14"}
    assert about["License-Expression"] == "Apache-2.0"


def test_commands_that_only_read_marks_import_neither_dagster_nor_spark() -> None:
    """Commands that only read marks, holds and tables therefore start fast."""
    code = """
import sys
from lakegc_assets.cli import diff, explain, fsck, holds, mark, pins, report, review, rules, status, what_if
print(*sorted({"dagster", "pyspark", "numba", "pandas"} & set(sys.modules)))
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (completed.returncode, completed.stdout) == (0, "\n"), completed.stderr
