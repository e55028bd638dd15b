"""All targets by name."""

from __future__ import annotations

from tests.fuzz import addresses, configuration, messages, parquet_files, records, responses, tables
from tests.fuzz.target import Target

MODULES = (tables, messages, records, parquet_files, responses, configuration, addresses)
TARGETS: dict[str, Target] = {target.name: target for module in MODULES for target in module.TARGETS}
