"""Fixtures for namespaces in earlier formats: the command line, and Dagster's home."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import LakegcWithoutDagster, dagster_home

__all__ = ["dagster_home"]


@pytest.fixture(scope="session")
def lakegc(dagster_home: Path) -> LakegcWithoutDagster:
    """The command line without Dagster runs, because Dagster reads none of these files."""
    return LakegcWithoutDagster(dagster_home)
