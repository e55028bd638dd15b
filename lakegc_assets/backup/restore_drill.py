"""Restore drill: copy a few objects of a backup to a scratch location, compare them, and delete them there."""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lakegc_assets.backup.destination import create_place, parse_place, refuse_namespace, refuse_overlap
from lakegc_assets.backup.restore import RestoreRun, Selection, has_copy, selected_rows
from lakegc_assets.formatting import plural
from spark_resources.copying.backup_task import properties_from_json
from spark_resources.copying.restore_task import backup_copy_of
from spark_resources.copying.verified_copy import Copier, Throttle
from spark_resources.errors import LakegcError, NotFound
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.stores.place import Place
from spark_resources.stores.retry import delete_own_files
from spark_resources.stores.settings import StoreSettings
from spark_resources.stores.transfer import HashingIterator

COMPARED_WITH_ORIGINAL = "the original, byte for byte"
COMPARED_WITH_SHA256 = "the SHA-256 recorded when it was copied"
COMPARED_WITH_CHECKSUM = "the store's checksum of the original"
COMPARED_WITH_SIZE = "its size only"


@dataclass(slots=True)
class DrillResult:
    """The result of a drill: the number of identical objects by what they were compared with, and, for each of the
    others, why it differs or could not be restored."""

    sample_size: int
    identical: Counter[str] = field(default_factory=Counter)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        return not self.problems and sum(self.identical.values()) == self.sample_size


def drill(run: RestoreRun, selection: Selection, count: int, seed: int, scratch: Place) -> DrillResult:
    """Copy a random sample of the selected objects to the scratch location, compare them, and delete the copies."""
    with errors_from_executors():
        rows = sample_rows(run, selection, count, seed)
    result, folder = DrillResult(len(rows)), f"lakegc-drill-{secrets.token_hex(8)}/"
    bandwidth = Throttle(run.limits.bandwidth)
    copier = Copier(run.source.store(), scratch.store(), False, bandwidth)
    keys = [f"{folder}{number:06d}" for number in range(len(rows))]
    run.log_message(f"restoring {plural(len(rows), 'object')} to {scratch.store().where}/{folder}")
    try:
        with ThreadPoolExecutor(max_workers=run.limits.at_once) as pool:
            results = pool.map(
                lambda row_and_key: restore_and_compare(run, copier, *row_and_key), zip(rows, keys, strict=True)
            )
            for row, (how, why) in zip(rows, results, strict=True):
                if why:
                    result.problems[row["address"]] = why
                else:
                    result.identical[how] += 1
    finally:
        delete_own_files(scratch.store(), keys)
    return result


def sample_rows(run: RestoreRun, selection: Selection, count: int, seed: int) -> list[dict[str, Any]]:
    """A random sample of at most `count` selected objects that have a copy in the backup. The same seed picks the same
    objects on any machine."""
    from pyspark.sql import functions as F

    rows = selected_rows(run, selection)  # starts Spark, which column expressions need
    order = F.sha2(F.concat(F.lit(f"{seed} "), F.col("address")), 256)
    return [row.asDict() for row in rows.where(has_copy()).orderBy(order).limit(count).collect()]


def restore_and_compare(run: RestoreRun, copier: Copier, row: Mapping[str, Any], key: str) -> tuple[str, str]:
    """Restore an object and compare the copy. Returns what the copy was compared with ("" if the object could not be
    restored), and the problem ("" if there is none)."""
    try:
        backup_copy = backup_copy_of(copier, row, run.folder)
        copier.copy(
            backup_copy,
            key,
            recorded=properties_from_json(row["kept"], row["size"], row["modified"]),
            sha256=row["sha256"],
        )
        streams = copier.target.streams
        restored = HashingIterator(streams.pieces(key, streams.properties(key))).drain()
        return compare(run, row, restored)
    except LakegcError as error:
        return "", str(error)


def compare(run: RestoreRun, row: Mapping[str, Any], restored: HashingIterator) -> tuple[str, str]:
    if restored.size != row["size"]:
        return COMPARED_WITH_SIZE, f"the restored copy has {restored.size} bytes instead of {row['size']}"
    original = original_sha256(run, row)
    if original is not None:
        return (
            COMPARED_WITH_ORIGINAL,
            "" if original == restored.sha256 else "the restored copy differs from the original",
        )
    if row["sha256"] is not None:
        return COMPARED_WITH_SHA256, "" if row[
            "sha256"
        ] == restored.sha256 else "the restored copy differs from what was backed up"
    if row["checksum"] in (restored.md5, restored.crc32c):
        return COMPARED_WITH_CHECKSUM, ""
    return COMPARED_WITH_SIZE, ""


def original_sha256(run: RestoreRun, row: Mapping[str, Any]) -> str | None:
    """The SHA-256 of the original if it still exists unchanged, otherwise None."""
    streams = run.target.place.store().streams
    try:
        properties = streams.properties(row["address"])
    except (NotFound, LakegcError):
        return None
    if properties.size != row["size"] or properties.checksum != row["checksum"]:
        return None
    return HashingIterator(streams.pieces(row["address"], properties)).drain().sha256


@contextmanager
def scratch_place(run: RestoreRun, uri: str, settings: StoreSettings) -> Iterator[Place]:
    """The scratch location of a drill: the given one, which must be outside all namespaces, or a temporary
    folder that is deleted at the end."""
    if uri:
        place = parse_place(uri, settings)
        refuse_overlap(place, run.target, "lakegc-drill/", run.lakefs)
        place = create_place(place)
        refuse_namespace(place)
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="lakegc-drill-") as folder:
        yield parse_place(folder, settings)
