"""Identical content re-staged: objects that a branch serves although they are on no list (formats §2; invariant 2).

The server's list of staged addresses is a diff by content. It omits a staged object that equals the committed one at
its path, yet the branch serves the staged address. So every path whose committed entry has the size of an unreferenced
object is probed on the server; without a clear result, every object of that size is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.formatting import plural
from lakegc_assets.mark import other_repository_heads
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.mark_chain import SIZES, UNREADABLE, MarkChain
from lakegc_assets.mark.metaranges import WrittenDown, distinct_ranges
from lakegc_assets.mark.path_probes import PROBED_PART, answered
from lakegc_assets.mark.retained_commits import HEADS_PART
from lakegc_assets.rules import keep_reasons, path_probes
from lakegc_assets.rules.incremental import union
from lakegc_assets.rules.keep_reasons import Attribution
from spark_resources.lakefs.ranges import entries_of_size, range_number, range_tasks, ranges_by_size, ranges_of
from spark_resources.model import (
    BRANCH_RANGES,
    HEADS,
    RANGE_REFS,
    SERVED,
)
from spark_resources.spark.datasets import Batches, Dataset, Producer, write_dataset, write_produced, write_rows
from spark_resources.spark.partitioning import row_tasks
from spark_resources.spark.task_report import TaskReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MANY_SIZES = 1_000_000  # 8 MB, broadcast to every task
NOT_PROBED_PART = "not_probed"
REASONS = 20  # maximum number of reasons for unclear probes in the facts; the datasets have all
BOUND = "there are more paths to ask about than LAKEGC_MAX_PROBES allows"


def look_up(run: MarkRun, notes: StepNotes, objects: DataFrame, chain: MarkChain) -> Attribution | None:
    """Keep the objects that branches serve, or may serve, at the probed paths."""
    probed = [dataset for dataset in ask(run, notes, objects, chain) if dataset.rows]
    if not probed:
        return None
    return keep_reasons.served(union([run.read_dataset(one, SERVED) for one in probed]))


def ask(run: MarkRun, notes: StepNotes, unreferenced: DataFrame, chain: MarkChain) -> list[Dataset]:
    """Write the addresses that branches serve at the probed paths, and the paths beyond the limit (both SERVED).

    `unreferenced` are the objects (STORED_OBJECTS) that expire unless a branch serves them, `chain` the earlier marks
    of an incremental mark.
    """
    asked, folder = all_paths_to_probe(run, notes, unreferenced, chain), run.mark.folder("expired_set", PROBED_PART)
    count = run.keep(asked).count() if asked is not None else 0
    notes.facts |= {"probes": count, "not_probed": 0, "probes_failed": 0, "unclear": []}
    if asked is None or not count:
        notes.wrote(nothing := write_rows(run.place, folder, [], SERVED), PROBED_PART)
        return [nothing]
    datasets = []
    if count > run.limits.probes:
        beyond = run.keep(path_probes.beyond_bound(asked, run.limits.probes))
        unasked = path_probes.not_sent(asked.join(beyond, "size", "left_semi"), BOUND)
        datasets.append(write_dataset(unasked, run.place, run.mark.folder("expired_set", NOT_PROBED_PART), SERVED))
        notes.wrote(datasets[0], NOT_PROBED_PART)
        notes.facts["not_probed"] = datasets[0].rows
        notes.facts["unclear"] = [sentence(datasets[0].rows, BOUND)]
        asked = asked.join(beyond, "size", "left_anti")
    run.log_message(f"asking what branches serve at {plural(count - notes.facts['not_probed'], 'path')}")
    answers, report = write_produced(in_path_order(run, asked), asking(run), run.place, folder, SERVED)
    notes.wrote(answers, PROBED_PART)
    notes.facts |= {"probes_failed": report.counters["unanswered"], "served_inside": report.counters["inside"]}
    if notes.facts["probes_failed"]:
        notes.facts["unclear"] += reasons_in(run, answers)
    for why in notes.facts["unclear"]:
        run.log_message(why)
    return [answers, *datasets]


def sentence(probes: int, why: str) -> str:
    """The message for an operator about probes without a clear result."""
    return f"{probes:,} path probes have no clear answer, so every object that may be served there is kept: {why}"


def reasons_in(run: MarkRun, answers: Dataset) -> list[str]:
    """Why probes have no clear result, with counts, most frequent reasons first."""
    from pyspark.sql import functions as F

    rows = run.read_dataset(answers, SERVED).where(F.col("unclear").isNotNull()).groupBy("unclear").count()
    found = rows.orderBy(F.desc("count"), "unclear").limit(REASONS).collect()
    return [sentence(row["count"], row["unclear"]) for row in found]


def all_paths_to_probe(run: MarkRun, notes: StepNotes, unreferenced: DataFrame, chain: MarkChain) -> DataFrame | None:
    """The paths to probe, in this and other repositories (columns repository, branch, path, size); None if there are
    none."""
    sizes = unreferenced.select("size").dropDuplicates().limit(MANY_SIZES + 1).toArrow()["size"].combine_chunks()
    if not len(sizes):
        return None
    wanted = sizes if len(sizes) <= MANY_SIZES else None
    here = questions(run, unreferenced, chain, wanted)
    elsewhere = other_repository_heads.questions(run, notes, unreferenced, wanted)
    asked = [each for each in (here, elsewhere) if each is not None]
    return union(asked) if asked else None


def questions(run: MarkRun, unreferenced: DataFrame, chain: MarkChain, wanted: pa.Array | None) -> DataFrame | None:
    """The paths to probe in this repository; None if no branch has objects of a wanted size."""
    from pyspark.sql import functions as F

    heads = [row for row in run.rows("retained_commits", HEADS, HEADS_PART) if row["metarange_id"]]
    if not heads:
        return None
    spark, written, branches = run.spark(), WrittenDown.of(run, chain), pa.Table.from_pylist(heads, schema=HEADS)
    metaranges = {row["metarange_id"] for row in heads}
    known = metaranges & written.metaranges
    refs, found = written.ranges_of(known), None
    if unknown := sorted(metaranges - known):
        found = run.keep(ranges_of(spark, run.place, unknown))
        refs = pa.concat_tables([refs, distinct_ranges(found).toArrow().cast(RANGE_REFS)])
        refs = refs.group_by(RANGE_REFS.names, use_threads=False).aggregate([]).cast(RANGE_REFS)
    refs = refs.filter(may_have(run, refs["range_id"].to_pylist(), wanted, chain, written))
    if not len(refs):
        return None
    pairs = written.pairs_with(known, refs["range_id"].to_pylist())
    joined = pairs.join(branches, "metarange_id", join_type="inner", use_threads=False)
    branch_ranges = row_tasks(spark, joined.select(BRANCH_RANGES.names).cast(BRANCH_RANGES), batch=10_000)
    if found is not None:
        new = found.join(row_tasks(spark, branches, batch=10_000), "metarange_id")
        branch_ranges = branch_ranges.unionByName(new.select(*BRANCH_RANGES.names))
    heads_entries = entries_of_size(range_tasks(spark, refs), run.place, wanted)
    here = F.lit(run.partition.repository)
    return path_probes.probes(
        heads_entries.withColumn("repository", here),
        branch_ranges.dropDuplicates().withColumn("repository", here),
        unreferenced,
    )


def may_have(
    run: MarkRun, ranges: Sequence[str], wanted: pa.Array | None, chain: MarkChain, written: WrittenDown
) -> pa.Array:
    """Whether each range may have an entry of a wanted size; true if its sizes weren't recorded.

    Reading a range is always safe, so errors in the recorded sizes of an earlier mark are ignored.
    """
    if wanted is None:
        return pa.repeat(True, len(ranges))
    datasets = chain.sizes
    if SIZES[1] in run.mark.record.step(SIZES[0]).datasets:
        datasets.append(run.mark.dataset(*SIZES))
    known, having = set[int](), set[int]()
    for dataset in datasets:
        with suppress(*UNREADABLE):
            told = ranges_by_size(run.place, dataset, wanted)
            known |= told[0]
            having |= told[1]
    of_several = {number for number, ids in Counter(map(range_number, {*written.refs, *ranges})).items() if ids > 1}
    known -= of_several  # several ranges share the number, so its sizes are ambiguous
    return pa.array([number in having or number not in known for number in map(range_number, ranges)], pa.bool_())


def in_path_order(run: MarkRun, asked: DataFrame) -> DataFrame:
    tasks = 2 * run.spark().sparkContext.defaultParallelism
    columns = ("repository", "branch", "path")
    return asked.repartitionByRange(tasks, *columns).sortWithinPartitions(*columns)


def asking(run: MarkRun) -> Producer:
    lakefs, namespace = run.lakefs, run.place.namespace
    columns = ["repository", "branch", "path", "size"]

    def produce(batches: Batches, report: TaskReport) -> Batches:
        rows = (row for batch in batches for row in batch.select(columns).to_pylist())
        for batch in answered(rows, lakefs, namespace):
            report.count(
                unanswered=batch.num_rows - batch.column("unclear").null_count,
                inside=batch.num_rows - batch.column("address").null_count,
            )
            yield batch

    return produce
