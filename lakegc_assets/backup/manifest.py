"""The two small files of a backup: begun.json, which names its set, and the summary, which is written last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from spark_resources.copying.copy_log import HAS_COPY, CopyStatus
from spark_resources.copying.restore_task import BACKED_UP
from spark_resources.errors import DamagedData, NotFound, Refused
from spark_resources.records.json_records import check_format, read_json, record_bytes, time_of
from spark_resources.spark.datasets import Dataset, open_dataset
from spark_resources.stores.base import AlreadyExists
from spark_resources.stores.place import Place

BACKUP_FORMAT = 1
SUMMARY = "backup.json"
BEGUN = "begun.json"
NEVER = (CopyStatus.FAILED.value, CopyStatus.TAKEN.value)  # outcomes that no complete backup has
SCHEMA = BACKED_UP


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a backup: one exact set of objects. `layout` is the reference collector's, for a foreign mark."""

    repository: str
    repository_created: str
    namespace: str
    mark_id: str
    layout: str | None
    digest: str


@dataclass(frozen=True, slots=True)
class Backup:
    """The summary of a complete backup. Times by the clock of its place; `seconds` of its last run.

    `objects`, and `sizes` in bytes, by outcome (`CopyStatus`) add up to the set; `dataset` refers to the list of all
    objects.
    """

    subject: Subject
    by: str
    began: datetime
    ended: datetime
    marked: int
    objects: Mapping[str, int]
    sizes: Mapping[str, int]
    seconds: float
    dataset: Mapping[str, Any]
    format: int = BACKUP_FORMAT

    @property
    def held(self) -> int:
        """The number of objects with a copy."""
        return sum(self.objects.get(outcome, 0) for outcome in HAS_COPY)

    @property
    def held_bytes(self) -> int:
        return sum(self.sizes.get(outcome, 0) for outcome in HAS_COPY)

    def sentence(self) -> str:
        """The result in short."""
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.objects.items())) or "empty"
        text = f"backup of mark {self.subject.mark_id} of {self.subject.repository}, {self.marked:,} objects: {counts}"
        if cold := self.objects.get(CopyStatus.COLD.value):
            text += (
                f". {cold:,} are in an archive tier and can't be read: restore them there and run the same command "
                "again. Until then a sweep that requires this backup keeps them"
            )
        return text

    def to_json(self) -> bytes:
        return record_bytes(asdict(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Backup:
        """Parse a summary. Raises `DamagedData` if it can't be read or doesn't add up."""
        try:
            plain = read_json(data)
            if plain["format"] != BACKUP_FORMAT or plain.keys() != {each.name for each in fields(cls)}:
                raise ValueError(f"unexpected fields for format {BACKUP_FORMAT}")
            times = {name: time_of(plain[name]) for name in ("began", "ended")}
            found = cls(**{**plain, **times, "subject": Subject(**plain["subject"])})
            if sum(found.objects.values()) != found.marked or any(found.objects.get(bad) for bad in NEVER):
                raise ValueError("its counts don't add up")
            return found
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedData(
                f"{where} is not a valid backup summary ({error}). Run the backup again.", invariant=12
            ) from error


# --- reading and writing ----------------------------------------------------------------------------------------------


def read_backup(place: Place, folder: str) -> Backup | None:
    """The summary of a backup; None if there is none, which means that the backup is incomplete."""
    store, key = place.store(), folder + SUMMARY
    try:
        return Backup.from_json(store.read(key), f"{store.where}/{key}")
    except NotFound:
        return None


def listed_objects(place: Place, backup: Backup) -> Dataset:
    """The list of a backup's objects. Raises `DamagedData` if it isn't the one that the summary names."""
    return open_dataset(place, str(backup.dataset["folder"]), sha256=str(backup.dataset["sha256"]))


def begin(place: Place, folder: str, subject: Subject) -> bool:
    """Record the set that a folder is for; returns whether the same backup was begun before. This is the first write.

    Raises `Refused` if the folder is for another set, and the store's error if it isn't writable.
    """
    store, key = place.store(), folder + BEGUN
    plain = asdict(subject)
    data = record_bytes({**plain, "format": BACKUP_FORMAT})
    try:
        store.write_if_absent(key, data)
    except AlreadyExists:
        try:
            found = read_json(store.read(key))
        except ValueError:
            found = None
        if isinstance(found, dict):
            check_format(found.pop("format", BACKUP_FORMAT), BACKUP_FORMAT, f"{store.where}/{key}")
        if found != plain:
            raise Refused(
                f"{folder} in {store.where} already has a backup of another set: mark {subject.mark_id} of "
                f"{subject.repository} was recreated since, or belongs to another repository of this name. Choose "
                "another location for this backup.",
                invariant=12,
            ) from None
        return True
    return False
