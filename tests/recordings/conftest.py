"""Recordings are small, so that the driver would do all the work of their marks. Every tenth one is forced to run on
executors, as large repositories do, and so are tests whose parameters name no recording. That takes five times as
long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.mark_runs import on_executors
from tests.support.recording_folders import recording_folders


@pytest.fixture(autouse=True)
def _on_executors(request: pytest.FixtureRequest) -> Iterator[None]:
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    name = parameters["recording"].name if "recording" in parameters else parameters.get("name")
    names = [folder.name for folder in recording_folders()]
    with on_executors(name is None or name in names[1::10]):
        yield
