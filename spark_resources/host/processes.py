"""Which process holds something, and whether it is known to be dead; and ends that still let a process give back.

A process is known by the machine's boot, its namespace of process ids, its id there, and when it began: ids are used
again, also between containers. Where one of these differs or can't be told, nothing is known.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

_ENDED = frozenset("ZX")  # states of a process that has ended, and that nobody has waited for yet


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one boot of one machine; `started` is in ticks of the kernel's clock since that boot."""

    boot: str
    pid_namespace: str
    pid: int
    started: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> ProcessIdentity:
        """Raises `KeyError`, `TypeError` or `ValueError` for what isn't one."""
        return cls(str(plain["boot"]), str(plain["pid_namespace"]), int(plain["pid"]), int(plain["started"]))


def this_process(proc: Path = Path("/proc")) -> ProcessIdentity | None:
    """This process; None where the system doesn't tell, or shows the processes of another namespace."""
    try:
        if int(str((proc / "self").readlink())) != os.getpid():
            return None
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        found = _stat(proc, os.getpid())
        return ProcessIdentity(boot, str((proc / "self/ns/pid").readlink()), os.getpid(), found[1])
    except (OSError, ValueError, IndexError):
        return None


def known_dead(other: ProcessIdentity, proc: Path = Path("/proc")) -> bool:
    """Whether this process has surely ended; False where nobody can tell from here."""
    mine = this_process(proc)
    if mine is None or (mine.boot, mine.pid_namespace) != (other.boot, other.pid_namespace):
        return False
    try:
        os.kill(other.pid, 0)  # tells also of processes that /proc hides from this user
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
    """State and start of a process. Its name, in brackets, may hold anything."""
    fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[19])


def interrupt_when_told_to_end() -> None:
    """Let SIGTERM and SIGHUP (a terminal that was closed) end this process as Ctrl-C does, so that it gives back what
    it holds. Signals that somebody handles or ignores stay as they are, as with `nohup`."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", None)):
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """What Ctrl-C does by now: Spark and Dagster have handlers of their own for it, while they work."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # ignored, as in the background of a shell: this signal still has to end the process
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)
