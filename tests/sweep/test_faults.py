"""A store that fails, loses requests, or sends wrong or late responses: each key still gets its true outcome."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pyarrow as pa
import pytest

from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.sweep.context import SweepRun
from lakegc_assets.sweep.delete_rounds import all_tasks_ended, run_round
from spark_resources.deleting.sweep_task import Action
from spark_resources.errors import LakegcError
from spark_resources.model import RECEIPTS
from spark_resources.spark.resource import SparkResource
from spark_resources.spark.tasks import Tasks
from tests.support.mark_runs import SharedSpark, environment
from tests.support.retry_policies import no_wait_policy
from tests.support.s3_servers import SeaweedFS
from tests.support.store_proxy import Fault, StoreProxy, every_nth, store_proxy
from tests.support.sweep_without_lakefs import BUCKET, approved, finish_sweep_alone, outcomes, remaining_keys, run_alone

OTHERS = {f"data/s1/other-{number}" for number in range(5)}
KEYS = [f"data/s{number % 3}/{number:04}" for number in range(60)]


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
    """A sweep of 60 of 65 keys through the proxy. Batches are small, so that there are many."""
    name, client = uuid.uuid4().hex, seaweedfs.client()
    for key in itertools.chain(KEYS, OTHERS):
        client.put_object(Bucket=BUCKET, Key=f"{name}/{key}", Body=b"12345")
    proxy.plan = lambda *_: None
    proxy.seen.clear()
    settings = seaweedfs.settings(s3_endpoint_url=proxy.endpoint, read_timeout=1.5, retry=no_wait_policy(3))
    started = run_alone(name, settings, spark, delete_batch=5)
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
def test_requests_with_transient_faults_are_retried_until_every_approved_key_is_deleted(
    run: SweepRun, proxy: StoreProxy, kind: str, fault: Fault, nth: int
) -> None:
    """The receipts of the approved keys say deleted, and no other key is deleted."""
    proxy.plan = every_nth(nth, kind, fault)
    finish_sweep_alone(run, KEYS)
    proxy.plan = lambda *_: None

    assert remaining_keys(run) == OTHERS
    assert outcomes(run) == dict.fromkeys(KEYS, "deleted")


def test_each_approved_key_has_one_receipt_even_if_some_batches_fail(run: SweepRun, proxy: StoreProxy) -> None:
    """The receipt has the key's true outcome.

    earth-mover/icechunk: icechunk-storage/src/storage.rs
    """
    proxy.plan = every_nth(3, "delete", Fault.DENIED)
    first_report = finish_sweep_alone(run, KEYS)
    proxy.plan = lambda *_: None
    first, there = outcomes(run), remaining_keys(run)
    failed = {key for key, outcome in first.items() if outcome == "failed"}
    second_report = finish_sweep_alone(run, KEYS)

    assert 0 < len(failed) < len(KEYS)
    assert first.keys() == set(KEYS)
    assert there == OTHERS | failed
    assert first_report.objects == {"deleted": len(KEYS) - len(failed), "failed": len(failed)}
    assert second_report.objects == {"deleted": len(failed)}
    assert outcomes(run) == dict.fromkeys(KEYS, "deleted")
    assert remaining_keys(run) == OTHERS


@pytest.mark.parametrize(("kind", "words"), [("receipt", "507"), ("intent", "507"), ("list", "500")])
def test_a_sweep_that_cannot_list_objects_or_record_deletes_stops_and_records_correct_outcomes_when_resumed(
    run: SweepRun, proxy: StoreProxy, kind: str, words: str
) -> None:
    """The sweep stops with the store's own error."""
    proxy.plan = every_nth(1, kind, Fault.BROKEN if kind == "list" else Fault.FULL)
    with pytest.raises(LakegcError, match=words):
        finish_sweep_alone(run, KEYS)
    proxy.plan = lambda *_: None
    finish_sweep_alone(run, KEYS)

    assert remaining_keys(run) == OTHERS
    assert outcomes(run) == dict.fromkeys(KEYS, "deleted")


def test_a_sweep_slows_down_its_requests_to_a_busy_store(run: SweepRun, proxy: StoreProxy) -> None:
    """The store answers every request with 503 for a while. Once it recovers, the sweep completes."""
    proxy.plan = every_nth(1, "delete", Fault.BUSY, at_most=25)
    proxy.deletes_at.clear()
    tally = finish_sweep_alone(run, KEYS)
    gaps = [after - before for before, after in itertools.pairwise(proxy.deletes_at[:25])]

    assert tally.objects == {"deleted": len(KEYS)}
    assert sum(gaps[-8:]) > 2 * sum(gaps[:8])
    assert len(proxy.deletes_at) < 60


def test_tasks_do_not_count_as_ended_after_a_failed_attempt(spark: SparkResource) -> None:
    """A failed task may leave behind a worker that is still deleting."""
    context = spark.spark_session.sparkContext
    settled = all_tasks_ended(spark.spark_session)
    assert context.parallelize([1, 2], 2).count() == 2
    assert settled()

    with pytest.raises(Exception, match="as planned"):
        context.parallelize([0], 1).foreach(fail)
    assert not settled()


def fail(_: int) -> None:
    raise ValueError("as planned")


def test_quarantining_loses_no_objects_despite_faults(run: SweepRun, proxy: StoreProxy) -> None:
    """In the end each object is either in quarantine or at its key."""
    proxy.plan = every_nth(4, "delete", Fault.BROKEN_AFTER)
    finish_sweep_alone(run, KEYS[:20], Action.QUARANTINE)
    proxy.plan = lambda *_: None

    assert remaining_keys(run) == OTHERS | set(KEYS[20:])
    assert outcomes(run) == dict.fromkeys(KEYS[:20], "quarantined")


def test_a_report_after_an_undo_counts_restored_objects_as_restored(run: SweepRun) -> None:
    """After an undo, the report says where each object is now."""
    rows, until = approved(run, KEYS[:5]), run.store.now() + timedelta(minutes=30)
    finish_sweep_alone(run, KEYS[:4], Action.QUARANTINE)
    run_round(run, Tasks.of(run.spark, rows.slice(0, 2)), Action.RESTORE, run.undone, run.next_number(), until, 2)
    receipts = [
        pa.concat_tables(file.read() for file in folder.files("receipt")) for folder in (run.receipts, run.undone)
    ]
    reported = sweep_outcomes.reported(rows, *receipts, RECEIPTS.empty_table())

    assert {row["address"]: row["outcome"] for row in reported.to_pylist()} == {
        **dict.fromkeys(KEYS[:2], "restored"),
        **dict.fromkeys(KEYS[2:4], "quarantined"),
    }
