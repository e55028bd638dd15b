"""One task of a round: look up keys again, delete those whose objects are still the approved ones, write receipts.

The order of effects for a chunk of keys, and the state after a crash right after each:

    1. the keys are listed again       nothing: the next round lists them again
    2. the intent is written           keys still exist: the next round deletes them
    3. batches are deleted             keys with an intent that are gone: the next round records them as deleted
    4. the receipt is written          every key of the chunk has its outcome

If step 3 is delayed, its keys are looked up again right before it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.deleting.batches import (
    CHANGED,
    IN_FLIGHT,
    LOOKUP_VALID_S,
    NEVER,
    RecheckedKeys,
    Sender,
    SendResult,
)
from spark_resources.deleting.lookup import Lookup
from spark_resources.deleting.pacing import Pace
from spark_resources.deleting.permit import PermitWatch
from spark_resources.deleting.quarantine import (
    key_in_quarantine,
    purge_keys,
    quarantine_keys,
    restore_keys,
    stat_or_none,
)
from spark_resources.deleting.receipts import Receipts, receipt_rows
from spark_resources.errors import Refused
from spark_resources.mark_store.lease import REREAD_INTERVAL_S, LeaseWatch, boottime_s
from spark_resources.model import PENDING, RECEIPTS, DeleteCheck, Outcome
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches
from spark_resources.stores.base import Deletion, Store
from spark_resources.stores.place import Place

FAST_CHUNK_S = LOOKUP_VALID_S * 2 / 3  # while chunks take longer to delete, none is looked up in advance
SINGLES_PER_CHUNK = 1_000  # keys, if a store has no batch delete: each chunk costs a listing, an intent and a receipt
FIRST_CHUNK_S, LONGEST_CHUNK_S = 5.0, 60.0  # to send a chunk's keys at the ceiling: progress counts whole chunks


class Action(StrEnum):
    """The action of a round on each object that is still the approved one."""

    DELETE = "delete"
    QUARANTINE = "quarantine"
    RESTORE = "restore"
    PURGE = "purge"

    @property
    def acts_on_quarantined(self) -> bool:
        """Whether the action is for objects that a sweep has quarantined."""
        return self in (Action.RESTORE, Action.PURGE)

    @property
    def needs_permit(self) -> bool:
        """Whether the action removes objects, for good or from the key where readers expect them."""
        return self is not Action.RESTORE


_DONE = {
    Action.DELETE: Outcome.DELETED,
    Action.QUARANTINE: Outcome.QUARANTINED,
    Action.RESTORE: Outcome.RESTORED,
    Action.PURGE: Outcome.PURGED,
}


@dataclass(frozen=True, slots=True)
class SweepTaskConfig:
    """The configuration of every task of a round. `verified_until` is by the store's clock.

    `place` opens the namespace without retries, for requests that are retried here; all other requests go through
    `receipts.store`, which retries them. `max_rate` is the task's share of the ceiling in keys per second, `ramp` its
    share of the store's initial rate. `check` compares rows of PENDING with the objects found at their keys (FOUND).
    """

    place: Place
    receipts: Receipts
    round: int
    lease_token: str
    verified_until: datetime
    check: Callable[[pa.Table, pa.Table], DeleteCheck]
    mark_id: str
    permit_secret: bytes = field(repr=False)
    action: Action = Action.DELETE
    permit_interval_s: float = 3.0  # how often a task reads the permit of its round again
    max_rate: float | None = None
    ramp: float | None = None

    @property
    def request_time(self) -> timedelta:
        """The longest that a request may take: no delete is sent if the lease has less time left (invariant 11)."""
        settings = self.place.settings
        return timedelta(seconds=settings.connect_timeout + settings.read_timeout + 5)


def sweep_rows(batches: Batches, config: SweepTaskConfig, partition: int, attempt: int, report: TaskReport) -> None:
    """Process rows of PENDING, sorted by slice and address.

    The next chunk is looked up while one is being deleted, unless deletes are so slow that its keys would have to be
    looked up once more. Once sending was refused, the remaining chunks are left to the next round, without a lookup, an
    intent or a wait. Counts `objects` by outcome, `unprocessed` objects, `requests`, and `attempts`: the number of keys
    in all requests together.
    """
    task, stem = _Task.of(config), f"{partition:05d}-{attempt}"
    rows = task.without_finished(batches, f"{config.round:04d}/{partition:05d}-")
    sizes = chunk_sizes(config.place.store().capabilities.delete_batch, config.max_rate)
    with ThreadPoolExecutor(max_workers=1) as background:
        prepared: Future[_Prepared] | None = None
        lookups_stay_valid = False
        for number, chunk in enumerate(chunks(rows, sizes)):
            if task.refused.is_set():
                report.count(unprocessed=len(chunk))
                continue
            prepare = partial(background.submit, task.prepare, chunk, f"{stem}-{number:05d}")
            following = prepare() if lookups_stay_valid else None
            if prepared is not None:
                lookups_stay_valid = task.carry_out(prepared.result(), report) < FAST_CHUNK_S
            prepared = following or prepare()
        if prepared is not None:
            task.carry_out(prepared.result(), report)


def chunk_sizes(delete_batch: int, max_rate: float | None) -> Iterator[int]:
    """The numbers of keys in successive chunks, for a store with batches of `delete_batch` keys.

    With a ceiling (keys per second), the first chunks are small, so that a slow sweep shows progress early on, and
    later ones larger, so that it doesn't write too many files.
    """
    largest = delete_batch * IN_FLIGHT if delete_batch > 1 else SINGLES_PER_CHUNK
    duration = FIRST_CHUNK_S
    while True:
        yield largest if max_rate is None else max(1, int(min(largest, max_rate * duration)))
        duration = min(duration * 1.2, LONGEST_CHUNK_S)


def chunks(batches: Batches, sizes: Iterator[int]) -> Iterator[pa.Table]:
    """Regroup the rows into chunks of these numbers of rows; the last one may have fewer."""
    buffered: list[pa.RecordBatch] = []
    room = next(sizes)
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            buffered.append(batch.slice(start, room))
            start, room = start + buffered[-1].num_rows, room - buffered[-1].num_rows
            if not room:
                yield pa.Table.from_batches(buffered)
                buffered, room = [], next(sizes)
    if buffered:
        yield pa.Table.from_batches(buffered)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A chunk: the rows to act on, when they were looked up (by the sender's clock), and receipts of the others."""

    rows: pa.Table
    looked_up_at: float
    others: pa.Table
    stem: str


@dataclass(slots=True)
class _Task:
    config: SweepTaskConfig
    store: Store
    lookup: Lookup
    sender: Sender
    now: Callable[[], datetime]
    refused: threading.Event  # set once nothing more may be sent in this round

    @classmethod
    def of(cls, config: SweepTaskConfig) -> _Task:
        store = config.receipts.store
        now = store_clock(store, boottime_s)
        lease = LeaseWatch(store, config.lease_token)
        permit = PermitWatch(
            config.receipts, config.round, config.permit_secret, interval_s=config.permit_interval_s, now=now
        )
        refused = threading.Event()

        def check_may_send() -> None:
            try:
                while True:
                    if config.action.needs_permit:
                        permit.check()  # first, because it may block
                    lease.check(at_least=config.request_time)  # may also block, if the store is slow
                    if now() >= config.verified_until:
                        raise ReverificationTooOld("the last re-verification of these objects is too old")
                    if permit.is_valid() or not config.action.needs_permit:
                        return
            except Refused:
                refused.set()
                raise

        sender = Sender(
            config.place.store(),
            Pace(time.monotonic, config.max_rate, config.ramp),
            check_may_send,
            time.sleep,
            random.SystemRandom().random,
            became_live=permit.became_live,
            clock=boottime_s,
        )
        return cls(config, store, Lookup(store, boottime_s), sender, now, refused)

    def without_finished(self, batches: Batches, prefix: str) -> Batches:
        """The rows without a receipt of an earlier attempt of this task; those with an intent are marked `intended`.

        `prefix` is how the paths of this task's files begin, relative to the folder of receipts.
        """
        receipts = self.config.receipts
        with_receipt, intended = (
            [address for key in receipts.keys(kind, prefix) for address in receipts.read(key)["address"].to_pylist()]
            for kind in ("receipt", "intent")
        )
        finished, started = pa.array(with_receipt, pa.string()), pa.array(intended, pa.string())
        for batch in batches:
            table = pa.Table.from_batches([batch])
            table = table.filter(pc.invert(pc.is_in(table["address"], value_set=finished)))
            flag = pc.or_(table["intended"], pc.is_in(table["address"], value_set=started))
            yield from table.set_column(5, PENDING.field("intended"), flag).combine_chunks().to_batches()

    def prepare(self, chunk: pa.Table, stem: str) -> _Prepared:
        """Look up the keys and write their intent; for quarantined objects, do neither."""
        if self.config.action.acts_on_quarantined:
            return _Prepared(chunk, NEVER, RECEIPTS.empty_table(), stem)
        check = self.config.check(chunk, self.lookup.look_up(chunk))
        looked_up_at = self.lookup.started
        if len(check.unchanged):
            self.config.receipts.write("intent", self.config.round, stem, check.unchanged)
        at = self.now()
        interrupted = receipts_of_interrupted(self.store, check.interrupted, self.config.mark_id, at)
        others = pa.concat_tables([receipts_of_check(check, at), interrupted])
        return _Prepared(check.unchanged, looked_up_at, others, stem)

    def carry_out(self, prepared: _Prepared, report: TaskReport) -> float:
        """Act on the keys, and write their receipts. Returns the duration in seconds."""
        rows, before, started = prepared.rows, self.sender.requests, self.sender.clock()
        sent = self.act(rows, prepared.looked_up_at) if len(rows) else []
        receipts = pa.concat_tables([prepared.others, receipts_of(sent, rows, _DONE[self.config.action], self.now())])
        if len(receipts):
            self.config.receipts.write("receipt", self.config.round, prepared.stem, receipts)
        unprocessed = sum(1 for result in sent if result.result is None)
        report.count(unprocessed=unprocessed, requests=self.sender.requests - before)
        count_receipts(receipts, report)
        return self.sender.clock() - started

    def recheck(self, rows: pa.Table, keys: Sequence[str]) -> RecheckedKeys:
        """Look up keys whose delete is about to be sent, with the same check as the first time."""
        again = rows.filter(pc.is_in(rows["address"], value_set=pa.array(keys, pa.string())))
        check = self.config.check(again, self.lookup.look_up_again(again))
        parts = (check.unchanged, check.gone, check.interrupted, check.changed)
        return RecheckedKeys(*(part["address"].to_pylist() for part in parts))

    def act(self, rows: pa.Table, looked_up_at: float) -> list[SendResult]:
        slices = pc.unique(rows["slice"])
        prefix = slices[0].as_py() if len(slices) == 1 else ""
        keys, mark_id = rows["address"].to_pylist(), self.config.mark_id
        self.sender.recheck = None if self.config.action.acts_on_quarantined else partial(self.recheck, rows)
        match self.config.action:
            case Action.DELETE:
                return self.sender.send(keys, prefix, looked_up_at=looked_up_at)[0]
            case Action.QUARANTINE:
                return quarantine_keys(self.sender, self.store, keys, prefix, mark_id)
            case Action.RESTORE:
                sizes = dict(zip(keys, rows["size"].to_pylist(), strict=True))
                return restore_keys(self.sender, self.store, sizes, mark_id)
            case Action.PURGE:
                return purge_keys(self.sender, keys, mark_id)


class ReverificationTooOld(Refused):
    """Raised when a re-verification is too old (invariant 1): a new one is needed before more deletes."""


def store_clock(store: Store, clock: Callable[[], float]) -> Callable[[], datetime]:
    """The store's clock, advanced by this machine's clock for up to REREAD_INTERVAL_S between two reads.

    It never runs behind the store's clock, unless the machine's clock stopped between two reads, as it may while a
    machine is suspended.
    If the store's clock is set back, this one isn't: what has expired stays expired.
    """

    def read() -> tuple[float, datetime]:
        # clock() first: the response time then makes the result later, never earlier
        return clock(), store.now() + store.capabilities.time_resolution

    lock, last = threading.Lock(), [read()]

    def now() -> datetime:
        with lock:
            read_at, store_time = last[0]
            if clock() - read_at > REREAD_INTERVAL_S:
                reread_at, reread_time = read()
                store_time = max(reread_time, store_time + timedelta(seconds=reread_at - read_at))
                read_at = reread_at
                last[0] = read_at, store_time
            return store_time + timedelta(seconds=clock() - read_at)

    return now


# --- receipts -------------------------------------------------------------------------------------------------------


def receipts_of_check(check: DeleteCheck, at: datetime) -> pa.Table:
    """Receipts of objects that have changed or are gone."""
    return pa.concat_tables(
        [
            receipt_rows(check.gone, outcome=Outcome.ALREADY_GONE, at=at),
            receipt_rows(check.changed, outcome=Outcome.CHANGED, why=CHANGED, at=at),
        ]
    )


def receipts_of(sent: list[SendResult], rows: pa.Table, done: Outcome, at: datetime) -> pa.Table:
    """Receipts of the keys that have a result; the others get none. `rows` has the keys and sizes of all objects, and
    `done` is the outcome of a success."""
    with_result = [result for result in sent if result.result is not None]
    addresses = pa.array([result.key for result in with_result], pa.string())
    index = pc.index_in(addresses, value_set=rows["address"].combine_chunks())
    results = [result.result for result in with_result if result.result is not None]
    return receipt_rows(
        pa.table({"address": addresses, "size": rows["size"].combine_chunks().take(index)}),
        outcome=pa.array([_outcome(result, done).value for result in with_result], pa.string()),
        code=pa.array([result.code for result in results], pa.string()),
        why=pa.array([result.message for result in results], pa.string()),
        attempts=pa.array([result.attempts for result in with_result], pa.int32()),
        at=at,
    )


def receipts_of_interrupted(store: Store, rows: pa.Table, mark_id: str, at: datetime) -> pa.Table:
    """Receipts of keys that are gone and have an intent, but no receipt from the interrupted attempt: quarantined if
    their copy is in quarantine, otherwise deleted."""
    keys = rows["address"].to_pylist()
    in_quarantine = pa.array(
        [stat_or_none(store, key_in_quarantine(mark_id, key)) is not None for key in keys], pa.bool_()
    )
    why = "an interrupted attempt had begun to delete it"
    return pa.concat_tables(
        [
            receipt_rows(rows.filter(in_quarantine), outcome=Outcome.QUARANTINED, why=why, at=at),
            receipt_rows(rows.filter(pc.invert(in_quarantine)), outcome=Outcome.DELETED, why=why, at=at),
        ]
    )


def _outcome(sent: SendResult, done: Outcome) -> Outcome:
    assert sent.result is not None
    if sent.changed:
        return Outcome.CHANGED
    match sent.result.deletion:
        case Deletion.FAILED:
            return Outcome.FAILED
        case Deletion.ALREADY_GONE if sent.attempts <= 1 and done is Outcome.DELETED:
            return Outcome.ALREADY_GONE
        case _:  # gone at a retry: the first attempt deleted it, and its response was lost
            return done


def count_receipts(receipts: pa.Table, report: TaskReport) -> None:
    """Count `objects` by outcome, `attempts`, and the objects `taken`: those that these attempts deleted or
    quarantined."""
    groups = receipts.group_by("outcome", use_threads=False).aggregate([("size", "count"), ("attempts", "sum")])
    for row in groups.to_pylist():
        report.count_for(row["outcome"], objects=row["size_count"])
        report.count(attempts=row["attempts_sum"])
    removed = pc.is_in(receipts["outcome"], value_set=pa.array([Outcome.DELETED.value, Outcome.QUARANTINED.value]))
    report.count(taken=receipts.filter(pc.and_(removed, pc.greater(receipts["attempts"], 0))).num_rows)
