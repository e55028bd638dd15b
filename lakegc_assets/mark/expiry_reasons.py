"""Why an object is expired: which expired commit kept it longest, and by which branch's rule that commit went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.base_mark import Base
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.metaranges import refs_of
from lakegc_assets.rules import garbage
from lakegc_assets.rules.expiry_reasons import TOLD, in_order
from spark_resources.errors import DamagedData
from spark_resources.lakefs.ranges import paths_of, range_tasks
from spark_resources.model import COMMIT_VERDICTS, RANGE_IDS, RANGE_REFS, Scope
from spark_resources.spark.datasets import no_rows, write_rows
from spark_resources.spark.partitioning import row_tasks
from spark_resources.spark.remote_errors import errors_from_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VERDICT = TOLD.field("verdict")
EXPIRED_RANGES = pa.schema([*RANGE_REFS, _VERDICT])
_JUDGED = pa.schema([COMMIT_VERDICTS.field("metarange_id"), _VERDICT])
_PLACES = pa.schema([COMMIT_VERDICTS.field("commit_id"), _VERDICT])
EXPLAINED_PART = "explained"


def all_known(run: MarkRun, notes: StepNotes) -> bool:
    """Whether every commit was read, expired ones too, and all that these hold: then what isn't there never was."""
    return bool(run.mark.record.steps["retained_commits"].facts["graph"]) and "unexplained" not in notes.facts


def told_by_expired(
    run: MarkRun, notes: StepNotes, base: Base | None, *, needed: DataFrame, few: pa.Array | None
) -> tuple[DataFrame, pa.Table]:
    """What ranges of expired commits tell of the needed addresses (TOLD; of one address maybe more than once), and the
    verdicts they name (VERDICTS). `few` are the same addresses where a task can hold all of them.

    For the scope `committed` they are the candidates, so a damaged table stops the mark; otherwise they only explain,
    and what can't be read is said and left unexplained. What the rules let go and holds keep counts as expired here.
    """
    nothing = no_rows(run.spark(), TOLD)
    verdicts = run.rows("retained_commits", COMMIT_VERDICTS)
    ordered = in_order(verdicts)
    commits = [row for row in verdicts if is_expired(row)]
    if not commits or not notes.facts["not_retained"]:
        write_explained(run, notes, [])
        return nothing, ordered
    try:
        with errors_from_executors():
            ranges = only_expired(run, commits, ordered, base)
            found = told_in(run, ranges, wanted=few)
            if few is None:
                found = found.transform(garbage.only(needed))
            if base is not None:
                found = found.unionByName(told_before(run, base, ordered).transform(garbage.only(needed)))
            notes.facts["explained_by_commits"] = run.keep(found).count()
            write_explained(run, notes, ranges["range_id"].to_pylist())
            return found, ordered
    except DamagedData as error:
        if run.mark.record.scope is Scope.COMMITTED:
            raise
        notes.facts["unexplained"] = str(error)
        write_explained(run, notes, [])
        return nothing, ordered


def is_expired(verdict: dict[str, Any]) -> bool:
    """Whether the rules let a commit go that has objects."""
    return bool((verdict["hold"] or not verdict["retained"]) and verdict["metarange_id"])


def only_expired(run: MarkRun, commits: list[dict[str, Any]], ordered: pa.Table, base: Base | None) -> pa.Table:
    """The ranges that expired commits alone hold, with the verdict that kept each one longest (EXPIRED_RANGES).

    Without those that an earlier mark explained its unsettled objects by.
    """
    from pyspark.sql import functions as F

    live = {row["range_id"] for row in run.rows("committed_addresses", RANGE_REFS, "ranges")}
    told: frozenset[str] = frozenset()
    if base is not None:
        told = base.explained - base.counted  # what was live again in between had nothing left to explain
        then = {row["commit_id"] for row in base.verdicts() if is_expired(row)}
        if base.newest.step("expired_set").facts["not_retained"]:  # otherwise nobody looked at what they held
            commits = [row for row in commits if row["commit_id"] not in then]
    place = dict(zip(ordered["commit_id"].to_pylist(), range(len(ordered)), strict=True))
    rows = [{"metarange_id": row["metarange_id"], "verdict": place[row["commit_id"]]} for row in commits]
    judged = row_tasks(run.spark(), pa.Table.from_pylist(rows, schema=_JUDGED), batch=10_000)
    refs = [F.first(name).alias(name) for name in RANGE_REFS.names[1:]]
    ranges = refs_of(run, sorted({row["metarange_id"] for row in commits}), base)
    last = F.max("verdict").alias("verdict")
    by_range = ranges.join(judged, "metarange_id").groupBy("range_id").agg(last, *refs)
    held = by_range.toArrow().select(EXPIRED_RANGES.names).cast(EXPIRED_RANGES)
    return held.filter(pc.invert(pc.is_in(held["range_id"], value_set=pa.array(sorted(live | told), pa.string()))))


def told_in(run: MarkRun, ranges: pa.Table, *, wanted: pa.Array | None) -> DataFrame:
    """What EXPIRED_RANGES tell of their addresses (TOLD); with `wanted`, only of those."""
    # versions of one range, which have most entries in common, come into one task: the best one tells of them
    tasks = range_tasks(run.spark(), ranges, near=("min_key", "max_key", "range_id"))
    return paths_of(tasks, run.place, TOLD, best=("verdict",), wanted=wanted)


def told_before(run: MarkRun, base: Base, ordered: pa.Table) -> DataFrame:
    """What earlier marks knew of unsettled objects, with the commit's verdict of today (TOLD)."""
    places = pa.table([ordered["commit_id"], pa.array(range(len(ordered)), pa.int64())], schema=_PLACES)
    today = row_tasks(run.spark(), places, batch=10_000)
    columns = ("address", "commit_id", "path")
    before = base.unsettled().select(*columns).unionByName(base.brought_back().select(*columns))
    return before.join(today, "commit_id").select(*TOLD.names)


def write_explained(run: MarkRun, notes: StepNotes, ranges: list[str]) -> None:
    rows = [{"range_id": one} for one in sorted(ranges)]
    notes.wrote(write_rows(run.place, run.mark.folder("expired_set", EXPLAINED_PART), rows, RANGE_IDS), EXPLAINED_PART)
