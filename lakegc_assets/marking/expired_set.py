"""`expired_set`: what may go, from all that was read before; nothing is finished until every invariant held."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from lakegc_assets import mark
from lakegc_assets.marking import reasons, same_bytes, uncommitted_addresses
from lakegc_assets.marking.missing import check_listing
from lakegc_assets.marking.run import MarkRun, StepNotes, step
from spark_resources.datasets import write_dataset
from spark_resources.marks import asset_folder, digest_of
from spark_resources.model import ADDRESSES, EXPIRED_OBJECTS, SERVED, STORED_OBJECTS, MarkState, Scope
from spark_resources.reference import write_reference_mark
from spark_resources.executors import errors_from_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASSET = "expired_set"
SERVED_PART = "served"
ROWS_A_TASK = 250_000


def compute(run: MarkRun) -> None:
    """Write EXPIRED_OBJECTS and the reference's layout, then finish the mark."""
    with step(run, ASSET) as notes, errors_from_executors():
        write_expired(run, notes)
    record = run.mark.record
    facts = record.steps[ASSET].facts
    counts = {name: facts[name] for name in ("candidates", "expired", "expired_bytes")}
    run.mark.move_to(MarkState.MARKED, digest=digest_of(record), counts=counts, finished=run.store.now())
    run.say(f"{facts['expired']:,} of {facts['candidates']:,} objects may go")


def write_expired(run: MarkRun, notes: StepNotes) -> None:
    record, grain = run.mark.record, run.store.quirks.time_resolution
    slices = run.read("namespace_slices", STORED_OBJECTS)
    committed = run.read("committed_addresses", ADDRESSES, "addresses")
    uncommitted = staged(run)
    check_listing(run, notes, slices, committed, uncommitted)

    gone = reasons.expired_addresses(run, notes).persist()
    candidates = slices.transform(mark.only(gone)) if record.scope is Scope.COMMITTED else slices
    unreferenced = mark.expired_set(
        candidates, committed=committed, uncommitted=uncommitted, cutoff=record.cutoff, grain=grain
    ).persist()
    notes.facts |= {
        "candidates": candidates.count(),
        "young": candidates.count() - candidates.transform(mark.old_enough(record.cutoff, grain)).count(),
        "unreferenced": unreferenced.count(),
    }
    served = same_bytes.ask(run, notes, unreferenced)
    dataset = write_dataset(served, run.place, asset_folder(record.mark_id, ASSET, SERVED_PART), SERVED)
    notes.wrote(dataset, SERVED_PART)
    answers = run.read_dataset(dataset, SERVED)
    notes.facts["unanswered"] = answers.where("not answered").count() if dataset.rows else 0
    expired = unreferenced.transform(mark.not_served(answers))
    expired = mark.with_reasons(expired, gone, graph_known=reasons.graph_known(run))
    tasks = 1 + notes.facts["unreferenced"] // ROWS_A_TASK
    ordered = expired.repartitionByRange(tasks, "address") if tasks > 1 else expired.coalesce(1)
    dataset = write_dataset(
        ordered.sortWithinPartitions("address"), run.place, asset_folder(record.mark_id, ASSET), EXPIRED_OBJECTS
    )
    notes.wrote(dataset)
    written = run.read_dataset(dataset, EXPIRED_OBJECTS)
    layout, left_out = write_reference_mark(written, run.place, record.mark_id)
    notes.wrote(layout, "deleted")
    notes.facts |= {
        "expired": dataset.rows,
        "expired_bytes": written.groupBy().sum("size").collect()[0][0] or 0,
        "not_in_text": left_out,
        "kept_as_served_or_unclear": notes.facts["unreferenced"] - dataset.rows,
    }
    gone.unpersist()
    unreferenced.unpersist()


def staged(run: MarkRun) -> DataFrame:
    """All addresses that any reading of what is staged gave."""
    parts = uncommitted_addresses.parts(local_adapter=run.local_adapter)
    readings = [run.read(uncommitted_addresses.ASSET, ADDRESSES, part) for part in parts]
    return reduce(lambda left, right: left.unionByName(right), readings)
