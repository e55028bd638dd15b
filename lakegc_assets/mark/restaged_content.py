"""Re-staged identical content: objects that a branch serves although no list contains them (formats §2; invariant 2).

The server's list of staged addresses is a diff by content. It omits a staged object that equals the committed one at
its path, yet the branch serves the staged address. So every path whose committed entry has the size of an unreferenced
object is probed on the server; without a clear result, every object of that size is kept.

Paths are probed in two passes. If an object is moved from one such path to another, one pass may miss it at both, but
the other one finds it: if it is moved before the end of the first pass, it is at the new path during the whole second
pass; if it is moved later, it was at the old path during the whole first pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark import keep_facts, other_repository_heads
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.keep_facts import KeepFacts, ObjectsToDecide
from lakegc_assets.mark.mark_chain import SIZES, UNREADABLE, MarkChain
from lakegc_assets.mark.metaranges import RecordedRanges
from lakegc_assets.mark.path_probes import PROBED_PARTS, probe_batches
from lakegc_assets.mark.retained_commits import HEADS_PART
from lakegc_assets.rules import keep_reasons, path_probes
from lakegc_assets.rules.incremental import union
from spark_resources.lakefs.ranges import (
    distinct_refs,
    entries_of_size,
    metarange_reader,
    metarange_tasks,
    range_number,
    range_tasks,
    ranges_by_size,
)
from spark_resources.model import (
    BRANCH_RANGES,
    HEADS,
    METARANGE_RANGES,
    RANGE_REFS,
    RANGES_OF_METARANGES,
    SERVED,
)
from spark_resources.spark.arrow_shuffle import Input
from spark_resources.spark.datasets import Dataset, Producer, read_rows, write_dataset, write_produced
from spark_resources.spark.partitioning import row_tasks
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Tasks, collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = dict[str, Any]

PATH_COLUMNS = ("repository", "branch", "path", "size")
MAX_SIZES = 1_000_000  # 8 MB, broadcast to every task
MIN_PATHS_PER_TASK = 100
FEW_PATHS = 10_000
SERVED_INSIDE = pa.schema(
    [field.with_nullable(False) for field in map(SERVED.field, ("address", "repository", "branch"))]
)
PASSES = tuple(zip(PROBED_PARTS, ("not_probed", "not_probed_again"), strict=True))
"""For each pass, the parts with the probe results and with the paths beyond the limit."""
MAX_REASONS = 20  # maximum number of reasons for unclear probes in the facts; the datasets have all
LIMIT_REASON = "there are more paths to probe than LAKEGC_MAX_PROBES allows"


def look_up(run: MarkRun, notes: StepNotes, objects: ObjectsToDecide, chain: MarkChain) -> KeepFacts | None:
    """Keep the objects that branches serve, or may serve, at the probed paths.

    Paths are probed in two passes. Each also covers the heads and repositories that are new by then.
    """
    facts = notes.facts
    facts |= {"probes": 0, "probed_again": 0, "not_probed": 0, "probes_failed": 0, "served_inside": 0, "unclear": []}
    paths, sizes, probed = PathsToProbe(run, notes, chain), Sizes(run, objects.sizes()), list[Dataset]()
    for again, parts in enumerate(PASSES):
        if facts["served_inside"] or facts["unclear"]:
            sizes = Sizes(run, objects.with_facts({keep_reasons.BRANCH: served(run, notes, probed)}).sizes())
        probed += probe_paths(run, notes, paths.to_probe(sizes), parts, again=bool(again))
    return served(run, notes, probed) if probed else None


def served(run: MarkRun, notes: StepNotes, probed: Sequence[Dataset]) -> KeepFacts:
    """Keep the objects that these probe results (SERVED) name, or leave unclear."""
    name, inconclusive = keep_reasons.BRANCH.name, keep_reasons.INCONCLUSIVE_SIZES.empty_table()
    if notes.facts["unclear"]:
        inconclusive = inconclusive_sizes(run, probed)
    inside = Input.selected(name, run.place, probed, SERVED, SERVED_INSIDE, served_inside)
    return KeepFacts(keep_reasons.served(name, inconclusive), (inside,))


def served_inside(probed: pa.Table) -> pa.Table:
    """The addresses inside the namespace that probes found (SERVED_INSIDE)."""
    return probed.filter(pc.is_valid(probed["address"])).select(SERVED_INSIDE.names).cast(SERVED_INSIDE)


def inconclusive_sizes(run: MarkRun, probed: Sequence[Dataset]) -> pa.Table:
    """The sizes for which at least one probe was inconclusive (INCONCLUSIVE_SIZES)."""
    columns = keep_reasons.INCONCLUSIVE_SIZES
    by_file = read_rows(run.spark, run.place, probed, SERVED, keep_reasons.inconclusive_sizes, columns)
    return keep_reasons.inconclusive_sizes(collected(by_file, lambda batches: batches, columns))


@dataclass(frozen=True)
class Sizes:
    """The distinct sizes of objects; `every` has all of them, on the driver."""

    run: MarkRun
    every: pa.Array

    @property
    def few(self) -> pa.Array | None:
        """All sizes; None if there are too many to send to every task."""
        return self.every if len(self.every) <= MAX_SIZES else None

    @cached_property
    def rows(self) -> DataFrame:
        """All sizes as a DataFrame, for joins (column size)."""
        table = pa.table([self.every], schema=keep_facts.SIZES)
        return row_tasks(self.run.spark, table, batch=MAX_SIZES).frame()


def probe_paths(
    run: MarkRun, notes: StepNotes, to_probe: FoundPaths | None, parts: tuple[str, str], *, again: bool
) -> list[Dataset]:
    """Write the addresses that branches serve at these paths, and the paths beyond the limit (both SERVED)."""
    part, beyond_part = parts
    datasets, facts, unclear_reasons = list[Dataset](), notes.facts, list[str]()
    facts["probed_again" if again else "probes"] = to_probe.count if to_probe is not None else 0
    if to_probe is None or not to_probe.count:
        return []
    paths, count = to_probe.rows, to_probe.count
    if count > run.limits.probes:
        beyond = run.persist(path_probes.beyond_bound(paths, run.limits.probes))
        unsent = path_probes.not_sent(paths.join(beyond, "size", "left_semi"), LIMIT_REASON)
        datasets.append(write_dataset(unsent, run.place, run.mark.folder("expired_set", beyond_part), SERVED))
        notes.add_dataset(datasets[0], beyond_part)
        facts["not_probed"] += datasets[0].rows
        unclear_reasons.append(unclear_sentence(datasets[0].rows, LIMIT_REASON))
        paths = paths.join(beyond, "size", "left_anti")
    to_send = count - sum(dataset.rows for dataset in datasets)
    run.log_message(f"probing branches{' once more' if again else ''}: {plural(to_send, 'path')}")
    folder, few = run.mark.folder("expired_set", part), to_probe.few if to_send == count else None
    tasks = in_path_order(run, paths, to_send) if few is None else few_in_path_order(run, few)
    results, report = write_produced(tasks, probe_producer(run), run.place, folder, SERVED)
    notes.add_dataset(results, part)
    facts["served_inside"] += report.counters["inside"]
    if failed := report.counters["unanswered"]:
        facts["probes_failed"] += failed
        unclear_reasons += frequent_reasons(run, results)
    for reason in unclear_reasons:
        run.log_message(reason)
    facts["unclear"] += unclear_reasons
    return [results, *datasets]


def unclear_sentence(probes: int, why: str) -> str:
    """The message for an operator about probes without a clear result."""
    return f"{probes:,} path probes have no clear result, so every object that may be served there is kept: {why}"


def frequent_reasons(run: MarkRun, results: Dataset) -> list[str]:
    """Why probes have no clear result, with counts, most frequent reasons first."""
    from pyspark.sql import functions as F

    rows = run.read_dataset(results, SERVED).where(F.col("unclear").isNotNull()).groupBy("unclear").count()
    most_frequent = rows.orderBy(F.desc("count"), "unclear").limit(MAX_REASONS).collect()
    return [unclear_sentence(row["count"], row["unclear"]) for row in most_frequent]


@dataclass(frozen=True, slots=True)
class FoundPaths:
    """Paths to probe (columns repository, branch, path, size): persisted `rows`, their number, and the same as a table
    if there are few."""

    rows: DataFrame
    count: int
    few: pa.Table | None

    @classmethod
    def of(cls, rows: DataFrame) -> FoundPaths:
        first_rows = rows.limit(FEW_PATHS + 1).toArrow().select(list(PATH_COLUMNS))
        return cls(rows, len(first_rows), first_rows) if len(first_rows) <= FEW_PATHS else cls(rows, rows.count(), None)


@dataclass(slots=True)
class PathsToProbe:
    """The paths to probe, at every head seen so far, in this and other repositories."""

    run: MarkRun
    notes: StepNotes
    chain: MarkChain
    heads: list[Row] = field(default_factory=list)
    heads_elsewhere: set[tuple[str, str, str]] = field(default_factory=set)
    sizes: Sizes | None = None
    paths: FoundPaths | None = None

    def to_probe(self, sizes: Sizes) -> FoundPaths | None:
        """The paths where an entry has one of these sizes; None if there are none. `sizes` are those of the previous
        call or fewer. Heads are listed on every call, but only new ones are read."""
        if not len(sizes.every):
            return None
        own_paths = paths_at_heads(self.run, self._new_heads(), sizes, self.chain)
        paths_elsewhere = other_repository_heads.paths_to_probe(
            self.run, self.notes, sizes.rows, sizes.few, self.heads_elsewhere
        )
        new = [rows.select(*PATH_COLUMNS) for rows in (own_paths, paths_elsewhere) if rows is not None]
        if new or sizes is not self.sizes:
            paths = [*self._known(sizes), *new]
            rows = self.run.persist(union(paths).dropDuplicates()) if paths else None
            self.sizes, self.paths = sizes, FoundPaths.of(rows) if rows is not None else None
        return self.paths

    def _known(self, sizes: Sizes) -> list[DataFrame]:
        """The paths known so far that have one of these sizes."""
        if self.paths is None:
            return []
        rows = self.paths.rows
        return [rows if sizes is self.sizes else rows.join(sizes.rows, "size", "left_semi").select(*PATH_COLUMNS)]

    def _new_heads(self) -> list[Row]:
        """The current heads (HEADS) that were not seen yet. The first call also includes those that the mark
        recorded."""
        run, repository = self.run, self.run.partition.repository
        new = [] if self.heads else run.rows("retained_commits", HEADS, HEADS_PART)
        known = [*self.heads, *new]
        seen = {(row["branch"], row["commit_id"]) for row in known}
        metaranges = {row["commit_id"]: row["metarange_id"] for row in known}
        for branch, head in sorted(run.lakefs.branches(repository).items()):
            if (branch, head) not in seen:
                if head not in metaranges:
                    metaranges[head] = run.lakefs.commit(repository, head).metarange_id
                new.append({"branch": branch, "commit_id": head, "metarange_id": metaranges[head]})
        self.heads += new
        return new


def paths_at_heads(run: MarkRun, heads: Sequence[Row], sizes: Sizes, chain: MarkChain) -> DataFrame | None:
    """The paths to probe at these heads (HEADS) of this repository; None if none has objects of a wanted size."""
    from pyspark.sql import functions as F

    heads = [row for row in heads if row["metarange_id"]]
    if not heads:
        return None
    recorded, branches = RecordedRanges.of(run, chain), pa.Table.from_pylist(heads, schema=HEADS)
    metaranges = {row["metarange_id"] for row in heads}
    known = metaranges & recorded.metaranges
    tasks, read_metaranges = metarange_tasks(run.spark, sorted(metaranges - known)), metarange_reader(run.place)
    few, many = METARANGE_RANGES.empty_table(), None
    if tasks.is_here:
        few = tasks.collected(read_metaranges, METARANGE_RANGES)
    else:  # each branch may have thousands of ranges, most of them shared
        many = run.persist(tasks.mapped(read_metaranges, METARANGE_RANGES))
    unknown = (
        few.select(RANGE_REFS.names)
        if many is None
        else many.select(*RANGE_REFS.names).dropDuplicates().toArrow().cast(RANGE_REFS)
    )
    refs = distinct_refs(pa.concat_tables([recorded.ranges_of(known), unknown]))
    refs = refs.filter(may_contain_size(run, refs["range_id"].to_pylist(), sizes.few, chain, recorded))
    if not len(refs):
        return None
    known_pairs = recorded.pairs_with(known, refs["range_id"].to_pylist())
    pairs = pa.concat_tables([known_pairs, few.select(RANGES_OF_METARANGES.names)])
    joined = pairs.join(branches, "metarange_id", join_type="inner", use_threads=False)
    distinct_pairs = joined.group_by(BRANCH_RANGES.names, use_threads=False).aggregate([]).cast(BRANCH_RANGES)
    branch_ranges = row_tasks(run.spark, distinct_pairs, batch=10_000).frame()
    if many is not None:
        new = many.join(row_tasks(run.spark, branches, batch=10_000).frame(), "metarange_id")
        branch_ranges = branch_ranges.unionByName(new.select(*BRANCH_RANGES.names)).dropDuplicates()
    own_repository = F.lit(run.partition.repository)
    return path_probes.probes(
        entries_of_size(range_tasks(run.spark, refs), run.place, sizes.few).withColumn("repository", own_repository),
        branch_ranges.withColumn("repository", own_repository),
        sizes.rows,
    )


def may_contain_size(
    run: MarkRun, ranges: Sequence[str], wanted: pa.Array | None, chain: MarkChain, recorded: RecordedRanges
) -> pa.Array:
    """Whether each range may have an entry of a wanted size; true if its sizes weren't recorded.

    Reading a range is always safe, so errors in the recorded sizes of an earlier mark are ignored.
    """
    if wanted is None:
        return pa.repeat(True, len(ranges))
    datasets = chain.sizes
    if SIZES[1] in run.mark.record.step(SIZES[0]).datasets:
        datasets.append(run.mark.dataset(*SIZES))
    known, matching = set[int](), set[int]()
    for dataset in datasets:
        with suppress(*UNREADABLE):
            numbers, numbers_of_size = ranges_by_size(run.place, dataset, wanted)
            known |= numbers
            matching |= numbers_of_size
    ambiguous = {number for number, ids in Counter(map(range_number, {*recorded.refs, *ranges})).items() if ids > 1}
    known -= ambiguous  # several ranges share the number, so its sizes are ambiguous
    return pa.array([number in matching or number not in known for number in map(range_number, ranges)], pa.bool_())


def few_in_path_order(run: MarkRun, paths: pa.Table) -> Tasks:
    return row_tasks(run.spark, paths, batch=MIN_PATHS_PER_TASK, order_by=PATH_COLUMNS[:3])


def in_path_order(run: MarkRun, paths: DataFrame, count: int) -> DataFrame:
    """The `count` rows of `paths`, sorted by path and range-partitioned into at most two tasks per core."""
    tasks = min(2 * run.spark().sparkContext.defaultParallelism, 1 + count // MIN_PATHS_PER_TASK)
    return paths.repartitionByRange(tasks, *PATH_COLUMNS[:3]).sortWithinPartitions(*PATH_COLUMNS[:3])


def probe_producer(run: MarkRun) -> Producer:
    lakefs, namespace = run.lakefs, run.place.namespace

    def produce(batches: Batches, report: TaskReport) -> Batches:
        rows = (row for batch in batches for row in batch.select(list(PATH_COLUMNS)).to_pylist())
        for batch in probe_batches(rows, lakefs, namespace):
            report.count(
                unanswered=batch.num_rows - batch.column("unclear").null_count,
                inside=batch.num_rows - batch.column("address").null_count,
            )
            yield batch

    return produce
