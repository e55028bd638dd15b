"""Dagster's daemon with the schedule and all sensors on, for one repository, and the person who works with it."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import dagster as dg

from lakegc_assets.cli.dagster_runs import DAGSTER_SETTINGS, WORKSPACE
from tests.soak.commands import Commands
from tests.soak.world import DAILY, ROOT, Service, World, has_variable, processes

SETTINGS = DAGSTER_SETTINGS.replace("max_concurrent_runs: 2", "max_concurrent_runs: 1") + (
    "run_monitoring:\n  enabled: true\n  start_timeout_seconds: 300\n  cancel_timeout_seconds: 180\n"
)
FLEET = f"""
full_every = 4
retry_total_s = 30
repositories_include = ["{DAILY}"]

[repositories.{DAILY}]
mark_cron = "*/5 * * * *"
sweep_quarantine = true
brake_share = 1
brake_jump = 1000
auto_approve = true
auto_approve_max_share = 1
auto_approve_min_age = "24h"
auto_approve_wait = "1m"
"""
START_LIMIT_S = 300


class Daemon(Service):
    """The daemon with a history of its own."""

    def __init__(self, world: World) -> None:
        self.home = world.folder / "dagster"
        command = [_program("dagster-daemon"), "run", "-w", str(WORKSPACE)]
        super().__init__(world, "daemon", command, lambda: True, DAGSTER_HOME=str(self.home))

    def prepare(self) -> None:
        """Turn on the schedules and the sensors."""
        self.home.mkdir()
        (self.home / "dagster.yaml").write_text(SETTINGS)
        for kind in ("schedule", "sensor"):
            command = [_program("dagster"), kind, "start", "--start-all", "-w", str(WORKSPACE)]
            with self.log.open("ab") as log:
                subprocess.run(
                    command, cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    timeout=START_LIMIT_S, check=True,
                )  # fmt: skip

    def run_processes(self) -> list[int]:
        """The processes of runs that the daemon has started."""
        return [
            pid
            for pid, line in processes(has_variable("DAGSTER_HOME", self.home))
            if "multiprocessing.spawn import spawn_main" in line
        ]

    def run_counts(self) -> Counter[str]:
        """How many runs of each job have which status."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            return Counter(f"{run.job_name} {run.status.value}" for run in instance.get_runs())


class DailyOperator(threading.Thread):
    """Looks at the marks of the daemon, and approves, undoes or purges some of them. A policy approves the others."""

    def __init__(self, world: World, commands: Commands, seed: str) -> None:
        super().__init__(name=f"operator of {DAILY}", daemon=True)
        self._world, self._commands = world, commands
        self._random, self._seen = random.Random(seed), set[str]()

    def run(self) -> None:
        while self._world.wait(self._random.uniform(45, 90)):
            marks = self._commands.marks(DAILY)
            for mark in marks:
                mark_id, state = mark["mark_id"], mark["state"]
                if f"{mark_id} {state}" in self._seen or self._world.ending.is_set():
                    continue
                self._seen.add(f"{mark_id} {state}")
                if state == "marked" and mark["expired"] and self._random.random() < 0.5:
                    self._approve(mark_id)
                if state == "swept" and self._random.random() < 0.5:
                    undo_or_purge = self._random.choice((("undo", DAILY, mark_id), ("purge", DAILY, mark_id, "--yes")))
                    self._commands.until_done(*undo_or_purge)

    def _approve(self, mark_id: str) -> None:
        reviewed = self._commands.once("review", DAILY, mark_id, "--format", "json")
        if reviewed.code == 0:
            self._commands.approve(DAILY, {"mark_id": mark_id, **reviewed.document})


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)
