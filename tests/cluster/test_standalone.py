"""A mark and its sweep on a real cluster, with a worker that dies in the middle of the mark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_resources.lakefs_sandbox import Sandbox, StorePlace
from spark_resources.mark_store.mark import Mark
from tests.support.clocks import later
from tests.support.mark_runs import Marked, target_of
from tests.support.s3_servers import SeaweedFS
from tests.support.spark_standalone import Cluster, cluster
from tests.support.store_proxy import Fault, StoreProxy, store_proxy

LIMIT_S = 280
PROJECT = Path(__file__).parents[2]
OBJECTS, GARBAGE = 120, 12
FIRST_TABLES = 5  # the driver reads metaranges and dumps of references; tasks read the 30 ranges after them


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def proxy(seaweedfs: SeaweedFS) -> Iterator[StoreProxy]:
    seaweedfs.make_bucket("cluster")
    with store_proxy(seaweedfs.endpoint_url) as forwarding:
        yield forwarding


@pytest.fixture
def sandbox(seaweedfs: SeaweedFS, proxy: StoreProxy, tmp_path: Path) -> Iterator[Sandbox]:
    place = StorePlace(f"s3://cluster/{tmp_path.name}", seaweedfs.settings())
    with Sandbox(tmp_path / "sandbox", place=place, range_entries=4) as running:
        yield running


DRIVER = """
import json, sys
from pathlib import Path
from tests.support.command_line import NO_AGE, Lakegc
from tests.support.mark_runs import Sweeper

lakegc, settings = Lakegc(Path(sys.argv[1])), json.loads(sys.argv[2])
lakegc.output(settings, "mark", "lake", "--mark-id", "m1", *NO_AGE)
Sweeper().approve(settings, "lake", "m1")
print(lakegc.output(settings, "sweep", "lake", "m1", "--format", "json"))
"""


def swept(settings: Mapping[str, str], home: Path, variables: Mapping[str, str]) -> Any:
    """Mark, approve and sweep in a process of their own, with one Spark session, and return the sweep's report."""
    command = [sys.executable, "-c", DRIVER, str(home), json.dumps(settings)]
    completed = subprocess.run(
        command, cwd=PROJECT, env={**os.environ, **variables}, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


@pytest.mark.timeout(900)
def test_a_mark_and_its_sweep_are_exact_even_if_a_worker_is_killed_during_the_mark(
    sandbox: Sandbox, spark: Cluster, proxy: StoreProxy, tmp_path: Path
) -> None:
    """The mark finds exactly the garbage although a worker is killed while it runs, and its sweep deletes exactly that.

    Executors run the Python that is shipped with the job, each in its own folder.
    """
    lake = sandbox.create("lake")
    garbage = {lake.put("main", f"a/{number}", f"old {number}".encode()).address for number in range(GARBAGE)}
    for number in range(OBJECTS):
        lake.put("main", f"a/{number}", f"new {number}".encode())
    lake.commit("main", "all of it")
    store = target_of(sandbox.settings, "lake").place.store()
    later(store, store.now())
    requested: list[str] = []
    killed: list[str] = []

    def kill_once(method: str, path: str, _: bytes) -> Fault | None:
        table = path.partition("?")[0].rpartition("/_lakefs/")[2]
        if method == "GET" and len(table) == 64 and not killed:
            requested.append(table)
            if len(set(requested)) > FIRST_TABLES:
                killed.append(path)
                spark.kill_a_worker()
        return None

    proxy.plan = kill_once
    settings = {**sandbox.settings, **spark.settings(), "s3_endpoint_url": proxy.endpoint}
    report = swept(settings, tmp_path / "home", spark.variables())
    target = target_of(sandbox.settings, "lake")

    assert killed
    assert Marked(target, Mark.open(target.place, "m1").record).expired == garbage
    assert {place.parents[1].name for place in spark.shipped.started_in()} == {"worker0", "worker1"}
    assert report["objects"] == {"deleted": GARBAGE}
    assert not garbage & {stored.key for page in store.pages("data/") for stored in page.objects}
    assert lake.read("main", "a/0")[1] == b"new 0"
