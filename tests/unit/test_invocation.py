"""Commands that lakegc prints can be pasted: they begin in the way in which lakegc was invoked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lakegc_assets.cli import invocation, main
from lakegc_assets.cli.invocation import as_invoked, command, command_names, invocation_prefix


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with lakegc and uv in it, laid out as the README describes."""
    for name in (".venv/bin/lakegc", ".uv/bin/uv", "bin/lakegc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(mode=0o755)
    return tmp_path


def test_a_command_begins_with_uv_if_uv_ran_lakegc(installed: Path) -> None:
    """Somebody who typed `.uv/bin/uv run --no-dev lakegc demo` has no `lakegc` on the path."""
    program, uv = str(installed / ".venv/bin/lakegc"), {"UV": str(installed / ".uv/bin/uv"), "PATH": "/bin"}

    assert invocation_prefix(program, uv, installed, has_test_packages=False) == ".uv/bin/uv run --no-dev lakegc"
    assert invocation_prefix(program, uv, installed, has_test_packages=True) == ".uv/bin/uv run lakegc"
    assert invocation_prefix(
        program, uv, Path("/"), has_test_packages=True
    ) == f"{installed}/.uv/bin/uv run lakegc".removeprefix("/")


def test_a_command_begins_with_the_path_of_lakegc_unless_the_shell_finds_it(installed: Path) -> None:
    """`lakegc` alone is printed only if the shell would run this very program."""
    program = str(installed / "bin/lakegc")
    for path, called in (
        (f"/bin:{installed}/bin", "lakegc"),
        (f"{installed}/.venv/bin", "bin/lakegc"),
        ("/nowhere", "bin/lakegc"),
    ):
        assert invocation_prefix(program, {"PATH": path}, installed, has_test_packages=True) == called


def test_a_command_begins_with_the_python_interpreter_if_lakegc_ran_as_a_module(installed: Path) -> None:
    """`python -m lakegc_assets.cli` is printed as it was typed. In other programs a command begins with `lakegc`."""
    module = f"{sys.executable} -m lakegc_assets.cli"

    assert (
        invocation_prefix("/somewhere/lakegc_assets/cli/__main__.py", {}, Path("/nowhere"), has_test_packages=True)
        == module
    )
    assert invocation_prefix("/usr/bin/dagster", {"UV": "/usr/bin/uv"}, installed, has_test_packages=True) == "lakegc"


def test_arguments_of_a_command_are_quoted_for_the_shell() -> None:
    """The name of a repository or mark can't become a command of its own."""
    assert command("report", "lake", "a b; rm").endswith("lakegc report lake 'a b; rm'")


def test_commands_in_an_error_message_begin_as_lakegc_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error in a sweep can't know how lakegc was invoked, so its commands are rewritten when it is printed. Commands
    that are already correct, paths and other words stay unchanged."""
    monkeypatch.setattr(invocation, "_invocation", lambda: "uv run lakegc")
    texts = {
        "Back it up first: lakegc backup lake m1 /b": "Back it up first: uv run lakegc backup lake m1 /b",
        "'lakegc status' lists them": "'uv run lakegc status' lists them",
        "Look at it: lakegc review.": "Look at it: uv run lakegc review.",
        "Next: uv run lakegc sweep lake m1": "Next: uv run lakegc sweep lake m1",
        "_lakefs/retention/gc/lakegc/m1, or a lakegc on another machine": None,
        "lakegc swept it": None,
    }
    for text, called in texts.items():
        assert as_invoked(text, command_names(main.app)) == (called or text)

    assert main.run(["approve", "lake", "m1", "--yes"]) == 2
    assert "To see it: uv run lakegc review lake m1" in capsys.readouterr().err
