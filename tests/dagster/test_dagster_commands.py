"""Dagster's own commands on a mark, as shown on the page on operations."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from unittest import mock

import dagster as dg
from click.testing import CliRunner, Result
from dagster._cli import cli  # the command `dagster`, which has no public name
from dagster._core.execution.plan.objects import UserFailureData

from lakegc_assets.partitions import PARTITIONS
from spark_resources.lakefs_sandbox import Sandbox
from tests.support.mark_runs import environment

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
ADD = 'import dagster as dg; dg.DagsterInstance.get().add_dynamic_partitions("repository_and_mark", ["{}"])'
MATERIALIZE = "dagster asset materialize -m lakegc_assets.definitions --select '*expired_set' --partition '{}'"
EXECUTE = 'dagster job execute -m lakegc_assets.definitions -j mark --tags \'{{"dagster/partition": "{}"}}\''


def ended(command: str) -> Result:
    """The result of Dagster's command, run in this process. Dagster also makes its runs in this process."""
    name, *arguments = shlex.split(command)
    assert name == "dagster"
    return CliRunner().invoke(cli, arguments)


def test_the_documented_commands_add_the_partition_that_a_new_mark_needs(tmp_path: Path) -> None:
    """Dagster's own commands can't add a partition. Here, the mark's repository doesn't exist."""
    for command in (f"python -c '{ADD}'", MATERIALIZE, EXECUTE):
        assert command.format("lake:m1") in PAGE
    with (
        Sandbox(tmp_path / "sandbox") as sandbox,
        environment(sandbox.settings),
        mock.patch.dict(os.environ, {"DAGSTER_HOME": str(tmp_path)}),
    ):
        without = ended(MATERIALIZE.format("nowhere:m1")).exit_code, failures()
        exec(ADD.format("nowhere:m1"), {})
        partitions = dg.DagsterInstance.get().get_dynamic_partitions(str(PARTITIONS.name))
        codes = [ended(command.format("nowhere:m1")).exit_code for command in (MATERIALIZE, EXECUTE)]
        stopped = failures()

    assert without == (1, [])
    assert partitions == ["nowhere:m1"]
    assert codes == [1, 1]
    assert [failure.metadata["kind"].value for failure in stopped] == ["NotFound", "NotFound"]
    assert all("nowhere" in (failure.description or "") for failure in stopped)


def failures() -> list[UserFailureData]:
    """The failures of the steps of all runs in this home."""
    instance = dg.DagsterInstance.get()
    logged = [record.dagster_event for run in instance.get_runs() for record in instance.all_logs(run.run_id)]
    messages = [
        event.step_failure_data.user_failure_data for event in logged if event is not None and event.is_step_failure
    ]
    return [failure for failure in messages if failure is not None]
