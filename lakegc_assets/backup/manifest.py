"""The two small files of a backup: begun.json, which identifies its set, and the summary, which is written last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

from lakegc_assets.formatting import outcome_in_words, plural
from spark_resources.copying.copy_log import HAS_COPY, CopyStatus
from spark_resources.copying.restore_task import BACKED_UP
from spark_resources.errors import DamagedData, NotFound, Refused
from spark_resources.records.model import Count, Record, UtcTime, require_format
from spark_resources.spark.datasets import Dataset, DatasetName, open_dataset
from spark_resources.stores.base import AlreadyExists
from spark_resources.stores.place import Place

BACKUP_FORMAT = 1
SUMMARY = "backup.json"
BEGUN = "begun.json"
INCOMPLETE_OUTCOMES = (CopyStatus.FAILED.value, CopyStatus.KEY_CONFLICT.value)  # outcomes that no complete backup has
SCHEMA = BACKED_UP


@dataclass(frozen=True, slots=True)
class Subject(Record):
    """The subject of a backup: one exact set of objects. `layout` is the reference collector's, for a foreign mark."""

    repository: str
    repository_created: str
    namespace: str
    mark_id: str
    layout: str | None
    digest: str


@dataclass(frozen=True, slots=True)
class Begun(Subject):
    """The content of begun.json. Files written by the first version have no `format`."""

    optional_fields = frozenset({"format"})

    format: Annotated[int, require_format(BACKUP_FORMAT)] = BACKUP_FORMAT

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(
            f"{where} is not a valid record of a started backup ({why}). Choose another location for this backup.",
            invariant=12,
        )


@dataclass(frozen=True, slots=True)
class Backup(Record):
    """The summary of a complete backup. Times are by its store's clock; `seconds` is the duration of its last run.

    `objects` and `sizes` (in bytes) are totals by outcome (`CopyStatus`), which add up to the whole set; `dataset`
    refers to the list of all objects.
    """

    subject: Subject
    by: str
    began: UtcTime
    ended: UtcTime
    marked: Count
    objects: Mapping[str, Count]
    sizes: Mapping[str, Count]
    seconds: float
    dataset: DatasetName
    format: Annotated[int, require_format(BACKUP_FORMAT)] = BACKUP_FORMAT

    @property
    def copied(self) -> int:
        """The number of objects with a copy."""
        return sum(self.objects.get(outcome, 0) for outcome in HAS_COPY)

    @property
    def copied_bytes(self) -> int:
        return sum(self.sizes.get(outcome, 0) for outcome in HAS_COPY)

    @property
    def is_empty(self) -> bool:
        """Whether the backup has none of the mark's objects, although the mark isn't empty."""
        return self.marked > 0 and self.copied == 0

    def sentence(self, repository: str) -> str:
        """The result in a few sentences, with the next step if objects are missing. `repository` is the name in the
        settings, which may include that of its server."""
        by_outcome = (f"{count:,} {outcome_in_words(outcome)}" for outcome, count in sorted(self.objects.items()))
        counts = ", ".join(by_outcome) or "empty"
        marked = plural(self.marked, "object")
        text = f"backup of mark {self.subject.mark_id} of {repository}, {marked}: {counts}"
        if archived := self.objects.get(CopyStatus.COLD.value):
            text += (
                f". {plural(archived, 'object')} in an archive tier can't be read: restore archived objects in the "
                "store, then run the same command again. Until then, a sweep that requires this backup keeps the "
                "objects that are missing from it"
            )
        elif self.is_empty:
            text += (
                ". Nothing was copied, because every object changed or vanished after the mark. A sweep of this mark "
                f"doesn't delete changed objects, either. Make a new mark: lakegc mark {repository}"
            )
        return text

    def verify(self, data: bytes) -> None:
        if sum(self.objects.values()) != self.marked or any(
            self.objects.get(outcome) for outcome in INCOMPLETE_OUTCOMES
        ):
            raise ValueError("its counts don't add up")

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(f"{where} is not a valid backup summary ({why}). Run the backup again.", invariant=12)


# --- reading and writing ----------------------------------------------------------------------------------------------


def read_backup(place: Place, folder: str) -> Backup | None:
    """The summary of a backup; None if there is none, because the backup is incomplete or doesn't exist."""
    store, key = place.store(), folder + SUMMARY
    try:
        return Backup.from_json(store.read(key), f"{store.where}/{key}")
    except NotFound:
        return None


def listed_objects(place: Place, backup: Backup) -> Dataset:
    """The list of a backup's objects. Raises `DamagedData` if it isn't the list that the summary names."""
    return open_dataset(place, backup.dataset["folder"], sha256=backup.dataset["sha256"])


def begin(place: Place, folder: str, subject: Subject) -> bool:
    """Record, as the first write to a folder, which set it is for. Returns whether the same backup was started before.

    Raises `Refused` if the folder is for another set, and the store's error if it isn't writable.
    """
    store, key = place.store(), folder + BEGUN
    try:
        store.write_if_absent(key, Begun(**asdict(subject)).to_json())
    except AlreadyExists:
        if Begun.from_json(store.read(key), f"{store.where}/{key}") != Begun(**asdict(subject)):
            raise Refused(
                f"{folder} in {store.where} already has a backup of a different set: mark {subject.mark_id} of "
                f"{subject.repository} may have been recreated after the backup, or may belong to another repository "
                "with this name. Choose another location for this backup.",
                invariant=12,
            ) from None
        return True
    return False
