"""A sweep first deletes a single approved object. If the store refuses that because of missing permissions, no other
delete is sent."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pytest

from spark_resources.lakefs_sandbox import Sandbox, StorePlace
from spark_resources.mark_store.mark import Mark
from spark_resources.model import MarkState
from tests.support.clocks import wait_until_passed
from tests.support.command_line import Lakegc, Outcome
from tests.support.delete_refusals import S3, refusing
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of
from tests.support.s3_servers import SeaweedFS
from tests.support.store_proxy import CustomResponse, Fault, Plan, StoreProxy, store_proxy
from tests.sweep.test_failures import written


@dataclass
class Lake:
    """A repository whose mark `m1` is approved. `changes` are the keys under `data/` that requests tried to write or
    delete, one set per request."""

    lakegc: Lakegc
    settings: dict[str, str]
    straight: dict[str, str]
    proxy: StoreProxy
    keys: list[str]
    changes: list[set[str]] = field(default_factory=list)

    def refuse(self, keys: set[str]) -> None:
        self.proxy.plan = self._noting(refusing(S3, keys, target_of(self.straight, "lake").place.store()))

    def sweep(self) -> Outcome:
        return self.lakegc(self.settings, "sweep", "lake", "m1")

    @property
    def left(self) -> set[str]:
        store = target_of(self.straight, "lake").place.store()
        return {stored.key for page in store.pages("data/") for stored in page.objects} & set(self.keys)

    @property
    def state(self) -> MarkState:
        return Mark.open(target_of(self.straight, "lake").place, "m1").record.state

    def _noting(self, plan: Plan) -> Plan:
        def noted(method: str, path: str, body: bytes) -> Fault | CustomResponse | None:
            if method not in ("GET", "HEAD"):
                batch = method == "POST" and "delete" in path.partition("?")[2]
                names = S3.names(body) if batch else [unquote(path.partition("?")[0])]
                self.changes.append({f"data/{name.partition('/data/')[2]}" for name in names if "/data/" in name})
            return plan(method, path, body)

        return noted


@pytest.fixture
def lake(seaweedfs: SeaweedFS, lakegc_by_dagster: Lakegc, tmp_path: Path) -> Iterator[Lake]:
    bucket = f"first-{uuid.uuid4().hex[:12]}"
    seaweedfs.make_bucket(bucket)
    place = StorePlace(f"s3://{bucket}/under", seaweedfs.settings())
    with store_proxy(seaweedfs.endpoint_url) as proxy, Sandbox(tmp_path, place=place) as sandbox:
        settings = {**sandbox.settings, "s3_endpoint_url": proxy.endpoint}
        started = Lake(lakegc_by_dagster, settings, sandbox.settings, proxy, sorted(written(sandbox)))
        now = target_of(sandbox.settings, "lake").place.store().now
        wait_until_passed(now(), now)
        started.refuse(set())
        Marker().mark(settings, "lake", "m1", ANY_AGE)
        wait_until_passed(now(), now)
        Sweeper().approve(settings, "lake", "m1")
        yield started


def test_a_sweep_stops_when_deleting_its_first_object_is_denied(lake: Lake) -> None:
    """If only later deletes are denied, the others are done. No object that wasn't approved is ever touched."""
    first, *others = lake.keys
    lake.refuse(set(lake.keys))
    refused, remaining = lake.sweep(), lake.left
    requests = [keys for keys in lake.changes if keys]
    status = lake.lakegc.output(lake.settings, "status", "lake")
    access_key = f" for the access key {lake.settings['s3_access_key_id']}."

    refused.stopped(1, repr(first), "AccessDenied", "s3:DeleteObject", access_key, "lakegc sweep lake m1", "Grant")
    assert requests == [{first}]
    assert remaining == set(lake.keys)
    assert lake.state is MarkState.SWEEPING
    assert "sweeping" in status

    lake.changes.clear()
    lake.refuse(set(others[1:3]))
    partly = lake.sweep()
    requests = [keys for keys in lake.changes if keys]

    assert partly.code == 4, partly.err
    assert f"2 objects could not be deleted, for example {others[1]!r} (AccessDenied" in partly.out
    assert "Grant the permission" in partly.out
    assert requests[0] == {first}
    assert set().union(*requests) <= set(lake.keys)
    assert lake.left == set(others[1:3])

    lake.refuse(set())
    assert lake.sweep().code == 0
    assert lake.left == set()
    assert lake.state is MarkState.SWEPT
