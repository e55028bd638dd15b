"""What is live now: the readings of a mark made anew, by today's rules and holds, for the candidates of a sweep.

The approved set holds nothing that a range of the approved manifest holds, and ranges never change; so only ranges
outside it are read. All that is found is kept apart in a folder of the proof, as a mark keeps its own.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets import mark
from lakegc_assets.marking import committed_addresses, expired_set, retained_commits, uncommitted_addresses
from lakegc_assets.marking.run import MarkRun, StepNotes, step
from lakegc_assets.sweeping.run import Proof, SweepRun
from spark_resources.datasets import all_rows, write_dataset
from spark_resources.executors import errors_from_executors
from spark_resources.marks import Mark
from spark_resources.model import RANGE_REFS, MarkState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESCUED = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("why", pa.string(), nullable=False),
    ]
)
RESCUED_PART = "rescued"


def prove(run: SweepRun, candidates: DataFrame, number: int) -> Proof:
    """Which of the candidates (columns address, size) are live. Everything is read after `began`, in a mark's order."""
    run.lease.check()
    began = run.store.now()
    inner = begin_proof(run, number, began)
    uncommitted_addresses.read_uncommitted(inner)
    retained_commits.judge_commits(inner)
    committed_addresses.read_ranges(inner)
    with step(inner, expired_set.ASSET) as notes, errors_from_executors():
        rescued = write_rescued(inner, notes, candidates)
    inner.mark.move_to(MarkState.MARKED, finished=run.store.now())
    objects = notes.facts["rescued"]
    run.say(f"proved again: {objects:,} objects are live by now" if objects else "proved again: all is still garbage")
    return Proof(number, began, rescued, objects)


def begin_proof(run: SweepRun, number: int, began: datetime) -> MarkRun:
    """A record like a mark's, of today's rules, whose listing is that of the approved mark."""
    approved = run.mark.record
    record = replace(
        approved,
        state=MarkState.MARKING,
        start=began,
        cutoff=began,
        min_age=timedelta(0),
        server_now=run.lakefs.server_time(),
        rules=run.lakefs.rules(run.partition.repository),
        steps={"namespace_slices": replace(approved.step("namespace_slices"), datasets={})},
        finished=None,
        digest=None,
        counts={},
    )
    proof = Mark.begin(run.place, record, root=f"{run.proofs}{number:04d}/")
    return MarkRun(run.partition, run.target, proof, run.lakefs, run.spark, run.limits.marking, run.say, manifest(run))


def manifest(run: SweepRun) -> pa.Array | None:
    """The ids of the ranges that the approved set was proved against; None for a mark that doesn't tell."""
    if committed_addresses.ASSET not in run.mark.record.steps:
        return None
    dataset = run.mark.dataset(committed_addresses.ASSET, committed_addresses.RANGES_PART)
    return pa.array([row["range_id"] for row in all_rows(run.place, dataset, RANGE_REFS)], pa.string())


def write_rescued(run: MarkRun, notes: StepNotes, candidates: DataFrame) -> DataFrame:
    """Write RESCUED: the candidates that anything read now refers to, and why each is kept."""
    from pyspark.sql import functions as F

    rows = candidates.select("address", F.coalesce("size", F.lit(0)).alias("size")).persist()
    notes.facts["unreferenced"] = rows.count()
    staged = expired_set.staged(run).select("address").dropDuplicates()
    committed = committed_addresses.read_live(run)
    apart = rows.transform(mark.without(staged)).transform(mark.without(committed))
    garbage = expired_set.served_by_nobody(run, notes, apart).select("address").persist()
    why = (
        F.when(F.col("staged"), "it is staged on a branch")
        .when(F.col("committed"), "a retained commit, a branch or a hold refers to it")
        .otherwise("a branch serves it or may serve it, or another repository refers to it")
    )
    live = (
        rows.transform(mark.without(garbage))
        .join(staged.withColumn("staged", F.lit(True)), "address", "left")
        .join(committed.dropDuplicates().withColumn("committed", F.lit(True)), "address", "left")
        .select("address", "size", why.alias("why"))
    )
    dataset = write_dataset(live.repartition(1), run.place, run.mark.folder(expired_set.ASSET, RESCUED_PART), RESCUED)
    notes.wrote(dataset, RESCUED_PART)
    notes.facts["rescued"] = dataset.rows
    rows.unpersist()
    garbage.unpersist()
    return run.read_dataset(dataset, RESCUED)
