"""The same bytes staged again: what a branch serves though no list says so (formats §2; invariant 2).

The server's list of staged addresses is a diff by content. A staged object that equals the committed one of its path is
left out of it, yet the branch serves the staged address. So the server is asked what it serves at every path whose
committed entry has the size of something that would go; without a clear answer, whatever has that size is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakegc_assets import mark
from lakegc_assets.marking.run import MarkRun, StepNotes
from spark_resources.datasets import Batches, arrow_to_spark
from spark_resources.entries import entries_of_size, ranges_of
from spark_resources.errors import LakegcError, Refused
from spark_resources.lakefs import LakeFS
from spark_resources.model import HEADS, RANGE_REFS, SERVED, Namespace
from spark_resources.model import Place as Where
from spark_resources.executors import on_executor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW = 1000  # paths a task looks at together; also what one `ls` answers at the most
FEW = 4  # fewer questions than this are asked one by one
STATS_AT_ONCE = 8
MANY_SIZES = 10_000


def ask(run: MarkRun, notes: StepNotes, unreferenced: DataFrame) -> DataFrame:
    """What branches serve at the paths in question, and which sizes stay unclear (SERVED).

    `unreferenced` are the objects (STORED_OBJECTS) that would go if nobody served them.
    """
    nothing = run.spark().createDataFrame([], arrow_to_spark(SERVED))
    notes.facts |= {"questions": 0, "unasked": 0}
    sizes = [row["size"] for row in unreferenced.select("size").dropDuplicates().limit(MANY_SIZES + 1).collect()]
    heads = run.read("retained_commits", HEADS, "heads").where("metarange_id <> ''")
    metaranges = [row["metarange_id"] for row in heads.select("metarange_id").dropDuplicates().collect()]
    if not sizes or not metaranges:
        return nothing
    ranges = ranges_of(run.spark(), run.place, metaranges).persist()
    branch_ranges = heads.join(ranges, "metarange_id").select("branch", "range_id").dropDuplicates()
    distinct = ranges.select(*RANGE_REFS.names).dropDuplicates()
    entries = entries_of_size(distinct, run.place, frozenset(sizes) if len(sizes) <= MANY_SIZES else None)
    asked = mark.questions(entries, branch_ranges, unreferenced).persist()
    notes.facts["questions"] = asked.count()
    unasked = mark.within_bound(asked, run.limits.questions).persist()
    notes.facts["unasked"] = unasked.count() if notes.facts["questions"] > run.limits.questions else 0
    run.say(f"asking what branches serve at {notes.facts['questions']:,} paths")
    return answers(run, asked.join(unasked, "size", "left_anti")).unionByName(unclear(asked.join(unasked, "size")))


def unclear(asked: DataFrame) -> DataFrame:
    """Questions beyond the bound, as rows without an answer."""
    from pyspark.sql import functions as F

    return asked.select(
        "branch", "path", "size", F.lit(None).cast("string").alias("address"), F.lit(False).alias("answered")
    )


def answers(run: MarkRun, asked: DataFrame) -> DataFrame:
    """The server's answers to questions (columns branch, path, size), asked by the executors in path order."""
    lakefs, repository, namespace = run.lakefs, run.partition.repository, run.place.namespace

    def read(batches: Batches) -> Batches:
        rows = (row for batch in batches for row in batch.select(["branch", "path", "size"]).to_pylist())
        yield from answered(rows, lakefs, repository, namespace)

    tasks = 2 * run.spark().sparkContext.defaultParallelism
    ordered = asked.repartitionByRange(tasks, "branch", "path").sortWithinPartitions("branch", "path")
    return ordered.mapInArrow(on_executor(read), arrow_to_spark(SERVED))


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
    """The physical address that a branch serves at each path, None where nothing is served; paths in byte order.

    Dense paths are answered by pages of `ls`, scattered ones by `stat`.
    """
    found: dict[str, str | None] = {}

    def stat(some: Sequence[str]) -> None:
        with ThreadPoolExecutor(max_workers=STATS_AT_ONCE) as pool:
            for path, one in zip(some, pool.map(lambda p: lakefs.stat(repository, branch, p), some), strict=True):
                found[path] = one.physical_address if one is not None else None

    waiting = list(paths)
    while waiting:
        covered = 0
        if len(waiting) >= FEW:
            page = lakefs.list_objects(repository, branch, after=just_before(waiting[0]), amount=WINDOW)
            listed = {one.path: one.physical_address for one in page.objects}
            # without a further page, everything behind the last path is answered, too
            end = page.objects[-1].path.encode() if page.next_after is not None and page.objects else None
            covered = sum(1 for path in waiting if end is None or path.encode() <= end)
            found |= {path: listed.get(path) for path in waiting[:covered]}
        waiting = waiting[covered:]
        if covered < FEW:
            stat(waiting[: 2 * STATS_AT_ONCE])
            waiting = waiting[2 * STATS_AT_ONCE :]
    return found


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
    where, key = namespace.place(address)
    if where is Where.CONFLICT:
        namespace.check_elsewhere(address)
    return key if where is Where.INSIDE else None
