"""Fixtures for sweeps: the command line, and Dagster's home."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import Lakegc, LakegcWithoutDagster, dagster_home

__all__ = ["dagster_home"]


@pytest.fixture(scope="session")
def lakegc(dagster_home: Path) -> Lakegc:
    """A command line that runs marks and sweeps without Dagster, in a third of the time."""
    return LakegcWithoutDagster(dagster_home)


@pytest.fixture(scope="session")
def lakegc_with_dagster(dagster_home: Path) -> Lakegc:
    """A command line that runs its jobs in Dagster, as a user's does."""
    return Lakegc(dagster_home)
