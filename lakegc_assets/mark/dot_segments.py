"""Unreferenced objects that are kept because their keys have `.` or `..` between slashes (invariant 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import MarkRun, StepNotes
from spark_resources.spark.tasks import Rows, first_rows

COUNT, NAMES = "dot_segments", "dot_segment_names"
NAMED = 10  # addresses in the facts of the step


def note(run: MarkRun, notes: StepNotes, kept: Rows) -> None:
    """Record the names of a few of these objects (column address, among others), and report that they are kept; does
    nothing if there are none."""
    notes.facts[NAMES] = []
    if notes.facts[COUNT]:
        notes.facts[NAMES] = first_rows(kept, ["address"], NAMED)["address"].to_pylist()
        for sentence in sentences(notes.facts):
            run.log_message(sentence)


def sentences(facts: Mapping[str, Any]) -> list[str]:
    """Sentences about them for people, from the facts of `expired_set`; empty if there are none."""
    count, names = facts.get(COUNT, 0), facts.get(NAMES, [])
    if not count:
        return []
    one = count == 1
    named = ", ".join(map(repr, names)) + (" …" if count > len(names) else "")
    sentence = (
        f"{plural(count, 'unreferenced object')} {'is' if one else 'are'} kept, because '.' or '..' between slashes in "
        f"{'its key' if one else 'their keys'} could make other tools delete another object: {named}"
    )
    return [sentence]


def document(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The same as JSON for scripts."""
    return {"objects": facts.get(COUNT, 0), "named": list(facts.get(NAMES, []))}
