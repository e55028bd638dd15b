"""The record `rules_history.json` of a namespace: every change that lakegc made to the retention rules.

It is only for people who want to know who changed the rules and when. Nothing is kept or deleted because of it: marks
and sweeps ask the server for the rules. Rules can also be changed without lakegc, so the newest change may be outdated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from spark_resources.errors import DamagedData, NotFound
from spark_resources.mark_store.conditional_write import WriteConflict, create_or_replace
from spark_resources.mark_store.mark import MARKS_ROOT
from spark_resources.model import Rules
from spark_resources.records.json_records import Version
from spark_resources.records.model import AsInJson, Record, UtcTime, require_format
from spark_resources.stores.place import Place

RULES_HISTORY_KEY = MARKS_ROOT + "rules_history.json"
RULES_HISTORY_FORMAT = 1
MAX_CHANGES = 1_000
MAX_BYTES = 16 << 20  # half of what may be read (`stores.size_limits`): rules for thousands of branches are large
MAX_TRIES = 3


@dataclass(frozen=True, slots=True)
class RulesChange(Record):
    """One change to the rules: who made it, when (by the store's clock), the rules before (None: none) and after."""

    who: str
    when: UtcTime
    before: AsInJson[Rules] | None
    after: AsInJson[Rules]


@dataclass(frozen=True, slots=True)
class RulesHistory(Record):
    """The newest changes to a namespace's rules, oldest first: up to MAX_CHANGES, and fewer if they are large."""

    changes: AsInJson[tuple[RulesChange, ...]] = ()
    format: Annotated[int, require_format(RULES_HISTORY_FORMAT)] = RULES_HISTORY_FORMAT

    def with_change(self, change: RulesChange) -> RulesHistory:
        """The history with this change, and as many earlier ones as there is room for."""
        new = replace(self, changes=(*self.changes, change)[-MAX_CHANGES:])
        while len(new.to_json()) > MAX_BYTES and len(new.changes) > 1:
            new = replace(new, changes=new.changes[(len(new.changes) + 1) // 2 :])
        return new

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(
            f"{where} is not a valid history of the retention rules ({why}). It has no effect on what is deleted. Find "
            "out who wrote it, and move it elsewhere to begin a new history."
        )


def read_rules_history(place: Place) -> RulesHistory:
    """The history of a namespace; an empty one if there is none.

    Raises `DamagedData`, `Untrusted` or `UnknownFormat` for a file that can't be used.
    """
    return _read(place)[0]


def refuse_unwritable_history(place: Place) -> None:
    """Raise the errors of `read_rules_history`, and `Refused` if the history is signed but no key is set."""
    version = _read(place)[1]
    if version is not None:
        place.records().refuse_to_drop_signature(RULES_HISTORY_KEY, version)


def add_rules_change(place: Place, change: RulesChange) -> None:
    """Add a change that was made. Raises the errors of `read_rules_history`, and `Refused` if other processes keep
    writing the history."""
    # not the retry policy: after a concurrent write, the history is read again without waiting
    for attempt in range(1, MAX_TRIES + 1):
        history, version = _read(place)
        new = history.with_change(change).to_json()
        try:
            create_or_replace(place, RULES_HISTORY_KEY, new, version, conflict=WriteConflict)
        except WriteConflict:
            if attempt == MAX_TRIES:
                raise
        else:
            return


def _read(place: Place) -> tuple[RulesHistory, Version | None]:
    try:
        data, version = place.records().read_with_version(RULES_HISTORY_KEY)
    except NotFound:
        return RulesHistory(), None
    return RulesHistory.from_json(data, f"{place.store().where}/{RULES_HISTORY_KEY}"), version
