"""`expired_set`: what may go, from all that was read before; nothing is finished until every invariant held."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakegc_assets.formatting import plural
from lakegc_assets.mark import (
    addresses_on_hold,
    dot_segments,
    expiry_reasons,
    holds_in_force,
    missing_objects,
    other_repositories,
    recheck,
    restaged_content,
)
from lakegc_assets.mark.candidates import recorded
from lakegc_assets.mark.context import MarkRun, StepNotes, step
from lakegc_assets.mark.mark_chain import MarkChain as Base
from lakegc_assets.mark.reference_status import compare
from lakegc_assets.mark.writer import write_mark
from lakegc_assets.rules import garbage
from lakegc_assets.rules.incremental import union
from spark_resources.mark_store.approval import withdraw_reference_summary
from spark_resources.mark_store.files import remove_unrecorded
from spark_resources.mark_store.mark import previous_mark
from spark_resources.mark_store.record import digest_of
from spark_resources.model import SERVED, MarkState
from spark_resources.spark.remote_errors import errors_from_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASSET = "expired_set"


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
    """Write what is stored, minus committed, minus uncommitted, minus young, minus what is kept for another reason."""
    candidates = recorded(run)
    run.say("comparing what is stored with what is live")
    status = compare(run, candidates)
    notes.facts |= status.counts
    missing_objects.check_listing(run, notes, status.missing)
    dot_segments.note(run, notes, status.dot_segments)
    run.say(f"looking up why {plural(status.counts['unreferenced'], 'object')} would go")
    attributions = expiry_reasons.attribute(run, notes, candidates, status)
    unreferenced = attributions.in_scope(status.unreferenced, run.mark.record.scope)
    unserved = served_by_nobody(run, notes, unreferenced, candidates.chain)
    deletable = addresses_on_hold.without_held(run, notes, unserved, candidates)
    run.say("writing the expired set")
    written = write_mark(run, notes, status, deletable, attributions)
    candidates.count_missed(notes, written)
    holds_in_force.in_force(run)  # as they were at the beginning, or there is no mark


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
