"""A local lakeFS-compatible server over a folder: real HTTP, real tables; for the demo, for trials, for tests."""

from __future__ import annotations

from spark_resources.sandbox.gc_api import ALL_OVERSIGHTS, Oversight
from spark_resources.sandbox.problems import Problem
from spark_resources.sandbox.repository import SandboxRepository
from spark_resources.sandbox.sandbox import Sandbox

__all__ = ["ALL_OVERSIGHTS", "Oversight", "Problem", "Sandbox", "SandboxRepository"]
