"""The same bytes staged again: what a branch serves though no list says so (formats §2; invariant 2).

The server's list of staged addresses is a diff by content. A staged object that equals the committed one of its path is
left out of it, yet the branch serves the staged address. So the server is asked what it serves at every path whose
committed entry has the size of something that would go; without a clear answer, whatever has that size is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets import mark
from lakegc_assets.marking.metaranges import WrittenDown, distinct_ranges
from lakegc_assets.marking.retained_commits import HEADS_PART
from lakegc_assets.marking.run import MarkRun, StepNotes
from lakegc_assets.marking.since import SIZES, UNREADABLE, Base
from spark_resources.datasets import Batches, Counts, Dataset, Producer, write_dataset, write_produced, write_rows
from spark_resources.entries import entries_of_size, range_number, range_tasks, ranges_by_size, ranges_of
from spark_resources.errors import LakegcError, Refused
from spark_resources.lakefs import LakeFS, ServedPage
from spark_resources.model import (
    BRANCH_RANGES,
    HEADS,
    RANGE_REFS,
    SERVED,
    Namespace,
)
from spark_resources.model import Place as Where
from spark_resources.tasks import row_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW = 1000  # paths a task looks at together; also what one `ls` answers at the most
FEW = 4  # fewer questions than this are asked one by one
MANY_SIZES = 1_000_000  # 8 MB, sent to every task
ANSWERS_PART, UNASKED_PART = "served", "unasked"


def ask(run: MarkRun, notes: StepNotes, unreferenced: DataFrame, base: Base | None) -> list[Dataset]:
    """Write what branches serve at the paths in question, and the paths beyond the bound on questions (SERVED each).

    `unreferenced` are the objects (STORED_OBJECTS) that would go if nobody served them, `base` what the mark goes on
    from.
    """
    asked, folder = questions(run, unreferenced, base), run.mark.folder("expired_set", ANSWERS_PART)
    count = run.keep(asked).count() if asked is not None else 0
    notes.facts |= {"questions": count, "unasked": 0, "unanswered": 0}
    if asked is None or not count:
        notes.wrote(nothing := write_rows(run.place, folder, [], SERVED), ANSWERS_PART)
        return [nothing]
    datasets = []
    if count > run.limits.questions:
        beyond = run.keep(mark.beyond_bound(asked, run.limits.questions))
        unasked = asked.join(beyond, "size", "left_semi").transform(mark.unanswered)
        datasets.append(write_dataset(unasked, run.place, run.mark.folder("expired_set", UNASKED_PART), SERVED))
        notes.wrote(datasets[0], UNASKED_PART)
        notes.facts["unasked"] = datasets[0].rows
        asked = asked.join(beyond, "size", "left_anti")
    run.say(f"asking what branches serve at {count - notes.facts['unasked']:,} paths")
    answers, counts = write_produced(in_path_order(run, asked), asking(run), run.place, folder, SERVED)
    notes.wrote(answers, ANSWERS_PART)
    notes.facts |= {"unanswered": counts.get("unanswered", 0), "served_inside": counts.get("inside", 0)}
    return [answers, *datasets]


def questions(run: MarkRun, unreferenced: DataFrame, base: Base | None) -> DataFrame | None:
    """The paths to ask about (columns branch, path, size); None where no branch has objects or nothing would go."""
    heads = [row for row in run.rows("retained_commits", HEADS, HEADS_PART) if row["metarange_id"]]
    sizes = unreferenced.select("size").dropDuplicates().limit(MANY_SIZES + 1).toArrow()["size"].combine_chunks()
    if not len(sizes) or not heads:
        return None
    wanted = sizes if len(sizes) <= MANY_SIZES else None
    spark, written, branches = run.spark(), WrittenDown.of(run, base), pa.Table.from_pylist(heads, schema=HEADS)
    metaranges = {row["metarange_id"] for row in heads}
    known = metaranges & written.metaranges
    refs, found = written.ranges_of(known), None
    if unknown := sorted(metaranges - known):
        found = run.keep(ranges_of(spark, run.place, unknown))
        refs = pa.concat_tables([refs, distinct_ranges(found).toArrow().cast(RANGE_REFS)])
        refs = refs.group_by(RANGE_REFS.names, use_threads=False).aggregate([]).cast(RANGE_REFS)
    refs = refs.filter(may_have(run, refs["range_id"].to_pylist(), wanted, base, written))
    if not len(refs):
        return None
    pairs = written.pairs_with(known, refs["range_id"].to_pylist())
    joined = pairs.join(branches, "metarange_id", join_type="inner", use_threads=False)
    branch_ranges = row_tasks(spark, joined.select(BRANCH_RANGES.names).cast(BRANCH_RANGES), batch=10_000)
    if found is not None:
        new = found.join(row_tasks(spark, branches, batch=10_000), "metarange_id")
        branch_ranges = branch_ranges.unionByName(new.select(*BRANCH_RANGES.names))
    heads_entries = entries_of_size(range_tasks(spark, refs), run.place, wanted)
    return mark.questions(heads_entries, branch_ranges.dropDuplicates(), unreferenced)


def may_have(
    run: MarkRun, ranges: Sequence[str], wanted: pa.Array | None, base: Base | None, written: WrittenDown
) -> pa.Array:
    """Of each range whether it may have an entry of a wanted size: where nobody wrote down its sizes, it may.

    Reading a range is always right, so whatever is wrong with an earlier mark's sizes is none of this one's concern.
    """
    if wanted is None:
        return pa.repeat(True, len(ranges))
    datasets = [] if base is None else base.sizes
    if SIZES[1] in run.mark.record.step(SIZES[0]).datasets:
        datasets.append(run.mark.dataset(*SIZES))
    known, having = set[int](), set[int]()
    for dataset in datasets:
        with suppress(*UNREADABLE):
            told = ranges_by_size(run.place, dataset, wanted)
            known |= told[0]
            having |= told[1]
    of_several = {number for number, ids in Counter(map(range_number, {*written.refs, *ranges})).items() if ids > 1}
    known -= of_several  # nobody knows which of them has these sizes
    return pa.array([number in having or number not in known for number in map(range_number, ranges)], pa.bool_())


def in_path_order(run: MarkRun, asked: DataFrame) -> DataFrame:
    tasks = 2 * run.spark().sparkContext.defaultParallelism
    return asked.repartitionByRange(tasks, "branch", "path").sortWithinPartitions("branch", "path")


def asking(run: MarkRun) -> Producer:
    lakefs, repository, namespace = run.lakefs, run.partition.repository, run.place.namespace

    def produce(batches: Batches, counts: Counts) -> Batches:
        rows = (row for batch in batches for row in batch.select(["branch", "path", "size"]).to_pylist())
        for batch in answered(rows, lakefs, repository, namespace):
            clear = pc.sum(batch.column("answered")).as_py() or 0
            counts["unanswered"] = counts.get("unanswered", 0) + batch.num_rows - clear
            counts["inside"] = counts.get("inside", 0) + batch.num_rows - batch.column("address").null_count
            yield batch

    return produce


def answered(
    rows: Iterable[dict[str, Any]], lakefs: LakeFS, repository: str, namespace: Namespace
) -> Iterator[pa.RecordBatch]:
    """Rows of branch, path and size, in that order, with what the branch serves there."""
    reachable = True
    for branch, group in groupby(rows, key=itemgetter("branch")):
        while window := list(islice(group, WINDOW)):
            served: dict[str, str | None] = {}
            if reachable:
                try:
                    served = serve(lakefs, repository, branch, list(dict.fromkeys(row["path"] for row in window)))
                except Refused:
                    raise
                except LakegcError:
                    # no clear answer, after retries: what was asked is kept, and this task asks no more
                    reachable = False
            yield served_batch(window, served, namespace)


def serve(lakefs: LakeFS, repository: str, branch: str, paths: Sequence[str]) -> dict[str, str | None]:
    """The physical address that a branch serves at each path, None where nothing is served.

    Dense paths are answered by pages of `ls`, scattered ones by `stat`.
    """
    found: dict[str, str | None] = {}
    at_once = lakefs.settings.asking_requests

    def stat(some: Sequence[str]) -> None:
        with ThreadPoolExecutor(max_workers=at_once) as pool:
            for path, one in zip(some, pool.map(lambda p: lakefs.stat(repository, branch, p), some), strict=True):
                found[path] = one.physical_address if one is not None else None

    waiting = sorted(paths, key=str.encode)  # as pages are: what a page covers stands in front
    while waiting:
        covered = 0
        if len(waiting) >= FEW:
            page = lakefs.list_objects(repository, branch, after=just_before(waiting[0]), amount=WINDOW)
            listed = {one.path: one.physical_address for one in page.objects}
            covered = sum(1 for path in waiting if covers(page, path))
            found |= {path: listed.get(path) for path in waiting[:covered]}
        waiting = waiting[covered:]
        if covered < FEW:
            stat(waiting[: 2 * at_once])
            waiting = waiting[2 * at_once :]
    return found


def covers(page: ServedPage, path: str) -> bool:
    """Whether a page that begins before a path also says what is there: up to its last path, or all if it is the last.

    An empty page that announces more covers nothing.
    """
    if page.next_after is None:
        return True
    return bool(page.objects) and path.encode() <= page.objects[-1].path.encode()


def just_before(path: str) -> str:
    """A path that sorts before the given one, and close to it: `ls` begins behind it."""
    return path[:-1]


def served_batch(
    window: Sequence[dict[str, Any]], served: dict[str, str | None], namespace: Namespace
) -> pa.RecordBatch:
    rows = []
    for row in window:
        clear = row["path"] in served
        address = served.get(row["path"])
        rows.append({**row, "address": inside(address, namespace), "answered": clear})
    return pa.RecordBatch.from_pylist(rows, schema=SERVED)


def inside(address: str | None, namespace: Namespace) -> str | None:
    if address is None:
        return None
    where, key = namespace.place_of_answer(address)
    if where is Where.CONFLICT:
        namespace.check_elsewhere(address)
    return key if where is Where.INSIDE else None
