"""Recordings are small, so their marks are forced to run on executors, as those of large repositories do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.mark_runs import on_executors


@pytest.fixture(autouse=True)
def _on_executors() -> Iterator[None]:
    with on_executors():
        yield
