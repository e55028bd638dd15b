"""A local lakeFS-compatible server over a folder or a bucket: real HTTP, real tables; for demo, trials, tests."""

from __future__ import annotations

from spark_resources.sandbox.gc_api import ALL_OVERSIGHTS, Oversight
from spark_resources.sandbox.problems import Problem
from spark_resources.sandbox.repository import ImportSource, SandboxRepository
from spark_resources.sandbox.s3_objects import S3Place
from spark_resources.sandbox.sandbox import Sandbox

__all__ = ["ALL_OVERSIGHTS", "ImportSource", "Oversight", "Problem", "S3Place", "Sandbox", "SandboxRepository"]
