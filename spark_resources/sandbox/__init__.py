"""A local lakeFS-compatible server over a folder or a bucket: real HTTP, real tables; for demo, trials, tests."""

from __future__ import annotations

from spark_resources.sandbox.gc_api import ALL_OVERSIGHTS, Oversight
from spark_resources.sandbox.problems import Problem
from spark_resources.sandbox.repository import ImportSource, SandboxRepository
from spark_resources.sandbox.sandbox import Sandbox
from spark_resources.sandbox.store_objects import StorePlace

__all__ = ["ALL_OVERSIGHTS", "ImportSource", "Oversight", "Problem", "Sandbox", "SandboxRepository", "StorePlace"]
