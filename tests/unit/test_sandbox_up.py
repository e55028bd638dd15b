"""`lakegc sandbox up` in a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import yaml

from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.settings import Settings

COMMAND = [sys.executable, "-c", "from lakegc_assets.cli.main import main; main()", "sandbox", "up", "--port", "0"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, running with its own folder and request log."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEGC_", "LAKECTL_"))}
    process = subprocess.Popen(
        [*COMMAND, "--folder", str(tmp_path / "sandbox"), "--request-log", str(tmp_path / "log")],
        env=environment | {"HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


def output_until(output: IO[str], end: str) -> str:
    lines: list[str] = []
    for line in output:
        lines.append(line)
        if end in line:
            return "".join(lines)
    raise AssertionError(f"it ended before it printed {end!r}: {''.join(lines)}")


def test_the_printed_environment_variables_and_lakectl_file_work_with_the_server(
    running: subprocess.Popen[str], tmp_path: Path
) -> None:
    """The server logs requests, and Ctrl-C stops it cleanly."""
    assert running.stdout is not None
    printed = output_until(running.stdout, "Ctrl-C")
    exported = dict(
        line.removeprefix("  export ").split("=", 1) for line in printed.splitlines() if "  export " in line
    )
    file = printed[printed.index("  credentials:") : printed.index("\nFor lakegc")]
    (tmp_path / ".lakectl.yaml").write_text(file)

    by_variables = Settings.load(exported, Path("/nowhere"))
    by_file = Settings.load({}, tmp_path)

    assert by_variables.local_path == str(tmp_path / "sandbox/objects")
    assert yaml.safe_load(file)["credentials"]["access_key_id"] == by_variables.access_key_id
    for settings in (by_variables, by_file):
        assert LakeFS(*LakeFSSettings.of(settings)).config().blockstore("") == "local"
    logged = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[1:4] for line in logged] == [["GET", "/api/v1/config", "200"]] * 2
    deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a shell's background process ignores Ctrl-C
    running.send_signal(signal.SIGTERM if deaf else signal.SIGINT)
    assert (running.wait(30), running.stdout.read().strip()) == (0, "stopped")
