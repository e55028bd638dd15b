"""How the retention rules of a mark differ from those of the previous one, for the people who review it."""

from __future__ import annotations

from lakegc_assets.formatting import rules_change_in_words
from spark_resources.errors import LakegcError, full_stop
from spark_resources.mark_store.mark import Mark


def changed_rules(mark: Mark) -> str | None:
    """A sentence if the retention rules have changed since the previous mark, or if that can't be determined; None if
    they are the same, or if there is no previous mark. Reads the record of the previous mark."""
    previous_id = (mark.record.previous or {}).get("mark_id")
    if previous_id is None:
        return None
    try:
        previous = Mark.open(mark.place, previous_id).record
    except LakegcError as error:
        return f"Whether the retention rules have changed since mark {previous_id} is unknown: {full_stop(error)}"
    change = rules_change_in_words(previous.rules, mark.record.rules)
    if not change:
        return None
    return f"The retention rules have changed on the server since mark {previous_id}: {change}."
