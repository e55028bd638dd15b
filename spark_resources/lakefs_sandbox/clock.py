"""The sandbox's clock: the machine's, shifted by the offset in a file next to the objects, if they are local.

The local store reads the same file, so the times of the server, the store and the files agree in all processes.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from spark_resources.errors import WrongUsage
from spark_resources.stores.local.client import CLOCK_FILE


class Clock(Protocol):
    """The sandbox's time, which runs at the machine's pace."""

    def offset(self) -> timedelta: ...

    def now(self) -> datetime: ...

    def set(self, moment: datetime | None) -> None:
        """Set the time to `moment`; None resets it to the machine's time. Raises `WrongUsage` if it can't be set."""
        ...


class SandboxClock:
    """The clock of a sandbox whose objects are in a local folder, the local adapter's configured path."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / CLOCK_FILE

    def offset(self) -> timedelta:
        try:
            return timedelta(seconds=float(json.loads(self._file.read_bytes())["offset_seconds"]))
        except FileNotFoundError:
            return timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset()

    def set(self, moment: datetime | None) -> None:
        """Set the time to `moment`; None resets it to the machine's time. Raises `WrongUsage` without a time zone."""
        if moment is None:
            self._file.unlink(missing_ok=True)
            return
        if moment.tzinfo is None:
            raise WrongUsage(f"the sandbox's clock can't be set to {moment}: the time has no time zone")
        offset = moment - datetime.now(UTC)
        # Replaced atomically, so that no reader sees a partial file.
        temporary = self._file.with_name(f"{CLOCK_FILE}.{os.getpid()}")
        temporary.write_text(json.dumps({"offset_seconds": offset.total_seconds()}))
        temporary.replace(self._file)


class MachineClock:
    """The machine's clock, which can't be set: an object store keeps its own time."""

    def offset(self) -> timedelta:
        return timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def set(self, moment: datetime | None) -> None:
        if moment is not None:
            raise WrongUsage(
                "the sandbox's clock can't be set if its objects are in an object store: the store dates them by its "
                "own clock, so ages would be wrong. Use a sandbox with its objects in a local folder."
            )
