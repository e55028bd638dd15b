"""Repositories with finished marks made without Spark, on one sandbox server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.approval import approve as approval
from lakegc_assets.approval.mark_states import state_of
from lakegc_assets.approval.proposals import ApprovalRequest, Proposal, propose
from lakegc_assets.mark.context import Target
from lakegc_assets.rules.brakes import BrakeLimits
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.approval import Approval, read_approval
from spark_resources.mark_store.mark import Mark, mark_folder, reference_folder
from spark_resources.mark_store.record import MarkRecord
from spark_resources.settings import Settings
from spark_resources.stores.place import Place
from tests.support.command_line import dagster_home, lakegc
from tests.support.dagster_instances import instance
from tests.support.finished_marks import finished_mark
from tests.support.mark_runs import quick_environment, target_of

__all__ = ["dagster_home", "instance", "lakegc"]

ADDRESSES = ("data/s/a", "data/s/two\nlines", "legacy")
LIMITS = BrakeLimits.of(Settings())
_serial = itertools.count(1)


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One server for all tests; each test has its own repository."""
    with Sandbox(tmp_path_factory.mktemp("sandbox")) as server:
        yield server


@dataclass
class Lake:
    """A repository, and operations on its marks."""

    sandbox: Sandbox
    target: Target
    lakefs: LakeFS
    finished: datetime

    @property
    def name(self) -> str:
        return self.target.repository.id

    @property
    def place(self) -> Place:
        return self.target.place

    @property
    def folder(self) -> Path:
        return self.sandbox.local_path / self.name

    @property
    def now(self) -> datetime:
        return self.place.store().now()

    def add_mark(self, addresses: Sequence[str] = ADDRESSES, mark_id: str = "m1", **changes: Any) -> Mark:
        """Write a finished mark of this repository."""
        start = changes.pop("start", self.finished - timedelta(minutes=9))
        known = {
            "repository": self.name,
            "repository_created": self.target.repository.created,
            "namespace": self.place.namespace.uri,
            "rules": None,
        }
        return finished_mark(self.place, addresses, mark_id, start=start, **{**known, **changes})

    def proposal(self, name: str = "m1") -> Proposal:
        return propose(self.target, name, now=self.now)

    def request(self, **fields: Any) -> ApprovalRequest:
        return replace(ApprovalRequest("Ada", "a test", self.now), **fields)

    def approve(
        self, name: str = "m1", *, proposal: Proposal | None = None, now: datetime | None = None, **fields: Any
    ) -> Approval:
        """Approve a mark now, as someone who has just reviewed it would."""
        proposed = proposal or self.proposal(name)
        time = now or self.now
        request = self.request(**{"when": time, **fields})
        return approval.approve(proposed, request, self.lakefs, LIMITS, now=time, single_deployment=False)

    def revoke(self, name: str = "m1", *, proposal: Proposal | None = None) -> None:
        approval.revoke(proposal or self.proposal(name), who="Grace", now=self.now)

    def verify(self, name: str = "m1", *, now: datetime | None = None) -> None:
        """Verify one of lakegc's own marks, as a sweep does before it begins."""
        record = Mark.open(self.place, name).record
        approval.verify_approved(self.target, record, self.approval(name), now=now or self.now)

    def approval(self, name: str = "m1") -> Approval | None:
        return read_approval(self.place, name)

    def record(self, name: str = "m1") -> MarkRecord:
        return Mark.open(self.place, name).record

    def state(self, name: str = "m1", *, now: datetime | None = None) -> str:
        """The state that lists of marks show."""
        return state_of(self.place, self.record(name), now=now or self.now)

    def files(self, name: str = "m1") -> list[str]:
        """The keys of all files of a mark."""
        folders = (mark_folder(name), reference_folder(name))
        return [
            stored.key for folder in folders for page in self.place.store().pages(folder) for stored in page.objects
        ]

    @property
    def summary(self) -> Path:
        return self.folder / reference_folder("m1") / "summary.json"


@pytest.fixture
def lake(sandbox: Sandbox) -> Lake:
    """A repository whose marks were finished an hour ago by default."""
    repository = sandbox.create(f"lake-{next(_serial)}")
    known = Settings.load(quick_environment(sandbox.settings), home=Path("/nonexistent"))
    target = target_of(sandbox.settings, repository.id)
    return Lake(sandbox, target, LakeFS(*LakeFSSettings.of(known)), sandbox.now() - timedelta(hours=1))


def alter_file(path: Path, change: Callable[[bytes], bytes | None]) -> None:
    """Replace the content of a file, bypassing lakegc; delete it if `change` returns None."""
    changed = change(path.read_bytes())
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)


def with_one_bit_flipped(data: bytes) -> bytes:
    """The same bytes with one bit flipped in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


PREVIOUS_MARK: Mapping[str, Any] = {"mark_id": "m0", "unreadable": []}
