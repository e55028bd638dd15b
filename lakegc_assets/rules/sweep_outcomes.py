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


TAKEN = (Outcome.DELETED, Outcome.QUARANTINED)
"""Outcomes of objects that a sweep removed from their keys."""


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


def earliest(receipts: pa.Table) -> pa.Table:
    """The earliest receipt (RECEIPTS) for each address."""
    return first_of_each(receipts.sort_by([("address", "ascending"), ("at", "ascending")]), "address")


def reported(approved: pa.Table, receipts: pa.Table, undone: pa.Table, removed_by_others: pa.Table) -> pa.Table:
    """The outcome of every approved object that has one (RECEIPTS), sorted by address.

    `undone` has later receipts of quarantined objects, `removed_by_others` the receipts of other sweeps (RECEIPTS).
    """
    later = with_outcome(undone, Outcome.RESTORED, Outcome.PURGED).select(RECEIPTS.names)
    last = without_removed_by_others(latest(receipts).select(RECEIPTS.names), earliest(removed_by_others))
    earlier = without_addresses_in(last, later)
    return with_addresses_in(pa.concat_tables([earlier, later]), approved).sort_by("address")


def without_removed_by_others(receipts: pa.Table, others: pa.Table) -> pa.Table:
    """These receipts (RECEIPTS), with objects as already gone that other sweeps had removed by then, for the reason in
    `others` (RECEIPTS, one for each address).

    That is possible only for objects that count as deleted because an interrupted attempt had an intent for them: no
    request for their delete has a result.
    """
    row = pc.index_in(receipts["address"], value_set=others["address"])
    unconfirmed = pc.and_(is_one_of(receipts["outcome"], [Outcome.DELETED]), pc.equal(receipts["attempts"], 0))
    was_removed = pc.fill_null(pc.less(others["at"].take(row), receipts["at"]), False)
    wrong = pc.and_(unconfirmed, was_removed)
    columns = {name: receipts[name] for name in RECEIPTS.names}
    columns["outcome"] = pc.if_else(wrong, Outcome.ALREADY_GONE.value, receipts["outcome"])
    columns["why"] = pc.if_else(wrong, others["why"].take(row), receipts["why"])
    return pa.table(columns, schema=RECEIPTS)


def removed(approved: pa.Table, receipts: pa.Table, undone: pa.Table) -> pa.Table:
    """The approved objects that this sweep deleted or quarantined and that were not restored (columns address and
    size)."""
    gone = with_addresses_in(with_outcome(receipts, *TAKEN), approved)
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
