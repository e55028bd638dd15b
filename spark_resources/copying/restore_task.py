"""One task of a restore: copies missing objects back and verifies the copies. Existing objects are never touched."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import pyarrow as pa

from spark_resources.copying.backup_task import CopyTaskConfig, LogLine, properties_from_json, run_copy, write_lines
from spark_resources.copying.copy_log import LOGGED, CopyStatus
from spark_resources.copying.verified_copy import Copier, Differs
from spark_resources.deleting.sweep_task import chunks
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches
from spark_resources.stores.base import AlreadyExists, StoredObject

CHUNK = 500  # objects; a killed task leaves at most this many without a line in the log
BACKED_UP = pa.schema([*LOGGED, pa.field("path", pa.string()), pa.field("commit_id", pa.string())])
"""A backup's row for each object: its line in the log, and its path and commit in lakeFS."""


def restore_rows(batches: Batches, config: CopyTaskConfig, partition: int, attempt: int, report: TaskReport) -> None:
    """Restore rows of BACKED_UP. Counts `objects` and `bytes` by outcome."""
    copier = config.copier()
    with ThreadPoolExecutor(max_workers=config.at_once, thread_name_prefix="lakegc-copy") as pool:
        for number, chunk in enumerate(chunks(batches, repeat(CHUNK))):
            lines = list(pool.map(lambda row: restore_object(copier, row, config.folder), chunk.to_pylist()))
            write_lines(config, f"{partition:05d}-{attempt}-{number:05d}", lines, report)


def restore_object(copier: Copier, row: Mapping[str, Any], folder: str) -> LogLine:
    """Restore one object; returns its line. Failures are recorded, not raised."""
    properties = {"size": row["size"], "modified": row["modified"], "checksum": row["checksum"]}
    line = run_copy(lambda: _restore(copier, row, folder, properties), row["address"], properties)
    if line.outcome is CopyStatus.VANISHED:
        return LogLine(
            row["address"], CopyStatus.VANISHED, row["key"], **properties, why="it is no longer in the backup"
        )
    if line.outcome is CopyStatus.CHANGED:
        why = "its copy in the backup was altered"
        return LogLine(row["address"], CopyStatus.FAILED, row["key"], **properties, why=why)
    return line


def _restore(copier: Copier, row: Mapping[str, Any], folder: str, properties: Mapping[str, Any]) -> LogLine:
    address, name = row["address"], row["key"]
    copy = backup_copy_of(copier, row, folder)
    if (existing := copier.existing_copy(copy, address)) is not None:
        return LogLine(address, CopyStatus.ALREADY_THERE, name, **properties, copy=existing)
    recorded = properties_from_json(row["kept"], row["size"], row["modified"])
    try:
        restored = copier.copy(copy, address, recorded=recorded, sha256=row["sha256"])
        return LogLine(address, CopyStatus.COPIED, name, **properties, copy=restored)
    except AlreadyExists:  # after a lost response, or by a concurrent restore
        return LogLine(
            address, CopyStatus.ALREADY_THERE, name, **properties, copy=copier.require_existing(copy, address)
        )


def backup_copy_of(copier: Copier, row: Mapping[str, Any], folder: str) -> StoredObject:
    """The copy in the backup. Raises `NotFound` if it is missing, and `Differs` if it isn't the recorded one."""
    key = folder + row["key"]
    properties = copier.source.streams.properties(key)
    if properties.size != row["size"] or properties.checksum != row["copy_checksum"]:
        raise Differs(
            f"{key!r} in {copier.source.where} has {properties.size} bytes and the checksum {properties.checksum}, but "
            f"when it was backed up it had {row['size']} bytes and {row['copy_checksum']}: the backup has been altered"
        )
    return StoredObject(key, properties.size, properties.modified, properties.checksum)
