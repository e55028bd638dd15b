"""The commands that the README and the pages of `docs/` offer for pasting work as pasted."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lakegc_assets.cli import sandbox_app
from spark_resources.lakefs_sandbox import Sandbox
from tests.approval.test_commands import Terminal
from tests.support.command_line import Lakegc, Outcome
from tests.support.mark_runs import target_of

ROOT = Path(__file__).parents[2]


def test_the_commands_pasted_from_getting_started_lead_from_a_new_repository_to_a_report(
    tmp_path: Path, lakegc: Lakegc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interactive interpreter ends a block only at an empty line. The pasted lines leave two garbage objects, the
    commands after them succeed, and the mark itself names the brake that would otherwise stop the approval."""
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    begin = page.index("import os, lakefs_sdk as sdk")
    lines = page[begin : page.index("```", begin)]
    with Sandbox(tmp_path / "sandbox") as sandbox:
        ended = subprocess.run(
            [sys.executable, "-i", "-q"], input=lines, env={**os.environ, **sandbox.environment}, cwd=ROOT,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        store = target_of(sandbox.settings, "mine").place.store()
        stored = [stored.key for page in store.pages("data/") for stored in page.objects]

        assert "Error" not in ended.stderr, ended.stderr
        assert len(stored) == 3
        block = page[page.index("lakegc mark mine") :].partition("```")[0]
        commands = [shlex.split(line)[1:] for line in block.splitlines()]
        assert [command[0] for command in commands] == ["mark", "review", "approve"]
        ended_commands = [typed_in(lakegc, sandbox, monkeypatch, command) for command in commands]
        after = page[page.index("lakegc sweep mine") :].partition("```")[0]
        swept, report, why = (lakegc.output(sandbox.settings, *line.split()[1:]) for line in after.splitlines())

    assert [command.code for command in ended_commands] == [0, 0, 0], ended_commands[-1].err
    assert "2 of 3 objects" in ended_commands[1].out
    assert ["share: tripped" in command.out for command in ended_commands] == [True, False, False]
    assert "deleted" in swept
    assert "deleted" in report
    assert "Kept: " in why


def typed_in(lakegc: Lakegc, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> Outcome:
    """A command run by a person who types the requested word when prompted."""
    monkeypatch.setattr("sys.stdin", Terminal("approve\n"))
    return lakegc(sandbox.settings, *command)


def test_uv_keeps_its_cache_in_the_folder_where_the_readme_installs_uv() -> None:
    """A home folder may be missing or read-only, and uv would also put the Python versions that it downloads there."""
    folders = set(re.findall(r"python3 -m venv (\S+) && ", (ROOT / "README.md").read_text(encoding="utf-8")))
    uv = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["uv"]

    assert folders == {".uv"}
    assert (uv["cache-dir"], uv["python-preference"]) == (".uv/cache", "only-system")


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a clone")
def test_git_ignores_what_commands_write_to_the_project_folder() -> None:
    """If it didn't, a sandbox's data, a history or a cache could be committed by accident."""
    sandbox = inspect.signature(sandbox_app.up).parameters["folder"].default
    tracked = [
        ".uv/cache/x", ".venv/x", f"{sandbox}/server.sqlite", "lakegc-demo/dagster/x", ".dagster/x", "derby.log",
        ".tmp_dagster_home_a1b2/x", "spark-warehouse/x", "metastore_db/x", "lakegc_assets/__pycache__/x",
        ".pytest_cache/x", ".hypothesis/x", ".mypy_cache/x", ".ruff_cache/x", ".import_linter_cache/x",
    ]  # fmt: skip
    ended = subprocess.run(
        ["git", "check-ignore", *tracked], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.stdout.splitlines() == tracked
