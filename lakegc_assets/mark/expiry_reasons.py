"""Why an object is expired: which expired commit retained it longest, and which branch's rule expired that commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.candidates import Candidates
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.mark.metaranges import refs_of
from lakegc_assets.mark.reference_status import ReferenceStatus
from lakegc_assets.rules import garbage
from lakegc_assets.rules.expiry_reasons import ATTRIBUTIONS, in_order
from lakegc_assets.rules.incremental import union
from spark_resources.errors import DamagedData
from spark_resources.lakefs.ranges import paths_of, range_tasks
from spark_resources.model import COMMIT_VERDICTS, RANGE_IDS, RANGE_REFS, Scope
from spark_resources.spark.datasets import write_rows
from spark_resources.spark.partitioning import row_tasks
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.tasks import no_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VERDICT = ATTRIBUTIONS.field("verdict")
EXPIRED_RANGES = pa.schema([*RANGE_REFS, _VERDICT])
_JUDGED = pa.schema([COMMIT_VERDICTS.field("metarange_id"), _VERDICT])
_PLACES = pa.schema([COMMIT_VERDICTS.field("commit_id"), _VERDICT])
EXPLAINED_PART = "explained"


def all_known(run: MarkRun, notes: StepNotes) -> bool:
    """Whether every commit, expired ones included, was read completely. If so, an address in no commit was never
    committed."""
    return bool(run.mark.record.steps["retained_commits"].facts["graph"]) and "unexplained" not in notes.facts


@dataclass(frozen=True, slots=True)
class Attributions:
    """The expired commits that objects are attributed to (`rows`, ATTRIBUTIONS; possibly several per address), and the
    verdicts that they refer to by position (`verdicts`, VERDICTS)."""

    rows: DataFrame
    verdicts: pa.Table

    def in_scope(self, unreferenced: DataFrame, scope: Scope) -> DataFrame:
        """The objects that a mark of this scope may expire."""
        return unreferenced.transform(garbage.only(self.rows)) if scope is Scope.COMMITTED else unreferenced


def attribute(run: MarkRun, notes: StepNotes, candidates: Candidates, status: ReferenceStatus) -> Attributions:
    """Attribute objects that no retained commit refers to, to the expired commits that did.

    For the scope `committed` these objects are the candidates, so a damaged table stops the mark. Otherwise they are
    only explanations: an unreadable table is reported, and its objects are left unexplained. Commits that the rules
    expire but holds retain count as expired here.
    """
    nothing = no_rows(run.spark(), ATTRIBUTIONS)
    verdicts = run.rows("retained_commits", COMMIT_VERDICTS)
    ordered = in_order(verdicts)
    commits = [row for row in verdicts if is_expired(row)]
    if not commits or not status.not_committed_count:
        write_explained(run, notes, [])
        return Attributions(nothing, ordered)
    try:
        with errors_from_executors():
            ranges = only_expired(run, commits, ordered, candidates.chain)
            found = attributed_in(run, ranges, status)
            before = attributed_before(run, candidates, ordered)
            found = union([found, *(one.transform(garbage.only(status.not_committed)) for one in before)])
            notes.facts["explained_by_commits"] = run.persist(found).count()
            write_explained(run, notes, ranges["range_id"].to_pylist())
            return Attributions(found, ordered)
    except DamagedData as error:
        if run.mark.record.scope is Scope.COMMITTED:
            raise
        notes.facts["unexplained"] = str(error)
        write_explained(run, notes, [])
        return Attributions(nothing, ordered)


def is_expired(verdict: dict[str, Any]) -> bool:
    """Whether the rules expire this commit and it has objects."""
    return bool((verdict["hold"] or not verdict["retained"]) and verdict["metarange_id"])


def only_expired(run: MarkRun, commits: list[dict[str, Any]], ordered: pa.Table, chain: MarkChain) -> pa.Table:
    """The ranges that only expired commits have, each with the verdict that retained it longest (EXPIRED_RANGES).

    Excludes ranges that an earlier mark already attributed objects to.
    """
    from pyspark.sql import functions as F

    live = {row["range_id"] for row in run.rows("committed_addresses", RANGE_REFS, "ranges")}
    explained = chain.explained - chain.counted  # a range that was live again in between explained nothing
    then = {row["commit_id"] for row in chain.explained_verdicts() if is_expired(row)}
    commits = [row for row in commits if row["commit_id"] not in then]
    place = dict(zip(ordered["commit_id"].to_pylist(), range(len(ordered)), strict=True))
    rows = [{"metarange_id": row["metarange_id"], "verdict": place[row["commit_id"]]} for row in commits]
    judged = row_tasks(run.spark, pa.Table.from_pylist(rows, schema=_JUDGED), batch=10_000).frame()
    refs = [F.first(name).alias(name) for name in RANGE_REFS.names[1:]]
    ranges = refs_of(run, sorted({row["metarange_id"] for row in commits}), chain)
    last = F.max("verdict").alias("verdict")
    by_range = ranges.join(judged, "metarange_id").groupBy("range_id").agg(last, *refs)
    found = by_range.toArrow().select(EXPIRED_RANGES.names).cast(EXPIRED_RANGES)
    known = pa.array(sorted(live | explained), pa.string())
    return found.filter(pc.invert(pc.is_in(found["range_id"], value_set=known)))


def attributed_in(run: MarkRun, ranges: pa.Table, status: ReferenceStatus) -> DataFrame:
    """The objects that no retained commit refers to, with their attributions from EXPIRED_RANGES (ATTRIBUTIONS)."""
    # versions of one range share most entries, so put them in one task, which reports the best attribution
    tasks = range_tasks(run.spark, ranges, order_by=("min_key", "max_key", "range_id"))
    wanted = status.few_not_committed
    found = paths_of(tasks, run.place, ATTRIBUTIONS, best=("verdict",), wanted=wanted)
    return found if wanted is not None else found.transform(garbage.only(status.not_committed))


def attributed_before(run: MarkRun, candidates: Candidates, ordered: pa.Table) -> list[DataFrame]:
    """Attributions of earlier marks, with each commit's current verdict (ATTRIBUTIONS)."""
    places = pa.table([ordered["commit_id"], pa.array(range(len(ordered)), pa.int64())], schema=_PLACES)
    today = row_tasks(run.spark, places, batch=10_000).frame()
    return [before.join(today, "commit_id").select(*ATTRIBUTIONS.names) for before in candidates.reasons_before()]


def write_explained(run: MarkRun, notes: StepNotes, ranges: list[str]) -> None:
    rows = [{"range_id": one} for one in sorted(ranges)]
    notes.wrote(write_rows(run.place, run.mark.folder("expired_set", EXPLAINED_PART), rows, RANGE_IDS), EXPLAINED_PART)
