"""What may go: the set algebra of a mark, from DataFrames to a DataFrame. Nothing here reads, writes or starts a job.

Every difference errs towards keeping: a row too many on the keep side costs storage, a row too few costs data. Age is
part of the rule and not of the listing, so that no way of finding candidates can forget it (invariant 6).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lakegc_assets.rules.addresses import has_dot_segment

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
    return live & in_listed_area() & F.col("listed").isNull()


def in_listed_area() -> Column:
    """Whether the listing would hold such an address if the store does."""
    from pyspark.sql import functions as F

    return F.col("address").startswith("data/") | ~F.col("address").contains("/")


def without(live: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Drop the rows whose address is live."""
    return lambda df: df.join(live.select("address"), "address", "left_anti")


def only(addresses: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Keep the rows whose address is one of these."""
    return lambda df: df.join(addresses.select("address"), "address", "left_semi")
