"""The objects that a sweep may still delete, and the outcomes of the rest: set algebra on DataFrames. Nothing here
reads, writes or starts a job.

Every set is a subset of the approved one. A sweep's own files can only exclude keys, never add any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_resources.model import RECEIPTS, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def pending(approved: DataFrame, outcomes: DataFrame, intents: DataFrame, *, since: int) -> DataFrame:
    """Approved objects that have no outcome, or that failed before round `since`, in which this attempt began.

    `approved` has address, size, modified, checksum and slice; `outcomes` is RECEIPTS with the round of each, `intents`
    has an address. Column `intended`: a round recorded the intent to delete the object.
    """
    from pyspark.sql import functions as F

    final = outcomes.where((F.col("outcome") != Outcome.FAILED.value) | (F.col("round") >= since)).select("address")
    meant = intents.select("address", F.lit(True).alias("meant"))
    columns = ("address", "size", "modified", "checksum", "slice")
    return (
        approved.select(*columns)
        .join(final, "address", "left_anti")
        .join(meant, "address", "left")
        .select(*columns, F.coalesce("meant", F.lit(False)).alias("intended"))
    )


def reported(approved: DataFrame, outcomes: DataFrame, undone: DataFrame) -> DataFrame:
    """The outcome of every approved object (RECEIPTS); null if it has none yet.

    `undone` has later outcomes of quarantined objects, with the columns of `outcomes`.
    """
    from pyspark.sql import functions as F

    since = undone.where(F.col("outcome").isin(Outcome.RESTORED.value, Outcome.PURGED.value)).select(*RECEIPTS.names)
    before = outcomes.select(*RECEIPTS.names).join(since.select("address"), "address", "left_anti")
    latest = before.select(*RECEIPTS.names).unionByName(since)
    return approved.select("address").join(latest, "address", "left").select(*RECEIPTS.names)


def deleted(outcomes: DataFrame) -> DataFrame:
    """The objects that this sweep removed from their keys (columns address, size)."""
    from pyspark.sql import functions as F

    taken = (Outcome.DELETED.value, Outcome.QUARANTINED.value)
    return outcomes.where(F.col("outcome").isin(*taken)).select("address", "size")


def restored(outcomes: DataFrame) -> DataFrame:
    """The quarantined objects that were restored to their keys (column address)."""
    from pyspark.sql import functions as F

    return outcomes.where(F.col("outcome") == Outcome.RESTORED.value).select("address")


def quarantined(outcomes: DataFrame) -> DataFrame:
    """The objects that a sweep quarantined (column address)."""
    from pyspark.sql import functions as F

    return outcomes.where(F.col("outcome") == Outcome.QUARANTINED.value).select("address")


def not_taken(outcomes: DataFrame) -> DataFrame:
    """The objects that a sweep left in place and won't retry (column address)."""
    from pyspark.sql import functions as F

    left = (Outcome.RESCUED.value, Outcome.CHANGED.value)
    return outcomes.where(F.col("outcome").isin(*left)).select("address")
