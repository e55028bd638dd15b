"""What became of each object that was to be copied, written by the task that copied it before it goes on.

    <folder>/<run>/<task>-<chunk>.<rows>.<bytes>.parquet     a line an object

A run is one Spark job; a later run's word on an object replaces an earlier one's, but for that it is copied.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from spark_resources.datasets import Batches, Place, arrow_to_spark, parquet_bytes
from spark_resources.entries import id_tasks
from spark_resources.errors import DamagedData
from spark_resources.executors import on_executor
from spark_resources.model import RECEIPTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Fate(StrEnum):
    """What became of one object."""

    COPIED = "copied"
    ALREADY_THERE = "already there"  # the same bytes
    VANISHED = "vanished"  # nothing is at its key any more
    CHANGED = "changed"  # another object is at its key: size, time or checksum
    COLD = "cold"  # in an archive tier: it can't be read before it is brought back there
    FAILED = "failed"
    TAKEN = "taken"  # another object is where it was to go


HELD = (Fate.COPIED.value, Fate.ALREADY_THERE.value)

LOGGED = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),  # see Fate
        pa.field("key", pa.string(), nullable=False),  # of the copy, below the folder of the backup
        pa.field("size", pa.int64(), nullable=False),  # bytes
        pa.field("modified", RECEIPTS.field("at").type),  # of the original, by its store's clock
        pa.field("checksum", pa.string()),  # of the original, as its store shows it
        pa.field("copy_checksum", pa.string()),  # of the copy, as its store shows it
        pa.field("sha256", pa.string()),  # of the bytes, where they were read
        pa.field("kept", pa.string()),  # headers and metadata as JSON, where the store didn't take them along itself
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("at", RECEIPTS.field("at").type, nullable=False),  # when it was done, by the clock of the log's store
        pa.field("why", pa.string(), nullable=False),  # for people
    ]
)
NUMBERED = pa.schema([pa.field("run", pa.int32(), nullable=False), *LOGGED])
_NAME = re.compile(r"/(\d{4,})/([^/]+)\.(\d+)\.(\d+)\.parquet$")


@dataclass(frozen=True, slots=True)
class Log:
    """The log of one backup or restore. `folder` is a key with a slash at its end."""

    place: Place
    folder: str

    def keys(self, below: str = "") -> Iterator[str]:
        for page in self.place.store().pages(self.folder + below):
            yield from (found.key for found in page.objects if _NAME.search(found.key))

    def next_run(self) -> int:
        """One more than any run that left a trace."""
        pages = self.place.store().pages(self.folder, delimiter="/")
        names = (name.rstrip("/").rpartition("/")[2] for page in pages for name in page.prefixes)
        return 1 + max((int(name) for name in names if name.isdecimal()), default=0)

    def so_far(self, run: int) -> tuple[int, int]:
        """Objects and bytes that a run has dealt with, by the names of its files."""
        names = [_NAME.search(key) for key in self.keys(f"{run:04d}/")]
        return sum(int(name.group(3)) for name in names if name), sum(int(name.group(4)) for name in names if name)

    def write(self, run: int, stem: str, table: pa.Table) -> None:
        """Write one file of a task. `stem` is unique to the task's attempt and its chunk."""
        size = sum(table["size"].to_pylist())
        key = f"{self.folder}{run:04d}/{stem}.{len(table)}.{size}.parquet"
        self.place.store().write(key, parquet_bytes(table.select(LOGGED.names).cast(LOGGED)))

    def read(self, key: str) -> pa.Table:
        """One file. Raises `DamagedData` where it isn't what its name says."""
        store = self.place.store()
        try:
            table = pq.ParquetFile(io.BytesIO(store.read(key)), pre_buffer=False).read(use_threads=False)
            name = _NAME.search(key)
            if name is not None and table.num_rows == int(name.group(3)):
                return table.select(LOGGED.names).cast(LOGGED)
            found = f"{table.num_rows} rows"
        except (pa.ArrowException, ValueError, OSError, KeyError) as error:
            found = str(error)
        raise DamagedData(
            f"{key} in {store.where} can't be read as a log of copies ({found}). Move the file away: its objects are "
            "then looked at again.",
            invariant=10,
        )

    def rows(self, spark: SparkSession) -> DataFrame:
        """All lines of all runs (NUMBERED)."""
        log, keys = self, list(self.keys())
        if not keys:
            return spark.createDataFrame([], arrow_to_spark(NUMBERED))

        def read(batches: Batches) -> Batches:
            for key in (key for batch in batches for key in batch.column(0).to_pylist()):
                table, name = log.read(key), _NAME.search(key)
                number = pa.repeat(pa.scalar(int(name.group(1)) if name else 0, pa.int32()), len(table))
                table = table.add_column(0, NUMBERED.field("run"), number)
                yield from table.cast(NUMBERED).to_batches(max_chunksize=100_000)

        return id_tasks(spark, "key", keys, batch=16).mapInArrow(on_executor(read), arrow_to_spark(NUMBERED))

    def last_words(self, spark: SparkSession) -> DataFrame:
        """One line an object (LOGGED): that it is copied, where any run says so; otherwise the latest run's word."""
        from pyspark.sql import functions as F

        rows = self.rows(spark)
        order = F.struct(F.col("outcome").isin(*HELD), "run")
        newest = rows.groupBy("address").agg(F.max_by(F.struct(*LOGGED.names[1:]), order).alias("last"))
        return newest.select("address", "last.*")
