"""A proxy that can change responses between lakegc and a sandbox, and a repository with some garbage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from lakegc_assets.mark.context import Target
from spark_resources.lakefs_sandbox import Sandbox, SandboxRepository
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.mark import marks
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import Commit, MarkState, Rules
from tests.support.command_line import NO_AGE, Lakegc, Outcome, dagster_home
from tests.support.command_line import lakegc_without_dagster as lakegc
from tests.support.mark_runs import target_of
from tests.support.tampering_proxy import TamperingProxy, tampering_proxy

__all__ = ["NO_AGE", "Lake", "Lakegc", "Outcome", "dagster_home", "lake", "lakegc", "sandbox"]

_serial = itertools.count(1)


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One server for all tests; each test uses its own repositories."""
    with Sandbox(tmp_path_factory.mktemp("sandbox"), uncommitted_page_size=2) as server:
        yield server


@dataclass
class Lake:
    """A repository behind a proxy in which a test can change responses."""

    sandbox: Sandbox
    repository: SandboxRepository
    server: TamperingProxy
    commits: list[Commit] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.repository.id

    @property
    def settings(self) -> dict[str, str]:
        # all lakes are on one server, and tests damage them
        known = {**self.sandbox.settings, "trusted_repositories": "*"}
        return {**known, "endpoint_url": self.server.endpoint, "retry_total_s": "0"}

    @property
    def folder(self) -> Path:
        """The namespace's folder."""
        return self.sandbox.local_path / self.name

    @property
    def target(self) -> Target:
        return target_of(self.sandbox.settings, self.name)

    def file_at(self, location: str) -> Path:
        """The file or folder at a location that the server announced."""
        return self.folder / self.target.place.namespace.key(location)

    def records(self) -> list[MarkRecord]:
        return list(marks(self.target.place))

    def check_no_finished_mark(self) -> None:
        """Check that no mark is finished, and that there is no summary that would let the reference collector sweep
        one."""
        assert {record.state for record in self.records()} <= {MarkState.MARKING, MarkState.FAILED}
        assert all((record.finished, record.digest) == (None, None) for record in self.records())
        assert not list(self.folder.rglob("summary.json"))


@pytest.fixture
def lake(sandbox: Sandbox) -> Iterator[Lake]:
    """A repository with a live commit and an expired one on main; the latter has an object that no other commit has.
    Three committed objects and a staged one are live."""
    repository = sandbox.create(f"lake-{next(_serial)}")
    set_rules(repository, Rules(7))
    now = sandbox.now()
    with tampering_proxy(sandbox.endpoint_url) as server:
        damaged_lake = Lake(sandbox, repository, server)
        repository.put_many("main", [("a", b"first a"), ("b", b"b"), ("c", b"c")])
        damaged_lake.commits.append(repository.commit("main", "first", date=now - timedelta(days=30)))
        repository.put("main", "a", b"second a")
        damaged_lake.commits.append(repository.commit("main", "second", date=now - timedelta(days=20)))
        repository.put("main", "staged", b"staged")
        yield damaged_lake
