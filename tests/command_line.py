"""lakegc as a user meets it: its command line, and what a command leaves on the terminal."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakegc_assets import cli, launch
from tests.marking import environment, resources

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
