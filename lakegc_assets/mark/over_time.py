"""A repository over time, for Dagster's UI: its newest marks, and what its sweeps freed."""

from __future__ import annotations

from lakegc_assets.formatting import plural, size
from lakegc_assets.markdown import table, unbroken
from spark_resources.mark_store.history import FinishedMark, History

NEWEST_MARKS = 8


def over_time(history: History) -> str:
    """A table of the newest marks, the newest first, and a line with what was freed in all, as Markdown."""
    freed = {mark_id: freed.bytes for mark_id, freed in history.freed.items()}
    rows = [mark_row(mark, freed.get(mark.mark_id)) for mark in reversed(history.marks[-NEWEST_MARKS:])]
    return f"{freed_in_words(history)}\n\n{table(['marked', 'stored:', 'kept:', 'expired:', 'freed:'], rows)}"


def mark_row(mark: FinishedMark, freed_bytes: int | None) -> tuple[str, ...]:
    cells = (
        f"{mark.finished:%b %d}",  # short, so that the table fits next to the page's other columns
        size(mark.candidate_bytes),
        size(mark.candidate_bytes - mark.expired_bytes),
        size(mark.expired_bytes),
        "" if freed_bytes is None else size(freed_bytes),
    )
    return tuple(map(unbroken, cells))


def freed_in_words(history: History) -> str:
    """What all sweeps of the repository freed."""
    if not history.freed:
        return "No sweep of this repository has freed anything yet."
    objects, sweeps = plural(history.freed_objects, "object"), plural(len(history.freed), "sweep")
    return f"**{size(history.freed_bytes)} freed in all**: {objects} in {sweeps}."
