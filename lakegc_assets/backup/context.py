"""The shared state of a running backup, which is opened from a finished mark and a destination."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.approval.approve import verify_recorded_files
from lakegc_assets.approval.foreign_marks import cutoff_of
from lakegc_assets.approval.proposals import refuse_unfinished, refuse_unusable_foreign_mark
from lakegc_assets.approval.verify_files import foreign_files
from lakegc_assets.backup.destination import backup_folder, create_place, parse_place, refuse_namespace, refuse_overlap
from lakegc_assets.backup.manifest import Subject, begin
from lakegc_assets.formatting import duration, plural
from lakegc_assets.mark.context import Target, find_target, user_and_machine, with_probed_capabilities
from lakegc_assets.mark.preconditions import refuse_different_repository
from lakegc_assets.progress import LogMessage, logging_progress
from spark_resources.copying.backup_task import WANTED, CopyTaskConfig, can_copy_server_side
from spark_resources.copying.copy_log import Log
from spark_resources.errors import WrongUsage
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.foreign_expired_set import folder_of as folder_in_namespace
from spark_resources.mark_store.foreign_expired_set import reference_mark
from spark_resources.mark_store.foreign_layouts import ReferenceMark
from spark_resources.mark_store.mark import Mark, own_mark_ids
from spark_resources.model import EXPIRED_OBJECTS, Partition
from spark_resources.settings import Settings
from spark_resources.spark.datasets import Dataset, read_dataset
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIN_ROWS_PER_TASK = 200
CONCURRENT_COPIES = 32
"""The default number of concurrent copies across all tasks."""
MARKED = pa.schema([*WANTED, EXPIRED_OBJECTS.field("path"), EXPIRED_OBJECTS.field("commit_id")])


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Limits of a backup: concurrent copies, and total bytes per second (None for no limit)."""

    at_once: int = CONCURRENT_COPIES
    bandwidth: float | None = None


@dataclass(slots=True)
class MarkedSet:
    """The verified objects of one finished mark. `cutoff` is only used if the mark doesn't record times."""

    subject: Subject
    dataset: Dataset | None
    addresses: pa.ChunkedArray | None = None  # of a foreign mark
    cutoff: datetime | None = None


@dataclass(slots=True)
class BackupRun:
    """A running backup. `folder` is the key of its folder in `to`; `resumed` means that an earlier run began the
    backup."""

    target: Target
    marked: MarkedSet
    to: Place
    folder: str
    resumed: bool
    spark: Callable[[], SparkSession]
    limits: CopyLimits
    by: str
    log_message: LogMessage

    @property
    def log(self) -> Log:
        return Log(self.to, f"{self.folder}log/")

    def objects(self) -> DataFrame:
        """The objects of the mark (MARKED)."""
        if self.marked.dataset is not None:
            rows = read_dataset(self.spark(), self.target.place, self.marked.dataset, EXPIRED_OBJECTS)
            return rows.select(*MARKED.names)
        assert self.marked.addresses is not None
        addresses = pa.chunked_array([self.marked.addresses.combine_chunks().unique()], pa.string())
        slices = pa.array([folder_in_namespace(address) for address in addresses.to_pylist()], pa.string())
        known = {"address": addresses, "slice": slices}
        empty = {field.name: pa.nulls(len(addresses), field.type) for field in MARKED if field.name not in known}
        table = pa.table({**known, **empty}).select(MARKED.names)
        return tasks_from_rows(self.spark, table.cast(MARKED), batch_size=50_000).frame()

    def task_config(self, run: int, tasks: int, *, source: Place, target: Place, log: Log) -> CopyTaskConfig:
        """The configuration of each of `tasks` tasks of a run; the limits are divided among them."""
        bandwidth = self.limits.bandwidth
        return CopyTaskConfig(
            source=source,
            target=target,
            log=log,
            run=run,
            folder=self.folder,
            token=secrets.token_hex(4),
            at_once=max(1, self.limits.at_once // tasks),
            server_side=can_copy_server_side(source, target),
            bandwidth=None if bandwidth is None else bandwidth / tasks,
            resumed=self.resumed,
        )


def task_count(spark: SparkSession, objects: int, limits: CopyLimits) -> int:
    """The number of tasks: no more than the limit on concurrent copies, so that all together stay within it."""
    return max(1, min(spark.sparkContext.defaultParallelism, objects // MIN_ROWS_PER_TASK, limits.at_once))


def open_backup(
    lakefs: LakeFS, settings: Settings, repository: str, name: str, to: str, *, spark: Callable[[], SparkSession],
    limits: CopyLimits, log_message: LogMessage, store_settings_of: Callable[[str], StoreSettings] | None = None,
) -> BackupRun:  # fmt: skip
    """Open the backup of a finished mark, given by its id or, for a foreign mark, `layout/id`, and write begun.json.

    `store_settings_of` is as for `refuse_overlap`. Raises `WrongUsage` for an unknown or unfinished mark or an invalid
    place, `Refused` for a place in a namespace or with a backup of another set, and `Forbidden` if the place isn't
    writable.
    """
    partition = Partition.of(repository, name.rpartition("/")[2])
    target = with_probed_capabilities(find_target(lakefs, repository, settings))
    place, folder = parse_place(to, settings.store_settings()), backup_folder(repository, partition.mark_id)
    refuse_overlap(place, target, folder, lakefs, store_settings_of)
    log_message("verifying the mark's files")
    marked = marked_set(target, name)
    place = create_place(place)
    refuse_namespace(place)
    resumed = begin(place, folder, marked.subject)
    return BackupRun(target, marked, place, folder, resumed, spark, limits, user_and_machine(), log_message)


def refuse_backup_early(
    lakefs: LakeFS, settings: Settings, repository: str, name: str, to: str,
    store_settings_of: Callable[[str], StoreSettings] | None = None,
) -> None:  # fmt: skip
    """Raise the error that `open_backup` would raise, as far as it can be known without reading the mark's files: if
    the mark is unknown or unfinished, or the destination is invalid or overlaps a namespace."""
    target = with_probed_capabilities(find_target(lakefs, repository, settings))
    folder = backup_folder(repository, Partition.of(repository, name.rpartition("/")[2]).mark_id)
    refuse_overlap(parse_place(to, settings.store_settings()), target, folder, lakefs, store_settings_of)
    place = target.place
    if "/" not in name and Mark.exists(place, name):
        refuse_unfinished(Mark.open(place, name).record)
        return
    foreign = reference_mark(place, name, own_ids=own_mark_ids(place))
    if foreign is None:
        raise no_mark_error(target, name)
    refuse_unusable_foreign_mark(target, foreign)


def no_mark_error(target: Target, name: str) -> WrongUsage:
    return WrongUsage(
        f"there is no mark {name} of {target.repository.id}. 'lakegc status {target.repository.id}' lists the marks."
    )


def marked_set(target: Target, name: str) -> MarkedSet:
    """The objects of a finished mark, lakegc's own or foreign, after verifying its files."""
    place = target.place
    if "/" not in name and Mark.exists(place, name):
        mark = Mark.open(place, name)
        refuse_different_repository(mark.record, target)
        refuse_unfinished(mark.record)
        verify_recorded_files(target, mark.record)
        return MarkedSet(_subject(target, name, mark.record.digest or "", None), mark.dataset("expired_set"))
    foreign = reference_mark(place, name, own_ids=own_mark_ids(place))
    if foreign is None:
        raise no_mark_error(target, name)
    refuse_unusable_foreign_mark(target, foreign)
    files = foreign_files(target, foreign)
    subject = _subject(target, foreign.mark_id, files.digest, foreign.layout)
    return MarkedSet(subject, None, files.addresses, backup_cutoff(target, foreign))


def backup_cutoff(target: Target, foreign: ReferenceMark) -> datetime:
    """Objects modified after this time count as changed since the foreign mark. A store with timestamps in whole
    seconds rounds them down, so an object may be almost a second newer than its timestamp."""
    store = target.place.store()
    return cutoff_of(store, foreign) - store.capabilities.time_resolution


def _subject(target: Target, mark_id: str, digest: str, layout: str | None) -> Subject:
    repository = target.repository
    created = repository.created.isoformat()
    return Subject(repository.lakefs_id, created, target.place.namespace.uri, mark_id, layout, digest)


def logging_copies(
    log_message: LogMessage, verb: str, log: Log, run: int, objects: int, size: int | None
) -> AbstractContextManager[None]:
    """Report the progress of a run while the context lasts, from the log files that its tasks have written."""
    started = time.monotonic()

    def progress() -> str:
        done, copied = log.progress_of(run)
        return progress_sentence(done, objects, copied, size, time.monotonic() - started)

    return logging_progress(log_message, f"{verb} {plural(objects, 'object')}", progress)


def progress_sentence(done: int, objects: int, copied: int, size: int | None, seconds: float) -> str:
    """A sentence with progress, rate and remaining time, by bytes if they are known."""
    share = copied / size if size else done / objects
    time_left = f", {duration(timedelta(seconds=seconds * (1 - share) / share))} left" if 0 < share <= 1 else ""
    rate = f"{done / seconds:,.0f} objects/s, {copied / seconds / 2**20:,.1f} MiB/s"
    return f"{done:,} of {plural(objects, 'object')}, {rate}{time_left}"
