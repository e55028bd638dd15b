"""Dagster instances with their history on disk, as the daemon has."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

__all__ = ["instance"]


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """One instance for all tests of a module, since creating it takes seconds."""
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as local:
        yield local
