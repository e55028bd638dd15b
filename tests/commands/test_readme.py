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
from datetime import timedelta
from pathlib import Path

import pytest

from lakegc_assets.cli import sandbox_app
from lakegc_assets.formatting import size
from spark_resources.lakefs_sandbox import Sandbox
from tests.approval.test_commands import Terminal
from tests.support.clocks import later
from tests.support.command_line import Lakegc, Outcome
from tests.support.mark_runs import target_of

ROOT = Path(__file__).parents[2]


def test_the_commands_pasted_from_getting_started_lead_from_a_new_repository_to_a_report(
    tmp_path: Path, lakegc: Lakegc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interactive interpreter ends a block only at an empty line. The pasted lines leave two garbage objects, the
    commands after them succeed, and the mark itself names the brake that would otherwise stop the approval. The rules
    of the page expire the older file of its branch."""
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    repository, branch = re.findall("^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    connection, _, _ = repository.partition("sdk.RepositoriesApi")
    monkeypatch.chdir(tmp_path)
    with Sandbox(tmp_path / "sandbox") as sandbox:
        pasted(sandbox, repository)
        store = target_of(sandbox.settings, "mine").place.store()
        stored = [stored.key for page in store.pages("data/") for stored in page.objects]

        assert len(stored) == 3
        block = page[page.index("lakegc mark mine") :].partition("```")[0]
        commands = [shlex.split(line)[1:] for line in block.splitlines()]
        assert [command[0] for command in commands] == ["mark", "review", "approve"]
        ended_commands = [typed_in(lakegc, sandbox, monkeypatch, command) for command in commands]
        after = page[page.index("lakegc sweep mine") :].partition("```")[0]
        swept, report, why = (lakegc.output(sandbox.settings, *line.split()[1:]) for line in after.splitlines())

        pasted(sandbox, connection + branch)
        Path("rules.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
        [block] = re.findall("^```sh\n([^`]*lakegc pins mine\n)^```$", page, re.MULTILINE)
        commands = [shlex.split(line)[1:] for line in block.splitlines()]
        assert [command[0] for command in commands] == ["mark", "what-if", "rules", "mark", "pins"]
        answers = []
        for command in commands:
            if command[0] == "mark":  # it is named after the second in which it begins
                later(store, store.now(), by=timedelta(seconds=1))
            answers.append(typed_in(lakegc, sandbox, monkeypatch, command))
        _, what_if, rules, _, pins = answers

    assert [command.code for command in ended_commands] == [0, 0, 0], ended_commands[-1].err
    assert "2 of 3 objects" in ended_commands[1].out
    assert ["share: tripped" in command.out for command in ended_commands] == [True, False, False]
    assert "deleted" in swept
    assert "deleted" in report
    assert "Kept: " in why
    assert [answer.code for answer in answers] == [0] * len(answers)
    older = f"1 ({size((ROOT / 'LICENSE').stat().st_size)})"
    for asked, words in ((what_if, "rules.yaml: default 30 days, dev 7"), (what_if, older),
                         (rules, "Set: default 30 days, dev 7"), (pins, "dev")):  # fmt: skip
        assert words in asked.out, asked.err


def pasted(sandbox: Sandbox, lines: str) -> None:
    """Paste these lines into an interactive interpreter with the sandbox's settings."""
    ended = subprocess.run(
        [sys.executable, "-i", "-q"], input=lines, env={**os.environ, **sandbox.environment}, cwd=ROOT,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Error" not in ended.stderr, ended.stderr


def typed_in(lakegc: Lakegc, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> Outcome:
    """A command run by a person who types the requested word when prompted."""
    monkeypatch.setattr("sys.stdin", Terminal({"rules": "set\n"}.get(command[0], "approve\n")))
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
