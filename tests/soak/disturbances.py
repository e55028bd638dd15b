"""Disturbances: processes are killed and started again, commands are interrupted, and the store gets slow or fails."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tests.soak.commands import Commands, Running
from tests.soak.daemon import Daemon
from tests.soak.world import Service, World

PAUSE_S = (10.0, 40.0)
VICTIM_LIMIT_S = 30
OFTEN = {"sweep": 4, "undo": 4, "purge": 4, "restore": 3, "backup": 3, "retire": 3, "mark": 1, "approve": 1}
"""How much more often some commands are killed than others."""


class Disturber(threading.Thread):
    """Disturbs a soak now and then. Everything that it kills is started again; commands are run again by operators."""

    def __init__(
        self, world: World, servers: tuple[Service, Service], dagster: Daemon, commands: list[Commands], seed: str
    ) -> None:
        super().__init__(name="disturber", daemon=True)
        self.world, self.record = world, world.record
        self.sandbox, self.proxy = servers
        self.dagster, self.commands, self.random = dagster, commands, random.Random(seed)

    def run(self) -> None:
        while self.world.wait(self.random.uniform(*PAUSE_S)):
            kind = self.random.choices(list(KINDS), list(KINDS.values()))[0]
            try:
                if kind(self):
                    self.record.count(f"disturbance: {kind.__name__}")
            except RuntimeError as error:
                self.record.problem(str(error))

    # --- servers ----------------------------------------------------------------------------------------------------

    def kill_sandbox(self) -> bool:
        return self._restart(self.sandbox, self.random.uniform(0.1, 15))

    def kill_proxy(self) -> bool:
        return self._restart(self.proxy, self.random.uniform(0.1, 20))

    def kill_both(self) -> bool:
        self.proxy.kill()
        return self._restart(self.sandbox, 3, between=self.proxy.start)

    def _restart(self, service: Service, seconds: float, between: Callable[[], None] = lambda: None) -> bool:
        service.kill()
        time.sleep(seconds)
        between()
        service.start()
        return True

    def slow_store(self) -> bool:
        return self._fault("slow 0.2")

    def cut_responses(self) -> bool:
        return self._fault("cut 0.05")

    def busy_store(self) -> bool:
        return self._fault("busy 0.3")

    def broken_store(self) -> bool:
        return self._fault("broken 0.1")

    def lost_responses(self) -> bool:
        return self._fault("broken-after 0.1")

    def _fault(self, line: str) -> bool:
        self.proxy.tell(line)
        self.world.wait(self.random.uniform(5, 20))
        self.proxy.tell("calm")
        return True

    # --- commands ---------------------------------------------------------------------------------------------------

    def kill_command(self) -> bool:
        return self._to_a_command("killed", lambda running: self._send(running.process.pid, signal.SIGKILL))

    def interrupt_command(self) -> bool:
        return self._to_a_command("interrupted", lambda running: self._send(running.process.pid, signal.SIGINT))

    def kill_java(self) -> bool:
        return self._to_a_command("without Java", lambda running: self._kill_all(running, "java"))

    def kill_workers(self) -> bool:
        return self._to_a_command("without workers", lambda running: self._kill_all(running, "worker_daemon"))

    def _to_a_command(self, what: str, act: Callable[[Running], bool]) -> bool:
        """Do something to a command, as soon as there is one to which it can be done."""
        time.sleep(self.random.uniform(0, 8))
        limit = time.monotonic() + VICTIM_LIMIT_S
        while time.monotonic() < limit and self.world.wait(0.5):
            running = [each for commands in self.commands for each in list(commands.running) if each.name in OFTEN]
            if running:
                chosen = self.random.choices(running, [OFTEN[each.name] for each in running])[0]
                if chosen.process.poll() is None and act(chosen):
                    chosen.disturbed.append(what)
                    self.record.count(f"{chosen.name} {what}")
                    return True
        return False

    def _kill_all(self, running: Running, word: str) -> bool:
        sent = [
            self._send(pid, signal.SIGKILL) for pid, line in running.session() if word in line.partition(" -cp ")[0]
        ]
        return any(sent)

    def _send(self, pid: int, sent: signal.Signals) -> bool:
        with suppress(ProcessLookupError):
            os.kill(pid, sent)
            return True
        return False

    # --- Dagster ----------------------------------------------------------------------------------------------------

    def kill_daemon(self) -> bool:
        self.dagster.kill()
        time.sleep(self.random.uniform(0.1, 20))
        self.dagster.start()
        return True

    def kill_dagster_run(self) -> bool:
        limit = time.monotonic() + VICTIM_LIMIT_S
        while time.monotonic() < limit and self.world.wait(0.5):
            if runs := self.dagster.run_processes():
                time.sleep(self.random.uniform(0, 30))
                return self._send(self.random.choice(runs), signal.SIGKILL)
        return False


KINDS: dict[Callable[[Disturber], bool], int] = {
    Disturber.kill_sandbox: 4, Disturber.kill_proxy: 4, Disturber.kill_both: 1, Disturber.slow_store: 3,
    Disturber.cut_responses: 2, Disturber.busy_store: 2, Disturber.broken_store: 2, Disturber.lost_responses: 2,
    Disturber.kill_command: 5, Disturber.interrupt_command: 4, Disturber.kill_java: 4, Disturber.kill_workers: 4,
    Disturber.kill_daemon: 2, Disturber.kill_dagster_run: 3,
}  # fmt: skip
"""The disturbances, each with how often it is chosen."""
