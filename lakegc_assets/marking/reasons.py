"""Why an object is expired: which expired commit kept it longest, and by which branch's rule that commit went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakegc_assets import mark
from lakegc_assets.marking.run import MarkRun, StepNotes
from spark_resources.datasets import arrow_to_spark
from spark_resources.entries import paths_of, ranges_of, row_tasks
from spark_resources.errors import DamagedData
from spark_resources.executors import errors_from_executors
from spark_resources.model import ADDRESSES, COMMIT_VERDICTS, EXPIRED_OBJECTS, RANGE_REFS, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERDICT = ("commit_id", "branch", "days", "until")
_VERDICT_FIELDS = [COMMIT_VERDICTS.field(name) for name in VERDICT]
EXPIRED_ADDRESSES = pa.schema([*ADDRESSES, *_VERDICT_FIELDS, EXPIRED_OBJECTS.field("path")])
EXPIRED_RANGES = pa.schema([*RANGE_REFS, *_VERDICT_FIELDS])


def all_known(run: MarkRun, notes: StepNotes) -> bool:
    """Whether every commit was read, expired ones too, and all that these hold: then what isn't there never was."""
    return bool(run.mark.record.steps["retained_commits"].facts["graph"]) and "unexplained" not in notes.facts


def expired_addresses(run: MarkRun, notes: StepNotes, *, needed: DataFrame) -> DataFrame:
    """Which of the needed addresses ranges of expired commits hold (EXPIRED_ADDRESSES; one may stand there twice).

    For the scope `committed` they are the candidates, so a damaged table stops the mark; otherwise they only explain,
    and what can't be read is said and left unexplained. What the rules let go and holds keep counts as expired here.
    """
    nothing = run.spark().createDataFrame([], arrow_to_spark(EXPIRED_ADDRESSES))
    verdicts = run.rows("retained_commits", COMMIT_VERDICTS)
    commits = [row for row in verdicts if (row["hold"] or not row["retained"]) and row["metarange_id"]]
    if not commits or not notes.facts["unreferenced"]:
        return nothing
    try:
        with errors_from_executors():
            found = only_expired(run, commits).transform(mark.only(needed)).persist()
            notes.facts["explained_by_commits"] = found.count()
            return found
    except DamagedData as error:
        if run.mark.record.scope is Scope.COMMITTED:
            raise
        notes.facts["unexplained"] = str(error)
        return nothing


def only_expired(run: MarkRun, commits: list[dict[str, Any]]) -> DataFrame:
    """The addresses of ranges that expired commits alone hold, with paths and the commit that kept each one longest."""
    from pyspark.sql import functions as F

    spark = run.spark()
    metaranges = sorted({row["metarange_id"] for row in commits})
    live = {row["range_id"] for row in run.rows("committed_addresses", RANGE_REFS, "ranges")}
    judged = row_tasks(spark, pa.Table.from_pylist(commits, schema=COMMIT_VERDICTS), batch=10_000)
    last = F.max(F.struct("until", "commit_id", "branch", "days")).alias("last")
    refs = [F.first(name).alias(name) for name in RANGE_REFS.names[1:]]
    ranges = ranges_of(spark, run.place, metaranges).join(judged, "metarange_id").groupBy("range_id").agg(last, *refs)
    with errors_from_executors():
        held = [row.asDict(recursive=True) for row in ranges.collect() if row["range_id"] not in live]
    table = pa.Table.from_pylist([{**row, **row["last"]} for row in held], schema=EXPIRED_RANGES)
    known = row_tasks(spark, table, batch=1)
    return (
        paths_of(known, run.place).join(known.select("range_id", *VERDICT), "range_id").select(*EXPIRED_ADDRESSES.names)
    )
