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
    """Remove the existing partitions of these marks, and return their keys. At most MAX_PER_CALL are removed; the next
    call removes others."""
    name = str(PARTITIONS.name)
    existing = set(instance.get_dynamic_partitions(name))
    keys = [key for mark_id in mark_ids for key in partition_keys(repository, mark_id)]
    wanted = [key for key in keys if key in existing][:MAX_PER_CALL]
    for key in wanted:
        instance.delete_dynamic_partition(name, key)
    return wanted


def partition_keys(repository: str, mark_id: str) -> tuple[str, ...]:
    """All keys under which Dagster may have a mark's partition; none if the mark's id is invalid."""
    try:
        return Partition.of(repository, mark_id).keys
    except LakegcError:
        return ()
