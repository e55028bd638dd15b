"""A store that breaks, lies, forgets and comes late: every key ends in its true outcome, and nothing else goes."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest

from lakegc_assets import sweep
from lakegc_assets.sweeping.rounds import at_rest, round_of
from lakegc_assets.sweeping.run import SweepRun
from spark_resources.deleting.task import Action
from spark_resources.errors import LakegcError
from spark_resources.session import SparkResource
from tests.marking import SharedSpark, environment
from tests.retries import requests
from tests.servers import SeaweedFS
from tests.sweep.alone import BUCKET, approved, left, outcomes, run_alone, settle_alone
from tests.sweep.store_proxy import Fault, StoreProxy, every, store_proxy

OTHERS = {f"data/s1/other-{number}" for number in range(5)}
KEYS = [f"data/s{number % 3}/{number:04}" for number in range(240)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkResource]:
    with environment({}):
        yield SharedSpark()


@pytest.fixture(scope="module")
def proxy(seaweedfs: SeaweedFS) -> Iterator[StoreProxy]:
    seaweedfs.make_bucket(BUCKET)
    with store_proxy(seaweedfs.endpoint_url) as forwarding:
        yield forwarding


@pytest.fixture
def run(seaweedfs: SeaweedFS, proxy: StoreProxy, spark: SparkResource) -> Iterator[SweepRun]:
    """A sweep of 240 keys, beside five others, through the proxy; batches are small, so that there are many."""
    name, client = uuid.uuid4().hex, seaweedfs.client()
    for key in itertools.chain(KEYS, OTHERS):
        client.put_object(Bucket=BUCKET, Key=f"{name}/{key}", Body=b"12345")
    proxy.plan = lambda *_: None
    proxy.seen.clear()
    settings = seaweedfs.settings(s3_endpoint_url=proxy.endpoint, read_timeout=1.5, retry=requests(3))
    started = run_alone(name, settings, spark, delete_batch=20)
    yield started
    proxy.plan = lambda *_: None
    started.lease.release()


@pytest.mark.parametrize(
    ("kind", "fault", "nth"),
    [
        ("delete", Fault.BUSY, 2),
        ("delete", Fault.BROKEN, 3),
        ("delete", Fault.BROKEN_AFTER, 3),
        ("delete", Fault.CUT, 4),
        ("delete", Fault.SLOW, 6),
        ("delete", Fault.HALF, 3),
        ("delete", Fault.ERRORS, 2),
        ("delete", Fault.TWICE, 2),
        ("list", Fault.BROKEN, 3),
        ("list", Fault.CUT, 4),
        ("receipt", Fault.BUSY, 2),
        ("intent", Fault.BROKEN_AFTER, 2),
    ],
)
def test_a_passing_fault_leaves_a_key_or_takes_another(
    run: SweepRun, proxy: StoreProxy, kind: str, fault: Fault, nth: int
) -> None:
    """What passes is tried again: every approved key is deleted in the end, and booked so; the others stay."""
    proxy.plan = every(nth, kind, fault)
    settle_alone(run, KEYS)
    proxy.plan = lambda *_: None

    assert left(run) == OTHERS
    assert outcomes(run) == dict.fromkeys(KEYS, "deleted")


def test_receipt_totals_equal_set_under_partial_failures(run: SweepRun, proxy: StoreProxy) -> None:
    """Of batches that fail among others that don't, each approved key has one receipt, and what it says is so.

    earth-mover/icechunk: icechunk-storage/src/storage.rs
    """
    proxy.plan = every(3, "delete", Fault.DENIED)
    told = settle_alone(run, KEYS)
    proxy.plan = lambda *_: None
    first, there = outcomes(run), left(run)
    failed = {key for key, outcome in first.items() if outcome == "failed"}
    again = settle_alone(run, KEYS)

    assert 0 < len(failed) < len(KEYS)
    assert first.keys() == set(KEYS)
    assert there == OTHERS | failed
    assert told.objects == {"deleted": len(KEYS) - len(failed), "failed": len(failed)}
    assert again.objects == {"deleted": len(failed)}
    assert outcomes(run) == dict.fromkeys(KEYS, "deleted")
    assert left(run) == OTHERS


@pytest.mark.parametrize(("kind", "words"), [("receipt", "507"), ("intent", "507"), ("list", "500")])
def test_a_store_that_can_not_be_written_loses_track(run: SweepRun, proxy: StoreProxy, kind: str, words: str) -> None:
    """Where receipts can't be written the sweep stops with the store's words, and goes on later with true outcomes."""
    proxy.plan = every(1, kind, Fault.BROKEN if kind == "list" else Fault.FULL)
    with pytest.raises(LakegcError, match=words):
        settle_alone(run, KEYS)
    proxy.plan = lambda *_: None
    settle_alone(run, KEYS)

    assert left(run) == OTHERS
    assert outcomes(run) == dict.fromkeys(KEYS, "deleted")


def test_a_busy_store_is_hammered(run: SweepRun, proxy: StoreProxy) -> None:
    """While the store answers 503 to all, requests come ever more slowly; when it is better, the sweep ends."""
    proxy.plan = every(1, "delete", Fault.BUSY, at_most=25)
    proxy.deletes_at.clear()
    tally = settle_alone(run, KEYS)
    gaps = [after - before for before, after in itertools.pairwise(proxy.deletes_at[:25])]

    assert tally.objects == {"deleted": len(KEYS)}
    assert sum(gaps[-8:]) > 2 * sum(gaps[:8])
    assert len(proxy.deletes_at) < 60


def test_a_task_that_failed_may_have_left_a_worker_behind(spark: SparkResource) -> None:
    """After a round of which some attempt failed nobody says that all of its workers are at rest."""
    context = spark.spark_session.sparkContext
    settled = at_rest(spark.spark_session)
    assert context.parallelize([1, 2], 2).count() == 2
    assert settled()

    with pytest.raises(Exception, match="as planned"):
        context.parallelize([0], 1).foreach(fail)
    assert not settled()


def fail(_: int) -> None:
    raise ValueError("as planned")


def test_quarantine_through_faults_loses_an_object(run: SweepRun, proxy: StoreProxy) -> None:
    """Putting aside and bringing back through a breaking store ends with every object in its place."""
    proxy.plan = every(4, "delete", Fault.BROKEN_AFTER)
    settle_alone(run, KEYS[:60], Action.QUARANTINE)
    proxy.plan = lambda *_: None

    assert left(run) == OTHERS | set(KEYS[60:])
    assert outcomes(run) == dict.fromkeys(KEYS[:60], "quarantined")


def test_what_was_brought_back_is_reported_as_put_aside(run: SweepRun) -> None:
    """A sweep that goes on after an undo tells of each object where it is by then."""
    rows, until = approved(run, KEYS[:5]), run.store.now() + timedelta(minutes=30)
    settle_alone(run, KEYS[:4], Action.QUARANTINE)
    back = rows.where(rows["address"].isin(KEYS[:2]))
    round_of(run, back, Action.RESTORE, run.undone, run.next_number(), until, 2)
    spark = run.spark()
    reported = sweep.reported(rows, run.receipts.outcomes(spark), run.undone.outcomes(spark)).collect()

    assert {row["address"]: row["outcome"] for row in reported} == {
        **dict.fromkeys(KEYS[:2], "restored"),
        **dict.fromkeys(KEYS[2:4], "quarantined"),
        KEYS[4]: None,
    }
