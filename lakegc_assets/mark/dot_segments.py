"""Unreferenced objects that are kept because their keys have `.` or `..` as a path segment (invariant 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import MarkRun, StepNotes
from spark_resources.spark.tasks import Rows, first_rows

COUNT, NAMES = "dot_segments", "dot_segment_names"
MAX_NAMED = 10  # addresses in the facts of the step


def record_names(run: MarkRun, notes: StepNotes, objects: Rows) -> None:
    """Record the addresses of the first few of these objects (an empty list if there are none), and report that these
    objects are kept."""
    notes.facts[NAMES] = []
    if notes.facts[COUNT]:
        notes.facts[NAMES] = first_rows(objects, ["address"], MAX_NAMED)["address"].to_pylist()
        for sentence in sentences(notes.facts):
            run.log_message(sentence)


def sentences(facts: Mapping[str, Any]) -> list[str]:
    """Sentences about objects kept for their dot segments, from the facts of `expired_set`; empty if there are none."""
    count, names = facts.get(COUNT, 0), facts.get(NAMES, [])
    if not count:
        return []
    is_single = count == 1
    named = ", ".join(map(repr, names)) + (" …" if count > len(names) else "")
    sentence = (
        f"{plural(count, 'unreferenced object')} {'is' if is_single else 'are'} kept, because a segment '.' or '..' in "
        f"{'its key' if is_single else 'their keys'} could make other tools delete a different object (kept: {named})"
    )
    return [sentence]


def document(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The number of objects kept for their dot segments, and the recorded names, for JSON output."""
    return {"objects": facts.get(COUNT, 0), "named": list(facts.get(NAMES, []))}
