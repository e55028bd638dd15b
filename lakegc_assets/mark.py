"""What may go: the set algebra of a mark, from DataFrames to a DataFrame. Nothing here reads, writes or starts a job.

Every difference errs towards keeping: a row too many on the keep side costs storage, a row too few costs data. Age is
part of the rule and not of the listing, so that no way of finding candidates can forget it (invariant 6).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from spark_resources.model import ExpiredReason

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def expired_set(
    candidates: DataFrame,
    *,
    committed: DataFrame,
    uncommitted: DataFrame,
    cutoff: datetime,
    grain: timedelta,
) -> DataFrame:
    """The candidates (STORED_OBJECTS) that are old enough and that nothing live refers to, each once.

    `committed` and `uncommitted` have a column `address`. `cutoff` is the store's clock; `grain` is how coarse the
    store's times are: a whole-second time may truly be almost a second later.
    """
    return (
        candidates.transform(old_enough(cutoff, grain))
        .transform(without(committed))
        .transform(without(uncommitted))
        .dropDuplicates(["address"])
    )


def old_enough(cutoff: datetime, grain: timedelta) -> Callable[[DataFrame], DataFrame]:
    """Keep the rows that were surely modified no later than the cutoff."""
    from pyspark.sql import functions as F

    return lambda df: df.where(F.col("modified") <= F.lit(cutoff - grain))


def without(live: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Drop the rows whose address is live."""
    return lambda df: df.join(live.select("address"), "address", "left_anti")


def only(addresses: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Keep the rows whose address is one of these."""
    return lambda df: df.join(addresses.select("address"), "address", "left_semi")


def missing_from_listing(live: DataFrame, slices: DataFrame) -> DataFrame:
    """Live addresses (each once) where the listing could hold them and doesn't (invariant 3)."""
    from pyspark.sql import functions as F

    listed_area = F.col("address").startswith("data/") | ~F.col("address").contains("/")
    return live.where(listed_area).select("address").dropDuplicates().transform(without(slices))


# --- the same bytes staged again (invariant 2) ----------------------------------------------------------------------


def questions(head_entries: DataFrame, branch_ranges: DataFrame, candidates: DataFrame) -> DataFrame:
    """The paths that branches must be asked about: columns branch, path, size; each branch and path once a size.

    A candidate that equals an entry of a branch head in size may be what that branch serves at that path, though no
    list says so. `head_entries` is HEAD_ENTRIES, `branch_ranges` has columns branch and range_id.
    """
    alike = head_entries.join(candidates.select("size").dropDuplicates(), "size", "left_semi")
    return alike.join(branch_ranges, "range_id").select("branch", "path", "size").dropDuplicates()


def within_bound(asked: DataFrame, bound: int) -> DataFrame:
    """Sizes (column `size`) whose questions exceed the bound on all questions: the rarer sizes are asked first.

    Every candidate of such a size is kept.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by_size = asked.groupBy("size").count()
    running = F.sum("count").over(Window.orderBy("count", "size").rowsBetween(Window.unboundedPreceding, 0))
    return by_size.select("size", running.alias("asked")).where(F.col("asked") > bound).select("size")


def not_served(served: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Drop the candidates that a branch serves, or may serve because a question of their size has no clear answer."""
    from pyspark.sql import functions as F

    addresses = served.where(F.col("address").isNotNull()).select("address").dropDuplicates()
    doubtful = served.where(~F.col("answered")).select("size").dropDuplicates()
    return lambda df: df.transform(without(addresses)).join(doubtful, "size", "left_anti")


# --- why ------------------------------------------------------------------------------------------------------------


def with_reasons(expired: DataFrame, expired_addresses: DataFrame, *, graph_known: bool) -> DataFrame:
    """Expired objects with the reason, and the expired commit that kept them longest (EXPIRED_OBJECTS).

    `expired_addresses` has columns address, commit_id, branch, days, until; an address may stand there many times.
    """
    from pyspark.sql import functions as F

    by_age = F.struct(F.col("until"), F.col("commit_id"), F.col("branch"), F.col("days"))
    last = expired_addresses.groupBy("address").agg(F.max(by_age).alias("last"))
    why = (
        F.when(F.col("last").isNotNull(), F.lit(ExpiredReason.EXPIRED_COMMIT.value))
        .otherwise(F.lit((ExpiredReason.NEVER_COMMITTED if graph_known else ExpiredReason.UNKNOWN).value))
        .alias("reason")
    )
    parts: list[Column] = [F.col(f"last.{name}").alias(name) for name in ("commit_id", "branch", "days", "until")]
    return expired.join(last, "address", "left").select(
        "address", "size", "modified", "checksum", "slice", why, *parts
    )
