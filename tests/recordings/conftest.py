"""Recordings are small, so all of their marks are made on executors here, as those of large repositories are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.mark_runs import on_executors


@pytest.fixture(autouse=True)
def _on_executors() -> Iterator[None]:
    with on_executors():
        yield
