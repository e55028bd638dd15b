"""Fixtures for backups: the command line, and the stores of the test suite."""

from __future__ import annotations

from tests.support.command_line import dagster_home, lakegc

__all__ = ["dagster_home", "lakegc"]
