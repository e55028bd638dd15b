"""Which processes are known to be dead. A mistake would let another run take over the lease of a running one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spark_resources.host.processes import ProcessIdentity, interrupt_on_termination, is_known_dead, this_process

SHOW = """
import json
from dataclasses import asdict
from spark_resources.host.processes import this_process
print(json.dumps(asdict(this_process())))
"""


@pytest.fixture
def own_process() -> ProcessIdentity:
    process = this_process()
    if process is None:
        pytest.skip("this system doesn't tell which process is which")
    return process


def test_a_process_that_ended_is_known_to_be_dead(own_process: ProcessIdentity) -> None:
    """A zombie also counts as dead: it has ended, but its parent hasn't waited for it."""
    with subprocess.Popen([sys.executable, "-c", f"{SHOW}\ninput()"], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        other = ProcessIdentity(**json.loads(process.stdout.readline()))
        assert (other.boot, other.pid_namespace, other.pid) == (
            own_process.boot,
            own_process.pid_namespace,
            process.pid,
        )
        assert not is_known_dead(other)
        process.stdin.close()
        assert process.stdout.read() == ""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_known_dead(other)
    assert is_known_dead(other)


def test_a_process_id_that_is_reused_belongs_to_another_process(own_process: ProcessIdentity) -> None:
    """The start time distinguishes two processes with the same id."""
    assert not is_known_dead(own_process)
    assert is_known_dead(replace(own_process, started=own_process.started - 1))


@pytest.mark.parametrize("change", [{"boot": "another"}, {"pid_namespace": "pid:[1]"}])
def test_a_process_on_another_machine_or_in_another_container_is_not_known_to_be_dead(
    own_process: ProcessIdentity, change: dict[str, str]
) -> None:
    """An id that isn't in use on this machine may belong to a live process on another one."""
    assert not is_known_dead(replace(own_process, pid=2**22 + 1, **change))  # type: ignore[arg-type]
    assert is_known_dead(replace(own_process, pid=2**22 + 1))


def test_a_process_that_is_hidden_from_this_user_is_not_known_to_be_dead(
    own_process: ProcessIdentity, tmp_path: Path
) -> None:
    """/proc might not show a process that exists."""
    (tmp_path / "self").symlink_to(str(os.getpid()))
    for name in ("sys/kernel/random/boot_id", f"{os.getpid()}/stat"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((Path("/proc") / name).read_bytes())
    (tmp_path / str(os.getpid()) / "ns").mkdir()
    (tmp_path / str(os.getpid()) / "ns" / "pid").symlink_to(own_process.pid_namespace)

    assert this_process(tmp_path) == own_process
    assert not is_known_dead(replace(own_process, pid=1, started=own_process.started), tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_is_ended_by_a_signal_cleans_up(number: signal.Signals) -> None:
    """A closed terminal and a stop by a service manager have the same effect as Ctrl-C."""
    script = (
        "import signal, time\n"
        f"signal.signal({number:d}, signal.SIG_DFL)\n"  # under `nohup`, the tests' processes ignore SIGHUP
        "from spark_resources.host.processes import interrupt_on_termination as it; it()\n"
        "try:\n print('ready', flush=True)\n for _ in range(1200): time.sleep(0.05)\nfinally:\n print('gave back')"
    )  # many short waits, because a signal right before a long one would only be handled after it
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, stderr=-3, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.read() == "gave back\n"


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """If lakegc handled it, `nohup` would have no effect."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        interrupt_on_termination()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
