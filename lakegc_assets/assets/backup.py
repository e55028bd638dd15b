"""The optional backup between an approval and its sweep: a copy of the objects to be deleted."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
from typing import Any

import dagster as dg
from pydantic import Field

from lakegc_assets.assets.results import told
from lakegc_assets.assets.review import expired_set
from lakegc_assets.backup.backup import back_up
from lakegc_assets.backup.context import AT_ONCE, CopyLimits, open_backup
from lakegc_assets.backup.manifest import Backup
from lakegc_assets.partitions import PARTITIONS
from lakegc_assets.progress import logged_and_published
from lakegc_assets.resources import MarksResource
from spark_resources.errors import WrongUsage
from spark_resources.model import Partition

ASSET = "backup"


class BackupConfig(dg.Config):
    """The options of one backup."""

    to: str = Field(
        default="",
        description="where to: a bucket, container or folder as a URI, or a folder's path; empty: LAKEGC_BACKUP_TO",
    )
    at_once: int = Field(default=AT_ONCE, ge=1, description="at most so many copies at once")
    bandwidth: float = Field(default=0, ge=0, description="at most so many bytes a second in all; 0 is no bound")
    layout: str = Field(
        default="", description="of a mark of the reference collector's, where several layouts have its id"
    )


@dg.asset(
    name=ASSET,
    group_name="sweep",
    partitions_def=PARTITIONS,
    deps=[expired_set, dg.AssetKey("sweep_approval")],
    kinds={"pyspark", "parquet"},
)
def backup(context: dg.AssetExecutionContext, config: BackupConfig, marks: MarksResource) -> dg.MaterializeResult[Any]:
    """A copy of every object of one expired set, elsewhere, each compared with its original.

    Elsewhere is another bucket, container or folder. It is needed only where LAKEGC_BACKUP_TO says where backups go:
    then *sweep_report* refuses until this one is whole and of the very set that was approved, and leaves each object
    that isn't in it. It can be made before or after the approval. One that was killed goes on where it was: run it
    again. `lakegc restore` brings objects back from it.
    """
    with told():
        partition, settings = Partition.parse(context.partition_key), marks.settings()
        to = config.to or settings.backup_to
        if not to:
            raise WrongUsage("where the backup goes isn't said: set LAKEGC_BACKUP_TO, or give 'to' in the run's config")
        name = f"{config.layout}/{partition.mark_id}" if config.layout else partition.mark_id
        limits = CopyLimits(config.at_once, config.bandwidth or None)
        log_message = logged_and_published(context.log.info)
        run = open_backup(
            marks.lakefs.client(), settings, partition.repository, name, to,
            spark=marks.session, limits=limits, log_message=log_message,
        )  # fmt: skip
        return described(back_up(run), f"{run.to.store().where}/{run.folder}")


def described(found: Backup, where: str) -> dg.MaterializeResult[Any]:
    """The result of `backup`: totals by outcome, and its location."""
    return dg.MaterializeResult(
        metadata={
            "repository": found.subject.repository,
            "mark": found.subject.mark_id,
            "dagster/row_count": found.marked,
            **{f"objects.{outcome}": count for outcome, count in sorted(found.objects.items())},
            **{f"bytes.{outcome}": count for outcome, count in sorted(found.sizes.items())},
            "seconds": found.seconds,
            "digest": found.subject.digest,
            "where": where,
        }
    )
