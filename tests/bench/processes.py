"""Resource use of a process and all its descendants: processor seconds and peak memory. Reads /proc, so Linux only."""

from __future__ import annotations

import itertools
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
BETWEEN_LOOKS = 0.2
LOOKS_A_WEIGHING = 5  # adding up the pages of a process stops it for milliseconds
JAVA, WORKER, REST = "JVM", "Python workers", "driver"


@dataclass(frozen=True, slots=True)
class Process:
    """One process as listed in /proc; `ticks` include those of its children that have ended."""

    id: int
    name: str
    parent: int
    ticks: int


def tree(root: int) -> list[Process]:
    """The process and its descendants, each after its parent."""
    everything = [listed for entry in Path("/proc").iterdir() if (listed := _process(entry)) is not None]
    children: dict[int, list[Process]] = {}
    for process in everything:
        children.setdefault(process.parent, []).append(process)
    listed = [process for process in everything if process.id == root]
    for process in listed:  # the list grows during the loop
        listed.extend(children.get(process.id, ()))
    return listed


def _process(entry: Path) -> Process | None:
    if not entry.name.isdigit():
        return None
    try:
        head, _, rest = (entry / "stat").read_text().rpartition(")")
    except OSError:  # the process has ended
        return None
    fields = rest.split()
    return Process(int(entry.name), head.partition("(")[2], int(fields[1]), sum(map(int, fields[11:15])))


def processor_seconds(root: int) -> float:
    """Processor seconds of a process and all its descendants, including those that have ended."""
    return sum(process.ticks for process in tree(root)) / TICK


def memory(process: int) -> int:
    """Resident bytes. Memory shared by several processes is counted proportionally."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


@dataclass
class Watch:
    """Samples a process and all its descendants until it is stopped: a few times per second, and memory once per
    second."""

    root: int
    first_worker: float | None = None
    at_first_worker: float = 0.0
    used: float = 0.0
    """Processor seconds when it looked last."""
    peaks: dict[str, int] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    """The peaks since `since` was last emptied."""

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def processor(self) -> float:
        return processor_seconds(self.root)

    def _look(self) -> None:
        for number in itertools.count():
            if self._ended.wait(BETWEEN_LOOKS):
                return
            weighs = number % LOOKS_A_WEIGHING == 0
            used, kinds = dict.fromkeys((JAVA, WORKER, REST), 0), dict[int, str]()
            for process in tree(self.root):
                above = kinds.get(process.parent, REST)
                kinds[process.id] = JAVA if process.name == "java" else WORKER if above in (JAVA, WORKER) else REST
                if above == WORKER and self.first_worker is None:
                    self.first_worker, self.at_first_worker = time.monotonic(), self.processor()
                used[kinds[process.id]] += memory(process.id) if weighs else 0
            self.used = max(self.used, self.processor())
            used["all"] = sum(used.values())
            for name, size in used.items():
                self.peaks[name] = max(self.peaks.get(name, 0), size)
                self.since[name] = max(self.since.get(name, 0), size)
