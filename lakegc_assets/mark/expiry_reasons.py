"""Why an object is expired: the expired commit that retained it longest, and the branch whose rule expired that
commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.mark.metaranges import RecordedRanges
from lakegc_assets.mark.reference_status import ReferenceStatus
from lakegc_assets.rules.expiry_reasons import ATTRIBUTIONS, sorted_verdicts, strongest_attributions
from spark_resources.errors import DamagedData
from spark_resources.lakefs.ranges import metarange_reader, metarange_tasks, paths_of, range_tasks
from spark_resources.model import COMMIT_VERDICTS, RANGE_IDS, RANGE_REFS, Scope
from spark_resources.spark.arrow_shuffle import Input
from spark_resources.spark.datasets import read_rows, write_rows
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.tasks import Batches, Rows, Tasks, mapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ATTRIBUTED = "attributed"
_VERDICT = ATTRIBUTIONS.field("verdict")
EXPIRED_RANGES = pa.schema([*RANGE_REFS, _VERDICT])
_METARANGE_VERDICTS = pa.schema([COMMIT_VERDICTS.field("metarange_id"), _VERDICT])
EXPLAINED_PART = "explained"


def all_commits_read(run: MarkRun, notes: StepNotes) -> bool:
    """Whether every commit, including expired ones, was read completely. If so, an address in no commit was never
    committed."""
    return bool(run.mark.record.steps["retained_commits"].facts["graph"]) and "unexplained" not in notes.facts


@dataclass(frozen=True, slots=True)
class Attributions:
    """The expired commits that objects are attributed to (`inputs`, ATTRIBUTIONS; possibly several per address), and
    the verdicts that they refer to by position (`verdicts`, VERDICTS)."""

    inputs: tuple[Input, ...]
    verdicts: pa.Table


def attribute(run: MarkRun, notes: StepNotes, chain: MarkChain, status: ReferenceStatus) -> Attributions:
    """For each object that no retained commit refers to, find the expired commits that referred to it.

    For the scope `committed`, only attributed objects can expire, so a damaged table stops the mark. Otherwise
    attributions are just explanations: if a table is missing or damaged, that is recorded and no object is attributed.
    Commits that the rules expire but holds retain count as expired here.
    """
    verdict_rows = run.rows("retained_commits", COMMIT_VERDICTS)
    verdicts = sorted_verdicts(verdict_rows)
    no_attributions = Attributions((as_input(run, Tasks.of(run.spark, ATTRIBUTIONS.empty_table())),), verdicts)
    commits = [row for row in verdict_rows if is_expired(row)]
    if not commits or not status.not_retained_count:
        write_explained(run, notes, [])
        return no_attributions
    try:
        with errors_from_executors():
            ranges = ranges_only_in_expired_commits(run, commits, verdicts, chain)
            attributions = [attributed_in(run, ranges, status), *attributed_before(run, chain, verdicts, status)]
            inputs = tuple(as_input(run, rows) for rows in attributions)
            write_explained(run, notes, ranges["range_id"].to_pylist())
            return Attributions(inputs, verdicts)
    except DamagedData as error:
        if run.mark.record.scope is Scope.COMMITTED:
            raise
        notes.facts["unexplained"] = str(error)
        write_explained(run, notes, [])
        return no_attributions


def as_input(run: MarkRun, rows: Rows) -> Input:
    """The input with these attributions (ATTRIBUTIONS). They are read now, so that unreadable ones are noticed here."""
    rows = run.persist(rows)
    count = len(rows.table) if isinstance(rows, Tasks) else rows.count()
    return Input.of_rows(ATTRIBUTED, rows, ATTRIBUTIONS, count, reduce=strongest_attributions)


def is_expired(verdict: dict[str, Any]) -> bool:
    """Whether the rules expire this commit and it has objects."""
    return bool((verdict["hold"] or not verdict["retained"]) and verdict["metarange_id"])


def ranges_only_in_expired_commits(
    run: MarkRun, commits: list[dict[str, Any]], verdicts: pa.Table, chain: MarkChain
) -> pa.Table:
    """The ranges that only expired commits refer to, each with the verdict that retained it longest (EXPIRED_RANGES).
    `verdicts` is the result of `sorted_verdicts`.

    Excludes ranges whose objects an earlier mark already attributed.
    """
    live = {row["range_id"] for row in run.rows("committed_addresses", RANGE_REFS, "ranges")}
    # the base mark attributed no object in a range that counted as committed then
    attributed = chain.attributed_ranges - chain.committed_at_base
    expired_before = {row["commit_id"] for row in chain.base_verdicts() if is_expired(row)}
    positions = dict(zip(verdicts["commit_id"].to_pylist(), range(len(verdicts)), strict=True))
    rows = [
        {"metarange_id": row["metarange_id"], "verdict": positions[row["commit_id"]]}
        for row in commits
        if row["commit_id"] not in expired_before
    ]
    ranges = ranges_with_verdicts(run, pa.Table.from_pylist(rows, schema=_METARANGE_VERDICTS), chain)
    excluded = pa.array(sorted(live | attributed), pa.string())
    return ranges.filter(pc.invert(pc.is_in(ranges["range_id"], value_set=excluded)))


def ranges_with_verdicts(run: MarkRun, verdicts: pa.Table, chain: MarkChain) -> pa.Table:
    """The ranges of these metaranges (columns metarange_id and verdict), each with the verdict that retained it longest
    (EXPIRED_RANGES). Reads only metaranges that neither this mark nor an earlier one has read."""
    recorded, read_metaranges = RecordedRanges.of(run, chain), metarange_reader(run.place)
    metaranges = set(verdicts["metarange_id"].to_pylist())
    known = metaranges & recorded.metaranges

    def by_range(ranges: pa.Table) -> pa.Table:
        rows = ranges.join(verdicts, "metarange_id", join_type="inner", use_threads=False)
        return with_strongest_verdict(rows.select(EXPIRED_RANGES.names))

    def read_by_range(batches: Batches) -> Batches:
        for batch in read_metaranges(batches):
            yield from by_range(pa.Table.from_batches([batch])).to_batches()

    result = mapped(metarange_tasks(run.spark, sorted(metaranges - known)), read_by_range, EXPIRED_RANGES)
    new = result.table if isinstance(result, Tasks) else with_strongest_verdict_on_executors(result)
    return with_strongest_verdict(pa.concat_tables([by_range(recorded.ranges_by_metarange(known)), new]))


def with_strongest_verdict(ranges: pa.Table) -> pa.Table:
    """Each range once, with the verdict on the expired commit that kept it longest (EXPIRED_RANGES)."""
    aggregations = [*((name, "first") for name in RANGE_REFS.names[1:]), ("verdict", "max")]
    grouped = ranges.group_by("range_id", use_threads=False).aggregate(aggregations)
    columns = ["range_id", *(f"{name}_{how}" for name, how in aggregations)]
    return grouped.select(columns).rename_columns(EXPIRED_RANGES.names).cast(EXPIRED_RANGES)


def with_strongest_verdict_on_executors(ranges: DataFrame) -> pa.Table:
    """Like `with_strongest_verdict`, before rows are collected: every task may have the same thousands of ranges."""
    from pyspark.sql import functions as F

    refs = [F.first(name).alias(name) for name in RANGE_REFS.names[1:]]
    by_range = ranges.groupBy("range_id").agg(F.max("verdict").alias("verdict"), *refs)
    return by_range.toArrow().select(EXPIRED_RANGES.names).cast(EXPIRED_RANGES)


def attributed_in(run: MarkRun, ranges: pa.Table, status: ReferenceStatus) -> Rows:
    """The attributions of the addresses in these ranges (EXPIRED_RANGES), as ATTRIBUTIONS. Limited to objects that no
    retained commit refers to, unless there are too many of those."""
    # versions of one range share most entries, so put them in one task, which reports the strongest attribution
    tasks = range_tasks(run.spark, ranges, order_by=("min_key", "max_key", "range_id"))
    return paths_of(tasks, run.place, ATTRIBUTIONS, rank_by=("verdict",), wanted=status.not_retained_if_few)


def attributed_before(run: MarkRun, chain: MarkChain, verdicts: pa.Table, status: ReferenceStatus) -> list[Rows]:
    """Attributions of earlier marks, with each commit's current verdict (ATTRIBUTIONS), leaving out commits without
    one. Limited to objects that no retained commit refers to, unless there are too many of those."""
    commits, wanted = verdicts["commit_id"].combine_chunks(), status.not_retained_if_few

    def attributed(reasons: pa.Table) -> pa.Table:
        if wanted is not None:
            reasons = reasons.filter(pc.is_in(reasons["address"], value_set=wanted))
        verdict = pc.index_in(reasons["commit_id"], value_set=commits).cast(pa.int64())
        rows = pa.table([reasons["address"], verdict, reasons["path"]], ATTRIBUTIONS.names)
        return rows.filter(pc.is_valid(verdict)).cast(ATTRIBUTIONS)

    reasons = chain.reason_datasets() if chain.marks else []
    return [read_rows(run.spark, run.place, [dataset], schema, attributed, ATTRIBUTIONS) for dataset, schema in reasons]


def write_explained(run: MarkRun, notes: StepNotes, ranges: list[str]) -> None:
    rows = [{"range_id": range_id} for range_id in sorted(ranges)]
    notes.add_dataset(
        write_rows(run.place, run.mark.folder("expired_set", EXPLAINED_PART), rows, RANGE_IDS), EXPLAINED_PART
    )
