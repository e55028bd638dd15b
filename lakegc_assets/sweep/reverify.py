"""Re-verification: find out what is live now, with the steps of a mark but today's rules and holds.

The approved set has no address of a range that the approved mark read, and ranges never change. Therefore only the
other ranges are read (see `committed_addresses.trusted_ranges`). Results are written into a separate folder, as by a
mark.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.formatting import plural
from lakegc_assets.mark import (
    committed_addresses,
    expired_set,
    keep_lookups,
    uncommitted_addresses,
)
from lakegc_assets.mark.context import MarkRun, Released, StepNotes, step
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.mark.reading_order import read_references
from lakegc_assets.rules import keep_reasons
from lakegc_assets.rules.brakes import released_repositories, unread_in
from lakegc_assets.rules.incremental import union
from lakegc_assets.sweep.context import Reverification, SweepRun
from lakegc_assets.sweep.head_watch import verified_by
from spark_resources.errors import Refused
from spark_resources.mark_store.approval import read_approval
from spark_resources.mark_store.holds import read_holds
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import FULL_MARK, RECORD_FORMAT
from spark_resources.model import MarkState
from spark_resources.spark.datasets import write_dataset
from spark_resources.spark.remote_errors import errors_from_executors

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
TRIES = 3


def reverify(run: SweepRun, candidates: DataFrame) -> Reverification:
    """Which of the candidates (columns address, size) are live, by rules and holds that don't change in the meantime.

    Raises `Refused` if that can't be determined, such as for a damaged table, or if rules or holds keep changing.
    """
    for last in (*[False] * (TRIES - 1), True):
        try:
            return reverify_once(run, candidates, run.next_number())
        except Refused as error:
            if error.invariant != 7 or last:
                raise
            run.log_message("rules or holds changed during the re-verification: restarting it")
    raise AssertionError("unreachable: the last try raises or returns")


def reverify_once(run: SweepRun, candidates: DataFrame, number: int) -> Reverification:
    """One re-verification. Everything is read after `began`, in the order of a mark."""
    run.lease.check()
    began = run.store.now()
    inner = begin_reverification(run, number, began)
    read_references(inner)
    with step(inner, expired_set.ASSET) as notes, errors_from_executors():
        rescued = write_rescued(inner, notes, candidates)
    inner.mark.move_to(MarkState.MARKED, finished=run.store.now())
    objects = notes.facts["rescued"]
    run.log_message(
        f"re-verified: {plural(objects, 'object')} became live" if objects else "re-verified: all is still garbage"
    )
    return Reverification(number, began, rescued, objects, verified_by(inner), unread_in(inner.mark.record))


def begin_reverification(run: SweepRun, number: int, began: datetime) -> MarkRun:
    """A record like that of a mark, with today's rules and the listing of the approved mark."""
    approved, holds = run.mark.record, read_holds(run.place)
    run.mark.record_newer_holds(holds.number, holds.ids)
    record = replace(
        approved,
        state=MarkState.MARKING,
        start=began,
        cutoff=began,
        min_age=timedelta(0),
        server_now=run.lakefs.server_time(),
        rules=run.lakefs.rules(run.partition.repository),
        holds=holds.recorded(),
        steps={"namespace_slices": replace(approved.step("namespace_slices"), datasets={})},
        finished=None,
        digest=None,
        counts={},
        basis=FULL_MARK,
        format=RECORD_FORMAT,
    )
    verification = Mark.begin(run.place, record, root=f"{run.reverifications}{number:04d}/")
    return MarkRun(
        run.partition, run.target, verification, run.lakefs, run.spark, run.limits.marking, run.log_message,
        pa.array(committed_addresses.trusted_ranges(run.mark), pa.string()), released_by_approval(run),
    )  # fmt: skip


def released_by_approval(run: SweepRun) -> Released:
    """The other repositories that the approval of this mark released by name; none for a foreign mark, which records no
    repository as unread."""
    record = run.mark.record
    approval = None if run.foreign is not None else read_approval(run.place, record.mark_id)
    if approval is None or approval.sha256 != record.approval:
        return Released({}, record.server_now)
    return Released(released_repositories(record, approval.released), record.server_now)


def write_rescued(run: MarkRun, notes: StepNotes, candidates: DataFrame) -> DataFrame:
    """Write RESCUED: the candidates that are referenced now, and why each is kept."""
    from pyspark.sql import functions as F

    rows = run.persist(candidates.select("address", F.coalesce("size", F.lit(0)).alias("size")))
    notes.facts["unreferenced"] = rows.count()
    referenced = keep_reasons.undecided(rows)
    live = {
        keep_reasons.STAGED: uncommitted_addresses.read_live(run),
        keep_reasons.COMMITTED: committed_addresses.read_live(run),
    }
    for reason, addresses in live.items():
        if addresses:
            referenced = referenced.transform(keep_reasons.decided(reason, keep_reasons.among(union(addresses))))
    attributed = keep_lookups.attributed(run, notes, referenced, MarkChain(run, ()))
    kept = keep_reasons.kept(attributed).select("address", "size", keep_reasons.sentence().alias("why"))
    dataset = write_dataset(kept.repartition(1), run.place, run.mark.folder(expired_set.ASSET, RESCUED_PART), RESCUED)
    notes.wrote(dataset, RESCUED_PART)
    notes.facts["rescued"] = dataset.rows
    return run.read_dataset(dataset, RESCUED)
