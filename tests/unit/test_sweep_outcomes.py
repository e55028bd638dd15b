"""Which objects of a sweep are still pending, and which outcome is reported for each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.rules.sweep_outcomes import APPROVED
from spark_resources.model import ADDRESSES, PENDING, RECEIPTS, Outcome

AT = datetime(2026, 11, 21, tzinfo=UTC)
OUTCOMES = pa.schema([pa.field("round", pa.int32()), *RECEIPTS])


def approved(*addresses: str) -> pa.Table:
    known = {"size": 3, "modified": AT, "checksum": "c", "slice": "data/"}
    return pa.Table.from_pylist([{"address": address, **known} for address in addresses], APPROVED)


def outcomes(**by_address: tuple[Outcome, int]) -> pa.Table:
    """The outcome and round of each address."""
    known = {"size": 3, "code": "", "why": "", "attempts": 1, "at": AT}
    rows = [
        {"address": address, **known, "outcome": outcome.value, "round": number}
        for address, (outcome, number) in by_address.items()
    ]
    return pa.Table.from_pylist(rows, OUTCOMES)


def every_outcome() -> pa.Table:
    """One object for each outcome, by its name."""
    return outcomes(**{outcome.name: (outcome, 1) for outcome in Outcome})


def addresses(rows: pa.Table) -> list[str]:
    return sorted(rows["address"].to_pylist())


def test_an_approved_object_stays_pending_until_it_has_a_final_outcome() -> None:
    """Objects that failed before this attempt are retried; those that failed in its first round or later are not. Each
    pending object keeps the data of the mark. Only approved objects are pending."""
    receipts = outcomes(
        gone=(Outcome.DELETED, 1), kept=(Outcome.RESCUED, 9), before=(Outcome.FAILED, 4),
        now=(Outcome.FAILED, 5), later=(Outcome.FAILED, 6), unapproved=(Outcome.FAILED, 1),
    )  # fmt: skip
    intents = approved("before", "before", "cut_off", "gone", "unapproved_too").select(["address"])
    objects = approved("gone", "kept", "before", "now", "later", "cut_off", "untouched")

    pending = sweep_outcomes.pending(
        objects.append_column("reason", objects["slice"]), receipts, intents, since_round=5
    )

    assert pending.schema == PENDING
    assert [tuple(row.values()) for row in pending.drop_columns(["modified"]).to_pylist()] == [
        ("before", 3, "c", "data/", True),
        ("cut_off", 3, "c", "data/", True),
        ("untouched", 3, "c", "data/", False),
    ]


def test_a_later_failure_replaces_an_earlier_outcome() -> None:
    """Only the receipt of the last round counts: an object that an undo failed to restore is tried again."""
    receipts = pa.concat_tables([outcomes(a=(Outcome.DELETED, 1)), outcomes(a=(Outcome.FAILED, 2))])

    assert addresses(sweep_outcomes.pending(approved("a"), receipts, ADDRESSES.empty_table(), since_round=3)) == ["a"]
    assert addresses(sweep_outcomes.pending(approved("a"), receipts, ADDRESSES.empty_table(), since_round=2)) == []


def test_a_second_task_attempt_does_not_hide_what_the_first_one_deleted() -> None:
    """The second attempt finds the object already gone, or fails. The closing re-verification has to check whether the
    object became live, because this sweep removed it."""
    objects = approved("gone", "failed")
    first = outcomes(gone=(Outcome.DELETED, 1), failed=(Outcome.QUARANTINED, 1))
    second = outcomes(gone=(Outcome.ALREADY_GONE, 1), failed=(Outcome.FAILED, 1))
    later = [{**row, "at": AT + timedelta(seconds=1)} for row in second.to_pylist()]
    receipts = pa.concat_tables([pa.Table.from_pylist(later, OUTCOMES), first])

    assert addresses(sweep_outcomes.removed(objects, receipts, OUTCOMES.empty_table())) == ["failed", "gone"]
    assert addresses(sweep_outcomes.pending(objects, receipts, ADDRESSES.empty_table(), since_round=2)) == []


def test_the_report_has_each_approved_object_once_with_its_last_outcome() -> None:
    """A restored or purged object was quarantined before. Objects without an outcome are left out; the report
    counts them."""
    objects = approved("deleted", "restored", "purged", "quarantined", "failed_undo", "none")
    receipts = outcomes(
        deleted=(Outcome.DELETED, 1), unapproved=(Outcome.DELETED, 1),
        **dict.fromkeys(("restored", "purged", "quarantined", "failed_undo"), (Outcome.QUARANTINED, 1)),
    )  # fmt: skip
    undone = outcomes(
        restored=(Outcome.RESTORED, 1), purged=(Outcome.PURGED, 1), failed_undo=(Outcome.FAILED, 1),
        unapproved_too=(Outcome.RESTORED, 1),
    )  # fmt: skip

    reported = sweep_outcomes.reported(objects, receipts, undone, RECEIPTS.empty_table())

    assert reported.schema.names == RECEIPTS.names
    assert [(row["address"], row["outcome"], row["size"]) for row in reported.to_pylist()] == [
        ("deleted", "deleted", 3),
        ("failed_undo", "quarantined", 3),
        ("purged", "purged", 3),
        ("quarantined", "quarantined", 3),
        ("restored", "restored", 3),
    ]


def test_an_object_that_another_sweep_removed_does_not_count_as_deleted_by_an_interrupted_attempt() -> None:
    """A delete with a response is certain. So is one without, if another sweep has only a later receipt: that sweep
    was interrupted, too, and drew the same conclusion."""
    names = ("taken", "confirmed", "later", "own", "kept")
    receipts = outcomes(**dict.fromkeys(names, (Outcome.DELETED, 1))).to_pylist()
    receipts = [{**row, "attempts": int(row["address"] == "confirmed")} for row in receipts]
    receipts[-1]["outcome"] = Outcome.QUARANTINED.value
    times = {"taken": (1, -1), "confirmed": (-1,), "later": (1,), "kept": (-1,), "unapproved": (-1,)}
    others = [
        {**receipts[0], "address": address, "why": "another sweep did it", "at": AT + timedelta(seconds=second)}
        for address, seconds in times.items()
        for second in seconds
    ]
    reported = sweep_outcomes.reported(
        approved(*names), pa.Table.from_pylist(receipts, OUTCOMES), OUTCOMES.empty_table(),
        pa.Table.from_pylist(others, RECEIPTS),
    )  # fmt: skip

    assert reported.schema == RECEIPTS
    assert [(row["address"], row["outcome"], row["why"]) for row in reported.to_pylist()] == [
        ("confirmed", "deleted", ""),
        ("kept", "quarantined", ""),
        ("later", "deleted", ""),
        ("own", "deleted", ""),
        ("taken", "already gone", "another sweep did it"),
    ]


def test_objects_are_grouped_by_their_outcome() -> None:
    """Deleted and quarantined objects are gone from their keys. Rescued and changed objects stay there for good."""
    receipts = every_outcome()
    objects, nothing = approved(*(outcome.name for outcome in Outcome)), OUTCOMES.empty_table()
    undone = outcomes(DELETED=(Outcome.RESTORED, 1), QUARANTINED=(Outcome.FAILED, 1))
    intents = objects.select(["address"])

    deleted = sweep_outcomes.removed(objects, receipts, nothing)
    assert deleted.schema.names == ["address", "size"]
    assert addresses(deleted) == ["DELETED", "QUARANTINED"]
    assert addresses(sweep_outcomes.removed(objects, receipts, undone)) == ["QUARANTINED"]
    assert addresses(sweep_outcomes.quarantined(objects, receipts)) == ["QUARANTINED"]
    assert addresses(sweep_outcomes.left_in_place(objects, receipts, intents)) == ["CHANGED", "RESCUED"]
    assert addresses(sweep_outcomes.left_in_place(objects, receipts, intents.slice(0, 0))) == []
    assert addresses(sweep_outcomes.removed(approved(), receipts, nothing)) == []
    assert addresses(sweep_outcomes.quarantined(approved(), receipts)) == []
