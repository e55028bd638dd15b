"""A local lakeFS-compatible server for the demo, trials and tests, with real HTTP and tables. Its objects are in a
local folder or in a bucket."""

from __future__ import annotations

from spark_resources.lakefs_sandbox.errors import Problem
from spark_resources.lakefs_sandbox.gc_api import ALL_OVERSIGHTS, Oversight
from spark_resources.lakefs_sandbox.repository import ImportSource, SandboxRepository
from spark_resources.lakefs_sandbox.sandbox import Sandbox
from spark_resources.lakefs_sandbox.store_objects import StorePlace

__all__ = ["ALL_OVERSIGHTS", "ImportSource", "Oversight", "Problem", "Sandbox", "SandboxRepository", "StorePlace"]
