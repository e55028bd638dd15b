"""A namespace that lakegc wrote when marks had format 1: what still works on it, and what is refused, with advice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_resources.lakefs_sandbox import Sandbox
from tests.support.command_line import Lakegc
from tests.support.earlier_namespaces import REPOSITORY, unpacked


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A copy of the namespace, for this test alone."""
    with unpacked(tmp_path / "sandbox") as server:
        yield server


def test_marks_are_listed_with_their_states(lakegc: Lakegc, sandbox: Sandbox) -> None:
    """Whoever upgrades sees what there is."""
    shown = lakegc.told(sandbox.settings, "status", REPOSITORY, "--format", "json")

    states = {mark["mark_id"]: mark["state"] for mark in json.loads(shown)["marks"]}

    assert states == {"swept": "swept", "approved": "approved", "marked": "marked"}
