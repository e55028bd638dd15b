"""One task of a round: looks at its keys once more, deletes those that are still what was approved, writes receipts.

The order of effects for a chunk of keys, and what a crash right after each leaves:

    1. the keys are listed again       nothing: the next round lists them again
    2. the intent is written           keys that are there: the next round deletes them
    3. batches are deleted             keys with an intent that are gone: the next round books them as deleted
    4. the receipt is written          every key of the chunk has its outcome
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.datasets import Batches, Place
from spark_resources.deleting.batches import IN_FLIGHT, Sender, Sent
from spark_resources.deleting.fresh import Looker
from spark_resources.deleting.pace import Pace
from spark_resources.deleting.receipts import Receipts
from spark_resources.errors import Refused
from spark_resources.lease import LeaseWatch
from spark_resources.model import RECEIPTS, Outcome
from spark_resources.stores.base import Deletion, Store

PENDING = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64()),  # null where a mark doesn't know what it marked
        pa.field("modified", RECEIPTS.field("at").type),
        pa.field("checksum", pa.string()),
        pa.field("slice", pa.string(), nullable=False),
        pa.field("intended", pa.bool_(), nullable=False),  # an earlier round set out to delete it
    ]
)
COUNTED = pa.schema(
    [
        ("outcome", pa.string()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
        ("attempts", pa.int64()),  # times that a request named one of these keys
        ("requests", pa.int64()),
    ]
)
NOT_SETTLED = "not settled"


@dataclass(frozen=True, slots=True)
class Orders:
    """What every task of a round is given. `proof_until` and `cutoff` are times of the store's clock.

    `place` is the namespace with a store that tries once: repeating is this module's. `most` is the task's share of the
    ceiling in keys a second. `cutoff` counts where a mark doesn't say what it marked: what is younger has changed.
    """

    place: Place
    receipts: Receipts
    round: int
    lease_token: str
    proof_until: datetime
    cutoff: datetime
    most: float | None = None

    @property
    def request_time(self) -> timedelta:
        """How long one request may take: no delete is sent with less of the lease left (invariant 11)."""
        settings = self.place.settings
        return timedelta(seconds=settings.connect_timeout + settings.read_timeout + 5)


def sweep_rows(batches: Batches, orders: Orders, partition: int, attempt: int) -> Batches:
    """Settle rows of PENDING, sorted by slice and address; yields COUNTED."""
    task, stem = _Task.of(orders), f"{partition:05d}-{attempt}"
    rows = task.since_earlier_attempts(batches, f"{orders.round:04d}/{partition:05d}-")
    with ThreadPoolExecutor(max_workers=1) as ahead:
        waiting = None
        for number, chunk in enumerate(chunks(rows, orders.place.store().quirks.delete_batch * IN_FLIGHT)):
            following = ahead.submit(task.prepare, chunk, f"{stem}-{number:05d}")
            if waiting is not None:
                yield from task.settle(*waiting.result())
            waiting = following
        if waiting is not None:
            yield from task.settle(*waiting.result())


def chunks(batches: Batches, rows: int) -> Iterator[pa.Table]:
    """The rows in pieces of at most so many, however they come in."""
    held: list[pa.RecordBatch] = []
    room = rows
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            held.append(batch.slice(start, room))
            start, room = start + held[-1].num_rows, room - held[-1].num_rows
            if not room:
                yield pa.Table.from_batches(held)
                held, room = [], rows
    if held:
        yield pa.Table.from_batches(held)


@dataclass(slots=True)
class _Task:
    orders: Orders
    store: Store
    looker: Looker
    sender: Sender
    now: Callable[[], datetime]

    @classmethod
    def of(cls, orders: Orders) -> _Task:
        store = orders.place.store()
        now = _ticking(store)
        lease = LeaseWatch(store, orders.lease_token)

        def may_send() -> None:
            if now() >= orders.proof_until:
                raise ProofTooOld("the proof that these objects are garbage has grown too old")
            lease.check(at_least=orders.request_time)

        sender = Sender(store, Pace(time.monotonic, orders.most), may_send, time.sleep, random.SystemRandom().random)
        return cls(orders, store, Looker(store), sender, now)

    def since_earlier_attempts(self, batches: Batches, name: str) -> Batches:
        """The rows that no earlier attempt of this very task settled; those that it set out to delete are told so."""
        receipts = self.orders.receipts
        settled, intended = (
            [address for key in receipts.keys(kind, name) for address in receipts.read(key)["address"].to_pylist()]
            for kind in ("receipt", "intent")
        )
        known, meant = pa.array(settled, pa.string()), pa.array(intended, pa.string())
        for batch in batches:
            table = pa.Table.from_batches([batch])
            table = table.filter(pc.invert(pc.is_in(table["address"], value_set=known)))
            flag = pc.or_(table["intended"], pc.is_in(table["address"], value_set=meant))
            yield from table.set_column(5, PENDING.field("intended"), flag).combine_chunks().to_batches()

    def prepare(self, chunk: pa.Table, stem: str) -> tuple[pa.Table, pa.Table, str]:
        """Look at the keys, and write down which will be deleted. Returns rows to delete, receipts of the others."""
        there = self.looker.look(chunk)
        garbage, others = judged(chunk, there, self.orders.cutoff, self.now())
        if len(garbage):
            self.orders.receipts.write("intent", self.orders.round, stem, garbage)
        return garbage, others, stem

    def settle(self, garbage: pa.Table, others: pa.Table, stem: str) -> Batches:
        slices = pc.unique(garbage["slice"])
        prefix = slices[0].as_py() if len(slices) == 1 else ""
        before = self.sender.requests
        sent, _ = self.sender.send(garbage["address"].to_pylist(), prefix) if len(garbage) else ([], None)
        receipts = pa.concat_tables([others, receipts_of(sent, garbage, self.now())])
        if len(receipts):
            self.orders.receipts.write("receipt", self.orders.round, stem, receipts)
        not_settled = sum(1 for each in sent if each.result is None)
        yield from counted(receipts, not_settled, self.sender.requests - before)


class ProofTooOld(Refused):
    """Raised where a proof is older than its bound (invariant 1): it has to be renewed before more is deleted."""


def _ticking(store: Store) -> Callable[[], datetime]:
    """The store's clock, asked once; from then on by this machine's monotonic one. Never behind the store's."""
    began, first = time.monotonic(), store.now() + store.quirks.time_resolution
    return lambda: first + timedelta(seconds=time.monotonic() - began)


# --- what is to be done with a key ----------------------------------------------------------------------------------


def judged(chunk: pa.Table, there: pa.Table, cutoff: datetime, at: datetime) -> tuple[pa.Table, pa.Table]:
    """Rows of PENDING against what is there now: those to delete (PENDING, sizes filled in), receipts of the others."""
    index = pc.index_in(chunk["address"], value_set=there["address"].combine_chunks())
    now = {name: there[name].take(index) for name in ("size", "modified", "checksum")}
    present = pc.is_valid(index)
    changed = pc.and_(present, _changed(chunk, now, cutoff))
    size = pc.fill_null(pc.coalesce(chunk["size"], now["size"]), 0)
    chunk = chunk.set_column(1, PENDING.field("size"), size)
    cut_off = pc.and_(pc.invert(present), chunk["intended"])
    gone = pc.and_(pc.invert(present), pc.invert(chunk["intended"]))
    others = [
        _receipts(chunk.filter(cut_off), Outcome.DELETED, "by an attempt that was cut off before it wrote this", at),
        _receipts(chunk.filter(gone), Outcome.ALREADY_GONE, "", at),
        _receipts(chunk.filter(changed), Outcome.CHANGED, "size, time or checksum differ from what was marked", at),
    ]
    return chunk.filter(pc.and_(present, pc.invert(changed))), pa.concat_tables(others)


def _changed(chunk: pa.Table, now: dict[str, pa.ChunkedArray], cutoff: datetime) -> pa.ChunkedArray:
    """Whether what is there isn't what was marked. Times are compared to the second: stores tell them unequally."""

    def differs(marked: pa.ChunkedArray, found: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.fill_null(pc.not_equal(marked, found), False)

    second = {"unit": "second"}
    modified = differs(pc.floor_temporal(chunk["modified"], **second), pc.floor_temporal(now["modified"], **second))
    unknown = pc.is_null(chunk["modified"])
    young = pc.and_(unknown, pc.greater(now["modified"], pa.scalar(cutoff, RECEIPTS.field("at").type)))
    either = pc.or_(differs(chunk["size"], now["size"]), differs(chunk["checksum"], now["checksum"]))
    return pc.fill_null(pc.or_(pc.or_(either, modified), pc.fill_null(young, False)), False)


def receipts_of(sent: list[Sent], garbage: pa.Table, at: datetime) -> pa.Table:
    """Receipts of the keys that were sent and answered; the others stay without one."""
    answered = [each for each in sent if each.result is not None]
    addresses = pa.array([each.key for each in answered], pa.string())
    index = pc.index_in(addresses, value_set=garbage["address"].combine_chunks())
    results = [each.result for each in answered if each.result is not None]
    return pa.table(
        [
            addresses,
            garbage["size"].combine_chunks().take(index),
            pa.array([_outcome(each).value for each in answered], pa.string()),
            pa.array([each.code for each in results], pa.string()),
            pa.array([each.message for each in results], pa.string()),
            pa.array([each.attempts for each in answered], pa.int32()),
            pa.array([at] * len(answered), RECEIPTS.field("at").type),
        ],
        schema=RECEIPTS,
    )


def _outcome(sent: Sent) -> Outcome:
    assert sent.result is not None
    match sent.result.deletion:
        case Deletion.FAILED:
            return Outcome.FAILED
        case Deletion.ALREADY_GONE if sent.attempts == 1:
            return Outcome.ALREADY_GONE
        case _:  # gone at a repeated attempt: the first one did it, and its answer was lost
            return Outcome.DELETED


def _receipts(rows: pa.Table, outcome: Outcome, why: str, at: datetime) -> pa.Table:
    values = (outcome.value, "", why, 0, at)
    constant = [
        pa.repeat(pa.scalar(value, RECEIPTS.field(name).type), len(rows))
        for name, value in zip(RECEIPTS.names[2:], values, strict=True)
    ]
    return pa.table([rows["address"], rows["size"], *constant], schema=RECEIPTS)


def counted(receipts: pa.Table, not_settled: int, requests: int) -> Batches:
    """Objects, bytes and attempts by outcome, and the requests on their own, as COUNTED."""
    groups = receipts.group_by("outcome", use_threads=False)
    totals = groups.aggregate([("size", "count"), ("size", "sum"), ("attempts", "sum")]).to_pylist()
    nothing = {"outcome": NOT_SETTLED, "bytes": 0, "attempts": 0, "requests": requests, "objects": not_settled}
    rows = [
        {
            "outcome": row["outcome"],
            "objects": row["size_count"],
            "bytes": row["size_sum"],
            "attempts": row["attempts_sum"],
            "requests": 0,
        }
        for row in totals
    ]
    yield from pa.Table.from_pylist([*rows, nothing], schema=COUNTED).to_batches()
