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
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark import other_repository_heads
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.head_paths import (
    BRANCH_HEADS,
    PAIRS,
    Heads,
    Tables,
    pairs_in,
    read_paths,
    read_ranges,
    with_metaranges,
    without_unread,
)
from lakegc_assets.mark.keep_evidence import KeepEvidence, UndecidedObjects
from lakegc_assets.mark.mark_chain import SIZES, UNREADABLE, MarkChain
from lakegc_assets.mark.metaranges import RecordedRanges
from lakegc_assets.mark.other_repositories import UnreadRepositories
from lakegc_assets.mark.path_probes import PROBED_PARTS, probe_batches
from lakegc_assets.mark.retained_commits import HEADS_PART
from lakegc_assets.rules import keep_reasons, path_probes
from lakegc_assets.rules.path_probes import PROBES_BY_SIZE, SizeSet
from spark_resources.lakefs.ranges import distinct_refs, range_number, ranges_with_sizes
from spark_resources.model import HEADS, PATHS_TO_PROBE, RANGE_REFS, SERVED
from spark_resources.spark.arrow_shuffle import Input
from spark_resources.spark.datasets import Dataset, Producer, read_rows, write_produced
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Rows, Tasks, collected, distinct_rows, filtered, moved_to_driver_if_few

Row = dict[str, Any]

MIN_PATHS_PER_TASK = 100
FEW_PATHS = 10_000
SERVED_INSIDE = pa.schema(
    [field.with_nullable(False) for field in map(SERVED.field, ("address", "repository", "branch"))]
)
UNCLEAR = pa.schema([SERVED.field("unclear"), pa.field("probes", pa.int64(), nullable=False)])
PASSES = tuple(zip(PROBED_PARTS, ("not_probed", "not_probed_again"), strict=True))
"""For each pass, the part with the probe results, and the part with the paths left out because of the limit."""
MAX_REASONS = 20  # maximum number of reasons for unclear probes in the facts; the datasets have all
LIMIT_REASON = "there are more paths to probe than LAKEGC_MAX_PROBES allows"


def look_up(run: MarkRun, notes: StepNotes, objects: UndecidedObjects, chain: MarkChain) -> KeepEvidence | None:
    """The evidence that keeps the objects that branches serve, or may serve, at the probed paths; None if there was
    nothing to probe.

    Paths are probed in two passes. Each pass also covers heads and repositories that have appeared since the previous
    one.
    """
    facts = notes.facts
    facts |= {"probes": 0, "probed_again": 0, "not_probed": 0, "probes_failed": 0, "served_inside": 0, "unclear": []}
    paths, sizes, probed = PathsToProbe(run, notes, chain), SizeSet(objects.sizes()), list[Dataset]()
    for again, parts in enumerate(PASSES):
        if facts["served_inside"] or facts["unclear"]:
            sizes = SizeSet(
                objects.with_evidence(
                    {keep_reasons.BRANCH: evidence_from_probes(run, probed, unclear=bool(facts["unclear"]))}
                ).sizes()
            )
        probed += probe_paths(run, notes, paths.to_probe(sizes), parts, again=bool(again))
    return evidence_from_probes(run, probed, unclear=bool(facts["unclear"])) if probed else None


def evidence_from_probes(run: MarkRun, probed: Sequence[Dataset], *, unclear: bool) -> KeepEvidence:
    """The evidence that keeps the objects that branches serve, or may serve, according to these probe results (SERVED).
    `unclear` says whether any of them has no clear result."""
    name, inconclusive = keep_reasons.BRANCH.name, keep_reasons.INCONCLUSIVE_SIZES.empty_table()
    if unclear:
        inconclusive = inconclusive_sizes(run, probed)
    inside = Input.selected(name, run.place, probed, SERVED, SERVED_INSIDE, served_inside)
    return KeepEvidence(keep_reasons.served(name, inconclusive), (inside,))


def served_inside(probed: pa.Table) -> pa.Table:
    """The addresses inside the namespace that probes found (SERVED_INSIDE)."""
    return probed.filter(pc.is_valid(probed["address"])).select(SERVED_INSIDE.names).cast(SERVED_INSIDE)


def inconclusive_sizes(run: MarkRun, probed: Sequence[Dataset]) -> pa.Table:
    """The sizes for which at least one probe was inconclusive (INCONCLUSIVE_SIZES)."""
    columns = keep_reasons.INCONCLUSIVE_SIZES
    by_file = read_rows(run.spark, run.place, probed, SERVED, keep_reasons.inconclusive_sizes, columns)
    return keep_reasons.inconclusive_sizes(collected(by_file, lambda batches: batches, columns))


def probe_paths(
    run: MarkRun, notes: StepNotes, paths: Rows | None, parts: tuple[str, str], *, again: bool
) -> list[Dataset]:
    """Write the addresses that branches serve at these paths (PATHS_TO_PROBE), and the paths beyond the limit. Returns
    both datasets (SERVED), as far as they were written."""
    part, beyond_part = parts
    datasets, facts, unclear_reasons = list[Dataset](), notes.facts, list[str]()
    counts = probes_by_size(paths) if paths is not None else PROBES_BY_SIZE.empty_table()
    count = facts["probed_again" if again else "probes"] = pc.sum(counts["probes"], min_count=0).as_py()
    if paths is None or not count:
        return []
    if count > run.limits.probes:
        beyond = SizeSet(path_probes.beyond_limit(counts, run.limits.probes))
        datasets.append(write_unsent_probes(run, paths, beyond, beyond_part))
        notes.add_dataset(datasets[0], beyond_part)
        facts["not_probed"] += datasets[0].rows
        unclear_reasons.append(unclear_sentence(datasets[0].rows, LIMIT_REASON))
        paths = filtered(paths, lambda batch: pc.invert(beyond.contains(batch.column("size"))), PATHS_TO_PROBE)
    to_send = count - sum(dataset.rows for dataset in datasets)
    run.log_message(f"probing branches{' once more' if again else ''}: {plural(to_send, 'path')}")
    tasks, folder = in_path_order(run, paths, to_send), run.mark.folder("expired_set", part)
    results, report = write_produced(tasks, probe_producer(run), run.place, folder, SERVED)
    notes.add_dataset(results, part)
    facts["served_inside"] += report.counters["inside"]
    if failed := report.counters["inconclusive"]:
        facts["probes_failed"] += failed
        unclear_reasons += frequent_reasons(run, results)
    for reason in unclear_reasons:
        run.log_message(reason)
    facts["unclear"] += unclear_reasons
    return [results, *datasets]


def probes_by_size(paths: Rows) -> pa.Table:
    """How many of these paths have each size (PROBES_BY_SIZE), on the driver."""

    def counts(batches: Batches) -> Batches:
        for batch in batches:
            yield from path_probes.count_by_size(pa.Table.from_batches([batch])).to_batches()

    return path_probes.sum_by_size(collected(paths, counts, PROBES_BY_SIZE))


def write_unsent_probes(run: MarkRun, paths: Rows, sizes: SizeSet, part: str) -> Dataset:
    """Write the paths with these sizes as probes without a result (SERVED)."""

    def produce(batches: Batches, _: TaskReport) -> Batches:
        for batch in batches:
            yield path_probes.unsent_probes(batch.filter(sizes.contains(batch.column("size"))), LIMIT_REASON)

    return write_produced(paths, produce, run.place, run.mark.folder("expired_set", part), SERVED)[0]


def unclear_sentence(probes: int, why: str) -> str:
    """The message for an operator about probes without a clear result."""
    return (
        f"{plural(probes, 'path probe')} had no clear result, so every object that {'it' if probes == 1 else 'they'} "
        f"might have found is kept: {why}"
    )


def frequent_reasons(run: MarkRun, results: Dataset) -> list[str]:
    """The MAX_REASONS most frequent reasons why probes have no clear result, with counts, most frequent first."""

    def reasons(probed: pa.Table) -> pa.Table:
        counts = probed.filter(pc.is_valid(probed["unclear"])).group_by("unclear").aggregate([([], "count_all")])
        return counts.rename_columns(UNCLEAR.names).cast(UNCLEAR)

    by_file = read_rows(run.spark, run.place, [results], SERVED, reasons, UNCLEAR)
    sums = collected(by_file, lambda batches: batches, UNCLEAR).group_by("unclear").aggregate([("probes", "sum")])
    most_frequent = sums.sort_by([("probes_sum", "descending"), ("unclear", "ascending")]).slice(0, MAX_REASONS)
    return [unclear_sentence(row["probes_sum"], row["unclear"]) for row in most_frequent.to_pylist()]


@dataclass(slots=True)
class PathsToProbe:
    """The paths to probe, at every head seen so far, in this and other repositories."""

    run: MarkRun
    notes: StepNotes
    chain: MarkChain
    heads: list[Row] = field(default_factory=list)
    heads_elsewhere: set[tuple[str, str, str]] = field(default_factory=set)
    sizes: SizeSet | None = None
    paths: Rows | None = None

    def to_probe(self, sizes: SizeSet) -> Rows | None:
        """The paths where an entry has one of these sizes (PATHS_TO_PROBE); None if there are none. `sizes` must be
        those of the previous call or a subset. Heads are listed on every call, but only new ones are read."""
        if not len(sizes):
            return None
        own_paths = paths_at_heads(self.run, self._new_heads(), sizes, self.chain)
        paths_elsewhere = other_repository_heads.paths_to_probe(self.run, self.notes, sizes, self.heads_elsewhere)
        new = [paths for paths in (own_paths, paths_elsewhere) if paths is not None]
        if new or sizes is not self.sizes:
            paths = distinct_rows([*self._known(sizes), *new], PATHS_TO_PROBE)
            self.sizes = sizes
            self.paths = moved_to_driver_if_few(self.run.persist(paths), FEW_PATHS) if paths is not None else None
        return self.paths

    def _known(self, sizes: SizeSet) -> list[Rows]:
        """The paths known so far that have one of these sizes."""
        if self.paths is None or sizes is self.sizes:
            return [self.paths] if self.paths is not None else []
        return [filtered(self.paths, lambda batch: sizes.contains(batch.column("size")), PATHS_TO_PROBE)]

    def _new_heads(self) -> list[Row]:
        """The current heads (HEADS) that are not in `heads` yet; adds them to it. The first call also includes those
        that the mark recorded."""
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


def paths_at_heads(run: MarkRun, heads: Sequence[Row], sizes: SizeSet, chain: MarkChain) -> Rows | None:
    """The paths to probe at these heads (HEADS) of this repository (PATHS_TO_PROBE); None if no head can have an
    object of these sizes. Ranges that this mark or an earlier one recorded are only read if they may have such
    an object."""
    repository = run.partition.repository
    heads_with_objects = [{**row, "repository": repository} for row in heads if row["metarange_id"]]
    if not heads_with_objects:
        return None
    by_metarange = Heads.of(pa.Table.from_pylist(heads_with_objects, schema=BRANCH_HEADS))
    tables = Tables({repository: run.place}, raising)
    recorded, metaranges = RecordedRanges.of(run, chain), by_metarange.metaranges
    is_recorded = pc.is_in(metaranges["metarange_id"], pa.array(sorted(recorded.metaranges), pa.string()))
    read = read_ranges(run, metaranges.filter(pc.invert(is_recorded)), tables)
    known = metaranges.filter(is_recorded)["metarange_id"].to_pylist()
    refs = distinct_refs(pa.concat_tables([recorded.ranges_of(known), read.select(RANGE_REFS.names).cast(RANGE_REFS)]))
    refs = refs.filter(may_contain_size(run, refs["range_id"].to_pylist(), sizes.as_array(), chain, recorded))
    if not len(refs):
        return None
    pairs = recorded.pairs_with(known, refs["range_id"].to_pylist())
    metarange_numbers = pc.index_in(pairs["metarange_id"], metaranges["metarange_id"].combine_chunks())
    names = pa.repeat(pa.scalar(repository), len(pairs))
    recorded_pairs = pa.table([names, pairs["range_id"], metarange_numbers], schema=PAIRS)
    ranges = with_metaranges(
        refs.add_column(0, BRANCH_HEADS.field("repository"), pa.repeat(pa.scalar(repository), len(refs))),
        pa.concat_tables([recorded_pairs, pairs_in(read)]),
    )
    return without_unread(read_paths(run, ranges, by_metarange, sizes, tables))


def raising(_repository: str, _unread: UnreadRepositories) -> AbstractContextManager[None]:
    """Let every error stop the mark: this repository must be read."""
    return nullcontext()


def may_contain_size(
    run: MarkRun, ranges: Sequence[str], wanted: pa.Array, chain: MarkChain, recorded: RecordedRanges
) -> pa.Array:
    """Whether each range may have an entry of a wanted size; true if its sizes weren't recorded.

    Reading a range is always safe, so errors in the recorded sizes of an earlier mark are ignored.
    """
    datasets = chain.size_datasets
    if SIZES[1] in run.mark.record.step(SIZES[0]).datasets:
        datasets.append(run.mark.dataset(*SIZES))
    known, matching = set[int](), set[int]()
    for dataset in datasets:
        with suppress(*UNREADABLE):
            known_here, matching_here = ranges_with_sizes(run.place, dataset, wanted)
            known |= known_here
            matching |= matching_here
    ambiguous = {number for number, ids in Counter(map(range_number, {*recorded.refs, *ranges})).items() if ids > 1}
    known -= ambiguous  # several ranges share the number, so its sizes are ambiguous
    return pa.array([number in matching or number not in known for number in map(range_number, ranges)], pa.bool_())


def in_path_order(run: MarkRun, paths: Rows, count: int) -> Rows:
    """These `count` paths, sorted by repository, branch and path, and divided among tasks."""
    order = PATHS_TO_PROBE.names[:3]
    if isinstance(paths, Tasks):
        return tasks_from_rows(run.spark, paths.table, batch_size=MIN_PATHS_PER_TASK, order_by=order)
    tasks = min(2 * run.spark().sparkContext.defaultParallelism, 1 + count // MIN_PATHS_PER_TASK)
    return paths.repartitionByRange(tasks, *order).sortWithinPartitions(*order)


def probe_producer(run: MarkRun) -> Producer:
    lakefs, namespace = run.lakefs, run.place.namespace

    def produce(batches: Batches, report: TaskReport) -> Batches:
        rows = (row for batch in batches for row in batch.to_pylist())
        for batch in probe_batches(rows, lakefs, namespace):
            report.count(
                inconclusive=batch.num_rows - batch.column("unclear").null_count,
                inside=batch.num_rows - batch.column("address").null_count,
            )
            yield batch

    return produce
