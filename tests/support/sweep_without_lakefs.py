"""Rounds of a sweep on a store alone, for fault tests and benchmarks: without lakeFS, re-verification or a real
mark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pyarrow as pa

from lakegc_assets.mark.context import Limits, Target
from lakegc_assets.mark.keep_evidence import OBJECTS
from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.rules.sweep_outcomes import APPROVED
from lakegc_assets.sweep.context import SweepLimits, SweepRun, Verified
from lakegc_assets.sweep.delete_rounds import Tally, pending_objects, run_round
from lakegc_assets.sweep.head_watch import HeadWatch
from spark_resources.deleting.receipts import NUMBERED
from spark_resources.deleting.sweep_task import Action
from spark_resources.lakefs import LakeFS, LakeFSSettings, Repository
from spark_resources.mark_store.lease import LEASE_KEY, take_lease
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import PENDING, MarkState, Namespace, Outcome, Partition, Scope
from spark_resources.settings import Settings
from spark_resources.spark.arrow_shuffle import Input
from spark_resources.spark.persistence import Persisted
from spark_resources.spark.resource import SparkResource
from spark_resources.spark.tasks import Tasks
from spark_resources.stores.base import Capabilities
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings

BUCKET = "sweeps"
UNREACHABLE = {"endpoint_url": "http://127.0.0.1:1", "access_key_id": "a", "secret_access_key": "b"}

NOTHING_NEW = Verified(frozenset({"c1"}), pa.array([], pa.string()))


class OneBranch(LakeFS):
    """A server with one branch, whose head is verified."""

    def branches(self, repository: str) -> dict[str, str]:
        return {"main": "c1"}


def run_alone(
    name: str,
    settings: StoreSettings,
    spark: SparkResource,
    *,
    rate: float | None = None,
    delete_batch: int = 1000,
    take_over: bool = False,
) -> SweepRun:
    """A sweep of the mark `m1` in the namespace with this name, under its own lease.

    With `take_over`, an earlier lease is removed first, as if it had expired.
    """
    place = Place(
        Namespace(f"s3://{BUCKET}/{name}"), settings, Capabilities(byte_order=False, delete_batch=delete_batch)
    )
    now = place.store().now()
    later = now + timedelta(days=1)  # so that all objects are old enough
    record = MarkRecord(
        mark_id="m1",
        state=MarkState.SWEEPING,
        repository=name,
        repository_created=now,
        namespace=place.namespace.uri,
        scope=Scope.UNIFIED,
        min_age=timedelta(0),
        start=now,
        cutoff=later,
        server_now=now,
        rules=None,
        by="the tests",
        versions={},
    )
    repository = Repository(name, place.namespace.uri, "main", read_only=False, storage_id="", created=now)
    if take_over:
        place.store().delete_many([LEASE_KEY])
    lease = take_lease(place.store(), who="tests", mark_id="m1", token=f"{name} {now}", single_deployment=False)
    return SweepRun(
        Partition(name, "m1"), Target(repository, "s3", place), Mark(place, record, ""),
        OneBranch(*LakeFSSettings.of(Settings.model_validate(UNREACHABLE))), lambda: spark.spark_session,
        SweepLimits(Limits(), rate=rate), lease, "tests", lambda _: None,
    )  # fmt: skip


def approved(run: SweepRun, keys: Sequence[str]) -> pa.Table:
    """The approved objects (PENDING) with the sizes that the store lists now, or null for missing objects."""
    listed = {stored.key: stored for page in run.store.pages("data/") for stored in page.objects}
    nothing: list[None] = [None] * len(keys)
    sizes = [listed[key].size if key in listed else None for key in keys]
    slices = [key.rpartition("/")[0] + "/" for key in keys]
    columns = [list(keys), sizes, nothing, nothing, slices, [False] * len(keys)]
    return pa.table(columns, schema=PENDING)


def finish_sweep_alone(run: SweepRun, keys: Sequence[str], action: Action = Action.DELETE) -> Tally:
    """Run rounds, as a sweep does, until every key has an outcome."""
    rows, tally, since = approved(run, keys), Tally(), run.next_number()
    whole = Input.of_rows(OBJECTS, Tasks.of(run.spark, rows), APPROVED, len(rows))
    while True:
        number, persist = run.next_number(), Persisted()
        pending = pending_objects(run, whole, since, persist)
        if not pending.count:
            return tally
        until, heads = run.store.now() + timedelta(minutes=30), HeadWatch.of(run, NOTHING_NEW)
        tally.add(run_round(run, pending.rows, action, run.receipts, number, until, pending.count, heads))
        persist.release()


def outcomes(run: SweepRun) -> dict[str, str]:
    """The latest outcome of each key, by the receipts."""
    files = [file.read() for file in run.receipts.files("receipt")]
    latest = sweep_outcomes.latest(pa.concat_tables([NUMBERED.empty_table(), *files]))
    return dict(zip(latest["address"].to_pylist(), latest["outcome"].to_pylist(), strict=True))


def remaining_keys(run: SweepRun) -> set[str]:
    return {stored.key for page in run.store.pages("data/") for stored in page.objects}


__all__ = ["BUCKET", "Outcome", "approved", "finish_sweep_alone", "outcomes", "remaining_keys", "run_alone"]
