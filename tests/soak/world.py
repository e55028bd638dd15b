"""What all parts of a soak share: its folder, its processes, its counts and its problems."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARKER = "SOAK_FOLDER"  # an environment variable by which the processes of a soak are found
START_LIMIT_S = 180
BUCKET, PREFIX = "soak", "lakes"
MANUAL, DAILY = ("alpha", "beta"), "daily"
"""The repositories that people mark, and the one that the daemon marks."""


@dataclass
class Record:
    """Counts and problems, from all threads. A soak passes if it has no problem."""

    counts: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    def message(self, text: str) -> None:
        """Count the message of a command that did not succeed."""
        with self._lock:
            self.messages[text] += 1

    def problem(self, text: str) -> None:
        with self._lock:
            self.problems.append(f"{time.strftime('%H:%M:%S')} {text}")
        say(f"PROBLEM: {text}")


@dataclass
class World:
    """A soak: its folder, the environment of its processes, and whether it is ending."""

    folder: Path
    environment: dict[str, str]
    record: Record = field(default_factory=Record)
    ending: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float) -> bool:
        """Wait, but not beyond the end. Returns whether the soak goes on."""
        return not self.ending.wait(seconds)


class Service:
    """A server in a process of its own, which can be killed and started again."""

    def __init__(
        self, world: World, name: str, command: list[str], is_ready: Callable[[], bool], **variables: str
    ) -> None:
        self.name, self._command, self._is_ready = name, command, is_ready
        self.environment, self.log = world.environment | variables, world.folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self.environment, stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        limit = time.monotonic() + START_LIMIT_S
        while not self._is_ready():
            if time.monotonic() > limit or self._process.poll() is not None:
                raise RuntimeError(f"{self.name} did not start: see {self.log}")
            time.sleep(0.1)

    def tell(self, line: str) -> None:
        """Send a line to its standard input. A killed process doesn't read it."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(f"{line}\n".encode())
                self._process.stdin.flush()

    def kill(self, sent: signal.Signals = signal.SIGKILL, *, limit_s: float = 60) -> None:
        """End the process, but not its children: as `kill` does on a terminal."""
        if self._process is not None:
            self._process.send_signal(sent)
            try:
                self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid


def base_environment(folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a soak's processes, without the settings of this user."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEGC_", "LAKECTL_", "AWS_"))}
    home = folder / "home"
    home.mkdir(exist_ok=True)
    own = {MARKER: str(folder), "PYTHONPATH": str(ROOT), "HOME": str(home), "DAGSTER_HOME": str(folder / "terminal")}
    return {**known, **own, **{f"LAKEGC_{name.upper()}": value for name, value in settings.items()}}


def processes(belongs: Callable[[int], bool]) -> Iterator[tuple[int, str]]:
    """The running processes for which a condition holds, each with its command line."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with suppress(OSError):  # it has ended
                if belongs(int(process.name)):
                    line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if line:  # a process that has ended and wasn't waited for has none
                        yield int(process.name), line


def has_variable(name: str, value: object) -> Callable[[int], bool]:
    """A condition: the process was started with this environment variable."""
    wanted = f"{name}={value}".encode()
    return lambda pid: wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def kill_all(folder: Path) -> None:
    """Kill what is left of a soak."""
    for pid, _ in processes(has_variable(MARKER, folder)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()
