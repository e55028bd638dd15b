"""The summary of a sweep, as recorded in the mark's folder. `report_writer` computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from typing_extensions import TypedDict

from lakegc_assets.formatting import plural
from spark_resources.errors import DamagedData, NotFound, WrongUsage
from spark_resources.identifiers import lakefs_id, repository_on
from spark_resources.mark_store.mark import mark_folder
from spark_resources.model import Outcome
from spark_resources.records.json_records import record_bytes
from spark_resources.records.model import AsInJson, Count, Record, UtcTime
from spark_resources.spark.datasets import DatasetName
from spark_resources.stores.place import Place

REPORT_FORMAT = 2
MAX_NAMED = 1_000  # maximum number of objects named in a summary; the dataset has all


class Refusal(TypedDict):
    """One of the most frequent reasons why objects failed: the store's code, its message with "…" in place of the
    key, the number of objects, and an example key."""

    code: str
    why: str
    objects: int
    example: str


@dataclass(frozen=True, slots=True)
class Report(Record):
    """The summary of a sweep, as stored in `sweep.json`. Times are by the store's clock; `seconds` is the time spent
    deleting.

    `seconds`, `requests`, `attempts`, `verifications`, `unread` and `taken` (deleted or quarantined objects) are those
    of the run that ended the sweep, without earlier, interrupted runs. `objects` and `sizes` (in bytes), by outcome,
    add up to the approved set. `late` are the first MAX_NAMED objects that became live after the last re-verification
    but were already deleted: they can only be restored from a backup or from quarantine. `quarantine` means that the
    sweep quarantined objects, which a retry must also do. `unread` are the other repositories that could not be read
    and were released by name, each with the reason.
    """

    optional_fields = frozenset({"quarantine", "taken", "dataset", "deleting", "unread", "refusals"})

    mark_id: str
    repository: str
    digest: str
    by: str
    began: UtcTime
    ended: UtcTime
    approved: Count
    objects: Mapping[str, Count]
    sizes: Mapping[str, Count]
    seconds: float
    requests: Count
    attempts: Count
    verifications: AsInJson[tuple[UtcTime, ...]]
    late: AsInJson[tuple[str, ...]]
    late_objects: Count
    quarantine: bool = False
    taken: Count = 0
    dataset: DatasetName = field(default_factory=lambda: DatasetName(folder="", sha256="", rows=0, bytes=0))
    deleting: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)
    refusals: AsInJson[tuple[Refusal, ...]] = ()
    format: int = REPORT_FORMAT

    @property
    def known_taken(self) -> int | None:
        """`taken`; None if it isn't known, because an earlier version of lakegc included objects of earlier runs."""
        return self.taken if self.taken <= self.attempts else None

    @property
    def success(self) -> bool:
        """True if every object has an outcome, none failed, and none that became live was deleted or quarantined."""
        return (
            sum(self.objects.values()) == self.approved
            and not self.objects.get(Outcome.FAILED.value)
            and not self.late_objects
        )

    def sentence(self) -> str:
        """The result in a few sentences, with the next step."""
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.objects.items())) or "nothing to do"
        approved = plural(self.approved, "object")
        text = f"mark {self.mark_id} of {self.repository}, {approved} approved: {counts}"
        if failed := self.objects.get(Outcome.FAILED.value):
            retry = f"lakegc sweep {self.repository} {self.mark_id}{' --quarantine' if self.quarantine else ''}"
            text += f". {failed:,} could not be deleted; the report has the store's responses. To retry: {retry}"
        if self.late_objects:
            text += (
                f". {plural(self.late_objects, 'object')} became live while being deleted, and "
                f"{'is' if self.late_objects == 1 else 'are'} now missing for readers: "
                f"{', '.join(self.late[:3])}{' …' if self.late_objects > 3 else ''}. Restore "
                f"{'it' if self.late_objects == 1 else 'them'} from a backup, or with 'lakegc undo' if quarantined"
            )
        if self.unread:
            text += f". Other repositories could not be read and were released: {', '.join(sorted(self.unread))}"
        return text

    def to_json(self) -> bytes:
        return record_bytes(
            {attribute.name: getattr(self, attribute.name) for attribute in fields(self)} | {"success": self.success}
        )

    @classmethod
    def as_declared(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """The fields without `success`, which follows from them. Reports of the first format are converted, so that
        their quarantined objects can still be restored or purged."""
        fields_ = dict(plain)
        del fields_["success"]
        if fields_["format"] == 1:
            fields_ |= {"verifications": fields_.pop("proofs"), "format": REPORT_FORMAT}
        if fields_["format"] != REPORT_FORMAT:
            raise ValueError(f"format {fields_['format']}; this version of lakegc supports 1 and {REPORT_FORMAT}")
        return fields_

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(f"{where} is not a valid sweep report ({why}).", invariant=10)


def report_key(mark_id: str) -> str:
    return mark_folder(mark_id) + "sweep.json"


def read_report(place: Place, mark_id: str) -> Report | None:
    """The report of a mark's sweep; None if there is none yet."""
    key = report_key(mark_id)
    try:
        report = Report.from_json(place.records().read(key), f"{place.store().where}/{key}")
    except NotFound:
        return None
    return replace(report, repository=repository_on(place.server, lakefs_id(report.repository)))


def read_report_if_intact(place: Place, mark_id: str) -> Report | None:
    """Like `read_report`, but also None for a report that can't be read, or that isn't in a mark's folder."""
    try:
        return read_report(place, mark_id)
    except (DamagedData, WrongUsage):
        return None
