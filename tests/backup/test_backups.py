"""Whole backups on a sandbox, as a user makes them: mark, approve, back up, sweep, restore, read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.model import Rules
from spark_resources.stores import Store
from tests.support.command_line import NO_AGE, Lakegc
from tests.support.mark_runs import target_of


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("backed-up")) as server:
        yield server


class Lake:
    """A repository with six expired objects: three of an expired commit, and three that were never committed."""

    def __init__(self, sandbox: Sandbox, name: str, lakegc: Lakegc) -> None:
        self.sandbox, self.lakegc = sandbox, lakegc
        self.repository: SandboxRepository = sandbox.create(name)
        now = sandbox.now()
        set_rules(self.repository, Rules(7))
        for path in ("a", "deep/er/b", "c"):
            self.repository.put("main", path, f"old {path}".encode() * 100)
        self.expired = self.repository.commit("main", "old", date=now - timedelta(days=30)).id
        for path in ("a", "deep/er/b", "c"):
            self.repository.put("main", path, f"older {path}".encode() if path != "c" else b"lost")
            self.repository.put("main", path, f"new {path}".encode())
        self.repository.commit("main", "new", date=now - timedelta(days=20))

    @property
    def name(self) -> str:
        return self.repository.id

    @property
    def store(self) -> Store:
        return target_of(self.sandbox.settings, self.name).place.store()

    def __call__(self, *arguments: str, **settings: str) -> Any:
        """The JSON that a successful command prints."""
        return json.loads(self.lakegc.output({**self.sandbox.settings, **settings}, *arguments, "--format", "json"))

    def fails(self, code: int, *words: str, arguments: tuple[str, ...], **settings: str) -> None:
        outcome = self.lakegc({**self.sandbox.settings, **settings}, *arguments)
        assert outcome.code == code, outcome.err
        for word in words:
            assert word in outcome.err

    def mark(self, *, approve: bool = True) -> None:
        record = self("mark", self.name, "--mark-id", "m1", *NO_AGE)
        assert record["counts"]["expired"] == 6
        if approve:
            self("approve", self.name, "m1", "--yes", "--digest", record["digest"], *self._released(record))

    def _released(self, record: Mapping[str, Any]) -> list[str]:
        tripped = [brake["name"] for brake in record["brakes"] if brake["tripped"]]
        return [word for name in tripped for word in ("--release", name, "--because", "a test")]

    def contents(self) -> dict[str, bytes]:
        return {
            stored.key: self.store.read(stored.key) for page in self.store.pages("data/") for stored in page.objects
        }


@pytest.fixture
def lake(sandbox: Sandbox, lakegc: Lakegc, request: pytest.FixtureRequest) -> Lake:
    return Lake(sandbox, f"lake-{abs(hash(request.node.nodeid)):x}", lakegc)


def test_with_a_configured_backup_a_sweep_deletes_only_objects_in_the_backup(lake: Lake, tmp_path: Path) -> None:
    """The sweep requires a complete backup of the approved set, and deletes only objects whose copies are still
    intact."""
    to, other = str(tmp_path / "backups"), str(tmp_path / "elsewhere")
    lake.mark()
    before = lake.contents()
    sweep = ("sweep", lake.name, "m1")
    lake.fails(3, "require a backup", "lakegc backup", arguments=sweep, backup_to=to)
    without_one = lake.contents()
    lake("backup", lake.name, "m1", backup_to=to)
    lake.fails(3, "require a backup", arguments=sweep, backup_to=other)
    objects = tmp_path / "backups" / lake.name / "m1" / "objects"
    missing, altered = sorted(path for path in objects.rglob("*") if path.is_file())[:2]
    missing.unlink()
    altered.write_bytes(altered.read_bytes() + b"!")
    lake.fails(4, "2 could not be deleted", arguments=sweep, backup_to=to)
    contents = lake.contents()
    altered.unlink()
    lake("backup", lake.name, "m1", to)
    swept = lake(*sweep, backup_to=to)

    assert without_one == before
    assert {str(path.relative_to(objects)) for path in (missing, altered)} <= contents.keys()
    assert len(contents) == len(before) - 4
    assert swept["objects"] == {"deleted": 6}
    assert len(lake.contents()) == len(before) - 6


def test_a_restored_backup_has_the_same_bytes_under_the_same_nested_keys(lake: Lake, tmp_path: Path) -> None:
    """lakeFS can read the restored objects of an expired commit.

    treeverse/lakeFS#4775
    """
    to = str(tmp_path / "backups")
    lake.mark()
    before = lake.contents()
    outcome = lake("backup", lake.name, "m1", to)
    swept = lake("sweep", lake.name, "m1", backup_to=to)
    after = lake.contents()
    drilled = lake("restore", lake.name, "m1", to, "--drill", "2", "--seed", "7")
    restored = lake("restore", lake.name, "m1", to)

    assert outcome["objects"] == {"copied": 6}
    assert swept["objects"] == {"deleted": 6}
    assert len(after) == 3
    assert (drilled["success"], drilled["wanted"]) == (True, 2)
    assert restored["objects"] == {"copied": 6}
    assert restored["stored"] == 6
    assert restored["paths"] == {"known": 3, "asked": 3, "read": 3, "unread": {}}
    assert lake.contents() == before
    assert lake.repository.read(lake.expired, "deep/er/b")[1] == b"old deep/er/b" * 100
    assert lake("restore", lake.name, "m1", to)["objects"] == {"already there": 6}
    some = next(iter(before))
    shutil.rmtree(tmp_path / "backups" / lake.name / "m1" / "objects" / "data" / some.split("/")[1])
    lake.store.delete_many([some])
    lake.fails(4, "missing from the backup", some, arguments=("restore", lake.name, "m1", to))
