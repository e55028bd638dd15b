"""The shared state of a sweep: its limits, the run, and its re-verifications."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.approval.verify_files import foreign_files
from lakegc_assets.mark.context import Limits, MarkRun, Target
from lakegc_assets.mark.keep_evidence import OBJECTS
from lakegc_assets.progress import LogMessage
from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.rules.sweep_outcomes import APPROVED
from spark_resources.deleting.receipts import NUMBERED, Receipts
from spark_resources.errors import Refused
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.approval import Approval
from spark_resources.mark_store.foreign_expired_set import REFERENCE_OBJECTS
from spark_resources.mark_store.foreign_layouts import ReferenceMark
from spark_resources.mark_store.lease import Lease
from spark_resources.mark_store.mark import Mark, mark_folder, verifications_folder
from spark_resources.model import ADDRESSES, EXPIRED_OBJECTS, Partition
from spark_resources.spark.arrow_shuffle import Grouped, GroupedRows, Input, co_group, distinct_addresses
from spark_resources.spark.datasets import Dataset, read_dataset
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.persistence import Persisted
from spark_resources.stores.base import Store, folders_in
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERIFICATION_AGE = timedelta(minutes=30)
HEAD_CHECK_INTERVAL = timedelta(seconds=3)
RESCUED = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("why", pa.string(), nullable=False),
    ]
)
SWEEP_RECEIPTS, INTENDED, UNDONE, RESCUED_OBJECTS = "receipts", "intents", "receipts of undo and purge", "rescued"
"""Names of the inputs of a co-group by address."""


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """Limits of one sweep.

    `verification_age` is the maximum age of the re-verification that a delete relies on (invariant 1). `rate` is the
    maximum number of keys per second over all tasks; None means no limit. The limits in `marking` also apply to
    re-verifications. With `quarantine`, objects are moved to quarantine instead of being deleted. Branch heads are
    listed every `head_check_interval` while a round deletes.
    """

    marking: Limits
    verification_age: timedelta = VERIFICATION_AGE
    rate: float | None = None
    quarantine: bool = False
    head_check_interval: timedelta = HEAD_CHECK_INTERVAL
    backup_to: str | None = None
    """The location that must contain a complete backup of this very set; None if no backup is required."""


@dataclass(frozen=True, slots=True)
class ForeignMark:
    """A foreign mark (of the reference collector), and its approval."""

    mark: ReferenceMark
    approval: Approval


@dataclass(slots=True)
class SweepRun:
    """A running sweep, under its lease. `by` is the user and machine that run it."""

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
    store_settings_of: Callable[[str], StoreSettings] | None = None
    """See `MarkRun`."""
    persist: Persisted = field(default_factory=Persisted)
    """Persists DataFrames until the end of the sweep."""

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
        """The receipts of quarantined objects that were restored or purged."""
        return Receipts(self.place, mark_folder(self.mark.record.mark_id) + "undone/")

    @property
    def freed(self) -> Receipts:
        """The receipts of stray copies, which an interrupted sweep left in quarantine although the originals stayed."""
        return Receipts(self.place, mark_folder(self.mark.record.mark_id) + "freed/")

    @property
    def reverifications_folder(self) -> str:
        """The key of the folder of re-verifications; each has a numbered subfolder."""
        return verifications_folder(self.mark.record.mark_id)

    def next_number(self) -> int:
        """The number of a new re-verification and its round: one above the highest number in use."""
        folders = (self.reverifications_folder, self.receipts.folder, self.undone.folder, self.freed.folder)
        names = (name for folder in folders for name in folders_in(self.store, folder))
        numbers = (name.rstrip("/").rpartition("/")[2] for name in names)
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)

    @property
    def recorded_objects(self) -> tuple[Dataset, pa.Schema]:
        """The dataset of the objects that the mark, or the sweep of a foreign mark, recorded, and its schema."""
        return self.mark.dataset("expired_set"), EXPIRED_OBJECTS if self.foreign is None else REFERENCE_OBJECTS

    def approved(self) -> Input:
        """The approved set (APPROVED).

        For a foreign mark, the sweep itself recorded sizes and checksums; the addresses are still the approved ones.
        """
        dataset, schema = self.recorded_objects
        recorded = Input.selected(
            OBJECTS, self.place, [dataset], schema, APPROVED, lambda rows: rows.select(APPROVED.names).cast(APPROVED)
        )
        if self.foreign is None:
            return recorded
        addresses = self.foreign_addresses(self.foreign)
        tasks = tasks_from_rows(self.spark, addresses, batch_size=50_000)
        approved = Input.of_rows("addresses", tasks, ADDRESSES, len(addresses))
        return self.grouped(
            [recorded, approved],
            lambda rows: sweep_outcomes.with_addresses_in(rows[OBJECTS], rows["addresses"]),
            APPROVED,
        ).as_input(OBJECTS, APPROVED)

    def outcomes(self, name: str, receipts: Receipts | None = None) -> Input:
        """All receipts of the sweep, or of another action (NUMBERED)."""
        receipts = self.receipts if receipts is None else receipts
        return Input.of_files(name, receipts.files("receipt"), NUMBERED, reduce=sweep_outcomes.latest)

    def intents(self, name: str, receipts: Receipts | None = None) -> Input:
        """The keys with an intent of the sweep, or of another action (ADDRESSES, with duplicates)."""
        receipts = self.receipts if receipts is None else receipts
        return Input.of_files(name, receipts.files("intent"), ADDRESSES, reduce=distinct_addresses)

    def grouped(
        self,
        inputs: Sequence[Input],
        combine: Callable[[GroupedRows], pa.Table],
        schema: pa.Schema,
        persist: Persisted | None = None,
    ) -> Grouped:
        """The result of `combine` for the rows of each address; persisted until the end of the sweep, or of
        `persist`."""
        return co_group(self.spark, inputs, lambda rows, _: combine(rows), schema, persist or self.persist)

    def foreign_addresses(self, foreign: ForeignMark) -> pa.Table:
        """The distinct addresses in a foreign mark's files (ADDRESSES), verified against the approval.

        Raises `Refused` if the files have changed since the approval, or contain an address that must never be deleted.
        """
        files = foreign_files(self.target, foreign.mark)  # the same bytes are verified and used
        if files.digest != foreign.approval.digest:
            raise Refused(
                f"the files of mark {foreign.mark.mark_id} of {self.partition.repository} have changed since the "
                "approval. Find out who changed them. Restore the approved files, or make a new mark.",
                invariant=7,
            )
        return pa.table([pc.unique(files.addresses)], schema=ADDRESSES)

    def read(self, dataset: Dataset, schema: pa.Schema) -> DataFrame:
        return read_dataset(self.spark(), self.place, dataset, schema)


@dataclass(frozen=True, slots=True)
class Verified:
    """The results of a re-verification: the ids of retained commits, and of ranges whose addresses are kept. `run`
    is the re-verification itself, including the data that it read from other repositories. `started_s` is a time before
    its first read, by this machine's monotonic clock."""

    commits: frozenset[str]
    ranges: pa.Array
    run: MarkRun | None = None
    started_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Reverification:
    """One re-verification of candidates.

    `started_at` is a time before its first read, by the store's clock. `rescued` (RESCUED) are candidates that are live
    now. `verified` has the live commits and ranges. `unread` are the other repositories that could not be read, each
    with the reason; all of them were released.
    """

    number: int
    started_at: datetime
    rescued: Dataset
    verified: Verified
    unread: Mapping[str, str] = field(default_factory=dict)
