"""The optional backup between an approval and its sweep: a copy of the objects to be deleted."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
from typing import Any

import dagster as dg
from pydantic import Field

from lakegc_assets.assets.owners import OWNERS
from lakegc_assets.assets.results import reporting_failures
from lakegc_assets.assets.review import expired_set
from lakegc_assets.backup.backup import back_up
from lakegc_assets.backup.context import CONCURRENT_COPIES, CopyLimits, open_backup
from lakegc_assets.backup.manifest import Backup
from lakegc_assets.formatting import plural, size, was_or_were
from lakegc_assets.mark.metadata import details_table
from lakegc_assets.markdown import asset_link, behind_a_click, inline
from lakegc_assets.notifications.metrics import publish_backup
from lakegc_assets.partitions import PARTITIONS
from lakegc_assets.progress import publishing_logger, warning_logger
from lakegc_assets.resources import MarksResource
from spark_resources.errors import WrongUsage, capitalized
from spark_resources.model import Partition

ASSET = "backup"


class BackupConfig(dg.Config):
    """The options of one backup."""

    to: str = Field(
        default="",
        description="destination: the URI of a bucket, container or folder, or a folder path; empty: LAKEGC_BACKUP_TO",
    )
    at_once: int = Field(default=CONCURRENT_COPIES, ge=1, description="maximum number of concurrent copies")
    bandwidth: float = Field(default=0, ge=0, description="maximum total bytes per second; 0: no limit")
    layout: str = Field(
        default="",
        description="layout of a mark of the reference collector, if several layouts have a mark with this id",
    )


@dg.asset(
    name=ASSET,
    group_name="sweep",
    owners=OWNERS,
    partitions_def=PARTITIONS,
    deps=[expired_set, dg.AssetKey("sweep_approval")],
    kinds={"pyspark", "parquet"},
)
def backup(context: dg.AssetExecutionContext, config: BackupConfig, marks: MarksResource) -> dg.MaterializeResult[Any]:
    """Copies, in another location, of all objects of one expired set. Each copy is compared with its original.

    The location is another bucket, container or folder. A backup is required only if LAKEGC_BACKUP_TO is set: then
    *sweep_report* refuses to run until the backup is complete and covers exactly the approved set, and keeps every
    object that isn't in the backup. The backup can be made before or after the approval. If it is interrupted, it
    resumes when it is run again. `lakegc restore` restores objects from it.
    """
    with reporting_failures():
        partition = Partition.parse(context.partition_key)
        settings = marks.settings(partition.repository)
        to = config.to or settings.backup_to
        if not to:
            raise WrongUsage("there is no backup destination: set LAKEGC_BACKUP_TO, or 'to' in the run's config")
        name = f"{config.layout}/{partition.mark_id}" if config.layout else partition.mark_id
        limits = CopyLimits(config.at_once, config.bandwidth or None)
        log_message = publishing_logger(context.log.info)
        run = open_backup(
            marks.lakefs.client(), settings, partition.repository, name, to,
            spark=marks.session, limits=limits, log_message=log_message, store_settings_of=marks.store_settings,
        )  # fmt: skip
        summary = back_up(run)
        publish_backup(summary, partition.repository, settings, warning_logger(context.log.warning))
        return backup_result(partition, summary, f"{run.to.store().where}/{run.folder}")


def backup_result(partition: Partition, summary: Backup, where: str) -> dg.MaterializeResult[Any]:
    """The result of `backup`: totals by outcome, and the backup's location."""
    key, digest = str(partition), summary.subject.digest
    details = {"repository": partition.repository, "mark": partition.mark_id, "digest": digest, "where": where}
    return dg.MaterializeResult(
        metadata={
            "summary": inline(summary_in_words(partition, summary)),
            "next": inline(
                f"What was copied: {asset_link('expired_set', key)}. "
                f"What was deleted: {asset_link('sweep_report', key)}"
            ),
            "dagster/row_count": summary.marked,
            **{f"objects.{outcome}": count for outcome, count in sorted(summary.objects.items())},
            **{f"bytes.{outcome}": count for outcome, count in sorted(summary.sizes.items())},
            "seconds": summary.seconds,
            "details": behind_a_click(details_table(details)),
        }
    )


def summary_in_words(partition: Partition, summary: Backup) -> str:
    """How much was copied, as Markdown."""
    if summary.is_empty:
        return f"**{capitalized(summary.sentence(partition.repository))}.**"
    missing = (
        ""
        if summary.copied == summary.marked
        else " **A sweep that requires this backup keeps the objects that were not copied.**"
    )
    return (
        f"**{summary.copied:,} of {plural(summary.marked, 'expired object')} ({size(summary.copied_bytes)}) "
        f"{was_or_were(summary.copied)} copied**, and each compared with its original. `lakegc restore "
        f"{partition.repository} {partition.mark_id} PLACE` copies them back.{missing}"
    )
