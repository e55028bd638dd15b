"""Each command in its own process, so that no command profits from what another one has started or imported.

The processes are forked from one that has imported Dagster, PySpark and other packages, since that takes a second of
each, but nothing of lakegc. `.ci/run` starts the demo as a shell does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import platformdirs
import pytest

from lakegc_assets import cli
from lakegc_assets.cli.commands import app
from lakegc_assets.cli.invocation import relative_if_inside
from spark_resources.lakefs_sandbox import Sandbox
from tests.support.command_line import NO_AGE, Lakegc, Outcome
from tests.support.mark_runs import quick_environment

APPROVE = ("approve", "lake", "m1", "--yes", "--digest", "{digest}")
STEPS = {
    "doctor": ("doctor", "lake", "--format", "json"),
    "mark": ("mark", "lake", "--mark-id", "m1", *NO_AGE),
    "review": ("review", "lake", "--format", "json"),
    "diff": ("diff", "lake", "m1", "latest"),
    "backup": ("backup", "lake", "m1", "{backup}"),
    "first approve": APPROVE,
    "revoke": ("revoke", "lake", "m1"),
    "approve": APPROVE,
    "sweep": ("sweep", "lake", "m1", "--quarantine"),
    "report": ("report", "lake", "m1"),
    "explain": ("explain", "lake", "a"),
    "pins": ("pins", "lake"),
    "undo": ("undo", "lake", "m1"),
    "purge": ("purge", "lake", "m1", "--yes"),
    "restore": ("restore", "lake", "m1", "{backup}"),
    "drill": ("restore", "lake", "m1", "{backup}", "--drill", "2"),
    "retire": ("retire", "lake", "--older-than", "90d", "--apply"),
    "status": ("status", "lake"),
    "config check": ("config", "check", "lake"),
    "fsck": ("fsck", "lake"),
    "rules": ("rules", "lake"),
    "what-if": ("what-if", "lake", "--min-age", "1d"),
    "holds add": ("holds", "lake", "add", "h1", "--owner", "me", "--reason", "a test", "--tags", "v*"),
    "holds list": ("holds", "lake", "list"),
    "holds check": ("holds", "lake", "check"),
    "holds drop": ("holds", "lake", "drop", "h1"),
}
"""Every command, in an order in which each finds what it needs."""
AGAIN = ("first approve", "drill", "holds list", "holds check", "holds drop")
"""Steps whose command, or group of commands, another step runs in a separate process."""
SEPARATE = [step for step in STEPS if step not in AGAIN]
ELSEWHERE = {
    "demo": "tests/commands/test_demo.py",
    "ui": "tests/ui",
    "sandbox": "tests/unit/test_sandbox_up.py",
}
"""Commands that other tests run in a process of their own."""


class Shell:
    """Runs the steps on one repository, one after the other, up to those that are requested."""

    def __init__(self, sandbox: Sandbox, folder: Path, forking: subprocess.Popen[str]) -> None:
        self._sandbox, self._lakegc = sandbox, Lakegc(folder / "dagster", on_disk=True)
        self._folder, self._forking = folder, forking
        cleared = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEGC_", "LAKECTL_"))}
        (folder / "home").touch()
        places = {
            "HOME": str(folder / "home"),  # a file, so that nobody can write below it, not even root
            "XDG_CACHE_HOME": str(platformdirs.user_cache_path()),  # Spark's classes, which take long to write
            "DAGSTER_HOME": str(folder / "dagster"),
        }
        self._environment = cleared | quick_environment(sandbox.settings) | places
        self._placeholders = {"backup": str(folder / "backup")}
        self._ended: dict[str, Outcome] = {}

    def ended(self, name: str) -> Outcome:
        """How a step ended, after all before it."""
        for step in STEPS:
            if step not in self._ended:
                self._run(step)
            if step == name:
                break
        return self._ended[name]

    def _run(self, step: str) -> None:
        arguments = [argument.format(**self._placeholders) for argument in STEPS[step]]
        completed = self._ended[step] = (self._here if step in AGAIN else self._separate)(arguments)
        if step == "review":
            self._placeholders["digest"] = json.loads(completed.out)["digest"]

    def _separate(self, arguments: Sequence[str]) -> Outcome:
        out, err = (self._folder / f"{len(self._ended)}.{name}" for name in ("out", "err"))
        command = {"arguments": arguments, "environment": self._environment, "out": str(out), "err": str(err)}
        assert self._forking.stdin is not None
        assert self._forking.stdout is not None
        self._forking.stdin.write(json.dumps(command) + "\n")
        self._forking.stdin.flush()
        return Outcome(int(self._forking.stdout.readline()), out.read_text(), err.read_text())

    def _here(self, arguments: Sequence[str]) -> Outcome:
        """Run in this process, as if it had been called like the separate ones."""
        with mock.patch.object(sys, "argv", [str(Path(cli.__file__).with_name("__main__.py")), *arguments]):
            return self._lakegc(self._sandbox.settings, *arguments)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A repository with three versions of a file that were overwritten before they were committed."""
    folder = tmp_path_factory.mktemp("fresh")
    command = [sys.executable, "-m", "tests.support.forked_commands"]
    forking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with Sandbox(folder / "sandbox") as sandbox, forking:
        lake = sandbox.create("lake")
        for number in range(4):
            lake.put("main", "a", f"version {number}".encode())
            lake.put("main", f"kept-{number}", b"kept by main" * 10)
        lake.commit("main", "first")
        yield Shell(sandbox, folder, forking)


@pytest.mark.parametrize("step", SEPARATE)
def test_a_command_succeeds_in_a_separate_process(shell: Shell, step: str) -> None:
    """Whatever a command needs, it starts itself. It needs no home, ends with exit code 0, and prints something."""
    ended = shell.ended(step)

    assert ended.code == 0, ended.err
    assert ended.out.strip()


@pytest.mark.parametrize("step", [step for step, arguments in STEPS.items() if "json" not in arguments])
def test_the_next_command_is_printed_the_way_lakegc_was_invoked(shell: Shell, step: str) -> None:
    """The printed command can be pasted: here lakegc is run as a module, and no shell finds `lakegc`."""
    called = f"{relative_if_inside(sys.executable, Path.cwd())} -m lakegc_assets.cli "
    ended = shell.ended(step)
    output = ended.out

    assert ended.code == 0, ended.err
    named = {line.rpartition(called)[2].split()[0] for line in output.splitlines() if called in line}
    assert named & {arguments[0] for arguments in STEPS.values()}, output
    assert " lakegc " not in output.replace(called, "")


def test_every_command_has_a_test_in_a_separate_process() -> None:
    """A new command has to be added to the steps here, or to a test elsewhere that runs it in a process."""
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {str(group.name) for group in app.registered_groups}

    assert known == {STEPS[step][0] for step in SEPARATE} | set(ELSEWHERE)
