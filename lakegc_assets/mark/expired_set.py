"""`expired_set`: what may go, from all that was read before; nothing is finished until every invariant held."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark import (
    addresses_on_hold,
    committed_addresses,
    dot_segments,
    expiry_reasons,
    holds_in_force,
    namespace_slices,
    other_repositories,
    recheck,
    restaged_content,
    uncommitted_addresses,
)
from lakegc_assets.mark import missing_objects as missing
from lakegc_assets.mark.base_mark import Base, can_be_gone_on_from, refuse_mixed
from lakegc_assets.mark.context import MarkRun, StepNotes, step
from lakegc_assets.mark.incremental_listing import FOLDERS, FOLDERS_PART, LOOKED_AT_PART
from lakegc_assets.mark.missed_by_incremental import count_missed
from lakegc_assets.mark.writer import in_ranges, some_addresses, tasks_for, together, write_mark
from lakegc_assets.rules import garbage, reference_status
from lakegc_assets.rules.incremental import union
from spark_resources.errors import DamagedData
from spark_resources.mark_store.approval import withdraw_reference_summary
from spark_resources.mark_store.files import remove_unrecorded
from spark_resources.mark_store.mark import previous_mark
from spark_resources.mark_store.record import MarkRecord, digest_of
from spark_resources.model import ADDRESSES, RANGE_ADDRESSES, RANGE_REFS, SERVED, STORED_OBJECTS, MarkState, Scope
from spark_resources.spark.arrow_shuffle import Met, Side, meet
from spark_resources.spark.datasets import Counts, Dataset, File, read_file
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.stores.parallel_listing import AT_ONCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASSET = "expired_set"
FEW_ENOUGH_TO_SEND = 250_000  # addresses: to every task, rather than to shuffle all that is known
OFTEN_TOLD = 4  # rows that an address has at the most, mostly: stored, staged, staged when asked again, in a range


def compute(run: MarkRun) -> None:
    """Write EXPIRED_OBJECTS and the reference's layout, then finish the mark."""
    with step(run, ASSET) as notes, errors_from_executors():
        write_expired(run, notes)
    finish(run)


def finish(run: MarkRun) -> None:
    """Write what brakes compare and an approval names, and with it the mark's end: from now on it is never changed."""
    record = run.mark.record
    remove_unrecorded(run.place, record)
    withdraw_reference_summary(run.place, record.mark_id)
    facts = record.steps[ASSET].facts
    counts = {name: facts[name] for name in ("candidates", "candidate_bytes", "expired", "expired_bytes")}
    compared: dict[str, Any] = {
        "counts": counts | {"live": facts["live_inside"]},
        "previous": previous_mark(run.place, record),
    }
    digest = digest_of(replace(record, **compared))
    run.mark.move_to(MarkState.MARKED, digest=digest, finished=run.store.now(), **compared)
    run.say(f"{facts['expired']:,} of {facts['candidates']:,} objects may go")


def write_expired(run: MarkRun, notes: StepNotes) -> None:
    record, grain = run.mark.record, run.store.quirks.time_resolution
    refuse_mixed(run)
    base = Base.of(run) if record.incremental else None
    run.say("comparing what is stored with what is live")
    found = Found.of(run, record.cutoff, grain) if base is None else Found.since(run, record.cutoff, grain, base)
    notes.facts |= found.facts
    missing.check_listing(run, notes, found.missing)
    dot_segments.note(run, notes, found.dot_segments)
    run.say(f"looking up why {plural(found.facts['unreferenced'], 'object')} would go")
    few = addresses_if_few(found.unsettled, found.facts["not_retained"])
    told, verdicts = expiry_reasons.told_by_expired(run, notes, base, needed=found.unsettled, few=few)
    unreferenced = found.unreferenced
    if record.scope is Scope.COMMITTED:
        unreferenced = unreferenced.transform(garbage.only(told))
    unserved = served_by_nobody(run, notes, unreferenced, base)
    unheld = addresses_on_hold.without_held(run, notes, unserved, base)
    run.say("writing the expired set")
    goes_on = can_be_gone_on_from(run)
    objects = found.unsettled if goes_on else run.keep(unheld)
    met = together(objects, going=unheld, told=told)
    tasks = tasks_for(found.facts["not_retained"], run.spark().sparkContext.defaultParallelism)
    cut_by = few if few is not None else some_addresses(found.unsettled, found.facts["not_retained"], tasks)
    written = write_mark(run, notes, in_ranges(met, tasks, cut_by), verdicts, unsettled=goes_on)
    count_missed(run, notes, written)
    holds_in_force.in_force(run)  # as they were at the beginning, or there is no mark


def addresses_if_few(objects: DataFrame, count: int) -> pa.Array | None:
    """The addresses of so many objects where a task can hold all of them; None where they are too many."""
    return objects.select("address").toArrow()["address"].combine_chunks() if count <= FEW_ENOUGH_TO_SEND else None


def everything_met(run: MarkRun, youngest: datetime) -> tuple[DataFrame, Counts]:
    """Who refers to what is stored, in a full run: what a census tells (columns of CENSUS), and its counts."""

    def settle(met: Met) -> tuple[pa.Table, Counts]:
        return reference_status.census(met, youngest)

    return meet(run.spark(), run.place, sides(run), settle, reference_status.CENSUS, run.keep)


def changes_met(run: MarkRun, youngest: datetime, base: Base) -> tuple[DataFrame, Counts]:
    """The same in a run that goes on from an earlier mark."""
    rows = run.rows("namespace_slices", FOLDERS, FOLDERS_PART)
    folders = pa.array([row["slice"] for row in rows], pa.string())
    looked_at = run.mark.dataset("namespace_slices", LOOKED_AT_PART)
    told = [*sides(run), Side.of_addresses(reference_status.LOOKED_AT, [looked_at], ADDRESSES)]
    live = base.refs.keys() & {row["range_id"] for row in run.rows("committed_addresses", RANGE_REFS, "ranges")}
    only = addresses_told(run, told, base, live - base.counted)

    def settle(met: Met) -> tuple[pa.Table, Counts]:
        if only is not None:
            check_all_asked(reference_status.told_now(met), only)
        return reference_status.census_since(met, youngest, folders)

    return meet(run.spark(), run.place, [*told, base.known(live, only)], settle, reference_status.CENSUS, run.keep)


def addresses_told(run: MarkRun, told: Sequence[Side], base: Base, again: Collection[str]) -> pa.Array | None:
    """All addresses that these sides have, or ranges of earlier marks that count again, where a task can hold as many;
    None where they are too many."""
    entries = sum(base.refs[one]["entries"] for one in again)
    if entries + sum(side.rows for side in told) > OFTEN_TOLD * FEW_ENOUGH_TO_SEND:
        return None
    files = [(side, dataset, file) for side in told for dataset in side.datasets for file in dataset.files]

    def addresses(side: Side, dataset: Dataset, file: File) -> pa.ChunkedArray:
        return read_file(run.place, dataset.folder, file, side.schema)["address"]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda of: addresses(*of), files))
    if again:
        found.append(base.addresses(again).toArrow()["address"])
    distinct = reference_status.together(*found)
    return distinct if len(distinct) <= FEW_ENOUGH_TO_SEND else None


def check_all_asked(told: pa.Array, only: pa.Array) -> None:
    """Raise `DamagedData` (invariant 3) where nobody asked what earlier marks know of an address: it may be live."""
    lost = told.filter(pc.invert(pc.is_in(told, value_set=only)))
    if len(lost):
        raise DamagedData(
            f"nobody asked what earlier marks know of {plural(len(lost), 'address')}, such as "
            f"{lost[0].as_py()!r}, which is a fault of lakegc. Nothing was marked; make a new "
            "mark with --full, and report it.",
            invariant=3,
        )


def sides(run: MarkRun) -> list[Side]:
    """What a census compares, by its names."""
    asset, maybe_gone = committed_addresses.ASSET, committed_addresses.MAYBE_GONE_PART
    needed = run.mark.dataset(asset, committed_addresses.ADDRESSES_PART)
    others = [run.mark.dataset(asset, maybe_gone)] if maybe_gone in run.mark.record.step(asset).datasets else []
    lists = uncommitted_addresses.datasets(run)
    return [
        Side.whole(reference_status.STORED, namespace_slices.datasets(run), STORED_OBJECTS),
        Side.of_addresses(reference_status.COMMITTED, [needed], RANGE_ADDRESSES),
        Side.of_addresses(reference_status.MAYBE_GONE, others, RANGE_ADDRESSES),
        Side.of_addresses(reference_status.UNCOMMITTED, lists, ADDRESSES),
    ]


def served_by_nobody(run: MarkRun, notes: StepNotes, unreferenced: DataFrame, base: Base | None) -> DataFrame:
    """Without what other repositories refer to, what a branch may serve though no list says so, and what came back."""
    judged = judged_by_servers(run, notes, unreferenced, base)
    return judged.where(judged["why"].isNull()).drop("why")


def judged_by_servers(run: MarkRun, notes: StepNotes, unreferenced: DataFrame, base: Base | None) -> DataFrame:
    """The objects that no other repository refers to, with a column `why`: why each is kept, null for none."""
    from pyspark.sql import functions as F

    unreferenced = other_repositories.not_held_elsewhere(run, notes, unreferenced)
    datasets = restaged_content.ask(run, notes, unreferenced, base)
    answers = union([run.read_dataset(one, SERVED) for one in datasets])
    judged = unreferenced.transform(garbage.why_served(answers))
    if notes.facts["unreferenced"]:
        late = recheck.live_at_the_end(run, notes).withColumn("late", F.lit(True))
        meanwhile = F.when(F.col("late"), F.lit("it was staged or committed meanwhile"))
        why = F.coalesce("why", meanwhile)
        judged = judged.join(late, "address", "left").withColumn("why", why).drop("late")
    return judged


@dataclass(frozen=True, slots=True)
class Found:
    """What one pass over the census found: objects that no commit holds, those of them that nothing refers to, others
    that are kept for the dot segments in their keys, live addresses that aren't listed."""

    unsettled: DataFrame
    unreferenced: DataFrame
    dot_segments: DataFrame
    missing: DataFrame
    facts: dict[str, int]

    @classmethod
    def of(cls, run: MarkRun, cutoff: datetime, grain: timedelta) -> Found:
        """By a full run."""
        return cls.told(*everything_met(run, cutoff - grain), cutoff, grain)

    @classmethod
    def since(cls, run: MarkRun, cutoff: datetime, grain: timedelta, base: Base) -> Found:
        """By a run that goes on from an earlier mark."""
        found, facts = changes_met(run, cutoff - grain, base)
        return cls.told(found, with_settled(facts, base.newest), cutoff, grain)

    @classmethod
    def told(cls, kept: DataFrame, facts: dict[str, int], cutoff: datetime, grain: timedelta) -> Found:
        return cls(
            garbage.described(kept.where(garbage.is_unsettled())),
            kept.transform(garbage.unreferenced(cutoff, grain)),
            kept.transform(garbage.kept_for_dot_segments(cutoff, grain)),
            kept.transform(garbage.missing_from_listing),
            facts,
        )


def with_settled(facts: dict[str, int], before: MarkRecord) -> dict[str, int]:
    """The facts of the whole repository: what was counted now, and what an earlier mark counted as settled and nothing
    changed since."""
    then = before.step(ASSET).facts
    objects = max(then["committed"] - facts["again"], 0)
    size = max(then["committed_bytes"] - facts["again_bytes"], 0)
    more = {
        "candidates": objects,
        "candidate_bytes": size,
        "committed": objects,
        "committed_bytes": size,
        "live_inside": objects,
    }
    return {name: value + more.get(name, 0) for name, value in facts.items()} | {"compared": facts["candidates"]}
