"""The backup that a sweep may require. It must be complete, and only approved objects that it contains are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.backup.manifest import Backup
from lakegc_assets.backup.usable_backup import find_required_backup, listed_with_copies, split_by_backup
from lakegc_assets.mark.keep_evidence import OBJECTS
from lakegc_assets.rules.sweep_outcomes import APPROVED
from lakegc_assets.sweep.context import SweepRun
from lakegc_assets.sweep.delete_rounds import pending_objects
from spark_resources.deleting.receipts import receipt_rows
from spark_resources.spark.arrow_shuffle import Input
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, as_frame, run_tasks, task_name
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def required_backup(run: SweepRun) -> tuple[Place, Backup] | None:
    """The complete backup of this very set; None if none is required. Raises `Refused` if a required one is missing."""
    to, record = run.limits.backup_to, run.mark.record
    if to is None:
        return None
    run.log_message("reading the backup")
    digest = run.foreign.approval.digest if run.foreign is not None else record.digest
    return find_required_backup(
        to, run.place.settings, record.repository, record.repository_created.isoformat(), record.namespace,
        record.mark_id, digest or "",
    )  # fmt: skip


def backed_up_objects(run: SweepRun, approved: Input, backup: tuple[Place, Backup]) -> Input:
    """The pending approved objects (APPROVED) that the backup contains now, with the same size and checksum.

    Each other object gets a receipt with the reason why it isn't deleted; the next sweep looks for its copy again.
    """
    number = run.next_number()
    rows = listed_with_copies(run.spark(), *backup)
    pending = pending_objects(run, approved, number, run.persist)
    backed_up, not_backed_up = split_by_backup(as_frame(pending.rows), rows)
    write_not_backed_up(run, not_backed_up, number)
    deletable = run.persist(backed_up.select(*APPROVED.names))
    return Input.of_rows(OBJECTS, deletable, APPROVED, deletable.count())


def write_not_backed_up(run: SweepRun, not_backed_up: DataFrame, number: int) -> None:
    """Write the receipts of objects that aren't deleted because the backup doesn't contain them."""
    receipts, at = run.receipts, run.store.now()

    def write(batches: Batches, _: TaskReport) -> None:
        rows = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if rows:
            table = pa.concat_tables(rows)
            skipped = receipt_rows(table, outcome=table["outcome"], code=table["code"], why=table["why"], at=at)
            receipts.write("receipt", number, f"unbacked-{task_name()}", skipped)

    run_tasks(not_backed_up, write)
