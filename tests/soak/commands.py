"""lakegc's commands in processes of their own, run again until they end: what a user does after an interruption."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.soak.world import ROOT, World, processes, say

LIMIT_S = 1200  # of one run of a command
END_LIMIT_S = 1200  # until a command that is run again and again has to end
PAUSE_S = 10.0
AT_ONCE = 2
STRANGE = ("Traceback (most recent call last)", "bug in lakegc", "\tat org.apache.", "py4j.")
"""What no message may contain."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended. The code is negative if it was killed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def message(self) -> str:
        """The last message, without what differs from run to run. A command that was killed has none."""
        text = "" if self.code < 0 else self.err.rpartition("lakegc: ")[2].strip() or "no message"
        return re.sub(r"\b[\w-]*\d[\w:.-]*", "…", " ".join(text.split()))[:160]


@dataclass
class Running:
    """A command that is running, and what was done to it."""

    process: subprocess.Popen[bytes]
    name: str
    began: float
    disturbed: list[str] = field(default_factory=list)

    def session(self) -> Iterator[tuple[int, str]]:
        """The command's processes, each with its command line."""
        return processes(lambda pid: os.getsid(pid) == self.process.pid)


class Commands:
    """Runs lakegc's commands, a few at a time. `running` are those that can be killed.

    Once nothing is disturbed any more (`is_calm`), every command has to succeed at once, unless one that was killed
    still holds the lease.
    """

    def __init__(self, world: World, environment: dict[str, str] | None = None) -> None:
        self._world, self.environment = world, environment or world.environment
        self.running: list[Running] = []
        self.is_calm = False
        self._turn, self._lock, self._number = threading.Semaphore(AT_ONCE), threading.Lock(), 0

    def once(self, *arguments: str, environment: dict[str, str] | None = None) -> Outcome:
        """Run a command once."""
        record = self._world.record
        with self._turn:
            with self._lock:
                self._number += 1
                log = self._world.folder / "commands" / f"{self._number:04}-{'-'.join(arguments[:3])}".replace("/", "_")
            log.parent.mkdir(exist_ok=True)
            with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("wb") as err:
                process = subprocess.Popen(
                    [sys.executable, "-m", "lakegc_assets.cli", *arguments], cwd=ROOT,
                    env=environment or self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                    start_new_session=True,
                )  # fmt: skip
                running = Running(process, arguments[0], time.monotonic())
                with self._lock:
                    self.running.append(running)
                try:
                    code = process.wait(LIMIT_S)
                except subprocess.TimeoutExpired:
                    record.problem(f"{' '.join(arguments)} did not end in {LIMIT_S} s: see {log}.err")
                    process.kill()
                    code = process.wait()
                finally:
                    with self._lock:
                        self.running.remove(running)
            outcome = Outcome(code, *(log.with_suffix(end).read_text(errors="replace") for end in (".out", ".err")))
        record.count(f"command: {arguments[0]}")
        if code:
            how = ", ".join(running.disturbed) or "not touched itself"
            record.message(f"{arguments[0]} ended with {code} ({how}): {outcome.message}")
            if self.is_calm and "lease" not in outcome.err:
                record.problem(f"{' '.join(arguments)} ended with {code} although nothing was disturbed: see {log}.err")
        if strange := [text for text in STRANGE if text in outcome.err]:
            record.problem(f"{' '.join(arguments)} shows {strange[0]!r}: see {log}.err")
        return outcome

    def until_done(self, *arguments: str, environment: dict[str, str] | None = None) -> Outcome | None:
        """Run a command again until it ends with success, or until a sweep's mark is swept. None if it never does."""
        limit, began = time.monotonic() + END_LIMIT_S, time.monotonic()
        attempts = 0
        while time.monotonic() < limit:
            attempts += 1
            outcome = self.once(*arguments, environment=environment)
            if outcome.code == 0:
                if attempts > 1:
                    self._world.record.count(f"resumed until done: {arguments[0]}")
                return outcome
            if arguments[0] == "sweep" and outcome.code == 3 and self.state(arguments[1], arguments[2]) == "swept":
                self._world.record.count("sweeps whose end was not seen")
                return outcome
            time.sleep(PAUSE_S)
        self._world.record.problem(
            f"{' '.join(arguments)} did not succeed in {time.monotonic() - began:.0f} s and {attempts} attempts: "
            f"{outcome.message}"
        )
        return None

    def marks(self, repository: str) -> list[dict[str, Any]]:
        """The marks of a repository, as `lakegc status` shows them; none if it can't be read now."""
        outcome = self.once("status", repository, "--format", "json")
        if outcome.code:
            return []
        marks: list[dict[str, Any]] = outcome.document["marks"]
        return marks

    def state(self, repository: str, mark_id: str) -> str:
        return next((str(mark["state"]) for mark in self.marks(repository) if mark["mark_id"] == mark_id), "")

    def mark(self, repository: str, *options: str) -> dict[str, Any] | None:
        """A finished mark. A mark that was interrupted or failed is made anew. None if none succeeds."""
        limit = time.monotonic() + END_LIMIT_S
        while time.monotonic() < limit:
            outcome = self.once("mark", repository, *options, "--format", "json")
            if outcome.code == 0:
                marked: dict[str, Any] = outcome.document
                self._world.record.count("marks")
                return marked
            time.sleep(PAUSE_S)
        self._world.record.problem(f"no mark of {repository} succeeded in {END_LIMIT_S} s: {outcome.message}")
        return None

    def approve(self, repository: str, marked: dict[str, Any]) -> bool:
        """Approve a mark with all its brakes released, except those of other repositories that could not be read."""
        tripped = [brake["name"] for brake in marked["brakes"] if brake["tripped"]]
        if any(name.startswith("others/") for name in tripped):
            self._world.record.count("marks without another repository")
            return False
        release = [word for name in tripped for word in ("--release", name, "--because", "a soak")]
        arguments = ("approve", repository, marked["mark_id"], "--yes", "--digest", marked["digest"], *release)
        for _ in range(10):
            outcome = self.once(*arguments)
            if outcome.code == 0 or self.state(repository, marked["mark_id"]) not in ("marked", ""):
                self._world.record.count("approvals")
                return True
            time.sleep(PAUSE_S)
        say(f"{repository}: {marked['mark_id']} was not approved: {outcome.message}")
        self._world.record.count("marks that could not be approved")
        return False
