"""The backup that a sweep may rely on: complete, of exactly this set, and with copies that exist right now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakegc_assets.backup.backup import compared_with_copies
from lakegc_assets.backup.destination import backup_folder, parse_place, with_probed_capabilities
from lakegc_assets.backup.manifest import SCHEMA, Backup, listed_objects, read_backup
from spark_resources.copying.copy_log import HAS_COPY, CopyStatus
from spark_resources.errors import Refused
from spark_resources.identifiers import lakefs_id
from spark_resources.model import Outcome
from spark_resources.spark.datasets import read_dataset
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NOT_IN_BACKUP = "NotInBackup"
"""The receipt code of an approved object that isn't deleted because it isn't in the backup."""


def find_required_backup(
    to: str, settings: StoreSettings, repository: str, created: str, namespace: str, mark_id: str, digest: str
) -> tuple[Place, Backup]:
    """The place and the summary of a complete backup of exactly this set. Raises `Refused` if there is none, because
    nothing may be deleted without one."""
    place, folder = parse_place(to, settings), backup_folder(repository, mark_id)
    backup = read_backup(place, folder)
    next_step = f"Back up the mark first: lakegc backup {repository} {mark_id} {to}"
    if backup is None:
        raise Refused(
            f"sweeps of {repository} require a backup in {to}, but there is no complete one of mark {mark_id}. "
            f"{next_step}",
            invariant=7,
        )
    subject = backup.subject
    if (subject.repository, subject.repository_created, subject.namespace) != (
        lakefs_id(repository),
        created,
        namespace,
    ):
        raise Refused(
            f"the backup of mark {mark_id} in {to} belongs to another repository named {subject.repository}, created "
            f"at {subject.repository_created} in {subject.namespace}. Choose another location, and back up this mark "
            "there.",
            invariant=7,
        )
    if (subject.mark_id, subject.digest) != (mark_id, digest):
        raise Refused(
            f"the backup of mark {mark_id} of {repository} in {to} is not a backup of the approved set. Choose another "
            "location, and back up this mark there.",
            invariant=7,
        )
    return with_probed_capabilities(place), backup


def listed_with_copies(spark: SparkSession, place: Place, backup: Backup) -> DataFrame:
    """Every object of the set as listed by the backup (SCHEMA), with `has_intact_copy`: whether it has a copy that is
    listed now with the recorded size and checksum."""
    from pyspark.sql import functions as F

    subject = backup.subject
    rows = read_dataset(spark, place, listed_objects(place, backup), SCHEMA)
    listed = compared_with_copies(rows, spark, place, backup_folder(subject.repository, subject.mark_id))
    return listed.withColumn("has_intact_copy", F.col("outcome").isin(*HAS_COPY) & F.col("has_intact_copy"))


def split_by_backup(approved: DataFrame, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The approved objects that the backup contains with the same size and checksum, and the outcomes of the others.

    `approved` has address, size and checksum; `rows` are those of `listed_with_copies`. The second DataFrame has
    address, size, outcome, code and why.
    """
    from pyspark.sql import functions as F

    backup_rows = rows.select(
        "address", F.col("size").alias("backup_size"), F.col("checksum").alias("backup_checksum"), "outcome", "why",
        "has_intact_copy",
    )  # fmt: skip
    is_same = (
        F.col("has_intact_copy")
        & F.col("backup_size").eqNullSafe(F.col("size"))
        & F.col("backup_checksum").eqNullSafe(F.col("checksum"))
    )
    joined = approved.join(backup_rows, "address", "left").withColumn("same", F.coalesce(is_same, F.lit(False)))
    safe = joined.where("same").select(*approved.columns)
    unsafe = joined.where(~F.col("same")).select(
        "address",
        F.coalesce("size", F.lit(0)).alias("size"),
        _outcome().alias("outcome"),
        F.when(_outcome() == Outcome.FAILED.value, F.lit(NOT_IN_BACKUP)).otherwise(F.lit("")).alias("code"),
        _why().alias("why"),
    )
    return safe, unsafe


def _outcome() -> Column:
    from pyspark.sql import functions as F

    return (
        F.when(F.col("outcome") == CopyStatus.VANISHED.value, F.lit(Outcome.ALREADY_GONE.value))
        .when(F.col("outcome") == CopyStatus.CHANGED.value, F.lit(Outcome.CHANGED.value))
        .otherwise(F.lit(Outcome.FAILED.value))
    )


def _why() -> Column:
    from pyspark.sql import functions as F

    not_listed = (
        "the backup doesn't have this object with this size and checksum, or its copy has changed: back up again"
    )
    return (
        F.when(
            F.col("outcome") == CopyStatus.VANISHED.value, F.lit("the object was missing when the mark was backed up")
        )
        .when(F.col("outcome") == CopyStatus.CHANGED.value, F.col("why"))
        .when(
            F.col("outcome") == CopyStatus.COLD.value, F.concat(F.lit("the object isn't in the backup: "), F.col("why"))
        )
        .otherwise(F.lit(not_listed))
    )
