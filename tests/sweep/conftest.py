"""Fixtures for sweeps: the command line, and Dagster's home."""

from __future__ import annotations

from tests.support.command_line import dagster_home, lakegc

__all__ = ["dagster_home", "lakegc"]
