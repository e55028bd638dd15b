"""Remove the partitions of retired marks from Dagster. The history of their runs and assets stays."""

from __future__ import annotations

from collections.abc import Collection

import dagster as dg

from lakegc_assets.partitions import PARTITIONS
from spark_resources.errors import LakegcError
from spark_resources.model import Partition

MAX_PER_CALL = 2_000
"""The maximum number of partitions that one call removes, because each takes a transaction in Dagster's database."""


def remove_partitions(instance: dg.DagsterInstance, repository: str, mark_ids: Collection[str]) -> list[str]:
    """Remove the partitions of these marks, as far as they exist, and return their keys. At most MAX_PER_CALL are
    removed; the others follow the next time."""
    name = str(PARTITIONS.name)
    existing = set(instance.get_dynamic_partitions(name))
    wanted = [key for mark_id in mark_ids if (key := partition_key(repository, mark_id)) in existing][:MAX_PER_CALL]
    for key in wanted:
        instance.delete_dynamic_partition(name, key)
    return wanted


def partition_key(repository: str, mark_id: str) -> str | None:
    try:
        return str(Partition.of(repository, mark_id))
    except LakegcError:
        return None
