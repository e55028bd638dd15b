"""The log of a backup or restore: the outcome of each object, written by each task before it continues.

    <folder>/<run>/<task>-<chunk>.<rows>.<bytes>.parquet     one line per object

A run is one Spark job. A later run's line for an object replaces an earlier line, unless only the earlier line records
a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_resources.errors import DamagedData
from spark_resources.model import RECEIPTS
from spark_resources.spark.datasets import parquet_bytes
from spark_resources.spark.task_logs import name_pattern, rows_of, table_of
from spark_resources.stores.base import folders_in
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class CopyStatus(StrEnum):
    """The outcome of one object."""

    COPIED = "copied"
    ALREADY_THERE = "already there"  # with identical content
    VANISHED = "vanished"  # its key no longer exists
    CHANGED = "changed"  # a different object is at its key, by size, time or checksum
    COLD = "cold"  # in an archive tier: it can't be read until the store has restored it
    FAILED = "failed"
    KEY_CONFLICT = "taken"  # another object is at the target key


HAS_COPY = (CopyStatus.COPIED.value, CopyStatus.ALREADY_THERE.value)

LOGGED = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),  # see CopyStatus
        pa.field("key", pa.string(), nullable=False),  # of the copy, below the folder of the backup
        pa.field("size", pa.int64(), nullable=False),  # bytes
        pa.field("modified", RECEIPTS.field("at").type),  # of the original, by its store's clock
        pa.field("checksum", pa.string()),  # of the original, as reported by its store
        pa.field("copy_checksum", pa.string()),  # of the copy, as reported by its store
        pa.field("sha256", pa.string()),  # of the bytes, if they were read
        pa.field("kept", pa.string()),  # headers and metadata as JSON, if the store didn't copy them itself
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("at", RECEIPTS.field("at").type, nullable=False),  # when it was logged, by the log store's clock
        pa.field("why", pa.string(), nullable=False),  # for operators
    ]
)
NUMBERED = pa.schema([pa.field("run", pa.int32(), nullable=False), *LOGGED])
_NAME = name_pattern(r"\d+")


@dataclass(frozen=True, slots=True)
class Log:
    """The log of one backup or restore. `folder` is a key with a trailing slash."""

    place: Place
    folder: str

    def keys(self, below: str = "") -> Iterator[str]:
        for page in self.place.store().pages(self.folder + below):
            yield from (listed.key for listed in page.objects if _NAME.search(listed.key))

    def next_run(self) -> int:
        """One above the highest run number in use."""
        names = (name.rstrip("/").rpartition("/")[2] for name in folders_in(self.place.store(), self.folder))
        return 1 + max((int(name) for name in names if name.isdecimal()), default=0)

    def progress_of(self, run: int) -> tuple[int, int]:
        """The numbers of objects and bytes that a run has processed, according to the names of its files."""
        names = [_NAME.search(key) for key in self.keys(f"{run:04d}/")]
        return sum(int(name.group(3)) for name in names if name), sum(int(name.group(4)) for name in names if name)

    def write(self, run: int, stem: str, table: pa.Table) -> None:
        """Write one file of a task. `stem` is unique to the task's attempt and its chunk."""
        size = sum(table["size"].to_pylist())
        key = f"{self.folder}{run:04d}/{stem}.{len(table)}.{size}.parquet"
        self.place.store().write(key, parquet_bytes(table.select(LOGGED.names).cast(LOGGED)))

    def read(self, key: str) -> pa.Table:
        """One file. Raises `DamagedData` if its content contradicts its name."""
        store = self.place.store()
        try:
            return table_of(store.read(key), _NAME.search(key), LOGGED)
        except (ValueError, OSError) as error:
            raise DamagedData(
                f"{key} in {store.where} is not a readable copy log ({error}). Move it elsewhere and run the same "
                "command again: the objects that it lists are then compared again.",
                invariant=10,
            ) from error

    def rows(self, spark: SparkSession) -> DataFrame:
        """All lines of all runs (NUMBERED)."""
        return rows_of(spark, list(self.keys()), NUMBERED, self.read, "run")

    def latest_entries(self, spark: SparkSession) -> DataFrame:
        """One line per object (LOGGED): that of the latest run with a copy, or else of the latest run."""
        from pyspark.sql import functions as F

        rows = self.rows(spark)
        order = F.struct(F.col("outcome").isin(*HAS_COPY), "run")
        newest = rows.groupBy("address").agg(F.max_by(F.struct(*LOGGED.names[1:]), order).alias("last"))
        return newest.select("address", "last.*")
