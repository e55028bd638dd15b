"""Why an object is expired: which expired commit kept it longest, and by which branch's rule that commit went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.marking.run import MarkRun, StepNotes
from spark_resources.datasets import arrow_to_spark
from spark_resources.entries import addresses_of, ranges_of
from spark_resources.errors import DamagedData
from spark_resources.model import COMMIT_VERDICTS, RANGE_REFS, Scope
from spark_resources.executors import errors_from_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXPIRED_ADDRESSES = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        *(COMMIT_VERDICTS.field(name) for name in ("commit_id", "branch", "days", "until")),
    ]
)


def graph_known(run: MarkRun) -> bool:
    """Whether every commit was read, expired ones too."""
    return bool(run.mark.record.steps["retained_commits"].facts["graph"])


def expired_addresses(run: MarkRun, notes: StepNotes) -> DataFrame:
    """The addresses that ranges of expired commits alone hold (EXPIRED_ADDRESSES; an address may stand there twice).

    For the scope `committed` they are the candidates, so a damaged table stops the mark; otherwise they only explain,
    and what can't be read is said and left unexplained.
    """
    try:
        with errors_from_executors():
            found = _expired_addresses(run).persist()
            found.count()
            return found
    except DamagedData as error:
        if run.mark.record.scope is Scope.COMMITTED:
            raise
        notes.facts["unexplained"] = str(error)
        return run.spark().createDataFrame([], arrow_to_spark(EXPIRED_ADDRESSES))


def _expired_addresses(run: MarkRun) -> DataFrame:
    from pyspark.sql import functions as F

    commits = run.read("retained_commits", COMMIT_VERDICTS).where("not retained and metarange_id <> ''")
    metaranges = [row["metarange_id"] for row in commits.select("metarange_id").dropDuplicates().collect()]
    if not metaranges:
        return run.spark().createDataFrame([], arrow_to_spark(EXPIRED_ADDRESSES))
    live = run.read("committed_addresses", RANGE_REFS, "ranges").select("range_id")
    ranges = ranges_of(run.spark(), run.place, metaranges).join(live, "range_id", "left_anti").persist()
    last = F.max(F.struct("until", "commit_id", "branch", "days")).alias("last")
    verdicts = ranges.join(commits, "metarange_id").groupBy("range_id").agg(last)
    distinct = ranges.select(*RANGE_REFS.names).dropDuplicates(["range_id"])
    return addresses_of(distinct, run.place).join(verdicts, "range_id").select("address", "last.*").select(
        *EXPIRED_ADDRESSES.names
    )
