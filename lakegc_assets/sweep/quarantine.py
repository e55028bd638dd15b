"""Counts of a sweep's quarantined objects, for lists and reports. They are written when an undo or a purge ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakegc_assets.formatting import plural
from lakegc_assets.sweep.report import Report
from spark_resources.errors import NotFound
from spark_resources.mark_store.mark import mark_folder
from spark_resources.mark_store.quarantine_format import QUARANTINE_NAME, QuarantineCounts
from spark_resources.model import Outcome
from spark_resources.stores.place import Place


@dataclass(frozen=True, slots=True)
class Quarantine:
    """How many objects a sweep quarantined, and how many have been restored or purged since."""

    quarantined: int
    restored: int = 0
    purged: int = 0

    @classmethod
    def of(cls, report: Report, later_outcomes: Mapping[str, int]) -> Quarantine:
        """Count from a sweep's report and the latest outcomes of undo and purge (`later_outcomes`).

        A report that was written again after an undo or purge includes their outcomes."""
        kinds = (Outcome.QUARANTINED, Outcome.RESTORED, Outcome.PURGED)
        restored, purged = (
            max(later_outcomes.get(kind.value, 0), report.objects.get(kind.value, 0)) for kind in kinds[1:]
        )
        return cls(sum(report.objects.get(kind.value, 0) for kind in kinds), restored, purged)

    @property
    def left(self) -> int:
        """How many are still in quarantine."""
        return max(0, self.quarantined - self.restored - self.purged)

    def in_words(self) -> str:
        """The current state of the quarantined objects, without the count if all are in the same state; "" if
        nothing was quarantined."""
        counts = self._counts()
        return counts[0][1] if len(counts) == 1 else self.counts_in_words()

    def counts_in_words(self) -> str:
        """How many objects are in quarantine, undone and purged, as text; "" if nothing was quarantined."""
        return ", ".join(f"{count:,} {what}" for count, what in self._counts())

    def _counts(self) -> list[tuple[int, str]]:
        if not self.quarantined:
            return []
        counts = ((self.left, "in quarantine"), (self.restored, "undone"), (self.purged, "purged"))
        return [(count, what) for count, what in counts if count]


def result_in_words(report: Report, quarantine: Quarantine) -> str:
    """The result of a sweep in a few words, for the list of marks: deleted, in quarantine, undone, purged."""
    parts = [quarantine.in_words()]
    if deleted := report.objects.get(Outcome.DELETED.value, 0):
        parts.insert(0, plural(deleted, "object") + " deleted" if quarantine.quarantined else "deleted")
    return ", ".join(filter(None, parts)) or "nothing deleted"


def quarantine_key(mark_id: str) -> str:
    return f"{mark_folder(mark_id)}{QUARANTINE_NAME}"


def read_quarantine(place: Place, report: Report) -> Quarantine:
    """The counts of a sweep's quarantined objects. Raises `DamagedData` for a file that can't be read."""
    key = quarantine_key(report.mark_id)
    try:
        later_outcomes = QuarantineCounts.from_json(place.records().read(key), f"{place.store().where}/{key}")
    except NotFound:
        return Quarantine.of(report, {})
    return Quarantine.of(report, later_outcomes.objects)
