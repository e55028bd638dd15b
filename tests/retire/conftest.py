"""Fixtures for retirements: repositories with old and newer marks, the command line, and Dagster's home."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_resources.lakefs_sandbox import Sandbox
from tests.support.command_line import dagster_home, lakegc
from tests.support.retirements import OldMarks

__all__ = ["dagster_home", "lakegc"]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("retired")) as server:
        yield server


@pytest.fixture
def lake(sandbox: Sandbox, request: pytest.FixtureRequest) -> OldMarks:
    """Two old marks, and newer ones that are kept."""
    marks = OldMarks(sandbox, sandbox.create(f"lake-{abs(hash(request.node.nodeid)):x}").id)
    for number, age in enumerate((40, 30, 3, 2), 1):
        marks.add(f"m{number}", age=age)
    return marks
