"""Reasons to keep an unreferenced object: each with its name and decision, in order.

Marks and the re-verification of a sweep run the same list, `KEEP_REASONS`. Each reason decides from facts that were
looked up before (`mark/keep_lookups.py`). Pure: DataFrames in, DataFrames out; nothing here reads, writes or starts a
job. Every doubt is a reason to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from spark_resources.model import HOLD_SEPARATOR

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Attribution: TypeAlias = "Callable[[DataFrame], DataFrame]"
"""Adds a column `found` (text) to objects: the detail of a reason for each object that it keeps, null for the others.
It neither adds nor drops rows."""


@dataclass(frozen=True, slots=True)
class KeepReason:
    """One reason. `sentence` is the text for people; `{}` is replaced by `found`."""

    name: str
    sentence: str


# --- references: read again by a re-verification, already subtracted by a mark --------------------------------------

STAGED = KeepReason("staged", "it is staged on a branch")
COMMITTED = KeepReason("committed", "a retained commit or a branch refers to it")

# --- reasons to keep objects that no list references ----------------------------------------------------------------

OTHER_REPOSITORY = KeepReason("other_repository", "another repository refers to it")
BRANCH = KeepReason("branch", "{}")
MEANWHILE = KeepReason("meanwhile", "it was staged or committed in the meantime")
HOLD = KeepReason("hold", "it is on hold by {}")

KEEP_REASONS = (OTHER_REPOSITORY, BRANCH, MEANWHILE, HOLD)
"""In the order of lookup and decision; the first reason that keeps an object is reported."""


# --- the decision ---------------------------------------------------------------------------------------------------


def undecided(objects: DataFrame) -> DataFrame:
    """The objects with columns `kept_by` (the name of a reason) and `found`, both null so far."""
    from pyspark.sql import functions as F

    nothing = F.lit(None).cast("string")
    return objects.withColumn("kept_by", nothing).withColumn("found", nothing)


def decided(reason: KeepReason, attribution: Attribution) -> Callable[[DataFrame], DataFrame]:
    """Add the objects that one more reason keeps; those kept by an earlier reason stay attributed to it."""
    from pyspark.sql import functions as F

    def decide(objects: DataFrame) -> DataFrame:
        before = [F.col(name).alias(f"{name}_before") if name in _DECISION else F.col(name) for name in objects.columns]
        found = objects.select(*before).transform(attribution)
        is_new = F.col("kept_by_before").isNull() & F.col("found").isNotNull()
        decision = {
            "kept_by": F.when(is_new, F.lit(reason.name)).otherwise(F.col("kept_by_before")),
            "found": F.when(is_new, F.col("found")).otherwise(F.col("found_before")),
        }
        return found.select(*(decision.get(name, F.col(name)).alias(name) for name in objects.columns))

    return decide


_DECISION = ("kept_by", "found")


def not_kept(decided_objects: DataFrame) -> DataFrame:
    """The objects that no reason keeps so far, with their original columns."""
    return decided_objects.where(decided_objects["kept_by"].isNull()).drop(*_DECISION)


def kept(decided_objects: DataFrame, reason: KeepReason | None = None) -> DataFrame:
    """The objects that are kept, by this reason or by any."""
    by = decided_objects["kept_by"]
    return decided_objects.where(by.isNotNull() if reason is None else by == reason.name)


def sentence() -> Column:
    """Why each decided object is kept, as text for people; null if it isn't kept."""
    from pyspark.sql import functions as F

    by_name = [(one.name, one.sentence.partition("{}")) for one in (STAGED, COMMITTED, *KEEP_REASONS)]
    sentences = [
        F.when(F.col("kept_by") == name, F.concat(F.lit(start), F.col("found"), F.lit(end)) if gap else F.lit(start))
        for name, (start, gap, end) in by_name
    ]
    return F.coalesce(*sentences)


# --- the facts that each reason decides from ------------------------------------------------------------------------


def among(addresses: DataFrame) -> Attribution:
    """Keep the objects at these addresses (column address, possibly with duplicates)."""
    from pyspark.sql import functions as F

    once = addresses.select("address").dropDuplicates().withColumn("found", F.lit(""))
    return lambda objects: objects.join(once, "address", "left")


def served(probed: DataFrame) -> Attribution:
    """Keep objects that a branch serves, and those that one may serve because a path probe for their size has no clear
    result.

    `probed` is SERVED.
    """
    from pyspark.sql import functions as F

    inside = probed.where(F.col("address").isNotNull())
    by_address = inside.groupBy("address").agg(F.min(F.struct("repository", "branch")).alias("by"))
    doubtful = probed.where(F.col("unclear").isNotNull()).groupBy("size").agg(F.min("unclear").alias("unclear"))
    serving = F.concat(
        F.lit("branch "), F.col("by.branch"), F.lit(" of repository "), F.col("by.repository"), F.lit(" serves it")
    )
    may_serve = F.concat(F.lit("a branch may serve it, since a path probe was inconclusive: "), F.col("unclear"))
    found = F.when(F.col("by").isNotNull(), serving).when(F.col("unclear").isNotNull(), may_serve)
    return lambda objects: (
        objects.join(by_address, "address", "left")
        .join(doubtful, "size", "left")
        .select(*objects.columns, found.alias("found"))
    )


def on_hold(addresses: DataFrame, prefixes: Sequence[tuple[str, str]]) -> Attribution:
    """Keep objects on hold; `found` has the ids of all holds that keep an object, in order.

    `addresses` is ADDRESSES_ON_HOLD, possibly with duplicates; `prefixes` are pairs of hold id and physical prefix.
    """
    from pyspark.sql import functions as F

    texts = "array<string>"
    by_address = addresses.groupBy("address").agg(
        F.flatten(F.collect_list(F.split("hold", HOLD_SEPARATOR))).alias("named")
    )
    by_prefix = [F.when(F.col("address").startswith(prefix), F.lit(hold_id)) for hold_id, prefix in prefixes]
    named = F.coalesce(F.col("named"), F.array().cast(texts))
    ids = F.array_distinct(F.array_compact(F.concat(named, F.array(*by_prefix).cast(texts))))
    found = F.when(F.size(ids) > 0, F.array_join(F.array_sort(ids), HOLD_SEPARATOR))
    return lambda objects: objects.join(by_address, "address", "left").select(*objects.columns, found.alias("found"))
