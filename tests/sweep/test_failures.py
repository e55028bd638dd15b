"""A whole sweep of which the store refuses a batch: who is told, what is written down, and what the next one does."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.marking.resource import MarkOptions
from spark_resources.deleting.receipts import Receipts
from spark_resources.marks import Mark, mark_folder
from spark_resources.model import MarkState
from spark_resources.sandbox import S3Place, Sandbox
from tests.command_line import Lakegc, Outcome
from tests.marking import Marker, Sweeper, target_of
from tests.recordings.replay import wait_until_passed
from tests.servers import SeaweedFS
from tests.sweep.store_proxy import Fault, kind_of, store_proxy

DENIED, GONE = {f"data/s/{number}" for number in range(5)}, "data/s/gone"


@dataclass(frozen=True)
class Swept:
    """What was seen after one run of the command: its outcome, the mark's state, receipts by key, and keys left."""

    outcome: Outcome
    state: MarkState
    receipts: dict[str, list[tuple[str, str]]]
    left: set[str]

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.outcome.out)
        return found


@pytest.fixture(scope="module")
def twice(
    lakegc: Lakegc, seaweedfs: SeaweedFS, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Swept, Swept]]:
    """Two runs of a sweep of six objects: one of them is gone already, five may not be deleted in the first run."""
    bucket = f"refused-{uuid.uuid4().hex[:12]}"
    seaweedfs.make_bucket(bucket)
    here = S3Place(f"s3://{bucket}/under", seaweedfs.settings())
    with store_proxy(seaweedfs.endpoint_url) as proxy, Sandbox(tmp_path_factory.mktemp("refused"), s3=here) as sandbox:
        settings = {**sandbox.settings, "s3_endpoint_url": proxy.endpoint}
        lake = sandbox.create("lake")
        lake.put("main", "kept", b"kept")
        for key in (GONE, *DENIED):
            lake.objects.write(key, b"12345")
        now = target_of(settings, "lake").place.store().now
        wait_until_passed(now(), now)
        Marker().mark(settings, "lake", "m1", MarkOptions(min_age=timedelta(0), allow_young=True))
        wait_until_passed(now(), now)
        Sweeper().approve(settings, "lake", "m1")
        seaweedfs.client().delete_object(Bucket=bucket, Key=f"under/lake/{GONE}")

        def plan(method: str, path: str, body: bytes) -> Fault | None:
            return Fault.DENIED if kind_of(method, path) == "delete" and b"/data/s/" in body else None

        proxy.plan = plan
        first = swept(lakegc, settings)
        proxy.plan = lambda *_: None
        yield first, swept(lakegc, settings)


def swept(lakegc: Lakegc, settings: dict[str, str]) -> Swept:
    outcome = lakegc(settings, "sweep", "lake", "m1", "--format", "json")
    place = target_of(settings, "lake").place
    receipts: dict[str, list[tuple[str, str]]] = {}
    files = Receipts(place, f"{mark_folder('m1')}receipts/")
    for row in (row for key in files.keys("receipt") for row in files.read(key).to_pylist()):
        receipts.setdefault(row["address"], []).append((row["outcome"], row["code"]))
    left = {one.key for page in place.store().pages("data/") for one in page.objects}
    return Swept(outcome, Mark.open(place, "m1").record.state, receipts, left)


def test_failed_batch_fails_the_run_and_is_in_receipts(twice: tuple[Swept, Swept]) -> None:
    """A sweep of which a batch failed is no success, for scripts, in its report and in the mark; each key says why.

    treeverse/lakeFS: clients/spark/src/main/scala/io/treeverse/clients/BulkRemoverFactory.scala
    """
    first, _ = twice
    assert (first.report["objects"], first.report["success"]) == ({"already gone": 1, "failed": 5}, False)
    assert (first.outcome.code, first.state) == (4, MarkState.SWEPT_WITH_FAILURES)
    assert "5 could not be deleted" in first.outcome.err
    assert first.receipts[GONE] == [("already gone", "")]
    assert {key: first.receipts[key] for key in first.receipts if key != GONE} == {
        key: [("failed", "AccessDenied")] for key in DENIED
    }
    assert first.left >= DENIED


def test_failed_delete_is_retried_by_next_run(twice: tuple[Swept, Swept]) -> None:
    """The next run of the command tries the keys that failed, and them alone; then the sweep is one that did it all.

    HUDI-7655, apache/hudi#11343, apache/hudi#11363
    """
    first, second = twice
    assert (second.report["objects"], second.report["success"]) == ({"already gone": 1, "deleted": 5}, True)
    assert (second.outcome.code, second.state) == (0, MarkState.SWEPT)
    tried_again = {key: [*words, ("deleted", "")] for key, words in first.receipts.items() if key in DENIED}
    assert second.receipts == {**first.receipts, **tried_again}
    assert not second.left & DENIED
    assert len(second.left) == 1
