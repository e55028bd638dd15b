"""The objects that a sweep may still delete, and the outcomes of the rest: set algebra on Arrow tables. Nothing here
reads, writes or starts a job.

Every set is a subset of the approved one. A sweep's own files can only exclude keys, never add any. `receipts` are
those of any number of rounds (RECEIPTS with `round`): for each address, those of the last round count. If a table has a
row for an address, it has all rows for that address.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.rules.garbage import first_of_each
from spark_resources.model import PENDING, RECEIPTS, Outcome

APPROVED = pa.schema([field for field in PENDING if field.name != "intended"])
"""The approved objects, with what the mark recorded about each."""


DONE = (Outcome.DELETED, Outcome.QUARANTINED, Outcome.RESTORED, Outcome.PURGED)
"""Outcomes of what a task did itself, as opposed to what it found."""


def latest(receipts: pa.Table) -> pa.Table:
    """The receipt of the last round for each address.

    Within a round, receipts of what a task did take precedence over those of what it found, and later ones over earlier
    ones: a second attempt of a task finds objects already gone, which must not hide that the first one deleted them.
    """
    order = [("address", "ascending"), ("round", "descending"), ("done", "descending"), ("at", "descending")]
    done = is_one_of(receipts["outcome"], DONE).cast(pa.int8())
    rows = receipts.append_column("done", done).sort_by(order).drop_columns("done")
    return first_of_each(rows, "address")


def pending(approved: pa.Table, receipts: pa.Table, intents: pa.Table, *, since_round: int) -> pa.Table:
    """The approved objects (as PENDING) that have no outcome, or that failed before round `since_round`, the first
    of this attempt. `intended` is whether a round recorded the intent to delete the object (`intents`, column
    address)."""
    last = latest(receipts)
    is_final = pc.or_(pc.not_equal(last["outcome"], Outcome.FAILED.value), pc.greater_equal(last["round"], since_round))
    unfinished = without_addresses_in(approved.select(APPROVED.names), last.filter(is_final))
    intended = pc.is_in(unfinished["address"], value_set=intents["address"])
    return unfinished.append_column("intended", intended).cast(PENDING)


def reported(approved: pa.Table, receipts: pa.Table, undone: pa.Table) -> pa.Table:
    """The outcome of every approved object that has one (RECEIPTS), sorted by address.

    `undone` has later receipts of quarantined objects.
    """
    later = with_outcome(undone, Outcome.RESTORED, Outcome.PURGED).select(RECEIPTS.names)
    earlier = without_addresses_in(latest(receipts).select(RECEIPTS.names), later)
    return with_addresses_in(pa.concat_tables([earlier, later]), approved).sort_by("address")


def removed(approved: pa.Table, receipts: pa.Table, undone: pa.Table) -> pa.Table:
    """The approved objects that this sweep deleted or quarantined and that were not restored (columns address and
    size)."""
    gone = with_addresses_in(with_outcome(receipts, Outcome.DELETED, Outcome.QUARANTINED), approved)
    return without_addresses_in(gone, with_outcome(undone, Outcome.RESTORED)).select(["address", "size"])


def quarantined(approved: pa.Table, receipts: pa.Table) -> pa.Table:
    """The approved objects that a sweep quarantined (APPROVED)."""
    return with_addresses_in(approved, with_outcome(receipts, Outcome.QUARANTINED))


def left_in_place(approved: pa.Table, receipts: pa.Table, intents: pa.Table) -> pa.Table:
    """The approved objects (APPROVED) that a sweep left in place and won't retry, although it had started to delete
    them."""
    spared = with_outcome(receipts, Outcome.RESCUED, Outcome.CHANGED)
    return with_addresses_in(with_addresses_in(approved, spared), intents)


def with_outcome(receipts: pa.Table, *outcomes: Outcome) -> pa.Table:
    """The latest receipts with one of these outcomes."""
    last = latest(receipts)
    return last.filter(is_one_of(last["outcome"], outcomes))


def is_one_of(outcome: pa.ChunkedArray, outcomes: Collection[Outcome]) -> pa.ChunkedArray:
    return pc.is_in(outcome, value_set=pa.array([expected.value for expected in outcomes], pa.string()))


def without_addresses_in(rows: pa.Table, others: pa.Table) -> pa.Table:
    """The rows whose address isn't in the other table."""
    return rows.filter(pc.invert(pc.is_in(rows["address"], value_set=others["address"])))


def with_addresses_in(rows: pa.Table, others: pa.Table) -> pa.Table:
    """The rows whose address is in the other table."""
    return rows.filter(pc.is_in(rows["address"], value_set=others["address"]))
