"""Why an object is expired: which expired commit kept it longest, and by which branch's rule that commit went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakegc_assets import mark
from lakegc_assets.marking.metaranges import refs_of
from lakegc_assets.marking.run import MarkRun, StepNotes
from lakegc_assets.marking.since import Base
from spark_resources.datasets import arrow_to_spark, write_rows
from spark_resources.entries import paths_of, row_tasks
from spark_resources.errors import DamagedData
from spark_resources.executors import errors_from_executors
from spark_resources.model import (
    ADDRESSES,
    COMMIT_VERDICTS,
    EXPIRED_OBJECTS,
    RANGE_IDS,
    RANGE_REFS,
    Scope,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEW = 250_000
VERDICT = ("commit_id", "branch", "days", "until")
_VERDICT_FIELDS = [COMMIT_VERDICTS.field(name) for name in VERDICT]
EXPIRED_ADDRESSES = pa.schema([*ADDRESSES, *_VERDICT_FIELDS, EXPIRED_OBJECTS.field("path")])
EXPIRED_RANGES = pa.schema([*RANGE_REFS, *_VERDICT_FIELDS])
EXPLAINED_PART = "explained"


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
    commits = [row for row in verdicts if is_expired(row)]
    if not commits or not notes.facts["unsettled"]:
        write_explained(run, notes, [])
        return nothing
    try:
        with errors_from_executors():
            base = Base.of(run) if run.mark.record.optimized else None
            ranges = only_expired(run, commits, base)
            few = addresses_if_few(needed, notes.facts["unsettled"])
            found = addresses_in(run, ranges, wanted=few)
            if base is not None:
                found = found.unionByName(told_before(run, base, verdicts))
            found = run.keep(found.transform(mark.only(needed)))
            notes.facts["explained_by_commits"] = found.count()
            write_explained(run, notes, ranges["range_id"].to_pylist())
            return found
    except DamagedData as error:
        if run.mark.record.scope is Scope.COMMITTED:
            raise
        notes.facts["unexplained"] = str(error)
        write_explained(run, notes, [])
        return nothing


def is_expired(verdict: dict[str, Any]) -> bool:
    """Whether the rules let a commit go that has objects."""
    return bool((verdict["hold"] or not verdict["retained"]) and verdict["metarange_id"])


def only_expired(run: MarkRun, commits: list[dict[str, Any]], base: Base | None) -> pa.Table:
    """The ranges that expired commits alone hold, with the commit that kept each one longest (EXPIRED_RANGES).

    Without those that an earlier mark explained its unsettled objects by.
    """
    from pyspark.sql import functions as F

    spark = run.spark()
    live = {row["range_id"] for row in run.rows("committed_addresses", RANGE_REFS, "ranges")}
    told: frozenset[str] = frozenset()
    if base is not None:
        told = base.explained - base.counted  # what was live again in between had nothing left to explain
        then = {row["commit_id"] for row in base.verdicts() if is_expired(row)}
        if base.newest.step("expired_set").facts["unsettled"]:  # otherwise nobody looked at what they held
            commits = [row for row in commits if row["commit_id"] not in then]
    judged = row_tasks(spark, pa.Table.from_pylist(commits, schema=COMMIT_VERDICTS), batch=10_000)
    last = F.max(F.struct("until", "commit_id", "branch", "days")).alias("last")
    refs = [F.first(name).alias(name) for name in RANGE_REFS.names[1:]]
    ranges = refs_of(run, sorted({row["metarange_id"] for row in commits}), base)
    by_range = ranges.join(judged, "metarange_id").groupBy("range_id").agg(last, *refs)
    held = [row.asDict(recursive=True) for row in by_range.collect()]
    rows = [{**row, **row["last"]} for row in held if row["range_id"] not in live | told]
    return pa.Table.from_pylist(rows, schema=EXPIRED_RANGES)


def addresses_if_few(needed: DataFrame, count: int) -> pa.Array | None:
    """The needed addresses where a task can hold all of them, to look for there; None where they are too many."""
    if count > FEW:
        return None
    rows = pa.Table.from_pandas(needed.select("address").toPandas(), schema=ADDRESSES, preserve_index=False)
    return rows["address"].combine_chunks()


def addresses_in(run: MarkRun, ranges: pa.Table, *, wanted: pa.Array | None) -> DataFrame:
    """The addresses of EXPIRED_RANGES with their paths and commits (EXPIRED_ADDRESSES); with `wanted`, only those."""
    # versions of one range, which have most entries in common, come into one task: the best one tells of them
    tasks = row_tasks(run.spark(), ranges, batch=1, near=("min_key", "max_key", "range_id"))
    return paths_of(tasks, run.place, EXPIRED_ADDRESSES, best=mark.LAST, wanted=wanted)


def told_before(run: MarkRun, base: Base, verdicts: list[dict[str, Any]]) -> DataFrame:
    """What earlier marks knew of unsettled objects, with the commit's verdict of today (EXPIRED_ADDRESSES)."""
    rows = [{name: row[name] for name in VERDICT} for row in verdicts]
    today = row_tasks(run.spark(), pa.Table.from_pylist(rows, schema=pa.schema(_VERDICT_FIELDS)), batch=10_000)
    columns = ("address", "commit_id", "path")
    before = base.unsettled().select(*columns).unionByName(base.brought_back().select(*columns))
    return before.join(today, "commit_id").select(*EXPIRED_ADDRESSES.names)


def write_explained(run: MarkRun, notes: StepNotes, ranges: list[str]) -> None:
    rows = [{"range_id": one} for one in sorted(ranges)]
    notes.wrote(write_rows(run.place, run.mark.folder("expired_set", EXPLAINED_PART), rows, RANGE_IDS), EXPLAINED_PART)
