"""Keep the history of a namespace up to date: what its marks found, and what their sweeps freed.

A failure never fails the run: it is logged as a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakegc_assets.formatting import is_or_are, plural
from lakegc_assets.progress import LogMessage
from lakegc_assets.sweep.quarantine import Quarantine, read_quarantine
from lakegc_assets.sweep.report import Report, read_report, read_report_if_intact
from spark_resources.errors import DamagedData, UnknownFormat, full_stop
from spark_resources.mark_store.history import HISTORY_KEY, FinishedSweep, History, read_history, write_history
from spark_resources.mark_store.mark import finished_marks, folder_ids
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import MarkState, Outcome
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel


def record_mark(place: Place, record: MarkRecord, log_warning: LogMessage) -> History | None:
    """Add a finished mark to the history, and return it; None if that failed. Callers must hold the namespace's
    lease."""
    return _update(place, lambda history: history.with_mark(record), log_warning)


def record_sweep(place: Place, mark_id: str, log_warning: LogMessage) -> History | None:
    """Add what the sweep of a mark, and later purges of its quarantine, have freed so far, and return the history; None
    if that failed. Callers must hold the namespace's lease."""

    def with_sweep(history: History) -> History:
        report = read_report(place, mark_id)
        return history if report is None else history.with_sweep(finished_sweep(report, read_quarantine(place, report)))

    return _update(place, with_sweep, log_warning)


def _update(place: Place, change: Callable[[History], History], log_warning: LogMessage) -> History | None:
    try:
        try:
            known = read_history(place)
        except UnknownFormat:
            raise  # a newer version's file is left as it is
        except DamagedData:
            known = None
        history = change(collected_history(place) if known is None else known)
        write_history(place, history)
        return history
    except Exception as error:  # the history must not make a successful run fail
        log_warning(
            f"Could not update {place.namespace.uri}/{HISTORY_KEY}, the history that 'lakegc status' shows: "
            f"{full_stop(error)} If the history remains incomplete, delete this file: the next mark rebuilds it."
        )
        return None


def known_history(place: Place) -> History:
    """The history of a namespace, for display. If none was written, or it can't be used, it is collected from the
    records of all marks, which takes longer."""
    try:
        known = read_history(place)
    except DamagedData:
        known = None
    return collected_history(place) if known is None else known


def sweeps_since_in_words(history: History, record: MarkRecord) -> str | None:
    """Why a mark's counts may be too high, as sentences: after the mark had begun, other sweeps removed objects, or
    removed objects were restored. None if there was no such sweep, or if this mark itself was swept: its report has the
    true counts."""
    sweeps = history.sweeps_since(record) if record.state in (MarkState.MARKED, MarkState.APPROVED) else ()
    parts = list(filter(None, (_removed_in_words(sweeps, record.mark_id), _restored_in_words(sweeps, record.mark_id))))
    return f"{' '.join(parts)} A new mark has current counts: lakegc mark {record.repository}" if parts else None


def _removed_in_words(sweeps: Sequence[FinishedSweep], mark_id: str) -> str:
    sweeps = [sweep for sweep in sweeps if sweep.objects or sweep.quarantined]
    if not sweeps:
        return ""
    verb = "deleted" if any(sweep.objects for sweep in sweeps) else "quarantined"
    removed = plural(sum(sweep.objects + sweep.quarantined for sweep in sweeps), "object")
    return (
        f"Some of the expired objects of mark {mark_id} may already be gone: since it began, "
        f"{_sweeps_in_words(sweeps)} {verb} {removed}. A sweep of mark {mark_id} reports them as already gone."
    )


def _restored_in_words(sweeps: Sequence[FinishedSweep], mark_id: str) -> str:
    sweeps = [sweep for sweep in sweeps if sweep.restored]
    if not sweeps:
        return ""
    restored = sum(sweep.restored for sweep in sweeps)
    return (
        f"Some of the expired objects of mark {mark_id} may have been restored: since it began, "
        f"{_sweeps_in_words(sweeps)} quarantined {plural(restored, 'object')}, which {is_or_are(restored)} back with "
        f"new modification times. A sweep of mark {mark_id} reports them as changed and keeps them."
    )


def _sweeps_in_words(sweeps: Sequence[FinishedSweep]) -> str:
    """These sweeps as the subject of a sentence, followed by its auxiliary verb."""
    last = sweeps[-1]
    ended = f"ended {last.ended:%Y-%m-%d %H:%M:%S} UTC"
    if len(sweeps) == 1:
        return f"the sweep of mark {last.mark_id} ({ended}) has"
    return f"{len(sweeps):,} sweeps of other marks (the last one, of mark {last.mark_id}, {ended}) have"


def collected_history(place: Place) -> History:
    """The history, from the readable records of all marks and sweeps in a namespace."""

    def read(mark_id: str) -> FinishedSweep | None:
        report = read_report_if_intact(place, mark_id)
        try:
            return None if report is None else finished_sweep(report, read_quarantine(place, report))
        except DamagedData:
            return None

    history = History()
    for mark in finished_marks(place).finished:
        history = history.with_mark(mark.record)
    for sweep in filter(None, fetch_in_parallel(folder_ids(place.store()), read)):
        history = history.with_sweep(sweep)
    return history


def finished_sweep(report: Report, quarantine: Quarantine) -> FinishedSweep:
    """What a sweep has freed so far. For a partly purged quarantine, the purged objects count, but their bytes don't,
    because they aren't known."""
    freed = (Outcome.DELETED.value, Outcome.PURGED.value)
    objects, size = (sum(counts.get(name, 0) for name in freed) for counts in (report.objects, report.sizes))
    purged_later = quarantine.purged - report.objects.get(Outcome.PURGED.value, 0)
    if purged_later > 0 and purged_later == report.objects.get(Outcome.QUARANTINED.value, 0):
        size += report.sizes.get(Outcome.QUARANTINED.value, 0)
    return FinishedSweep(
        mark_id=report.mark_id,
        ended=report.ended,
        objects=objects + purged_later,
        bytes=size,
        quarantined=quarantine.left,
        failed=report.objects.get(Outcome.FAILED.value, 0),
        late=report.late_objects,
        restored=quarantine.restored,
    )
