"""Fixtures for sweeps: the command line, without and by Dagster runs, and Dagster's home."""

from __future__ import annotations

from tests.support.command_line import dagster_home
from tests.support.command_line import lakegc as lakegc_by_dagster
from tests.support.command_line import lakegc_without_dagster as lakegc

__all__ = ["dagster_home", "lakegc", "lakegc_by_dagster"]
