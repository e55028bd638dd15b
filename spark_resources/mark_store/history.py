"""The record `history.json` of a namespace: its newest finished marks and sweeps, and what every sweep freed.

It is only for display: with it, an overview of many repositories needn't read every record of every mark. Nothing is
approved, swept or kept because of it, and it can be rebuilt from the other records at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from spark_resources.errors import DamagedData, NotFound
from spark_resources.mark_store.mark import MARKS_ROOT
from spark_resources.mark_store.record import RECORD_FORMAT, MarkRecord, finished_at
from spark_resources.records.model import AsInJson, Count, MarkId, Record, UtcTime, require_format
from spark_resources.stores.place import Place

HISTORY_KEY = MARKS_ROOT + "history.json"
HISTORY_FORMAT = 1
MAX_ENTRIES = 50  # of each kind, except `freed`


@dataclass(frozen=True, slots=True)
class FinishedMark(Record):
    """The counts of one finished mark. `finished` is by the store's clock."""

    mark_id: MarkId
    finished: UtcTime
    candidates: Count
    candidate_bytes: Count
    expired: Count
    expired_bytes: Count


@dataclass(frozen=True, slots=True)
class FinishedSweep(Record):
    """The outcome of one sweep: when it ended (by the store's clock), and how many objects and bytes it has freed so
    far, to which a later purge of its quarantine adds. `late` objects became live while they were being deleted.
    `restored` objects were in its quarantine and are back at their keys, with new modification times."""

    optional_fields = frozenset({"restored"})

    mark_id: MarkId
    ended: UtcTime
    objects: Count
    bytes: Count
    quarantined: Count = 0
    failed: Count = 0
    late: Count = 0
    restored: Count = 0


@dataclass(frozen=True, slots=True)
class Freed(Record):
    """The objects and bytes that the sweep of one mark freed."""

    objects: Count
    bytes: Count


@dataclass(frozen=True, slots=True)
class History(Record):
    """The newest MAX_ENTRIES marks and sweeps of a namespace, oldest first, and what each of its sweeps freed, by mark
    id. `freed` also has sweeps whose records were removed."""

    marks: AsInJson[tuple[FinishedMark, ...]] = ()
    sweeps: AsInJson[tuple[FinishedSweep, ...]] = ()
    freed: Mapping[MarkId, Freed] = field(default_factory=dict)
    format: Annotated[int, require_format(HISTORY_FORMAT)] = HISTORY_FORMAT

    @property
    def freed_objects(self) -> int:
        return sum(freed.objects for freed in self.freed.values())

    @property
    def freed_bytes(self) -> int:
        return sum(freed.bytes for freed in self.freed.values())

    def with_mark(self, record: MarkRecord) -> History:
        """The history including this mark, if the mark is finished and of the current format."""
        if record.finished is None or record.format != RECORD_FORMAT:
            return self
        names = ("candidates", "candidate_bytes", "expired", "expired_bytes")
        mark = FinishedMark(record.mark_id, finished_at(record), **{name: record.counts[name] for name in names})
        others = [other for other in self.marks if other.mark_id != mark.mark_id]
        return replace(self, marks=tuple(sorted([*others, mark], key=lambda other: other.finished)[-MAX_ENTRIES:]))

    def with_sweep(self, sweep: FinishedSweep) -> History:
        """The history including this sweep, which replaces an earlier outcome of the same sweep."""
        others = [other for other in self.sweeps if other.mark_id != sweep.mark_id]
        return replace(
            self,
            sweeps=tuple(sorted([*others, sweep], key=lambda other: other.ended)[-MAX_ENTRIES:]),
            freed={**self.freed, sweep.mark_id: Freed(sweep.objects, sweep.bytes)},
        )

    def sweeps_since(self, record: MarkRecord) -> tuple[FinishedSweep, ...]:
        """The sweeps of other marks that ended after this mark began, and that deleted or quarantined at least one
        object. Objects in this mark's set may be gone, or may have been restored, which changed them."""
        return tuple(
            sweep
            for sweep in self.sweeps
            if sweep.mark_id != record.mark_id
            and sweep.ended >= record.start
            and (sweep.objects or sweep.quarantined or sweep.restored)
        )

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(f"{where} is not a valid history of marks ({why}). Delete it: the next mark rebuilds it.")


def read_history(place: Place) -> History | None:
    """The history of a namespace; None if there is none.

    Raises `DamagedData`, `Untrusted` or `UnknownFormat` for a file that can't be used.
    """
    try:
        return History.from_json(place.records().read(HISTORY_KEY), f"{place.store().where}/{HISTORY_KEY}")
    except NotFound:
        return None


def write_history(place: Place, history: History) -> None:
    """Replace the history. Callers must hold the namespace's lease."""
    place.records().write(HISTORY_KEY, history.to_json())
