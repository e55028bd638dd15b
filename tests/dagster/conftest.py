"""Fixtures of sensors and schedules: repositories with finished marks, made without Spark."""

from __future__ import annotations

from tests.approval.conftest import lake, sandbox

__all__ = ["lake", "sandbox"]
