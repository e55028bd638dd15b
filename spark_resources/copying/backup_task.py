"""One task of a backup: looks up objects again, copies those that are unchanged since the mark, and writes a log.

The steps for a chunk of objects, and the state if the task is killed right after each:

    1. the originals are listed again     nothing was copied
    2. each is copied and compared        copies without a line in the log: the next run finds and compares them
    3. the log is written                 every object of the chunk has its outcome in the log
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import repeat
from typing import Any, TypeAlias

import pyarrow as pa

from spark_resources.copying.backup_keys import name_in, own_name, safe_name
from spark_resources.copying.copy_log import LOGGED, CopyStatus, Log
from spark_resources.copying.verified_copy import Copier, Copy, KeyConflict, Throttle
from spark_resources.deleting.lookup import Lookup
from spark_resources.deleting.sweep_task import chunks
from spark_resources.errors import DamagedData, LakegcError, NotFound, WrongUsage, parse_problem
from spark_resources.model import RECEIPTS
from spark_resources.records.json_records import read_json
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches
from spark_resources.stores.base import AlreadyExists, Changed, StoredObject
from spark_resources.stores.place import Place
from spark_resources.stores.transfer import InArchiveTier, ObjectProperties

WANTED = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64()),  # from the mark; null if it doesn't record sizes
        pa.field("modified", RECEIPTS.field("at").type),
        pa.field("checksum", pa.string()),
        pa.field("slice", pa.string(), nullable=False),
    ]
)
CHUNK = 1_000  # objects; each chunk costs a listing and a log file

DescribeChanges: TypeAlias = Callable[[pa.Table, pa.Table], Sequence[str]]
"""For each row of WANTED, a sentence on how the object now at its key (FOUND) differs; "" if it doesn't."""
_LookedUp: TypeAlias = tuple[Mapping[str, Any], StoredObject | None, str]


@dataclass(frozen=True, slots=True)
class CopyTaskConfig:
    """The configuration of every task of a run. Objects are copied from `source` to `target`.

    `folder` is the key of the backup's folder, with a trailing slash. `at_once` (parallel copies) and `bandwidth`
    (bytes per second) are the task's shares. With `resumed`, copies of an earlier run may exist. `token` is unique to
    this run.
    """

    source: Place
    target: Place
    log: Log
    run: int
    folder: str
    token: str
    at_once: int
    server_side: bool
    bandwidth: float | None = None
    resumed: bool = True

    def copier(self) -> Copier:
        return Copier(self.source.store(), self.target.store(), self.server_side, Throttle(self.bandwidth))


def can_copy_server_side(source: Place, target: Place) -> bool:
    """Whether server-side copies between these places are possible; False for local folders (this machine copies)."""
    source_server, target_server = source.store().streams.server, target.store().streams.server
    return source_server == target_server and source_server != "local"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log; the time `at` is added when the line is written."""

    address: str
    outcome: CopyStatus
    key: str
    size: int
    modified: datetime | None = None
    checksum: str | None = None
    copy: Copy | None = None
    why: str = ""
    seconds: float = 0.0

    def row(self, at: datetime) -> dict[str, Any]:
        copy = self.copy
        return {
            "address": self.address,
            "outcome": self.outcome.value,
            "key": self.key,
            "size": self.size,
            "modified": self.modified,
            "checksum": copy.source_checksum if copy else self.checksum,
            "copy_checksum": copy.checksum if copy else None,
            "sha256": copy.sha256 if copy else None,
            "kept": properties_to_json(copy.preserved) if copy and copy.preserved else None,
            "seconds": self.seconds,
            "at": at,
            "why": self.why,
        }


def backup_rows(
    batches: Batches,
    config: CopyTaskConfig,
    describe_changes: DescribeChanges,
    partition: int,
    attempt: int,
    report: TaskReport,
) -> None:
    """Copy rows of WANTED, sorted by slice and address. Counts `objects` and `bytes` by outcome."""
    task = _Backup(config, describe_changes)
    with (
        ThreadPoolExecutor(max_workers=1) as background,
        ThreadPoolExecutor(max_workers=config.at_once, thread_name_prefix="lakegc-copy") as pool,
    ):
        remaining = chunks(batches, repeat(CHUNK))
        lookups = background.submit(task.next_lookups, remaining)
        number = 0
        while (looked_up := lookups.result()) is not None:
            lookups = background.submit(task.next_lookups, remaining)
            lines = list(pool.map(lambda lookup: task.process(*lookup), looked_up))
            write_lines(config, f"{partition:05d}-{attempt}-{number:05d}", lines, report)
            number += 1


def write_lines(config: CopyTaskConfig, stem: str, lines: list[LogLine], report: TaskReport) -> None:
    """Write the lines to the log, and count them."""
    at = config.log.place.store().now()
    table = pa.Table.from_pylist([line.row(at) for line in lines], schema=LOGGED)
    config.log.write(config.run, f"{config.token}-{stem}", table)
    for line in lines:
        report.count_for(line.outcome.value, objects=1, bytes=line.size)


@dataclass(slots=True)
class _Backup:
    config: CopyTaskConfig
    describe_changes: DescribeChanges
    copier: Copier = field(init=False)
    lookup: Lookup = field(init=False)

    def __post_init__(self) -> None:
        self.copier = self.config.copier()
        self.lookup = Lookup(self.config.source.store())

    def next_lookups(self, remaining: Iterator[pa.Table]) -> list[_LookedUp] | None:
        """The next chunk's rows, each with the object now at its key and how it changed; None after the last chunk."""
        chunk = next(remaining, None)
        if chunk is None:
            return None
        current = self.lookup.look_up(chunk)
        current_by_address = {row["address"]: row for row in current.to_pylist()}
        changes = self.describe_changes(chunk, current)
        rows = zip(chunk.to_pylist(), changes, strict=True)
        return [(row, _stored_object(current_by_address.get(row["address"])), change) for row, change in rows]

    def process(self, row: Mapping[str, Any], current: StoredObject | None, change: str) -> LogLine:
        """Process one object and return its line; failures are recorded, not raised."""
        address = row["address"]
        if current is None:
            return LogLine(address, CopyStatus.VANISHED, "", row["size"] or 0, row["modified"], row["checksum"])
        properties: dict[str, Any] = {"size": current.size, "modified": current.modified, "checksum": current.checksum}
        if change:
            return LogLine(address, CopyStatus.CHANGED, "", **properties, why=change)
        return run_copy(lambda: self._back_up(address, current, properties), address, properties)

    def _back_up(self, address: str, original: StoredObject, properties: Mapping[str, Any]) -> LogLine:
        name = name_in(self.config.target.store(), self.config.folder, address)
        try:
            return self._copy_to(name, address, original, properties)
        except WrongUsage:
            if name != own_name(address):
                raise
        # this store can't hold the key after all: it is too long in this folder, or a folder of that name exists
        return self._copy_to(safe_name(address), address, original, properties)

    def _copy_to(self, name: str, address: str, original: StoredObject, properties: Mapping[str, Any]) -> LogLine:
        key = self.config.folder + name
        copy = self.copier.existing_copy(original, key) if self.config.resumed else None
        if copy is not None:
            return LogLine(address, CopyStatus.ALREADY_THERE, name, **properties, copy=copy)
        try:
            return LogLine(address, CopyStatus.COPIED, name, **properties, copy=self.copier.copy(original, key))
        except AlreadyExists:  # after a lost response, or by a concurrent backup of the same set
            return LogLine(
                address, CopyStatus.ALREADY_THERE, name, **properties, copy=self.copier.require_existing(original, key)
            )


def _stored_object(row: Mapping[str, Any] | None) -> StoredObject | None:
    return None if row is None else StoredObject(row["address"], row["size"], row["modified"], row["checksum"])


def run_copy(work: Callable[[], LogLine], address: str, properties: Mapping[str, Any]) -> LogLine:
    """Run a copy; returns its line, with the seconds that it took. An error becomes the line's outcome and reason."""
    started = time.monotonic()
    outcome = CopyStatus.FAILED
    try:
        line = work()
    except NotFound as error:
        outcome, why = CopyStatus.VANISHED, str(error)
    except Changed as error:
        outcome, why = CopyStatus.CHANGED, str(error)
    except InArchiveTier as error:
        outcome, why = CopyStatus.COLD, str(error)
    except KeyConflict as error:
        outcome, why = CopyStatus.KEY_CONFLICT, str(error)
    except LakegcError as error:
        why = str(error)
    else:
        return _with_seconds(line, time.monotonic() - started)
    return _with_seconds(LogLine(address, outcome, "", **properties, why=why), time.monotonic() - started)


def _with_seconds(line: LogLine, seconds: float) -> LogLine:
    return replace(line, seconds=round(seconds, 4))


# --- headers and metadata ---------------------------------------------------------------------------------------------


def properties_to_json(properties: ObjectProperties) -> str:
    return json.dumps({"headers": dict(properties.headers), "metadata": dict(properties.metadata)}, sort_keys=True)


def properties_from_json(text: str | None, size: int, modified: datetime) -> ObjectProperties | None:
    """The headers and metadata of an object from the log; None if the store copied them itself.

    Raises `DamagedData` if they are invalid.
    """
    if text is None:
        return None
    try:
        plain = read_json(text)
        headers, metadata = dict(plain["headers"]), dict(plain["metadata"])
        if not all(isinstance(part, str) for pair in (*headers.items(), *metadata.items()) for part in pair):
            raise ValueError("a value isn't text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedData(
            f"the backup's log has invalid headers or metadata for an object ({parse_problem(error)}). Make a new "
            "backup, or copy the object by hand."
        ) from error
    return ObjectProperties(size, modified, None, "", headers, metadata)
