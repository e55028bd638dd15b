"""One task of a sweep: what it does with its keys, and how the next attempt continues after a crash at each effect."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_resources.deleting import lookup, quarantine, sweep_task
from spark_resources.deleting.lookup import Lookup
from spark_resources.deleting.pacing import Pace
from spark_resources.deleting.permit import PermitWatch
from spark_resources.deleting.quarantine import CONCURRENT_COPIES
from spark_resources.deleting.receipts import INTENTS
from spark_resources.deleting.sweep_task import Action, chunk_sizes
from spark_resources.mark_store.lease import LEASE_KEY, Holder
from spark_resources.model import PENDING
from spark_resources.stores.base import DeleteResult, Deletion
from spark_resources.stores.transfer import PIECE_SIZE
from tests.support.sweep_tasks import Task, task

__all__ = ["task"]

QUARANTINE = "_lakefs/retention/gc/quarantine/m1/data/s/"


def write_intent(task: Task, *names: str, round_number: int = 1) -> None:
    """Write the intent that an attempt writes before it deletes."""
    rows = pa.table({"address": [f"data/s/{name}" for name in names]}, schema=INTENTS)
    task.receipts.write("intent", round_number, "00000-0-00000", rows)


def test_each_key_has_exactly_one_receipt(task: Task) -> None:
    """The outcomes are deleted, changed and already gone. Keys of other tasks are left unchanged."""
    rows = pa.concat_tables([task.write("a", "b", "c"), task.pending("gone")])
    task.store.write("data/s/b", b"another")
    task.store.write("data/s/other", b"x")
    counted = task.run(rows, task.config())

    assert counted == {"deleted": 2, "changed": 1, "already gone": 1}
    assert {name: outcome for name, (outcome, _) in task.outcomes().items()} == {
        "a": "deleted",
        "b": "changed",
        "c": "deleted",
        "gone": "already gone",
    }
    assert task.remaining() == {"b", "other"}


def test_keys_left_by_a_crash_before_the_first_delete_are_deleted_by_the_next_attempt(task: Task) -> None:
    """A recorded intent doesn't count as a deletion."""
    rows = task.write("a")
    write_intent(task, "a")

    assert task.run(rows, task.config(), attempt=1) == {"deleted": 1}
    assert task.remaining() == set()


def test_keys_deleted_before_a_crash_are_recorded_as_deleted(task: Task) -> None:
    """The next attempt doesn't record them as already gone, whether it is in the same round or a later one."""
    rows = task.write("a")
    write_intent(task, "a")
    task.store.delete_many(["data/s/a"])

    assert task.run(rows, task.config(), attempt=1) == {"deleted": 1}
    assert task.run(task.pending("b", intended=True), task.config(round_number=2)) == {"deleted": 1}


def test_a_second_attempt_skips_keys_with_receipts(task: Task) -> None:
    """Keys with receipts are neither deleted nor counted again."""
    rows = task.write("a", "b")
    task.run(rows.slice(0, 1), task.config())
    task.store.write("data/s/a", b"new")

    assert task.run(rows, task.config(), attempt=1) == {"deleted": 1}
    assert task.remaining() == {"a"}
    assert {outcome for outcome, _ in task.outcomes().values()} == {"deleted"}


def test_a_slow_sweep_writes_receipts_after_five_seconds_and_then_less_often(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The progress of a sweep counts receipts."""
    rows = task.write(*"abcdefghijkl")
    monkeypatch.setattr(Pace, "take", lambda self, prefix, keys: 0.0)
    counted = task.run(rows, replace(task.config(), max_rate=1.0))

    assert counted == {"deleted": 12}
    assert [len(task.receipts.read(key)) for key in sorted(task.receipts.keys("receipt", "0001/"))] == [5, 6, 1]


def test_a_rate_without_bound_does_not_limit_chunks() -> None:
    """`--rate inf` is accepted."""
    assert next(chunk_sizes(1_000, float("inf"))) == next(chunk_sizes(1_000, None))


@pytest.mark.parametrize("action", list(Action))
def test_a_slow_task_ends_soon_after_its_round_has_ended(
    task: Task, monkeypatch: pytest.MonkeyPatch, action: Action
) -> None:
    """It neither waits for the pace of the remaining keys nor writes their intents."""
    rows, waits = task.write(*(f"{number:03}" for number in range(100))), list[float]()
    # only for the task: with a sleep that returns at once, other threads would poll without a pause
    monkeypatch.setattr(sweep_task, "time", SimpleNamespace(sleep=waits.append, monotonic=time.monotonic))
    counted = task.run(rows, task.config(action, verified_until=task.store.now(), max_rate=1.0))

    assert counted == {"unprocessed": 100}
    assert sum(len(task.receipts.read(key)) for key in task.receipts.keys("intent")) <= 5 + 6
    assert sum(1 for seconds in waits if seconds) <= 2 * CONCURRENT_COPIES


@pytest.mark.parametrize("action", [Action.DELETE, Action.QUARANTINE])
def test_a_retried_delete_spares_an_object_written_in_between(
    task: Task, monkeypatch: pytest.MonkeyPatch, action: Action
) -> None:
    """While a response is pending, the holder of a link token may write another object at the key. The effect of the
    first request is recorded."""
    rows = task.write("first", "replaced", "twice")
    delete_many, batches = type(task.store).delete_many, list[list[str]]()

    def lossy(self: Any, keys: Iterable[str]) -> list[DeleteResult]:
        wanted = list(keys)
        batches.append(wanted)
        if len(batches) > 1:
            return list(delete_many(self, wanted))
        delete_many(self, ["data/s/first"])
        self.write("data/s/replaced", b"somebody's new object")
        return [DeleteResult(key, Deletion.FAILED, "NoAnswer", "", transient=True) for key in wanted]

    monkeypatch.setattr(type(task.store), "delete_many", lossy)
    counted = task.run(rows, task.config(action))
    outcome = {Action.DELETE: "deleted", Action.QUARANTINE: "quarantined"}[action]

    assert counted == {outcome: 2, "changed": 1}
    assert batches == [["data/s/first", "data/s/replaced", "data/s/twice"], ["data/s/twice"]]
    assert task.store.read("data/s/replaced") == b"somebody's new object"
    assert task.remaining() == {"replaced"}


def late_by(
    task: Task, monkeypatch: pytest.MonkeyPatch, waiting: tuple[type, str], event: Callable[[], object]
) -> None:
    """An event in the store while the task's first request waits for a minute, because of its pace or for a permit."""
    seconds, (kind, name) = [0.0], waiting
    really = getattr(kind, name)

    def waited(self: Any, *arguments: Any) -> Any:
        if not seconds[0]:
            seconds[0] = 60.0
            event()
        return really(self, *arguments)

    monkeypatch.setattr(kind, name, waited)
    monkeypatch.setattr(sweep_task, "boottime_s", lambda: seconds[0])


@pytest.mark.parametrize("waiting", [(Pace, "take"), (PermitWatch, "check")], ids=["pace", "permit"])
def test_objects_are_looked_up_again_when_a_delete_is_late(
    task: Task, monkeypatch: pytest.MonkeyPatch, waiting: tuple[type, str]
) -> None:
    """The cause of the delay doesn't matter. An object replaced or deleted in the meantime gets its true outcome."""
    rows = task.write("gone", "replaced", "same")

    def event() -> None:
        task.store.delete_many(["data/s/gone"])
        task.store.write("data/s/replaced", b"somebody's new object")

    late_by(task, monkeypatch, waiting, event)

    assert task.run(rows, task.config()) == {"already gone": 1, "changed": 1, "deleted": 1}
    assert {name: outcome for name, (outcome, _) in task.outcomes().items()} == {
        "gone": "already gone",
        "replaced": "changed",
        "same": "deleted",
    }
    assert task.store.read("data/s/replaced") == b"somebody's new object"


class Immediately:
    """An executor that runs each call at once, in this thread."""

    def __init__(self, max_workers: int) -> None:
        assert max_workers == 1

    def __enter__(self) -> Immediately:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future = Future[Any]()
        future.set_result(call(*arguments))
        return future


@pytest.mark.parametrize(
    ("seconds", "order"),
    [(1.0, "look up 0, delete 0, look up 1, look up 2, delete 1, look up 3, delete 2, delete 3"),
     (10.0, "look up 0, delete 0, look up 1, delete 1, look up 2, delete 2, look up 3, delete 3")],
    ids=["fast", "slow"],
)  # fmt: skip
def test_keys_are_looked_up_ahead_only_if_deletes_are_fast_enough_for_the_lookup_to_stay_valid(
    task: Task, monkeypatch: pytest.MonkeyPatch, seconds: float, order: str
) -> None:
    """Nothing is looked up ahead of the first deletes, because their speed isn't known yet."""
    now, events = [0.0], list[str]()
    look_up, delete_many = Lookup.look_up, type(task.store).delete_many

    def looked_up(self: Lookup, wanted: pa.Table) -> pa.Table:
        events.append(f"look up {wanted['address'][0].as_py()[-1]}")
        return look_up(self, wanted)

    def deleted(self: Any, keys: Iterable[str]) -> list[DeleteResult]:
        [key] = keys
        events.append(f"delete {key[-1]}")
        now[0] += seconds
        return list(delete_many(self, [key]))

    monkeypatch.setattr(Lookup, "look_up", looked_up)
    monkeypatch.setattr(type(task.store), "delete_many", deleted)
    monkeypatch.setattr(sweep_task, "boottime_s", lambda: now[0])
    monkeypatch.setattr(sweep_task, "ThreadPoolExecutor", Immediately)
    really = sweep_task.chunks
    monkeypatch.setattr(sweep_task, "chunks", lambda batches, _: really(batches, repeat(1)))

    assert task.run(task.write("0", "1", "2", "3"), task.config()) == {"deleted": 4}
    assert ", ".join(events) == order


@pytest.mark.parametrize(("page", "listings"), [(10, 1), (1_000, 2)], ids=["long", "short"])
def test_objects_are_looked_up_again_by_listing_their_slice_only_if_it_is_short(
    task: Task, monkeypatch: pytest.MonkeyPatch, page: int, listings: int
) -> None:
    """A flat slice may be far larger than one batch of deletes."""
    monkeypatch.setattr(lookup, "PAGE", page)
    keys, pages = [f"data/{number:02}" for number in range(20)], list[str]()
    for key in keys:
        task.store.write(key, key.encode())
    rows = pa.Table.from_pylist([task.row(key) | {"slice": "data/", "intended": False} for key in keys], schema=PENDING)
    late_by(task, monkeypatch, (Pace, "take"), lambda: task.store.write("data/07", b"somebody's new object"))
    really = type(task.store).pages
    monkeypatch.setattr(
        type(task.store), "pages", lambda self, prefix, **how: pages.append(prefix) or really(self, prefix, **how)
    )

    assert task.run(rows, task.config()) == {"deleted": 19, "changed": 1}
    assert pages.count("data/") == listings
    assert task.remaining() == {"data/07"}


@pytest.mark.parametrize("action", [Action.DELETE, Action.QUARANTINE])
def test_a_task_with_an_outdated_re_verification_deletes_nothing(task: Task, action: Action) -> None:
    """The task's keys get no outcome."""
    counted = task.run(task.write("a"), task.config(action, verified_until=task.store.now()))

    assert counted == {"unprocessed": 1}
    assert (task.remaining(), task.outcomes()) == ({"a"}, {})


@pytest.mark.parametrize("action", list(Action))
def test_a_task_does_nothing_without_the_lease_of_its_own_run(task: Task, action: Action) -> None:
    """The task neither deletes, copies nor restores."""
    rows = task.write("a")
    task.store.write(QUARANTINE + "a", b"data/s/a")
    other = Holder("Grace", "m2", "another", task.store.now() + timedelta(minutes=9))
    task.store.write(LEASE_KEY, other.to_json())

    assert task.run(rows, task.config(action)) == {"unprocessed": 1}
    assert task.store.read(QUARANTINE + "a") == task.store.read("data/s/a") == b"data/s/a"


def test_nothing_is_sent_if_the_lease_may_end_before_the_response(task: Task) -> None:
    """A request may take longer than the lease has left."""
    rows, config = task.write("a"), task.config()
    short = Holder("Ada", "m1", "t", task.store.now() + config.request_time)
    task.store.write(LEASE_KEY, short.to_json())

    assert task.run(rows, config) == {"unprocessed": 1}
    assert task.remaining() == {"a"}


# --- quarantine -----------------------------------------------------------------------------------------------------


def quarantined_copy(task: Task, name: str) -> bytes | None:
    copy = quarantine.stat_or_none(task.store, QUARANTINE + name)
    return None if copy is None else task.store.read(copy.key)


def test_a_quarantined_object_is_kept_and_restored_byte_for_byte(task: Task) -> None:
    """The copy stays in the quarantine folder until it is restored."""
    rows = task.write("a", "b")

    assert task.run(rows, task.config(Action.QUARANTINE)) == {"quarantined": 2}
    assert (task.remaining(), quarantined_copy(task, "a"), quarantined_copy(task, "b")) == (
        set(),
        b"data/s/a",
        b"data/s/b",
    )
    assert task.run(rows, task.config(Action.RESTORE, 2)) == {"restored": 2}
    assert task.store.read("data/s/a") == b"data/s/a"
    assert task.remaining("_lakefs/retention/gc/quarantine/") == set()


@pytest.mark.parametrize("step", ["copied", "deleted"])
def test_an_interrupted_quarantine_is_completed_and_recorded_as_quarantined(task: Task, step: str) -> None:
    """The quarantine was interrupted after the copy, or after the delete that follows it."""
    rows = task.write("a")
    write_intent(task, "a")
    task.store.copy("data/s/a", QUARANTINE + "a")
    if step == "deleted":
        task.store.delete_many(["data/s/a"])

    assert task.run(rows, task.config(Action.QUARANTINE), attempt=1) == {"quarantined": 1}
    assert (task.remaining(), quarantined_copy(task, "a")) == (set(), b"data/s/a")


@pytest.mark.parametrize("step", ["copied", "removed"])
def test_an_interrupted_undo_is_completed_and_recorded_as_restored(task: Task, step: str) -> None:
    """The undo was interrupted after copying back, or after removing the quarantined copy."""
    rows = task.write("a")
    if step == "copied":
        task.store.copy("data/s/a", QUARANTINE + "a")

    assert task.run(rows, task.config(Action.RESTORE)) == {"restored": 1}
    assert (task.remaining(), quarantined_copy(task, "a")) == ({"a"}, None)


def test_undo_does_not_overwrite_another_object(task: Task) -> None:
    """The other object and the quarantined copy both stay, and the receipt says so."""
    rows = task.write("a")
    task.run(rows, task.config(Action.QUARANTINE))
    task.store.write("data/s/a", b"new here")

    assert task.run(rows, task.config(Action.RESTORE, 2)) == {"failed": 1}
    assert (task.store.read("data/s/a"), quarantined_copy(task, "a")) == (b"new here", b"data/s/a")
    assert receipt_code(task, 2) == "PlaceTaken"


def test_undo_does_not_overwrite_an_object_created_after_its_lookup(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No check between lookup and copy could notice the object, so the copy itself is conditional."""
    rows = task.write("a")
    task.run(rows, task.config(Action.QUARANTINE))
    really = quarantine.stat_or_none

    def appears_afterwards(store: Any, key: str) -> Any:
        looked_up = really(store, key)
        if key == "data/s/a" and looked_up is None:
            store.write(key, b"new here")
        return looked_up

    with monkeypatch.context() as patched:
        patched.setattr(quarantine, "stat_or_none", appears_afterwards)
        assert task.run(rows, task.config(Action.RESTORE, 2)) == {"failed": 1}
    assert (task.store.read("data/s/a"), quarantined_copy(task, "a")) == (b"new here", b"data/s/a")
    assert receipt_code(task, 2) == "PlaceTaken"


def receipt_code(task: Task, round_number: int) -> str:
    (key,) = (key for key in task.receipts.keys("receipt", f"{round_number:04d}/"))
    return str(task.receipts.read(key)["code"].to_pylist()[0])


@pytest.mark.parametrize("there", [None, b"something else"])
def test_undo_fails_for_an_object_whose_quarantined_copy_is_lost(task: Task, there: bytes | None) -> None:
    """The undo fails whether or not a different object has the key."""
    rows = task.write("a")
    task.store.delete_many(["data/s/a"])
    if there is not None:
        task.store.write("data/s/a", there)

    assert task.run(rows, task.config(Action.RESTORE)) == {"failed": 1}
    assert receipt_code(task, 1) == "Lost"


def test_undo_does_not_restore_a_copy_whose_size_differs(task: Task) -> None:
    """Somebody else wrote the object in quarantine."""
    rows = task.write("a")
    task.store.delete_many(["data/s/a"])
    task.store.write(QUARANTINE + "a", b"planted by somebody")

    assert task.run(rows, task.config(Action.RESTORE)) == {"failed": 1}
    assert (task.remaining(), receipt_code(task, 1)) == (set(), "Differs")


def test_purge_deletes_only_the_quarantined_copies_of_its_keys(task: Task) -> None:
    """No other object, in that folder or outside it, is deleted."""
    rows = task.write("a")
    task.store.copy("data/s/a", QUARANTINE + "a")
    task.store.write(QUARANTINE + "stranger", b"x")

    assert task.run(rows, task.config(Action.PURGE)) == {"purged": 1}
    assert (task.remaining(), quarantined_copy(task, "a"), quarantined_copy(task, "stranger")) == ({"a"}, None, b"x")


def test_an_object_whose_copy_differs_is_not_deleted(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object is recorded as failed, and the bad copy isn't kept for an undo."""

    def badly(self: Any, source: str, target: str) -> None:
        self.write(target, self.read(source)[:-1] + b"?")

    rows = task.write("a")
    monkeypatch.setattr(type(task.store), "copy", badly)

    assert task.run(rows, task.config(Action.QUARANTINE)) == {"failed": 1}
    assert (task.remaining(), quarantined_copy(task, "a"), receipt_code(task, 1)) == ({"a"}, None, "Differs")


def test_an_object_replaced_after_it_was_copied_to_quarantine_is_not_deleted(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy also stays, until a purge. An object that wasn't replaced is quarantined."""
    rows = task.write("a", "b")
    really = quarantine.copy_verified

    def replaced_right_after(store: Any, source: str, target: str) -> None:
        really(store, source, target)
        if source == "data/s/a":
            store.write(source, b"somebody's new object")

    monkeypatch.setattr(quarantine, "copy_verified", replaced_right_after)

    assert task.run(rows, task.config(Action.QUARANTINE)) == {"changed": 1, "quarantined": 1}
    assert (task.store.read("data/s/a"), quarantined_copy(task, "a")) == (b"somebody's new object", b"data/s/a")
    assert (task.remaining(), quarantined_copy(task, "b")) == ({"a"}, b"data/s/b")


@pytest.mark.parametrize("action", [Action.QUARANTINE, Action.RESTORE])
def test_a_task_that_loses_its_lease_while_it_waits_copies_nothing(
    task: Task, monkeypatch: pytest.MonkeyPatch, action: Action
) -> None:
    """The task waits for the pace of copies. By then, the next holder may be working on the same keys."""
    rows = task.write("a")
    if action is Action.RESTORE:
        task.store.copy("data/s/a", QUARANTINE + "a")
        task.store.delete_many(["data/s/a"])
    other = Holder("Grace", "m2", "another", task.store.now() + timedelta(minutes=9))
    late_by(task, monkeypatch, (Pace, "take"), lambda: task.store.write(LEASE_KEY, other.to_json()))

    assert task.run(rows, task.config(action)) == {"unprocessed": 1}
    assert (task.remaining() == {"a"}, quarantined_copy(task, "a") is None) == (action is Action.QUARANTINE,) * 2


def test_a_stopped_task_does_not_remove_a_copy_that_differs(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy at that key may belong to the next holder."""
    rows, config = task.write("a"), task.config(Action.QUARANTINE, permit_interval_s=0.0)

    def badly(self: Any, source: str, target: str) -> None:
        task.permit().stop("as planned")
        self.write(target, b"the next holder's")

    monkeypatch.setattr(type(task.store), "copy", badly)

    assert task.run(rows, config) == {"unprocessed": 1}
    assert (task.remaining(), quarantined_copy(task, "a")) == ({"a"}, b"the next holder's")


def test_large_objects_of_equal_size_are_not_mistaken_for_each_other(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has no checksums. The objects are compared in pieces, never read as a whole."""
    size = 16 * PIECE_SIZE
    root = Path(task.place.settings.local_path or "") / "lake"
    task.store.write("data/s/a", b"")
    task.store.write("data/s/b", b"")
    for name, last in (("a", b"a"), ("b", b"b")):
        with (root / "data/s" / name).open("r+b") as file:
            file.truncate(size - 1)
            file.seek(size - 1)
            file.write(last)
    monkeypatch.delattr(type(task.store), "read")

    objects = [task.store.stat(f"data/s/{name}") for name in ("a", "b")]
    assert not quarantine.same_content(task.store, *objects)
    assert quarantine.same_content(task.store, objects[0], objects[0])
