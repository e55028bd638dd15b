"""Identifies processes, detects whether one is known to be dead, and lets a process clean up when it is terminated.

A process is identified by the machine's boot, its PID namespace, its PID there, and its start time, because PIDs are
reused, and containers have PIDs of their own. If the boot or the namespace differs or is unknown, a process isn't known
to be dead.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_ENDED = frozenset("ZX")  # states of a process that has ended but has not been reaped yet


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one boot of one machine; `started` is in ticks of the kernel's clock since that boot."""

    boot: str
    pid_namespace: str
    pid: int
    started: int


def this_process(proc: Path = Path("/proc")) -> ProcessIdentity | None:
    """This process; None if the system doesn't provide this information, or /proc belongs to another PID namespace."""
    try:
        if int(str((proc / "self").readlink())) != os.getpid():
            return None
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        status = _stat(proc, os.getpid())
        return ProcessIdentity(boot, str((proc / "self/ns/pid").readlink()), os.getpid(), status[1])
    except (OSError, ValueError, IndexError):
        return None


def is_known_dead(other: ProcessIdentity, proc: Path = Path("/proc")) -> bool:
    """Whether the process has definitely ended; False if this process can't determine that."""
    own = this_process(proc)
    if own is None or (own.boot, own.pid_namespace) != (other.boot, other.pid_namespace):
        return False
    try:
        os.kill(other.pid, 0)  # also finds processes that /proc hides from this user
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    try:
        state, started = _stat(proc, other.pid)
    except (OSError, ValueError, IndexError):
        return False
    return started != other.started or state in _ENDED


def _stat(proc: Path, pid: int) -> tuple[str, int]:
    """State and start time of a process. Its name, in parentheses, may contain any characters."""
    fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[19])


def interrupt_on_termination() -> None:
    """Make SIGTERM and SIGHUP (a closed terminal) end this process like Ctrl-C, so that it cleans up.

    Signals that are already handled or ignored, as with `nohup`, are left unchanged.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", None)):
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C currently does, because Spark and Dagster have their own handlers for it while they work."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # a shell's background job ignores Ctrl-C, but this signal must end the process
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)
