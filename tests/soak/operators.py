"""Operators: people who mark, approve, sweep, undo, purge, back up, restore, retire and check, without end."""

from __future__ import annotations

import random
import threading
from typing import Any

from tests.soak.commands import Commands
from tests.soak.world import World

PAUSE_S = (5.0, 30.0)


class Operator(threading.Thread):
    """The operator of one repository."""

    def __init__(self, world: World, commands: Commands, repository: str, seed: str) -> None:
        super().__init__(name=f"operator of {repository}", daemon=True)
        self._world, self._commands, self._repository = world, commands, repository
        self._random = random.Random(seed)

    def run(self) -> None:
        while self._world.wait(self._random.uniform(*PAUSE_S)):
            full = ("--full",) if self._random.random() < 0.25 else ()
            marked = self._commands.mark(self._repository, *full)
            if marked is not None and marked["counts"]["expired"] and not self._world.ending.is_set():
                self._use(marked)
            self._look_around()

    def _use(self, marked: dict[str, Any]) -> None:
        mark_id, do = marked["mark_id"], self._commands.until_done
        if not self._commands.approve(self._repository, marked):
            return
        match self._random.choices(("sweep", "quarantine", "backup"), (4, 4, 2))[0]:
            case "sweep":
                do("sweep", self._repository, mark_id)
            case "quarantine":
                if do("sweep", self._repository, mark_id, "--quarantine"):
                    self._end_quarantine(mark_id)
            case "backup":
                self._sweep_with_backup(mark_id)
        self._world.record.count("sweeps")

    def _end_quarantine(self, mark_id: str) -> None:
        match self._random.choices(("undo", "purge", "later"), (4, 4, 2))[0]:
            case "undo":
                self._commands.until_done("undo", self._repository, mark_id)
            case "purge":
                self._commands.until_done("purge", self._repository, mark_id, "--yes")

    def _sweep_with_backup(self, mark_id: str) -> None:
        """Back up, sweep, and restore half of the time: the restored objects are garbage again."""
        to = str(self._world.folder / "backups")
        environment = self._commands.environment | {"LAKEGC_BACKUP_TO": to}
        do = self._commands.until_done
        if not do("backup", self._repository, mark_id, to):
            return
        if do("sweep", self._repository, mark_id, environment=environment) and self._random.random() < 0.5:
            do("restore", self._repository, mark_id, to)

    def _look_around(self) -> None:
        """Ask for what people ask now and then. Any of it may fail while a server is away, but not with a traceback."""
        repository, once = self._repository, self._commands.once
        for share, arguments in (
            (0.2, ("status", repository)),
            (0.2, ("report", repository)),
            (0.1, ("pins", repository)),
            (0.1, ("explain", repository, "events/01", "--path")),
            (0.2, ("fsck", repository)),
            (0.2, ("retire", repository, "--older-than", "5m", "--apply")),
        ):
            if self._random.random() < share and not self._world.ending.is_set():
                once(*arguments)
