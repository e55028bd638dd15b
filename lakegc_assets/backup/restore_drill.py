"""Restore drill: copy a few objects of a backup to a scratch place, compare them, and delete them there."""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lakegc_assets.backup.destination import backup_place, made, refuse_overlap, refuse_owned
from lakegc_assets.backup.restore import Chosen, RestoreRun, has_copy, wanted
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

BY_ORIGINAL = "the original, byte for byte"
BY_SHA256 = "the SHA-256 recorded when it was copied"
BY_CHECKSUM = "the store's checksum of the original"
BY_SIZE = "its size only"


@dataclass(slots=True)
class Drilled:
    """The result of a drill: counts of identical objects by what they were compared with, and those that differ."""

    wanted: int
    same: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        return not self.wrong and sum(self.same.values()) == self.wanted


def drill(run: RestoreRun, chosen: Chosen, count: int, seed: int, scratch: Place) -> Drilled:
    """Copy a random sample of the wanted objects to the scratch place, compare, and delete the copies."""
    with errors_from_executors():
        rows = sampled(run, chosen, count, seed)
    done, folder = Drilled(len(rows)), f"lakegc-drill-{secrets.token_hex(8)}/"
    bandwidth = Throttle(run.limits.bandwidth)
    copier = Copier(run.source.store(), scratch.store(), False, bandwidth)
    keys = [f"{folder}{number:06d}" for number in range(len(rows))]
    run.log_message(f"restoring {plural(len(rows), 'object')} to {scratch.store().where}/{folder}")
    try:
        with ThreadPoolExecutor(max_workers=run.limits.at_once) as pool:
            found = pool.map(lambda one: compared(run, copier, *one), zip(rows, keys, strict=True))
            for row, (how, why) in zip(rows, found, strict=True):
                if why:
                    done.wrong[row["address"]] = why
                else:
                    done.same[how] += 1
    finally:
        delete_own_files(scratch.store(), keys)
    return done


def sampled(run: RestoreRun, chosen: Chosen, count: int, seed: int) -> list[dict[str, Any]]:
    """A sample of this backup, determined by the seed on any machine."""
    from pyspark.sql import functions as F

    rows = wanted(run, chosen)  # starts Spark, which expressions need
    order = F.sha2(F.concat(F.lit(f"{seed} "), F.col("address")), 256)
    return [row.asDict() for row in rows.where(has_copy()).orderBy(order).limit(count).collect()]


def compared(run: RestoreRun, copier: Copier, row: Mapping[str, Any], key: str) -> tuple[str, str]:
    """What an object was compared with, and why it differs; "" if it is identical."""
    try:
        copy = backup_copy_of(copier, row, run.folder)
        copier.copy(
            copy, key, kept=properties_from_json(row["kept"], row["size"], row["modified"]), sha256=row["sha256"]
        )
        streams = copier.target.streams
        back = HashingIterator(streams.pieces(key, streams.properties(key))).drain()
        return judged(run, row, back)
    except LakegcError as error:
        return "", str(error)


def judged(run: RestoreRun, row: Mapping[str, Any], back: HashingIterator) -> tuple[str, str]:
    if back.size != row["size"]:
        return BY_SIZE, f"the restored copy has {back.size} bytes instead of {row['size']}"
    original = original_of(run, row)
    if original is not None:
        return BY_ORIGINAL, "" if original == back.sha256 else "the restored copy differs from the original"
    if row["sha256"] is not None:
        return BY_SHA256, "" if row["sha256"] == back.sha256 else "the restored copy differs from what was backed up"
    if row["checksum"] in (back.md5, back.crc32c):
        return BY_CHECKSUM, ""
    return BY_SIZE, ""


def original_of(run: RestoreRun, row: Mapping[str, Any]) -> str | None:
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
    """The scratch place of a drill: the given one, which must be outside all repositories, or a temporary folder."""
    if uri:
        place = backup_place(uri, settings)
        refuse_overlap(place, run.target, "lakegc-drill/", run.lakefs)
        place = made(place)
        refuse_owned(place)
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="lakegc-drill-") as folder:
        yield backup_place(folder, settings)
