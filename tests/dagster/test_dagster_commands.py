"""Dagster's own commands on a mark, as the page on operations shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from lakegc_assets.partitions import PARTITIONS
from spark_resources.lakefs_sandbox import Sandbox
from tests.support.mark_runs import quick_environment

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
MATERIALIZE = "dagster asset materialize -m lakegc_assets.definitions --select '*expired_set' --partition '{}'"
EXECUTE = 'dagster job execute -m lakegc_assets.definitions -j mark --tags \'{{"dagster/partition": "{}"}}\''


def ended(command: str, home: Path, sandbox: Sandbox) -> subprocess.CompletedProcess[str]:
    folder = str(Path(sys.executable).parent)
    places = {"DAGSTER_HOME": str(home), "PATH": f"{folder}:{os.environ['PATH']}"}
    environ = {**os.environ, **quick_environment(sandbox.settings), **places}
    return subprocess.run(
        ["bash", "-c", command], env=environ, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("command", [MATERIALIZE, EXECUTE], ids=["materialize", "execute"])
def test_the_documented_command_adds_the_partition_that_a_new_mark_needs(tmp_path: Path, command: str) -> None:
    """Dagster's own commands can't add one. Here the mark is of a repository that doesn't exist."""
    shown = 'import dagster as dg; dg.DagsterInstance.get().add_dynamic_partitions("repository_and_mark", ["{}"])'
    add = f"python -c '{shown}'"
    for one in (add, command):
        assert one.format("lake|m1") in PAGE
    home = tmp_path / "dagster"
    home.mkdir()
    with Sandbox(tmp_path / "sandbox") as sandbox:
        without = ended(command.format("nowhere|m1"), home, sandbox)
        added = ended(add.format("nowhere|m1"), home, sandbox)
        with_it = ended(command.format("nowhere|m1"), home, sandbox)
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        partitions = instance.get_dynamic_partitions(str(PARTITIONS.name))

    assert without.returncode == 1
    assert "the lakeFS server" not in without.stderr
    assert (added.returncode, partitions) == (0, ["nowhere|m1"]), added.stderr
    assert with_it.returncode == 1
    assert "nowhere" in with_it.stderr
    assert "kind" in with_it.stderr or "Failure" in with_it.stderr
