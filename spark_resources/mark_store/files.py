"""The recorded files of a mark, and other files in its folders."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from spark_resources.errors import DamagedData, NotFound
from spark_resources.mark_store.announcement import ANNOUNCEMENT_NAME
from spark_resources.mark_store.approval import APPROVAL_NAME
from spark_resources.mark_store.mark import Mark, asset_folder, mark_folder, reference_folder, verifications_folder
from spark_resources.mark_store.quarantine_format import QUARANTINE_NAME
from spark_resources.mark_store.record import (
    CHAIN,
    PARTS_ABOUT_OTHERS,
    MarkRecord,
    parts_needed_later,
    refuse_retired,
)
from spark_resources.spark.datasets import LIST_NAME, Dataset, open_dataset
from spark_resources.stores.base import StoredObject, folders_in
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel
from spark_resources.stores.retry import delete_own_files

REFERENCE_PARTS = ("deleted", "deleted.text")  # of expired_set, in the reference collector's folder
SUMMARY = "summary.json"

# Files that lakegc writes into a mark's folder after the mark is finished, next to the assets' folders.
LATER_FILES = ("mark.json", ANNOUNCEMENT_NAME, APPROVAL_NAME, "sweep.json", QUARANTINE_NAME)
RESTORED_FOLDER = "restored/"  # the log of restores from a backup
LATER_FOLDERS = ("receipts/", "verifications/", "sweep_report/", "undone/", RESTORED_FOLDER, "freed/")
RESTORE_FOLDERS = ("undone/", RESTORED_FOLDER)  # written by undo, purge and restore
EARLIER_FOLDERS = ("proofs/",)  # re-verifications of marks of format 1


@dataclass(frozen=True, slots=True)
class Part:
    """One dataset of a mark. `has_keys` says whether its rows are keys of objects to delete."""

    dataset: Dataset
    has_keys: bool


def recorded_parts(place: Place, record: MarkRecord) -> Iterator[Part]:
    """Every recorded dataset of a mark. Raises `DamagedData` if a list of files is missing or was altered, and
    `Retired` if the mark was retired."""
    refuse_retired(record)

    def open_part(recorded_part: tuple[str, str, str]) -> Part:
        asset, part, sha256 = recorded_part
        in_reference_folder = asset == "expired_set" and part in REFERENCE_PARTS
        folder = (
            f"{reference_folder(record.mark_id)}{part}/"
            if in_reference_folder
            else asset_folder(record.mark_id, asset, part)
        )
        dataset = open_dataset(place, folder, sha256=sha256)
        return Part(dataset, asset == "expired_set" and (in_reference_folder or not part))

    recorded = (
        (asset, part, str(summary["sha256"]))
        for asset, step in record.steps.items()
        for part, summary in step.datasets.items()
    )
    return fetch_in_parallel(recorded, open_part)


def unrecorded_files(place: Place, record: MarkRecord, recorded: list[Part]) -> list[str]:
    """The keys of files in a mark's folders that belong to none of the `recorded` datasets, except files that lakegc
    writes after the mark is finished."""
    known = {part.dataset.folder + file.name for part in recorded for file in part.dataset.files}
    known |= {part.dataset.folder + LIST_NAME for part in recorded}
    own, reference = mark_folder(record.mark_id), reference_folder(record.mark_id)
    known |= {own + name for name in LATER_FILES} | {reference + SUMMARY}
    later = tuple(own + folder for folder in (*LATER_FOLDERS, *EARLIER_FOLDERS))
    pages = (page for folder in (own, reference) for page in place.store().pages(folder))
    keys = (listed.key for page in pages for listed in page.objects)
    return sorted(key for key in keys if key not in known and not key.startswith(later))


def remove_unrecorded_files(place: Place, record: MarkRecord) -> None:
    """Delete leftovers of retried tasks from the folders of a mark, right before it is finished.

    Must not be called for a finished mark: extra files there were added by someone else. Raises `DamagedData` if a
    leftover can't be deleted.
    """
    leftovers = unrecorded_files(place, record, list(recorded_parts(place, record)))
    failed = delete_own_files(place.store(), leftovers)
    if failed:
        raise DamagedData(
            f"{failed[0].key} in {place.store().where} was probably left by a retried task and can't be "
            f"deleted ({failed[0].code}). Grant lakegc permission to delete under _lakefs/retention/gc/, and run the "
            "same command again.",
            invariant=12,
        )


# --- retired marks ----------------------------------------------------------------------------------------------------


def files_to_retire(place: Place, record: MarkRecord, *, keep: Collection[str]) -> list[StoredObject]:
    """The files that the retirement of this mark removes, in an order in which a reader never mistakes a missing file
    for damage.

    These are the files in its assets' folders and in those of its sweep, and its expired set in the reference
    collector's layout. Its small records stay, and so does what later marks need: the folders in `keep`, addresses that
    other repositories referred to, and one file that shows when objects were last restored.
    """
    own, reference = mark_folder(record.mark_id), reference_folder(record.mark_id)
    removed = (
        *(f"{own}{asset}/" for asset in CHAIN),
        *(own + folder for folder in LATER_FOLDERS),
        *(f"{reference}{part}/" for part in REFERENCE_PARTS),
    )
    kept = (
        *keep,
        *(asset_folder(record.mark_id, asset, part) for asset, part in parts_needed_later(record)),
        *_kept_in_verifications(place, record.mark_id),
        *_kept_restore_files(place, record.mark_id),
    )
    files = [
        listed
        for folder in (own, *removed[-len(REFERENCE_PARTS) :])
        for page in place.store().pages(folder)
        for listed in page.objects
        if listed.key.startswith(removed) and not listed.key.startswith(kept)
    ]
    # records first: a re-verification without a record is never read, but one with a record must have all its files
    return sorted(files, key=lambda listed: not listed.key.endswith("/mark.json"))


def _kept_restore_files(place: Place, mark_id: str) -> Iterator[str]:
    """The key of the newest file in each of RESTORE_FOLDERS. An incremental mark whose base mark is older than such a
    file would have to look up all objects of this mark again, so it becomes a full mark."""
    for folder in RESTORE_FOLDERS:
        files = [file for page in place.store().pages(mark_folder(mark_id) + folder) for file in page.objects]
        if files:
            yield max(files, key=lambda file: file.modified).key


def _kept_in_verifications(place: Place, mark_id: str) -> Iterator[str]:
    """The prefixes of the files to keep from the re-verifications of a mark's sweeps: those with addresses that other
    repositories referred to, or, if a re-verification's record is unreadable, those that may contain any."""
    for root in folders_in(place.store(), verifications_folder(mark_id)):
        try:
            record = Mark.open(place, mark_id, root=root).record
        except NotFound:
            continue
        except DamagedData:
            record = None
        if record is None or (record.finished is not None and parts_needed_later(record)):
            yield f"{root}mark.json"
            yield from (f"{root}{asset}/{part}/" for asset, part in sorted(PARTS_ABOUT_OTHERS))
