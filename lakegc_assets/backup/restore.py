"""Restore a backup into its repository: copy back missing objects only, then read them through lakeFS."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakegc_assets.approval.verify_files import check_keys
from lakegc_assets.backup.context import CopyLimits, logging_copies, task_count
from lakegc_assets.backup.destination import backup_folder, parse_place, with_probed_capabilities
from lakegc_assets.backup.manifest import BEGUN, SCHEMA, Backup, listed_objects, read_backup
from lakegc_assets.mark.context import Target
from lakegc_assets.progress import LogMessage
from spark_resources.copying.backup_task import CopyTaskConfig, can_copy_server_side
from spark_resources.copying.copy_log import HAS_COPY, CopyStatus, Log
from spark_resources.copying.restore_task import restore_rows
from spark_resources.errors import NotFound, Refused, Unavailable, WrongUsage
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs.readability import is_readable
from spark_resources.mark_store.files import RESTORED_FOLDER
from spark_resources.mark_store.mark import mark_folder
from spark_resources.model import ADDRESSES
from spark_resources.spark.datasets import read_dataset
from spark_resources.spark.partitioning import tasks_from_ids
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, partition_and_attempt, run_tasks
from spark_resources.stores.place import Place
from spark_resources.stores.probe import SCRATCH
from spark_resources.stores.settings import StoreSettings
from spark_resources.stores.transfer import ObjectProperties, copy_never_replaces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_NAMED = 1_000  # maximum number of objects named in a summary; the log has all
MAX_PATHS_READ = 1_000  # maximum number of paths read through lakeFS
CONCURRENT_READS = 8
ALTERED_LIST_ADVICE = (
    "No mark contains such keys, so the list was altered. Nothing was restored. Find out who can write to the backup. "
    "Choose other objects with --prefix or --keys, or restore another backup."
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects to restore: all, those whose address starts with `prefix`, or those in `keys`."""

    prefix: str = ""
    keys: tuple[str, ...] | None = None


@dataclass(slots=True)
class RestoreRun:
    """A running restore, under the repository's lease, or a drill."""

    target: Target
    backup: Backup
    source: Place
    lakefs: LakeFS
    spark: Callable[[], SparkSession]
    limits: CopyLimits
    log_message: LogMessage

    @property
    def folder(self) -> str:
        return backup_folder(self.backup.subject.repository, self.backup.subject.mark_id)

    @property
    def log(self) -> Log:
        return Log(self.target.place, mark_folder(self.backup.subject.mark_id) + RESTORED_FOLDER)

    def rows(self) -> DataFrame:
        """The backup's list of all objects of its mark (SCHEMA)."""
        return read_dataset(self.spark(), self.source, listed_objects(self.source, self.backup), SCHEMA)


@dataclass(slots=True)
class RestoreResult:
    """The result of a restore.

    `objects` counts the selected objects by outcome (`CopyStatus`), and `not_in_backup` those that were never in the
    backup, by reason. `unknown_keys` are requested keys without a copy in the backup, `missing_copies` are objects
    whose copies have disappeared from it, and `key_conflicts` are objects whose keys are taken by other objects: the
    first MAX_NAMED of each. `failures` has the reasons why other objects failed, by address. `stored_count` is the
    number of objects that a new lookup finds in the store. The mark recorded `path_count` paths of these objects:
    `paths_requested` of them were requested from lakeFS, and `paths_read` could be read. `unreadable_paths` has the
    reasons for the others, by path.
    """

    backup: Backup
    objects: Counter[str] = field(default_factory=Counter)
    restored_bytes: int = 0
    not_in_backup: dict[str, int] = field(default_factory=dict)
    unknown_keys: tuple[str, ...] = ()
    missing_copies: tuple[str, ...] = ()
    key_conflicts: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    stored_count: int = 0
    paths_read: int = 0
    paths_requested: int = 0
    unreadable_paths: Mapping[str, str] = field(default_factory=dict)
    path_count: int = 0

    @property
    def success(self) -> bool:
        """True unless a requested key isn't in the backup, or an object of the backup couldn't be restored or read."""
        return not (self.unknown_keys or self.unreadable_paths) and not any(
            self.objects[status.value]
            for status in (CopyStatus.VANISHED, CopyStatus.KEY_CONFLICT, CopyStatus.FAILED, CopyStatus.COLD)
        )


def open_source(target: Target, settings: StoreSettings, mark_id: str, source: str) -> tuple[Place, Backup]:
    """Open the backup of a mark at this location. Raises `NotFound` if there is no complete one, `Refused` if it
    belongs to another repository."""
    place, folder = parse_place(source, settings), backup_folder(target.repository.id, mark_id)
    backup = read_backup(place, folder)
    if backup is None:
        raise NotFound(
            f"there is no complete backup of mark {mark_id} of {target.repository.id} in {source}: "
            f"{folder}backup.json doesn't exist. Use the destination that was passed to 'lakegc backup'."
        )
    subject, repository = backup.subject, target.repository
    current = (repository.lakefs_id, repository.created.isoformat(), target.place.namespace.uri)
    if current != (subject.repository, subject.repository_created, subject.namespace):
        raise Refused(
            f"the backup of mark {mark_id} in {source} belongs to a repository named {subject.repository} that was "
            f"created at {subject.repository_created} in {subject.namespace}, but the current one was created at "
            f"{current[1]} in {current[2]}, so the backup can't be restored into it.",
            invariant=7,
        )
    return with_probed_capabilities(place), backup


# --- restoring --------------------------------------------------------------------------------------------------------


def restore(run: RestoreRun, selection: Selection) -> RestoreResult:
    """Restore the selected objects that the store lacks, without overwriting anything, and verify all selected
    objects."""
    result = RestoreResult(run.backup)
    with errors_from_executors():
        rows = selected_rows(run, selection).persist()
        result.unknown_keys = keys_without_copy(run, rows, selection)
        totals = {row["outcome"]: row["count"] for row in rows.groupBy("outcome").count().collect()}
        result.not_in_backup = {name: count for name, count in totals.items() if name not in HAS_COPY}
        in_backup = rows.where(has_copy())
        objects = sum(totals.get(name, 0) for name in HAS_COPY)
        refuse_forbidden_keys(run, rows)
        if objects:
            # written before the first copy, so that incremental marks list all of this mark's objects again
            run.log.place.store().write(run.log.folder + BEGUN, b"{}")
            number = restore_round(run, in_backup, objects, result)
            verify(run, rows, number, result)
        rows.unpersist()
    return result


def refuse_forbidden_keys(run: RestoreRun, rows: DataFrame) -> None:
    """Raise `Refused` for a key that no mark can name. Otherwise anyone who can write to the backup could plant
    records in the namespace."""
    local, where = run.target.blockstore == "local", f"the list of {run.folder} in {run.source.store().where}"

    def check(batches: Batches, _: TaskReport) -> None:
        for batch in batches:
            check_keys(batch.column(0), where, local_adapter=local, advice=ALTERED_LIST_ADVICE)

    run_tasks(rows.select("address"), check)


def has_copy() -> Any:
    from pyspark.sql import functions as F

    return F.col("outcome").isin(*HAS_COPY)


def selected_rows(run: RestoreRun, selection: Selection) -> DataFrame:
    from pyspark.sql import functions as F

    rows = run.rows()
    if selection.prefix:
        rows = rows.where(F.col("address").startswith(selection.prefix))
    if selection.keys is not None:
        requested = tasks_from_ids(
            run.spark, ADDRESSES.names[0], sorted(set(selection.keys)), batch_size=50_000
        ).frame()
        rows = rows.join(requested, "address", "left_semi")
    return rows


def keys_without_copy(run: RestoreRun, rows: DataFrame, selection: Selection) -> tuple[str, ...]:
    """The first MAX_NAMED requested keys that have no copy in the backup. Raises `WrongUsage` for a prefix that matches
    no object."""
    if selection.keys is None:
        if selection.prefix and rows.isEmpty():
            raise WrongUsage(
                f"the backup of mark {run.backup.subject.mark_id} has no object whose address starts with "
                f"{selection.prefix!r}. Pass a prefix of addresses, which 'lakegc review --list' shows, not of paths."
            )
        return ()
    requested = tasks_from_ids(run.spark, "address", sorted(set(selection.keys)), batch_size=50_000).frame()
    without_copy = requested.join(rows.where(has_copy()), "address", "left_anti").orderBy("address")
    return tuple(row["address"] for row in without_copy.take(MAX_NAMED))


def restore_round(run: RestoreRun, rows: DataFrame, objects: int, result: RestoreResult) -> int:
    """Restore the objects of these rows, each with a copy in the backup, in one Spark job. Adds the counts to
    `result`, and returns the number of this run in the log."""
    spark, number, place = run.spark(), run.log.next_run(), run.target.place
    tasks = task_count(spark, objects, run.limits)
    size = rows.agg({"size": "sum"}).collect()[0][0] or 0
    bandwidth = run.limits.bandwidth
    config = CopyTaskConfig(
        source=run.source,
        target=place,
        log=run.log,
        run=number,
        folder=run.folder,
        token=secrets.token_hex(4),
        at_once=max(1, run.limits.at_once // tasks),
        server_side=can_copy_server_side(run.source, place) and server_copy_never_replaces(place),
        bandwidth=None if bandwidth is None else bandwidth / tasks,
    )

    def work(batches: Batches, report: TaskReport) -> None:
        restore_rows(batches, config, *partition_and_attempt(), report)

    partitioned = rows.repartition(tasks) if tasks > 1 else rows.coalesce(1)
    with logging_copies(run.log_message, "restoring", run.log, number, objects, size):
        report = run_tasks(partitioned, work)
    result.objects.update(report.by_key["objects"])
    result.restored_bytes += report.by_key["bytes"][CopyStatus.COPIED.value]
    return number


def server_copy_never_replaces(place: Place) -> bool:
    """Whether a server-side copy in this store fails if the target exists.

    Tested with two scratch objects, because some S3-compatible stores ignore the condition.
    """
    store, scratch = place.store(), f"{SCRATCH}{secrets.token_hex(8)}/"
    return copy_never_replaces(store.streams, store, scratch, ObjectProperties(0, store.now(), None, ""))


# --- verification -----------------------------------------------------------------------------------------------------


def verify(run: RestoreRun, rows: DataFrame, number: int, result: RestoreResult) -> None:
    """Record in `result` which objects run `number` of the log did not restore, and look up the others in the store and
    through lakeFS."""
    from pyspark.sql import functions as F

    lines = run.log.rows(run.spark()).where(F.col("run") == number).persist()

    def rows_with_status(status: CopyStatus) -> list[Any]:
        return lines.where(F.col("outcome") == status.value).orderBy("address").take(MAX_NAMED)

    result.missing_copies = tuple(row["address"] for row in rows_with_status(CopyStatus.VANISHED))
    result.key_conflicts = tuple(row["address"] for row in rows_with_status(CopyStatus.KEY_CONFLICT))
    result.failures = {
        row["address"]: row["why"]
        for status in (CopyStatus.FAILED, CopyStatus.COLD)
        for row in rows_with_status(status)
    }
    restored = lines.where(has_copy()).select("address", "size")
    run.log_message("verifying restored objects")
    result.stored_count = count_stored(run, restored)
    paths = rows.join(restored.select("address"), "address", "left_semi").where("path is not null")
    paths = paths.select("path", "commit_id").distinct()
    result.path_count = paths.count()
    requested = [(row["commit_id"], row["path"]) for row in paths.orderBy("path").take(MAX_PATHS_READ)]
    result.paths_requested = len(requested)
    result.paths_read, result.unreadable_paths = read_through_lakefs(
        run.lakefs, run.backup.subject.repository, requested
    )
    lines.unpersist()


def count_stored(run: RestoreRun, rows: DataFrame) -> int:
    """Count the objects of these rows that a new lookup finds in the store with the expected size."""
    place = run.target.place

    def count(batches: Batches, report: TaskReport) -> None:
        store = place.store()

        def is_stored(row: Mapping[str, Any]) -> bool:
            try:
                return bool(store.stat(row["address"]).size == row["size"])
            except NotFound:
                return False

        with ThreadPoolExecutor(max_workers=CONCURRENT_READS) as pool:
            for batch in batches:
                report.count(stored=sum(pool.map(is_stored, batch.to_pylist())))

    return run_tasks(rows, count).counters["stored"]


def read_through_lakefs(
    lakefs: LakeFS, repository: str, requested: Sequence[tuple[str, str]]
) -> tuple[int, dict[str, str]]:
    """Read the first byte of each (commit, path). Returns how many could be read, and why the others couldn't,
    by path."""

    def reading_problem(commit_and_path: tuple[str, str]) -> str:
        try:
            return "" if is_readable(lakefs, repository, *commit_and_path) else "lakeFS returns 410 Gone"
        except (NotFound, Unavailable) as error:
            return str(error)

    with ThreadPoolExecutor(max_workers=CONCURRENT_READS) as pool:
        results = list(zip(requested, pool.map(reading_problem, requested), strict=True))
    return sum(not why for _, why in results), {path: why for (_, path), why in results if why}
