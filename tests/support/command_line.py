"""lakegc's command line, run in this process, and its output."""

from __future__ import annotations

import functools
import io
import os
import unicodedata
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import pytest

from lakegc_assets.cli import dagster_runs, main
from tests.support.mark_runs import SharedSpark, environment, resources

NO_AGE = ("--min-age", "0", "--allow-young")


@dataclass(frozen=True)
class Outcome:
    """The output of a command on the terminal."""

    code: int
    out: str
    err: str

    def stopped(self, code: int, *words: str) -> None:
        """Check the exit code, and that the output is a single message with these words and no stack trace."""
        assert self.code == code, self.err
        message = self.err.rpartition("lakegc: ")[2]
        for word in words:
            assert word in message
        for strange in ("Traceback", "bug in lakegc", "py4j", "org.apache", 'File "'):
            assert strange not in self.err
        assert self.out == ""


def check_terminal_safe(shown: str) -> None:
    """Check that the text has no characters that control a terminal or reverse the direction of writing."""
    strange = {char for char in shown if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}

    assert strange <= {"\n"}


RUN_JOB, OPEN_INSTANCE = dagster_runs.run_job, dagster_runs.open_instance


def run_with(resources: Mapping[str, Any], *arguments: Any) -> None:
    """Run a job as lakegc does, but with these resources."""
    RUN_JOB(*arguments[:-1], resources)


class Lakegc:
    """Runs the command line in this process, with a Dagster home for tests.

    Jobs share one Spark session, because starting one takes longer than most tests. Dagster keeps its history in
    memory, because on disk it sets up a database for each run, which takes longer than most runs in tests. With
    `on_disk`, other processes with this home can read the history.
    """

    def __init__(self, home: Path, *, on_disk: bool = False) -> None:
        self.home, self._on_disk = home, on_disk

    @functools.cached_property
    def in_memory(self) -> dg.DagsterInstance:
        return dg.DagsterInstance.ephemeral()

    def instance(self, home: Path) -> AbstractContextManager[dg.DagsterInstance]:
        """The Dagster instance of the home, for a `with` statement."""
        if self._on_disk:
            return OPEN_INSTANCE(home)
        dagster_runs.prepare_home(home)
        return nullcontext(self.in_memory)

    def __call__(self, settings: Mapping[str, str], *arguments: str) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        shared = functools.partial(run_with, resources())
        with environment(settings), redirect_stdout(out), redirect_stderr(err):
            os.environ["DAGSTER_HOME"] = str(self.home)
            with (
                mock.patch.object(dagster_runs, "run_job", shared),
                mock.patch.object(dagster_runs, "open_instance", self.instance),
                mock.patch("spark_resources.spark.resource.SparkResource", SharedSpark),
            ):
                code = main.run(list(arguments))
        return Outcome(code, out.getvalue(), err.getvalue())

    def output(self, settings: Mapping[str, str], *arguments: str) -> str:
        """The output of a command that must succeed."""
        outcome = self(settings, *arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out


@pytest.fixture(scope="session")
def lakegc(dagster_home: Path) -> Lakegc:
    """A command line for tests."""
    return Lakegc(dagster_home)


@pytest.fixture(scope="session")
def dagster_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dagster")
