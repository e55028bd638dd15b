"""What a repository waits for, from the states of its newest marks, for an overview of many repositories. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lakegc_assets.formatting import plural
from lakegc_assets.rules.brakes import BrakeLimits, brakes, effective_time
from spark_resources.mark_store.record import RECORD_FORMAT, MarkRecord
from spark_resources.model import MarkState

if TYPE_CHECKING:
    from spark_resources.mark_store.history import FinishedSweep

INTERRUPTED = "failed (interrupted)"
"""The state of an unfinished mark whose run has ended: success must be recorded."""


@dataclass(frozen=True, slots=True)
class SeenMark:
    """A mark's record and its displayed state, which considers its approval (`mark_states.state_of`) and whether its
    run has ended. `is_running` means that a run for this mark holds the lease."""

    record: MarkRecord
    state: str
    is_running: bool = False


@dataclass(frozen=True, slots=True)
class Next:
    """What a repository waits for, as the end of "waits for …", and the command for it as the arguments of lakegc. Both
    are empty if it waits for nothing. `needs_person` means that nothing happens until a person acts."""

    waits_for: str = ""
    command: tuple[str, ...] = ()
    needs_person: bool = False


def next_step(repository: str, marks: Sequence[SeenMark], limits: BrakeLimits, *, now: datetime) -> Next:
    """What a repository waits for, from its newest marks, the newest first. `now` is by the store's clock.

    A run comes before everything else, then sweeps that were begun or approved, and then the approval of the newest
    finished mark.
    """
    for mark in marks:
        if mark.is_running:
            return Next("its run to end", ("status", repository))
    for state, sweep in ((MarkState.SWEEPING, "the interrupted sweep"), (MarkState.APPROVED, "the sweep")):
        for mark in marks:
            if mark.state == state.value:
                mark_id, quarantine = mark.record.mark_id, ("--quarantine",) if mark.record.quarantine else ()
                next_command = ("sweep", repository, mark_id, *quarantine)
                return Next(f"{sweep} of mark {mark_id}", next_command, needs_person=True)
    finished = [mark for mark in marks if mark.record.finished is not None]
    if not finished:
        return Next("a mark" if marks else "its first mark", ("mark", repository), needs_person=True)
    return _after_mark(repository, finished[0], limits, now)


def _after_mark(repository: str, newest: SeenMark, limits: BrakeLimits, now: datetime) -> Next:
    record = newest.record
    if newest.state == MarkState.SWEPT_WITH_FAILURES.value:
        return Next("a retry of its sweep", ("report", repository, record.mark_id), needs_person=True)
    if newest.state in (MarkState.SWEPT.value, MarkState.SUPERSEDED.value) or not record.counts.get("expired"):
        return Next()
    if now - effective_time(record) > limits.age:
        return Next("a new mark: the newest is too old", ("mark", repository), needs_person=True)
    if record.format != RECORD_FORMAT:
        return Next("a new mark: an earlier version made the newest", ("mark", repository), needs_person=True)
    tripped = [brake.name for brake in brakes(record, limits, now=now) if brake.tripped]
    names = ", ".join(f"'{name}'" for name in tripped)
    releases = f" and the release of the {'brake' if len(tripped) == 1 else 'brakes'} {names}" if tripped else ""
    return Next(f"approval{releases}", ("review", repository, record.mark_id), needs_person=True)


def newest_problem(marks: Sequence[SeenMark], last_sweep: FinishedSweep | None) -> str:
    """The newest problem of a repository, as a sentence without a final period; "" if there is none. `marks` are the
    newest first; a mark's problem is over once a later mark has finished."""
    for mark in marks:
        if mark.state in (MarkState.FAILED.value, INTERRUPTED):
            reason = mark.record.failure or "its run was interrupted"
            return f"mark {mark.record.mark_id} failed: {reason}"
        if mark.record.finished is not None:
            break
    if last_sweep is not None and last_sweep.late:
        late = plural(last_sweep.late, "object")
        return f"{late} became live while being deleted by the sweep of mark {last_sweep.mark_id}"
    if last_sweep is not None and last_sweep.failed:
        return f"the sweep of mark {last_sweep.mark_id} failed to delete {plural(last_sweep.failed, 'object')}"
    return ""
