"""One task of a sweep: what it does with its keys, and what a crash after each of its effects leaves to the next."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from spark_resources.deleting import quarantine
from spark_resources.deleting.receipts import INTENTS
from spark_resources.deleting.task import Action
from spark_resources.lease import LEASE_KEY, Holder
from spark_resources.stores.base import DeleteResult, Deletion
from tests.sweep.tasks import Task, task

__all__ = ["task"]

QUARANTINE = "_lakefs/retention/gc/quarantine/m1/data/s/"


def intend(task: Task, *names: str, round_number: int = 1) -> None:
    """What an attempt writes down before it deletes."""
    rows = pa.table({"address": [f"data/s/{name}" for name in names]}, schema=INTENTS)
    task.receipts.write("intent", round_number, "00000-0-00000", rows)


def test_a_key_has_no_outcome_or_two(task: Task) -> None:
    """Each key has one receipt: deleted, changed or gone; a key that isn't the task's is left."""
    rows = pa.concat_tables([task.write("a", "b", "c"), task.pending("gone")])
    task.store.write("data/s/b", b"another")
    task.store.write("data/s/other", b"x")
    counted = task.run(rows, task.orders())

    assert counted == {"deleted": 2, "changed": 1, "already gone": 1}
    assert {name: outcome for name, (outcome, _) in task.outcomes().items()} == {
        "a": "deleted",
        "b": "changed",
        "c": "deleted",
        "gone": "already gone",
    }
    assert task.left() == {"b", "other"}


def test_a_crash_before_the_first_delete_books_a_delete(task: Task) -> None:
    """Keys that were to be deleted and weren't are deleted by the next attempt, and by nothing that it wrote."""
    rows = task.write("a")
    intend(task, "a")

    assert task.run(rows, task.orders(), attempt=1) == {"deleted": 1}
    assert task.left() == set()


def test_a_crash_after_a_delete_books_an_object_as_gone(task: Task) -> None:
    """Keys that an attempt deleted before it was cut off are booked as deleted, in its own round and in a later one."""
    rows = task.write("a")
    intend(task, "a")
    task.store.delete_many(["data/s/a"])

    assert task.run(rows, task.orders(), attempt=1) == {"deleted": 1}
    assert task.run(task.pending("b", intended=True), task.orders(round_number=2)) == {"deleted": 1}


def test_a_second_attempt_does_it_all_again(task: Task) -> None:
    """What an earlier attempt of a task wrote receipts for is not touched, nor counted, again."""
    rows = task.write("a", "b")
    task.run(rows.slice(0, 1), task.orders())
    task.store.write("data/s/a", b"new")

    assert task.run(rows, task.orders(), attempt=1) == {"deleted": 1}
    assert task.left() == {"a"}
    assert {outcome for outcome, _ in task.outcomes().values()} == {"deleted"}


@pytest.mark.parametrize("action", [Action.DELETE, Action.QUARANTINE])
def test_a_repeated_delete_looks_at_the_object_again(
    task: Task, monkeypatch: pytest.MonkeyPatch, action: Action
) -> None:
    """While an answer is waited for, a link token's holder may write another object at the key: a repetition leaves it
    alone, and books as done what the first request did."""
    rows = task.write("first", "replaced", "twice")
    delete_many, seen = type(task.store).delete_many, list[list[str]]()

    def lossy(self: Any, keys: Iterable[str]) -> list[DeleteResult]:
        wanted = list(keys)
        seen.append(wanted)
        if len(seen) > 1:
            return list(delete_many(self, wanted))
        delete_many(self, ["data/s/first"])
        self.write("data/s/replaced", b"somebody's new object")
        return [DeleteResult(key, Deletion.FAILED, "NoAnswer", "") for key in wanted]

    monkeypatch.setattr(type(task.store), "delete_many", lossy)
    counted = task.run(rows, task.orders(action))
    done = {Action.DELETE: "deleted", Action.QUARANTINE: "quarantined"}[action]

    assert counted == {done: 2, "changed": 1}
    assert seen == [["data/s/first", "data/s/replaced", "data/s/twice"], ["data/s/twice"]]
    assert task.store.read("data/s/replaced") == b"somebody's new object"
    assert task.left() == {"replaced"}


@pytest.mark.parametrize("action", [Action.DELETE, Action.QUARANTINE])
def test_an_old_proof_deletes(task: Task, action: Action) -> None:
    """From the end of its proof on a task deletes nothing, and says of no key what became of it."""
    counted = task.run(task.write("a"), task.orders(action, proof_until=task.store.now()))

    assert counted == {"not settled": 1}
    assert (task.left(), task.outcomes()) == ({"a"}, {})


@pytest.mark.parametrize("action", list(Action))
def test_a_task_works_under_the_lease_of_another(task: Task, action: Action) -> None:
    """Without the lease of its own run a task neither deletes, nor copies, nor brings back."""
    rows = task.write("a")
    task.store.write(QUARANTINE + "a", b"data/s/a")
    other = Holder("Grace", "m2", "another", task.store.now() + timedelta(minutes=9))
    task.store.write(LEASE_KEY, other.to_json())

    assert task.run(rows, task.orders(action)) == {"not settled": 1}
    assert task.store.read(QUARANTINE + "a") == task.store.read("data/s/a") == b"data/s/a"


def test_a_lease_that_runs_out_is_enough(task: Task) -> None:
    """With less of the lease left than a request may take nothing is sent."""
    rows, orders = task.write("a"), task.orders()
    short = Holder("Ada", "m1", "t", task.store.now() + orders.request_time)
    task.store.write(LEASE_KEY, short.to_json())

    assert task.run(rows, orders) == {"not settled": 1}
    assert task.left() == {"a"}


# --- quarantine -----------------------------------------------------------------------------------------------------


def aside(task: Task, name: str) -> bytes | None:
    found = quarantine.stat_or_none(task.store, QUARANTINE + name)
    return None if found is None else task.store.read(found.key)


def test_a_quarantined_object_is_lost(task: Task) -> None:
    """An object put aside lies in quarantine byte for byte, and comes back so."""
    rows = task.write("a", "b")

    assert task.run(rows, task.orders(Action.QUARANTINE)) == {"quarantined": 2}
    assert (task.left(), aside(task, "a"), aside(task, "b")) == (set(), b"data/s/a", b"data/s/b")
    assert task.run(rows, task.orders(Action.RESTORE, 2)) == {"restored": 2}
    assert task.store.read("data/s/a") == b"data/s/a"
    assert task.left("_lakefs/retention/gc/quarantine/") == set()


@pytest.mark.parametrize("step", ["copied", "deleted"])
def test_a_cut_off_quarantine_books_a_delete(task: Task, step: str) -> None:
    """Cut off after the copy, or after the delete that follows it, an object is booked as quarantined, and is so."""
    rows = task.write("a")
    intend(task, "a")
    task.store.copy("data/s/a", QUARANTINE + "a")
    if step == "deleted":
        task.store.delete_many(["data/s/a"])

    assert task.run(rows, task.orders(Action.QUARANTINE), attempt=1) == {"quarantined": 1}
    assert (task.left(), aside(task, "a")) == (set(), b"data/s/a")


@pytest.mark.parametrize("step", ["copied", "removed"])
def test_a_cut_off_undo_loses_an_object(task: Task, step: str) -> None:
    """Cut off after the copy back, or after its own copy was removed, an object is restored, and booked so."""
    rows = task.write("a")
    if step == "copied":
        task.store.copy("data/s/a", QUARANTINE + "a")

    assert task.run(rows, task.orders(Action.RESTORE)) == {"restored": 1}
    assert (task.left(), aside(task, "a")) == ({"a"}, None)


def test_undo_overwrites_what_is_in_its_place(task: Task) -> None:
    """Where another object took the place, it stays, the quarantined one stays, too, and the receipt says so."""
    rows = task.write("a")
    task.run(rows, task.orders(Action.QUARANTINE))
    task.store.write("data/s/a", b"new here")

    assert task.run(rows, task.orders(Action.RESTORE, 2)) == {"failed": 1}
    assert (task.store.read("data/s/a"), aside(task, "a")) == (b"new here", b"data/s/a")
    assert code(task, 2) == "PlaceTaken"


def code(task: Task, round_number: int) -> str:
    (key,) = (key for key in task.receipts.keys("receipt", f"{round_number:04d}/"))
    return str(task.receipts.read(key)["code"].to_pylist()[0])


@pytest.mark.parametrize("there", [None, b"something else"])
def test_a_lost_object_is_booked_as_restored(task: Task, there: bytes | None) -> None:
    """Where the quarantined copy is gone and the object isn't back, that is a failure, whatever is in its place."""
    rows = task.write("a")
    task.store.delete_many(["data/s/a"])
    if there is not None:
        task.store.write("data/s/a", there)

    assert task.run(rows, task.orders(Action.RESTORE)) == {"failed": 1}
    assert code(task, 1) == "Lost"


def test_undo_brings_back_what_was_planted(task: Task) -> None:
    """A copy that isn't of the size that was put aside stays where it is."""
    rows = task.write("a")
    task.store.delete_many(["data/s/a"])
    task.store.write(QUARANTINE + "a", b"planted by somebody")

    assert task.run(rows, task.orders(Action.RESTORE)) == {"failed": 1}
    assert (task.left(), code(task, 1)) == (set(), "Differs")


def test_purge_takes_what_is_in_its_place(task: Task) -> None:
    """A purge deletes quarantined copies of its keys, and nothing else of that folder or outside it."""
    rows = task.write("a")
    task.store.copy("data/s/a", QUARANTINE + "a")
    task.store.write(QUARANTINE + "stranger", b"x")

    assert task.run(rows, task.orders(Action.PURGE)) == {"purged": 1}
    assert (task.left(), aside(task, "a"), aside(task, "stranger")) == ({"a"}, None, b"x")


def test_a_copy_that_differs_costs_the_original(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object whose copy isn't the same stays, is booked as failed, and the bad copy isn't kept for an undo."""

    def badly(self: Any, source: str, target: str) -> None:
        self.write(target, self.read(source)[:-1] + b"?")

    rows = task.write("a")
    monkeypatch.setattr(type(task.store), "copy", badly)

    assert task.run(rows, task.orders(Action.QUARANTINE)) == {"failed": 1}
    assert (task.left(), aside(task, "a"), code(task, 1)) == ({"a"}, None, "Differs")
