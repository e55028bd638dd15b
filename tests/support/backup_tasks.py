"""One task of a backup or restore between two namespaces, run in this process without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from lakegc_assets.rules.delete_check import how_changed
from spark_resources.copying.backup_task import WANTED, CopyTaskConfig, backup_rows, can_copy_server_side
from spark_resources.copying.copy_log import CopyStatus, Log
from spark_resources.copying.restore_task import BACKED_UP, restore_rows
from spark_resources.mark_store.foreign_expired_set import folder_of
from spark_resources.spark.task_report import TaskReport
from spark_resources.stores import Store
from spark_resources.stores.place import Place
from spark_resources.stores.transfer import ObjectProperties

FOLDER = "lake/m1/"
_serial = itertools.count()


@dataclass
class Task:
    """The source and target of a task: a repository's namespace and the location of its backup."""

    lake: Place
    to: Place
    counted: dict[str, int] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.lake.store()

    @property
    def log(self) -> Log:
        return Log(self.to, f"{FOLDER}log/")

    def write(self, address: str, data: bytes, **metadata: str) -> None:
        properties = ObjectProperties(len(data), self.store.now(), None, "", {"Content-Type": "text/x-lake"}, metadata)
        self.store.streams.put(address, [data], properties)

    def mark_rows(self, addresses: Iterable[str]) -> pa.Table:
        """The rows that a mark would record for these objects now, in the order of tasks."""
        rows = []
        for address in sorted(addresses, key=lambda name: (folder_of(name).encode(), name.encode())):
            stat = self.store.stat(address)
            row = {"address": address, "size": stat.size, "modified": stat.modified, "checksum": stat.checksum}
            rows.append(row | {"slice": folder_of(address)})
        return pa.Table.from_pylist(rows, schema=WANTED)

    def task_config(self, **changes: Any) -> CopyTaskConfig:
        known: dict[str, Any] = {
            "source": self.lake, "target": self.to, "log": self.log, "run": self.log.next_run(), "folder": FOLDER,
            "token": f"t{next(_serial)}", "at_once": 4, "server_side": can_copy_server_side(self.lake, self.to),
        }  # fmt: skip
        return CopyTaskConfig(**{**known, **changes})

    def back_up(self, rows: pa.Table, **changes: Any) -> dict[str, dict[str, Any]]:
        """Back up these rows. Returns each object's outcome from the log."""
        config = self.task_config(**changes)
        backup_rows(iter(rows.to_batches()), config, partial(how_changed, cutoff=None), 0, 0, TaskReport())
        return self.logged(config.run)

    def logged(self, run: int, log: Log | None = None) -> dict[str, dict[str, Any]]:
        log = log or self.log
        rows = [row for key in log.keys(f"{run:04d}/") for row in log.read(key).to_pylist()]
        by_address = {row["address"]: row for row in rows}
        assert len(by_address) == len(rows)
        return by_address

    def restore(self, logged: Sequence[dict[str, Any]], **changes: Any) -> dict[str, dict[str, Any]]:
        """Restore from the rows of a backup's log. Returns the outcome of each object."""
        log = Log(self.lake, "_lakefs/retention/gc/lakegc/m1/restored/")
        config = self.task_config(source=self.to, target=self.lake, log=log, run=log.next_run(), **changes)
        rows = pa.Table.from_pylist([{"path": None, "commit_id": None, **row} for row in logged], schema=BACKED_UP)
        restore_rows(iter(rows.to_batches()), config, 0, 0, TaskReport())
        return self.logged(config.run, log)


def outcomes(logged: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {address: row["outcome"] for address, row in logged.items()}


def all_with(addresses: Iterable[str], status: CopyStatus) -> dict[str, str]:
    return dict.fromkeys(addresses, status.value)
