"""Which paths to probe on branches, because no list contains identical content that was re-staged (formats §2;
invariant 2).

Pure: DataFrames in, DataFrames out. `keep_reasons` decides on the probe results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def probes(head_entries: DataFrame, branch_ranges: DataFrame, candidates: DataFrame) -> DataFrame:
    """The paths to probe on branches: columns repository, branch, path, size; without duplicates.

    A candidate with the size of an entry in a branch head may be the object that the branch serves at that path, even
    if no list contains it. `head_entries` has columns repository, range_id, path and size, `branch_ranges` repository,
    branch and range_id.
    """
    alike = head_entries.join(candidates.select("size").dropDuplicates(), "size", "left_semi")
    joined = alike.join(branch_ranges, ["repository", "range_id"])
    return joined.select("repository", "branch", "path", "size").dropDuplicates()


def beyond_bound(wanted: DataFrame, bound: int) -> DataFrame:
    """The sizes (column size) whose probes exceed the limit. Sizes that need the fewest probes come first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by_size = wanted.groupBy("size").count()
    running = F.sum("count").over(Window.orderBy("count", "size").rowsBetween(Window.unboundedPreceding, 0))
    return by_size.select("size", running.alias("probes")).where(F.col("probes") > bound).select("size")


def not_sent(beyond: DataFrame, why: str) -> DataFrame:
    """Probes that are never sent, as SERVED: every candidate of their size is kept."""
    from pyspark.sql import functions as F

    nothing = F.lit(None).cast("string").alias("address")
    return beyond.select("repository", "branch", "path", "size", nothing, F.lit(why).alias("unclear"))
