"""What may go: the set algebra of a mark, from DataFrames to a DataFrame. Nothing here reads, writes or starts a job.

Every difference errs towards keeping: a row too many on the keep side costs storage, a row too few costs data. Age is
part of the rule and not of the listing, so that no way of finding candidates can forget it (invariant 6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lakegc_assets.rules.addresses import has_dot_segment, listed_area_column
from spark_resources.model import HOLDS_BETWEEN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def unreferenced(cutoff: datetime, grain: timedelta) -> Callable[[DataFrame], DataFrame]:
    """From a census: what the store holds, minus committed, minus uncommitted, minus young, minus what is kept for its
    key (STORED_OBJECTS).

    `cutoff` is the store's clock; `grain` is how coarse its times are: a whole-second time may truly be almost a second
    later.
    """
    return lambda census: described(census.where(is_unreferenced(cutoff, grain) & ~has_dot_segment(census["address"])))


def kept_for_dot_segments(cutoff: datetime, grain: timedelta) -> Callable[[DataFrame], DataFrame]:
    """From a census: what would be unreferenced, and is kept for its key (STORED_OBJECTS)."""
    return lambda census: described(census.where(is_unreferenced(cutoff, grain) & has_dot_segment(census["address"])))


def is_unreferenced(cutoff: datetime, grain: timedelta) -> Column:
    from pyspark.sql import functions as F

    old = F.col("listed.modified") <= F.lit(cutoff - grain)
    return is_unsettled() & old & ~F.col("uncommitted")


def is_unsettled() -> Column:
    """Whether the store holds it and no retained commit does, whatever else keeps it."""
    from pyspark.sql import functions as F

    return F.col("listed").isNotNull() & ~F.col("committed")


def described(census: DataFrame) -> DataFrame:
    """The listed rows of a census as STORED_OBJECTS."""
    return census.select("address", "listed.size", "listed.modified", "listed.checksum", "listed.slice")


def missing_from_listing(census: DataFrame) -> DataFrame:
    """From a census: live addresses where the listing could hold them and doesn't (invariant 3); column address."""
    return census.where(is_missing()).select("address")


def is_missing() -> Column:
    from pyspark.sql import functions as F

    live = F.col("committed") | F.col("uncommitted")
    return live & listed_area_column(F.col("address")) & F.col("listed").isNull()


def without(live: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Drop the rows whose address is live."""
    return lambda df: df.join(live.select("address"), "address", "left_anti")


def only(addresses: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Keep the rows whose address is one of these."""
    return lambda df: df.join(addresses.select("address"), "address", "left_semi")


# --- holds ----------------------------------------------------------------------------------------------------------


def with_holds(objects: DataFrame, held: DataFrame, prefixes: Sequence[tuple[str, str]]) -> DataFrame:
    """The objects with a column `hold`: the ids of all holds that keep one, null where none does.

    `held` is HELD_ADDRESSES, where an address may stand many times; `prefixes` are physical ones, each with its hold's
    id first.
    """
    from pyspark.sql import functions as F

    texts = "array<string>"
    by_address = held.groupBy("address").agg(F.flatten(F.collect_list(F.split("hold", HOLDS_BETWEEN))).alias("named"))
    by_prefix = [F.when(F.col("address").startswith(prefix), F.lit(hold_id)) for hold_id, prefix in prefixes]
    named = F.coalesce(F.col("named"), F.array().cast(texts))
    ids = F.array_distinct(F.array_compact(F.concat(named, F.array(*by_prefix).cast(texts))))
    joined = objects.join(by_address, "address", "left")
    hold = F.when(F.size(ids) > 0, F.array_join(F.array_sort(ids), HOLDS_BETWEEN))
    return joined.select(*objects.columns, hold.alias("hold"))


# --- the same bytes staged again (invariant 2) ----------------------------------------------------------------------


def questions(head_entries: DataFrame, branch_ranges: DataFrame, candidates: DataFrame) -> DataFrame:
    """The paths that branches must be asked about: columns repository, branch, path, size; each once a size.

    A candidate that equals an entry of a branch head in size may be what that branch serves at that path, though no
    list says so. `head_entries` has columns repository, range_id, path and size, `branch_ranges` repository, branch and
    range_id.
    """
    alike = head_entries.join(candidates.select("size").dropDuplicates(), "size", "left_semi")
    joined = alike.join(branch_ranges, ["repository", "range_id"])
    return joined.select("repository", "branch", "path", "size").dropDuplicates()


def beyond_bound(asked: DataFrame, bound: int) -> DataFrame:
    """Sizes (column size) that a bound on all questions leaves no room for; those with few are asked first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by_size = asked.groupBy("size").count()
    running = F.sum("count").over(Window.orderBy("count", "size").rowsBetween(Window.unboundedPreceding, 0))
    return by_size.select("size", running.alias("asked")).where(F.col("asked") > bound).select("size")


def unanswered(asked: DataFrame, why: str) -> DataFrame:
    """Questions that nobody asks, as SERVED: every candidate of their size is kept."""
    from pyspark.sql import functions as F

    nothing = F.lit(None).cast("string").alias("address")
    return asked.select("repository", "branch", "path", "size", nothing, F.lit(why).alias("unclear"))


def why_served(served: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Add a column `why`: a branch serves the candidate, or may serve it because a path probe of its size has no clear
    answer; null where neither is so. `served` is SERVED."""
    from pyspark.sql import functions as F

    inside = served.where(F.col("address").isNotNull())
    by_address = inside.groupBy("address").agg(F.min(F.struct("repository", "branch")).alias("by"))
    doubtful = served.where(F.col("unclear").isNotNull()).groupBy("size").agg(F.min("unclear").alias("unclear"))
    serving = F.concat(F.lit("branch "), F.col("by.branch"), F.lit(" of repository "), F.col("by.repository"))
    why = F.when(F.col("by").isNotNull(), F.concat(serving, F.lit(" serves it"))).when(
        F.col("unclear").isNotNull(),
        F.concat(F.lit("a branch may serve it, since a path probe has no clear answer: "), F.col("unclear")),
    )
    return lambda df: (
        df.join(by_address, "address", "left").join(doubtful, "size", "left").select(*df.columns, why.alias("why"))
    )
