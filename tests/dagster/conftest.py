"""Fixtures for sensors and schedules: a Dagster instance, and repositories with finished marks, made without Spark."""

from __future__ import annotations

from tests.approval.conftest import lake, sandbox
from tests.support.dagster_instances import instance

__all__ = ["instance", "lake", "sandbox"]
