"""Two marks that all these tests share: one of a repository full of hostile keys, and one that finds no garbage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.model import Rules
from spark_resources.stores.place import Place
from tests.support.command_line import NO_AGE, Lakegc, Outcome, dagster_home
from tests.support.command_line import lakegc as lakegc_by_dagster
from tests.support.command_line import lakegc_without_dagster as lakegc
from tests.support.mark_runs import target_of

__all__ = ["dagster_home", "lakegc", "lakegc_by_dagster"]

# Keys that lists of files, terminals, markup and spreadsheets all have to escape: first those that fit on a line, then
# those that do not.
ON_A_LINE = {
    "data/s/\x1b[31mred\x1b[0m",
    "data/s/bell\x07 and back\x08",
    "data/s/\x9b31m",
    "data/s/\u202egnp.evil",
    "data/[/red]/closed",
    "data/[bold red]/opened",
    "data/s/:smile:",
    'data/s/"quoted", and more',
    "data/tab\there/a",
    "data/s/[x](www.evil.example) ![y](z)|`<img onerror=a>",
    "=1+1",
    "-rf",
}
NOT_ON_A_LINE = {"data/s/two\nlines", "data/s/\r", "data/s/blank ", "data/s/\u2028", "#comment"}
HOSTILE = ON_A_LINE | NOT_ON_A_LINE
SECRETS = {"s3_secret_access_key": "a-key-for-nobodys-eyes", "s3_session_token": "a-token-for-nobodys-eyes"}


@dataclass(frozen=True)
class Marked:
    """A repository, and the output of the command that made its mark `m1`."""

    sandbox: Sandbox
    repository: str
    settings: dict[str, str]
    made: Outcome

    @property
    def folder(self) -> Path:
        """The namespace's folder."""
        return self.sandbox.local_path / self.repository

    @property
    def place(self) -> Any:
        return target_of(self.sandbox.settings, self.repository).place


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("sandbox")) as server:
        yield server


@pytest.fixture(scope="session")
def hostile(sandbox: Sandbox, lakegc_by_dagster: Lakegc) -> Marked:
    """An object that only an expired commit of main has, and one under each hostile key that nothing refers to."""
    lake, now = sandbox.create("hostile"), sandbox.now()
    lake.put("main", "a", b"first version")
    lake.commit("main", "first", date=now - timedelta(days=60))
    lake.put("main", "a", b"second")
    lake.commit("main", "second", date=now - timedelta(days=50))
    lake.put("main", "staged", b"staged")
    set_rules(lake, Rules(30))
    for key in HOSTILE:
        file = sandbox.local_path / "hostile" / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"garbage")
    settings = {**sandbox.settings, "s3_access_key_id": "AKIA", **SECRETS}
    outcome = lakegc_by_dagster(settings, "mark", "hostile", "--mark-id", "m1", "--format", "json", *NO_AGE)
    return Marked(sandbox, "hostile", settings, outcome)


@pytest.fixture(scope="session")
def still(sandbox: Sandbox, lakegc: Lakegc) -> Marked:
    """A repository in which nothing expires."""
    lake = sandbox.create("still")
    lake.put("main", "a", b"a")
    lake.commit("main", "first")
    outcome = lakegc(sandbox.settings, "mark", "still", "--mark-id", "m1", *NO_AGE)
    return Marked(sandbox, "still", sandbox.settings, outcome)


@pytest.fixture(scope="session")
def pond(sandbox: Sandbox) -> str:
    """A repository without marks."""
    return sandbox.create("pond").id


@pytest.fixture
def name(sandbox: Sandbox, request: pytest.FixtureRequest) -> str:
    """A repository without marks, for one test only."""
    return sandbox.create(f"lake-{abs(hash(request.node.nodeid)):x}").id


@pytest.fixture
def place(sandbox: Sandbox, name: str) -> Place:
    """The namespace of that repository."""
    namespace: Place = target_of(sandbox.settings, name).place
    return namespace
