"""Objects that incremental marks would have missed. Each full mark that follows incremental ones counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.mark_chain import UNREADABLE, MarkChain
from lakegc_assets.rules import garbage
from lakegc_assets.rules.addresses import slice_column
from lakegc_assets.rules.incremental import may_have_changed
from spark_resources.model import EXPIRED_OBJECTS, RANGE_REFS
from spark_resources.spark.datasets import Dataset
from spark_resources.spark.remote_errors import errors_from_executors

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

MAX_NAMED = 10  # addresses in the facts of the step


def count_missed(run: MarkRun, notes: StepNotes, expired: Dataset) -> None:
    """Record how many expired objects an incremental mark would have missed in place of this full one, with examples,
    or why this can't be determined.

    There are none unless an object was written into a slice long after the slice was opened, which lakeFS doesn't do.
    """
    if not run.mark.record.basis["chain"]:
        return
    try:
        chain = MarkChain.recorded(run)
        with errors_from_executors():
            missed_objects = run.persist(missed(run, chain, run.read_dataset(expired, EXPIRED_OBJECTS)))
            notes.facts["missed"] = missed_objects.count()
            notes.facts["missed_names"] = [
                row["address"] for row in missed_objects.orderBy("address").limit(MAX_NAMED).collect()
            ]
    except UNREADABLE as error:
        notes.facts["missed_unknown"] = str(error)
        return
    if notes.facts["missed"]:
        run.log_message(
            f"{plural(notes.facts['missed'], 'object')} would have been missed by an incremental mark since "
            f"mark {chain.base.mark_id}"
        )


def missed(run: MarkRun, chain: MarkChain, expired: DataFrame) -> DataFrame:
    """The expired objects (column address) that wouldn't be candidates of an incremental mark with this chain."""
    from pyspark.sql import functions as F

    live = frozenset(row["range_id"] for row in run.rows("committed_addresses", RANGE_REFS, "ranges"))
    no_longer_live, restored = chain.addresses(chain.committed_at_base - live), chain.expired_in_restored_marks()
    known = chain.not_retained().select("address").union(no_longer_live).union(restored.select("address"))
    top = F.split_part(slice_column(F.col("address")), F.lit("/"), F.lit(2))
    deepest = F.regexp_extract("address", r"([^/]+)/[^/]*$", 1)
    # under a shard (`data/!…/`), the time is in the name of the deepest folder
    name = F.when(top.startswith("!"), deepest).otherwise(top).alias("name")
    unknown = run.persist(expired.select("address", name).transform(garbage.without_addresses_in(known)))
    names = [row["name"] for row in unknown.select("name").distinct().collect()]
    not_listed = [name for name in names if not would_be_listed(name, chain.base.start)]
    return unknown.where(unknown["name"].isin(not_listed)).select("address")


def would_be_listed(name: str, since: datetime) -> bool:
    """Whether an incremental mark lists a folder of this name; "" stands for the root and for objects directly in
    `data/`."""
    return not name or may_have_changed(name, since)
