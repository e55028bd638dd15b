"""What a sweep may still delete, and what became of the rest: set algebra on DataFrames, as `garbage.py` is. Nothing
here reads, writes or starts a job.

Every set is a part of the approved one. A file of a sweep can make it leave a key alone, and never adds one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_resources.model import RECEIPTS, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def pending(approved: DataFrame, outcomes: DataFrame, intents: DataFrame, *, since: int) -> DataFrame:
    """Approved objects without an outcome, or that failed before the round `since`, when this attempt began.

    `approved` has address, size, modified, checksum and slice; `outcomes` is RECEIPTS with the round of each, `intents`
    has an address. `intended`: some round set out to delete the object.
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
    """The outcome of every approved object (RECEIPTS); null where one has none yet.

    `undone` has, with the columns of `outcomes`, what became since of quarantined objects.
    """
    from pyspark.sql import functions as F

    since = undone.where(F.col("outcome").isin(Outcome.RESTORED.value, Outcome.PURGED.value)).select(*RECEIPTS.names)
    before = outcomes.select(*RECEIPTS.names).join(since.select("address"), "address", "left_anti")
    latest = before.select(*RECEIPTS.names).unionByName(since)
    return approved.select("address").join(latest, "address", "left").select(*RECEIPTS.names)


def deleted(outcomes: DataFrame) -> DataFrame:
    """The objects that this sweep took away from where readers look for them (column address, size)."""
    from pyspark.sql import functions as F

    taken = (Outcome.DELETED.value, Outcome.QUARANTINED.value)
    return outcomes.where(F.col("outcome").isin(*taken)).select("address", "size")


def restored(outcomes: DataFrame) -> DataFrame:
    """The quarantined objects that are back in their place (column address)."""
    from pyspark.sql import functions as F

    return outcomes.where(F.col("outcome") == Outcome.RESTORED.value).select("address")


def quarantined(outcomes: DataFrame) -> DataFrame:
    """The objects that a sweep quarantined (column address)."""
    from pyspark.sql import functions as F

    return outcomes.where(F.col("outcome") == Outcome.QUARANTINED.value).select("address")


def not_taken(outcomes: DataFrame) -> DataFrame:
    """The objects that a sweep left in their place and never tries again (column address)."""
    from pyspark.sql import functions as F

    left = (Outcome.RESCUED.value, Outcome.CHANGED.value)
    return outcomes.where(F.col("outcome").isin(*left)).select("address")
