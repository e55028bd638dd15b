"""`lakegc mark` and `lakegc sweep` as processes that are refused or interrupted: they print a message, exit promptly,
and leave no process running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spark_resources.lakefs_sandbox import Sandbox
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, quick_environment

LIMIT_S = 60
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="processes are looked for in Linux's /proc"
)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "sandbox") as running:
        lake = running.create("lake")
        lake.put("main", "a", b"kept")
        lake.commit("main", "a")
        yield running


def started(sandbox: Sandbox, folder: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    (folder / "tmp").mkdir()
    environment = {**os.environ, **quick_environment(sandbox.settings)}
    return subprocess.Popen(
        [sys.executable, "-m", "lakegc_assets.cli", *arguments],
        env=environment | {"DAGSTER_HOME": str(folder / "dagster"), "TMPDIR": str(folder / "tmp"), **more},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  # a shell's background jobs ignore it
    )  # fmt: skip


def assert_nothing_left(process: subprocess.Popen[str], folder: Path) -> None:
    """Poll until no process of its session runs and none of its temporary files is there."""
    limit = time.monotonic() + LIMIT_S
    while (remaining := running_in(process.pid) or sorted((folder / "tmp").iterdir())) and time.monotonic() < limit:
        time.sleep(0.1)  # the step of a poll with a limit
    assert not remaining


def running_in(session: int) -> list[str]:
    """The names of a session's processes, except for those that have ended and that nobody has waited for."""
    processes = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            state, _, _, its_session = rest.split()[:4]
            processes += [name] if int(its_session) == session and state != "Z" else []
    return processes


def test_a_refusal_does_not_wait_for_spark_to_start(sandbox: Sandbox, tmp_path: Path) -> None:
    """Spark is already starting; it ends together with the process."""
    process = started(sandbox, tmp_path, "mark", "nothing")

    error = process.communicate(timeout=LIMIT_S)[1]

    assert (process.returncode, error.count("lakegc:")) == (1, 1)
    assert "nothing" in error
    assert_nothing_left(process, tmp_path)


def test_a_mark_fails_with_one_message_if_spark_cannot_start(sandbox: Sandbox, tmp_path: Path) -> None:
    """The message names the setting."""
    process = started(sandbox, tmp_path, "mark", "lake", LAKEGC_SPARK_MASTER="nonsense")

    error = process.communicate(timeout=LIMIT_S)[1]

    assert (process.returncode, error.count("Check LAKEGC_SPARK_MASTER"), "Traceback" in error) == (1, 1, False)
    assert running_in(process.pid) == []


def test_an_interrupted_sweep_prints_the_command_that_resumes_it_and_deletes_nothing_after_its_end(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Ctrl-C in the middle of its deletes ends the process with exit code 130, as in shells, without a traceback."""
    repository = sandbox.create("busy")
    paths = [f"garbage/{number}" for number in range(200)]
    files = [repository.objects.file(repository.put("main", path, b"garbage").address) for path in paths]
    repository.delete("main", paths)
    Marker().mark(sandbox.settings, "busy", "m1", ANY_AGE)
    Sweeper().approve(sandbox.settings, "busy", "m1")

    def remaining() -> int:
        return sum(file.exists() for file in files)

    process = started(sandbox, tmp_path, "sweep", "busy", "m1", "--rate", "10")
    limit = time.monotonic() + 4 * LIMIT_S
    while remaining() > len(files) - 10 and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.05)  # the step of a poll with a limit
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    error = process.communicate(timeout=LIMIT_S)[1]
    at_its_end = remaining()

    assert_nothing_left(process, tmp_path)
    assert (process.returncode, "Traceback" in error) == (130, False)
    command = " -m lakegc_assets.cli sweep busy m1 --rate 10\n"
    assert re.search(rf"run the same command again to resume:\n.*{re.escape(command)}$", error)
    assert remaining() == at_its_end
    assert 0 < at_its_end <= len(files) - 10


def test_an_interrupted_mark_prints_one_sentence_and_leaves_no_process_running(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Ctrl-C in the middle of a mark ends the process and Spark."""
    process = started(sandbox, tmp_path, "mark", "lake", "--min-age", "0", "--allow-young")
    assert process.stderr is not None
    assert any("listing" in line for line in process.stderr)

    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    error = process.communicate(timeout=LIMIT_S)[1]

    assert (process.returncode, "interrupted. Nothing was deleted" in error, "Traceback" in error) == (
        130,
        True,
        False,
    )
    assert_nothing_left(process, tmp_path)
