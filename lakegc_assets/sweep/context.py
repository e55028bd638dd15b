"""What every part of a sweep works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.approval.verify_files import FOREIGN, check_keys
from lakegc_assets.mark.context import Limits, MarkRun, Target
from lakegc_assets.progress import LogMessage
from spark_resources.deleting.receipts import Receipts
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.approval import Approval
from spark_resources.mark_store.foreign_expired_set import REFERENCE_OBJECTS, addresses_in, read_listed
from spark_resources.mark_store.foreign_layouts import ReferenceMark
from spark_resources.mark_store.lease import Lease
from spark_resources.mark_store.mark import Mark, mark_folder
from spark_resources.model import ADDRESSES, EXPIRED_OBJECTS, Partition
from spark_resources.spark.datasets import Batches, Dataset, arrow_to_spark, read_dataset
from spark_resources.spark.partitioning import id_tasks
from spark_resources.spark.remote_errors import on_executor
from spark_resources.stores.base import Store, folders_in
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERIFICATION_AGE = timedelta(minutes=30)
HEADS_EVERY = timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """`verification_age` is how old a re-verification may be when a key is deleted by it (invariant 1); `rate` a
    ceiling in keys a second over all tasks, None for none; what `marking` bounds is bounded in re-verifications, too.
    `quarantine` moves objects to quarantine instead of deleting them. `heads_every` is how often branch heads are
    listed while a round deletes.
    """

    marking: Limits
    verification_age: timedelta = VERIFICATION_AGE
    rate: float | None = None
    quarantine: bool = False
    heads_every: timedelta = HEADS_EVERY
    backup_to: str | None = None
    """Where a whole backup of this very set has to be; None where none has to."""


@dataclass(frozen=True, slots=True)
class ForeignMark:
    """A foreign mark (of the reference collector), and the approval that it is swept by."""

    found: ReferenceMark
    approval: Approval


@dataclass(slots=True)
class SweepRun:
    """One sweep at work, under its lease."""

    partition: Partition
    target: Target
    mark: Mark
    lakefs: LakeFS
    spark: Callable[[], SparkSession]
    limits: SweepLimits
    lease: Lease
    by: str
    log_message: LogMessage
    foreign: ForeignMark | None = None

    @property
    def place(self) -> Place:
        return self.target.place

    @property
    def store(self) -> Store:
        return self.place.store()

    @property
    def receipts(self) -> Receipts:
        return Receipts(self.place, mark_folder(self.mark.record.mark_id) + "receipts/")

    @property
    def undone(self) -> Receipts:
        """The receipts of what became of quarantined objects: restored or purged."""
        return Receipts(self.place, mark_folder(self.mark.record.mark_id) + "undone/")

    @property
    def freed(self) -> Receipts:
        """The receipts of copies in quarantine that an interrupted sweep left beside their originals."""
        return Receipts(self.place, mark_folder(self.mark.record.mark_id) + "freed/")

    @property
    def reverifications(self) -> str:
        """The key of the folder of re-verifications, each in a folder of its number."""
        return mark_folder(self.mark.record.mark_id) + "verifications/"

    def next_number(self) -> int:
        """The number of a new re-verification and its round: one more than any that left a trace."""
        folders = (self.reverifications, self.receipts.folder, self.undone.folder, self.freed.folder)
        names = (name for folder in folders for name in folders_in(self.store, folder))
        numbers = (name.rstrip("/").rpartition("/")[2] for name in names)
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)

    def approved(self) -> DataFrame:
        """What was approved: address, size, modified, checksum and slice, as far as the mark knows them.

        Of a foreign mark, the sweep itself wrote down what the store holds; its addresses stay the approved ones.
        """
        dataset = self.mark.dataset("expired_set")
        if self.foreign is None:
            return self.read(dataset, EXPIRED_OBJECTS)
        return self.read(dataset, REFERENCE_OBJECTS).join(self.foreign_addresses(self.foreign), "address", "left_semi")

    def foreign_addresses(self, foreign: ForeignMark) -> DataFrame:
        """The addresses in a foreign mark's files, read by the executors, each once.

        Raises `Refused` for what may never be deleted.
        """
        place, local = self.place, self.target.blockstore == "local"

        def read(batches: Batches) -> Batches:
            for key in (key for batch in batches for key in batch.column(0).to_pylist()):
                where = f"{place.store().where}/{key}"
                addresses = addresses_in(read_listed(place, key), where)
                check_keys(addresses, where, local_adapter=local, what_then=FOREIGN)
                yield pa.RecordBatch.from_arrays([addresses], schema=ADDRESSES)

        keys = id_tasks(self.spark(), "key", list(foreign.found.files), batch=1)
        return keys.mapInArrow(on_executor(read), arrow_to_spark(ADDRESSES)).dropDuplicates()

    def read(self, dataset: Dataset, schema: pa.Schema) -> DataFrame:
        return read_dataset(self.spark(), self.place, dataset, schema)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a re-verification knew to be live: the ids of retained commits, and of the ranges whose addresses are not
    deleted by it. `run` is the re-verification, for what it saw of other repositories."""

    commits: frozenset[str]
    ranges: pa.Array
    run: MarkRun | None = None


@dataclass(frozen=True, slots=True)
class Reverification:
    """One re-verification of candidates. `began` by the store's clock, before its first reading; `rescued` has columns
    address, size, why: candidates that are live now; `verified` is what it knew to be live. `unread` are the other
    repositories that could not be read, each with the reason: all of them were released."""

    number: int
    began: datetime
    rescued: DataFrame
    rescued_objects: int
    verified: Verified
    unread: Mapping[str, str] = field(default_factory=dict)
