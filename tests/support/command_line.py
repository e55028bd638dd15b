"""lakegc's command line, run in this process, and its output."""

from __future__ import annotations

import functools
import io
import os
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import pytest

from lakegc_assets.assets.mark import MarkConfig
from lakegc_assets.assets.sweep import SweepConfig
from lakegc_assets.cli import dagster_runs, main
from lakegc_assets.jobs import mark_job, sweep_job
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.errors import FinishedWithFailures
from spark_resources.identifiers import Partition
from tests.support.mark_runs import SharedSpark, environment, mark_steps, resources, sweep_steps

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

    def job_runner(self) -> Callable[..., None]:
        """What runs a job: by default Dagster, with resources that share the session."""
        return functools.partial(run_with, resources())

    def __call__(self, settings: Mapping[str, str], *arguments: str) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        with environment(settings), redirect_stdout(out), redirect_stderr(err):
            os.environ["DAGSTER_HOME"] = str(self.home)
            with (
                mock.patch.object(dagster_runs, "run_job", self.job_runner()),
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


class LakegcWithoutDagster(Lakegc):
    """The command line, whose marks and sweeps run the steps of their jobs without a Dagster run. That takes a third of
    the time. Other jobs run in Dagster."""

    def job_runner(self) -> Callable[..., None]:
        return run_steps


def run_steps(name: str, first_asset: str, partition: Partition, options: Mapping[str, Any], *rest: Any) -> None:
    """Run the steps of a job, with the environment's settings. Raises the error that stopped it."""
    if name == mark_job.name:
        mark_steps(partition, MarkConfig(**options).options())
    elif name == sweep_job.name:
        chosen = SweepConfig(**options)
        report = sweep_steps(partition, SweepOptions(chosen.rate or None, chosen.quarantine))
        if not report.success:
            raise FinishedWithFailures(report.sentence())
    else:
        run_with(resources(), name, first_asset, partition, options, *rest)


@pytest.fixture(scope="session")
def lakegc(dagster_home: Path) -> Lakegc:
    """A command line for tests, which runs jobs in Dagster."""
    return Lakegc(dagster_home)


@pytest.fixture(scope="session")
def lakegc_without_dagster(dagster_home: Path) -> Lakegc:
    """A command line for tests that aren't about runs. Import it `as lakegc`."""
    return LakegcWithoutDagster(dagster_home)


@pytest.fixture(scope="session")
def dagster_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dagster")
