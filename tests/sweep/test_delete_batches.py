"""Batches of deletes that a store refuses, delays or answers incompletely: each key gets its true result."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from spark_resources.deleting.batches import MAX_SLOW_LOOKUPS, TRIES, RecheckedKeys, Sender, SendResult
from spark_resources.deleting.pacing import Pace
from spark_resources.errors import Refused
from spark_resources.model import Namespace
from spark_resources.stores.base import NOT_SENT, Capabilities, DeleteResult, Deletion
from spark_resources.stores.local.store import LocalStore
from spark_resources.stores.s3.store import S3Store
from tests.support.store_providers import replying

TRANSIENT = {"SlowDown", "503", "NoAnswer", NOT_SENT}


class Troubled(LocalStore):
    """A folder in which deletes can fail. `problem` returns the error code for a key and an attempt, or ""."""

    def __init__(self, folder: Path, problem: Callable[[str, int], str]) -> None:
        (folder / "lake").mkdir()
        super().__init__(str(folder), "lake")
        self.problem, self.lock = problem, threading.Lock()
        self.named: Counter[str] = Counter()
        self.batches: list[list[str]] = []

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, delete_batch=10)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteResult]:
        wanted = list(keys)
        with self.lock:
            self.named.update(wanted)
            self.batches.append(wanted)
        codes = {key: self.problem(key, self.named[key]) for key in wanted}
        results = {result.key: result for result in super().delete_many(key for key in wanted if not codes[key])}
        failed = {
            key: DeleteResult(key, Deletion.FAILED, code, "as planned", transient=code in TRANSIENT)
            for key, code in codes.items()
        }
        return [results.get(key) or failed[key] for key in wanted]


def sender(store: LocalStore | S3Store, check_may_send: Callable[[], None] = lambda: None, **more: int) -> Sender:
    """A sender with a fake clock, so that no wait takes time."""
    return Sender(store, Pace(lambda: 0.0), check_may_send, lambda _: None, lambda: 0.5, **more)


def written(store: LocalStore, *names: str) -> list[str]:
    keys = [f"data/s/{name}" for name in names]
    for key in keys:
        store.write(key, b"x")
    return keys


def by_key(sent: Iterable[SendResult]) -> dict[str, tuple[str, str, int]]:
    return {
        sending.key: (sending.result.deletion.value, sending.result.code, sending.attempts)
        if sending.result
        else ("not sent", "", sending.attempts)
        for sending in sent
    }


def remaining_keys(store: LocalStore) -> set[str]:
    return {stored.key for page in store.pages("data/") for stored in page.objects}


def test_each_key_of_a_batch_gets_its_own_result(tmp_path: Path) -> None:
    """Keys that failed with a transient error are retried; others are not."""
    problems = {
        "data/s/busy": ["SlowDown", "503", ""],
        "data/s/denied": ["AccessDenied"] * 99,
        "data/s/lost": ["NoAnswer", ""],
    }
    store = Troubled(tmp_path, lambda key, attempt: problems.get(key, [""] * 99)[attempt - 1])
    keys = written(store, "busy", "denied", "fine", "lost")
    results, stopped = sender(store).send(keys, "data/s/")

    assert by_key(results) == {
        "data/s/busy": ("deleted", "", 3),
        "data/s/denied": ("failed", "AccessDenied", 1),
        "data/s/fine": ("deleted", "", 1),
        "data/s/lost": ("deleted", "", 2),
    }
    assert (stopped, remaining_keys(store)) == (None, {"data/s/denied"})


def test_without_batches_every_key_is_checked_before_it_is_sent(tmp_path: Path) -> None:
    """A batch may be the first to show that the store accepts no batches."""
    checks: list[int] = []

    class Single(Troubled):
        batch = 10

        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, delete_batch=self.batch)

        def delete_many(self, keys: Iterable[str]) -> list[DeleteResult]:
            results = super().delete_many(keys)
            self.batch = 1
            return results

    def problem(key: str, _: int) -> str:
        late = store.batch > 1 and key != keys[0]
        return NOT_SENT if late else ""

    store = Single(tmp_path, problem)
    keys = written(store, *(f"{number}" for number in range(8)))

    def check_may_send() -> None:
        checks.append(len(store.batches))
        if len(checks) == 6:
            raise Refused("no more")

    outcomes, stopped = sender(store, check_may_send).send(keys, "data/s/")

    assert checks == [0, 1, 2, 3, 4, 5]
    assert [len(batch) for batch in store.batches] == [8, 1, 1, 1, 1]
    assert sorted(sending.key for sending in outcomes) == keys
    assert sum(sending.result is not None for sending in outcomes) == 5
    assert isinstance(stopped, Refused)


def test_a_key_that_is_always_throttled_fails_after_a_limited_number_of_attempts(tmp_path: Path) -> None:
    """The key's result has the store's own code."""
    store = Troubled(tmp_path, lambda *_: "SlowDown")
    results, _ = sender(store).send(written(store, "a"), "data/s/")

    assert by_key(results) == {"data/s/a": ("failed", "SlowDown", TRIES)}
    assert store.named["data/s/a"] == TRIES


def test_after_a_stop_only_keys_that_were_sent_have_results(tmp_path: Path) -> None:
    """Results that the store has already reported are kept."""
    store, checks = Troubled(tmp_path, lambda *_: ""), iter(range(99))

    def check_may_send() -> None:
        if next(checks) >= 2:
            raise Refused("the lease is lost")

    keys = written(store, *(f"{number:05}" for number in range(25)))
    outcomes, stopped = sender(store, check_may_send, in_flight=1).send(keys, "data/s/")
    results = by_key(outcomes)

    assert str(stopped) == "the lease is lost"
    assert results.keys() == set(keys)
    assert [results[key][0] for key in keys] == ["deleted"] * 20 + ["not sent"] * 5
    assert remaining_keys(store) == set(keys[20:])


def test_after_a_stop_the_remaining_batches_do_not_wait_for_their_share_of_the_pace(tmp_path: Path) -> None:
    """At a low rate, that could take hours."""
    store, waits = Troubled(tmp_path, lambda *_: ""), list[float]()

    def check_may_send() -> None:
        raise Refused("the lease is lost")

    sending = sender(store, check_may_send, in_flight=1)
    sending.pace, sending.sleep = Pace(lambda: 0.0, max_rate=1.0), waits.append
    sending.send(written(store, "a", "b", "c", "d"), "data/s/")

    assert waits == [0.0]


def test_a_key_whose_delete_is_stopped_between_two_attempts_has_no_result(tmp_path: Path) -> None:
    """A key whose response was lost is neither deleted nor failed."""
    store, checks = Troubled(tmp_path, lambda *_: "NoAnswer"), iter(range(99))

    def check_may_send() -> None:
        if next(checks):
            raise Refused("the re-verification is too old")

    results, stopped = sender(store, check_may_send).send(written(store, "a"), "data/s/")

    assert by_key(results) == {"data/s/a": ("not sent", "", 1)}
    assert stopped is not None


def test_a_key_that_xml_cannot_represent_is_deleted_in_a_request_of_its_own(tmp_path: Path) -> None:
    """The other keys share a request.

    aws/aws-sdk-go#3592, aws/aws-sdk-java#333
    """
    store = Troubled(tmp_path, lambda *_: "")
    keys = written(store, "a", "b\x01", "c", "d\r")
    results, _ = sender(store).send(keys, "data/s/")

    assert sorted(map(len, store.batches)) == [1, 1, 2]
    assert {deletion for deletion, *_ in by_key(results).values()} == {"deleted"}
    assert remaining_keys(store) == set()


@pytest.mark.parametrize(
    "body",
    [
        b"<DeleteResult><Deleted><Key>lake/data/s/a</Key></Deleted><Deleted><Key>lake/da",
        b"<html>the proxy says hello</html>",
        b"",
        b"<DeleteResult><Error><Code>InternalError</Code></Error><Deleted/></DeleteResult>",
    ],
    ids=["truncated", "from a proxy", "empty", "for no key"],
)
def test_a_batch_with_unreadable_responses_is_retried_and_then_each_of_its_keys_fails(body: bytes) -> None:
    """The response is truncated or doesn't come from the store. The sweep continues."""
    with replying(200, body, {"Content-Type": "application/xml"}) as server:
        store = S3Store(Namespace.parse("s3://bucket/lake"), server.settings())
        results, stopped = sender(store, tries=2).send(["data/s/a", "data/s/b"], "data/s/")

    assert stopped is None
    assert {key: (deletion, attempts) for key, (deletion, _, attempts) in by_key(results).items()} == {
        "data/s/a": ("failed", 2),
        "data/s/b": ("failed", 2),
    }
    assert len(server.seen) == 2


@dataclass(slots=True)
class SlowLookups:
    """Lookups that read the objects at once, but only respond after `takes(keys)` seconds of their own clock."""

    store: LocalStore
    takes: Callable[[Sequence[str]], float]
    replaced: Callable[[], None] = lambda: None  # called right after the objects are read
    seconds: float = 0.0
    requests: list[list[str]] = field(default_factory=list)

    def __call__(self, keys: Sequence[str]) -> RecheckedKeys:
        self.requests.append(list(keys))
        marked = [key for key in keys if self.store.read(key) == b"x"]
        self.replaced()
        self.seconds += self.takes(keys)
        return RecheckedKeys(marked, [], [], [key for key in keys if key not in marked])

    def sender(self, check_may_send: Callable[[], None] = lambda: None) -> Sender:
        return Sender(
            self.store, Pace(lambda: 0.0), check_may_send, lambda _: None, lambda: 0.5,
            recheck=self, clock=lambda: self.seconds,
        )  # fmt: skip


@pytest.mark.parametrize("first", [0.0, -float("inf")], ids=["waited", "never looked up"])
def test_an_object_replaced_during_a_slow_lookup_is_kept(tmp_path: Path, first: float) -> None:
    """The lookup saw the old object and responds half a minute later."""
    store = Troubled(tmp_path, lambda *_: "")
    keys = written(store, "a")
    lookups = SlowLookups(store, lambda _: 30.0 if len(lookups.requests) == 1 else 0.1, seconds=10.0)

    def replace_it() -> None:
        store.write("data/s/a", b"new")

    lookups.replaced = replace_it
    results, _ = lookups.sender().send(keys, "data/s/", looked_up_at=first)

    assert [(sending.key, sending.changed) for sending in results] == [("data/s/a", True)]
    assert remaining_keys(store) == {"data/s/a"}


def test_a_batch_with_slow_lookups_is_split_until_lookups_are_fast(tmp_path: Path) -> None:
    """A lookup takes one second per key, and that of two keys is fast enough."""
    store = Troubled(tmp_path, lambda *_: "")
    keys = written(store, *(f"{number}" for number in range(8)))
    lookups = SlowLookups(store, lambda keys: float(len(keys)))
    results, stopped = lookups.sender().send(keys, "data/s/")

    assert [len(keys) for keys in lookups.requests] == [8, 4, 2, 2, 2, 2]
    assert store.batches == [keys[:2], keys[2:4], keys[4:6], keys[6:]]
    assert by_key(results) == dict.fromkeys(keys, ("deleted", "", 1))
    assert (stopped, remaining_keys(store)) == (None, set())


def test_after_slow_lookups_all_later_batches_of_a_task_look_up_fewer_keys_at_once(tmp_path: Path) -> None:
    """The second batch isn't looked up as a whole first, and doesn't wait twice for its share of the pace."""
    store, waits = Troubled(tmp_path, lambda *_: ""), list[float]()
    keys = written(store, *(f"{number:02}" for number in range(16)))
    lookups = SlowLookups(store, lambda keys: float(len(keys)))
    sending = lookups.sender()
    sending.pace, sending.sleep, sending.in_flight = Pace(lambda: 0.0, max_rate=16.0), waits.append, 1
    sending.send(keys, "data/s/")

    assert [len(keys) for keys in lookups.requests] == [8, 4, *[2] * 8]
    assert len(waits) == len(lookups.requests)
    assert remaining_keys(store) == set()


def test_lookups_cover_more_keys_again_once_they_are_fast(tmp_path: Path) -> None:
    store, slow = Troubled(tmp_path, lambda *_: ""), iter([5.0, 5.0])
    sending = SlowLookups(store, lambda _: next(slow, 0.1)).sender()
    for batch in range(4):
        sending.send(written(store, *(f"{batch}-{number}" for number in range(8))), "data/s/")

    recheck = sending.recheck
    assert isinstance(recheck, SlowLookups)
    assert [len(keys) for keys in recheck.requests] == [8, 4, 2, 2, 4, 8, 8, 8]


def test_a_key_whose_lookups_are_always_slow_fails_and_is_not_deleted(tmp_path: Path) -> None:
    """The other keys of its batch are deleted."""
    store = Troubled(tmp_path, lambda *_: "")
    keys = written(store, "a", "b", "slow")
    lookups = SlowLookups(store, lambda keys: 5.0 if "data/s/slow" in keys else 0.1)
    results, stopped = lookups.sender().send(keys, "data/s/")
    [why] = [sending.result.message for sending in results if sending.result and sending.key == "data/s/slow"]

    assert by_key(results) == {
        "data/s/a": ("deleted", "", 1),
        "data/s/b": ("deleted", "", 1),
        "data/s/slow": ("failed", "TooSlow", 0),
    }
    assert "was not deleted" in why
    assert lookups.requests.count(["data/s/slow"]) == MAX_SLOW_LOOKUPS
    assert (stopped, remaining_keys(store)) == (None, {"data/s/slow"})


def test_waits_for_the_permit_do_not_count_as_slow_lookups(tmp_path: Path) -> None:
    """After each lookup, the task has to wait for a new permit, until one comes in time."""
    store = Troubled(tmp_path, lambda *_: "")
    keys = written(store, "a", "b")
    lookups, waits = SlowLookups(store, lambda _: 0.1), iter([0.0, *[20.0] * 6])

    def check_may_send() -> None:
        lookups.seconds += next(waits, 0.0)

    results, _ = lookups.sender(check_may_send).send(keys, "data/s/")

    assert lookups.requests == [keys] * 7
    assert by_key(results) == dict.fromkeys(keys, ("deleted", "", 1))
