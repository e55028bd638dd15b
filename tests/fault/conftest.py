"""lakegc as a user meets it: a command line, a server between it and a sandbox, and a repository with some garbage."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from lakegc_assets import cli, launch
from lakegc_assets.marking.run import Target
from spark_resources.marks import MarkRecord, marks
from spark_resources.model import Commit, MarkState, Rules
from spark_resources.sandbox import Sandbox, SandboxRepository
from spark_resources.sandbox.gc_api import set_rules
from tests.fault.between import Between, between
from tests.marking import environment, resources, target_of

_serial = itertools.count(1)
NO_AGE = ("--min-age", "0", "--allow-young")


@dataclass(frozen=True)
class Outcome:
    """What a command left on the terminal."""

    code: int
    out: str
    err: str

    def stopped(self, code: int, *words: str) -> None:
        """Check that it ended so, with one message that holds these words, and nothing that only programmers read."""
        assert self.code == code, self.err
        message = self.err.rpartition("lakegc: ")[2]
        for word in words:
            assert word in message
        for strange in ("Traceback", "fault of lakegc", "py4j", "org.apache", 'File "'):
            assert strange not in self.err
        assert self.out == ""


class Lakegc:
    """Runs the command line in this process, with one Spark session for all tests and a Dagster home of theirs."""

    def __init__(self, capsys: pytest.CaptureFixture[str], home: Path) -> None:
        self._capsys, self._home = capsys, home

    def __call__(self, settings: Mapping[str, str], *arguments: str) -> Outcome:
        self._capsys.readouterr()
        with environment(settings):
            os.environ["DAGSTER_HOME"] = str(self._home)
            code = cli.run(list(arguments))
        return Outcome(code, *self._capsys.readouterr())


@pytest.fixture
def lakegc(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dagster_home: Path) -> Lakegc:
    """The command line. Its jobs share one Spark session, for starting one takes longer than most tests."""
    monkeypatch.setattr(launch, "run_mark", functools.partial(launch.run_mark, resources=resources()))
    return Lakegc(capsys, dagster_home)


@pytest.fixture(scope="session")
def dagster_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dagster")


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One server for all; each test has repositories of its own."""
    with Sandbox(tmp_path_factory.mktemp("sandbox"), uncommitted_page=2) as server:
        yield server


@dataclass
class Lake:
    """A repository behind a server that a test can make say something else."""

    sandbox: Sandbox
    repository: SandboxRepository
    server: Between
    commits: list[Commit] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.repository.id

    @property
    def settings(self) -> dict[str, str]:
        return {**self.sandbox.settings, "endpoint_url": self.server.endpoint, "attempts": "1"}

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

    def has_no_finished_mark(self) -> None:
        """Check that nothing looks finished, and nothing lies where the reference collector would sweep it."""
        assert {record.state for record in self.records()} <= {MarkState.MARKING, MarkState.FAILED}
        assert all((record.finished, record.digest) == (None, None) for record in self.records())
        assert not list(self.folder.rglob("summary.json"))


@pytest.fixture
def lake(sandbox: Sandbox) -> Iterator[Lake]:
    """Two commits on main, the first of which is expired with one object; one object is staged, three are live."""
    repository = sandbox.create(f"lake-{next(_serial)}")
    set_rules(repository, Rules(7))
    now = sandbox.now()
    with between(sandbox.endpoint_url) as server:
        found = Lake(sandbox, repository, server)
        repository.put_many("main", [("a", b"first a"), ("b", b"b"), ("c", b"c")])
        found.commits.append(repository.commit("main", "first", date=now - timedelta(days=30)))
        repository.put("main", "a", b"second a")
        found.commits.append(repository.commit("main", "second", date=now - timedelta(days=20)))
        repository.put("main", "staged", b"staged")
        yield found
