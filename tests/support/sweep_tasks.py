"""One task of a sweep over a folder, run in this process: its store, lease and configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.rules.delete_check import check_before_delete
from spark_resources.deleting.permit import PermitIssuer
from spark_resources.deleting.receipts import Receipts
from spark_resources.deleting.sweep_task import Action, SweepTaskConfig, sweep_rows
from spark_resources.mark_store.lease import take_lease
from spark_resources.model import PENDING, Namespace
from spark_resources.spark.task_report import TaskReport
from spark_resources.stores import Store, StoreSettings
from spark_resources.stores.place import Place

SECRET = b"of a round"
FOLDER = "_lakefs/retention/gc/lakegc/m1/receipts/"


@dataclass
class Task:
    """The input of one task of a sweep of mark m1, and its outcomes."""

    place: Place
    token: str
    counted: dict[str, int] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.place.store()

    @property
    def receipts(self) -> Receipts:
        return Receipts(self.place, FOLDER)

    def permit(self, round_number: int = 1) -> PermitIssuer:
        return PermitIssuer(self.receipts, round_number, SECRET)

    def config(self, action: Action = Action.DELETE, round_number: int = 1, **changes: Any) -> SweepTaskConfig:
        """The configuration of a round whose permit lasts longer than any test."""
        now = self.store.now()
        self.permit(round_number).grant(now + timedelta(minutes=30))
        known: dict[str, Any] = {
            "place": self.place,
            "receipts": self.receipts,
            "round": round_number,
            "lease_token": self.token,
            "verified_until": now + timedelta(minutes=30),
            "check": partial(check_before_delete, cutoff=now),
            "mark_id": "m1",
            "permit_secret": SECRET,
            "action": action,
        }
        return SweepTaskConfig(**{**known, **changes})

    def write(self, *names: str) -> pa.Table:
        """Write objects with these names. Returns their pending rows."""
        keys = [f"data/s/{name}" for name in names]
        for key in keys:
            self.store.write(key, key.encode())
        return self.pending(*names)

    def pending(self, *names: str, intended: bool = False) -> pa.Table:
        rows = [self.row(f"data/s/{name}") | {"intended": intended} for name in names]
        return pa.Table.from_pylist(rows, schema=PENDING)

    def row(self, key: str) -> dict[str, Any]:
        matching = [stored for page in self.store.pages(key) for stored in page.objects if stored.key == key]
        modified = matching[0].modified if matching else self.store.now()
        return {"address": key, "size": len(key), "modified": modified, "slice": "data/s/", "checksum": None}

    def run(self, rows: pa.Table, config: SweepTaskConfig, *, attempt: int = 0) -> dict[str, int]:
        """Run the task. Returns the number of objects by outcome."""
        report = TaskReport()
        sweep_rows(iter(rows.to_batches()), config, 0, attempt, report)
        unprocessed = report.counters["unprocessed"]
        return report.by_key["objects"] | ({"unprocessed": unprocessed} if unprocessed else {})

    def outcomes(self) -> dict[str, tuple[str, str]]:
        """The outcome and the store's code of each key, from its receipt. Fails if a key has more than one receipt."""
        rows = [row for key in self.receipts.keys("receipt") for row in self.receipts.read(key).to_pylist()]
        by_name = {row["address"].removeprefix("data/s/"): (row["outcome"], row["code"]) for row in rows}
        assert len(by_name) == len(rows)
        return by_name

    def remaining(self, prefix: str = "data/") -> set[str]:
        return {stored.key.removeprefix("data/s/") for page in self.store.pages(prefix) for stored in page.objects}


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    (tmp_path / "lake").mkdir()
    place = Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))
    with ExitStack() as stack:
        lease = take_lease(place.store(), who="Ada", mark_id="m1", token="t", single_deployment=False)
        stack.callback(lease.release)
        yield Task(place, lease.token)
