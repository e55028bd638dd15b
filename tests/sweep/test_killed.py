"""A sweep that is killed at any effect can be resumed, and ends as if it had not been killed.

LAKEGC_ALL_KILLS=1 kills before and after every effect; by default only the effects that leave most behind are tried.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_resources.spark.resource import SparkResource
from tests.support.mark_runs import SharedSpark, environment, on_executors
from tests.support.s3_servers import SeaweedFS
from tests.support.store_proxy import Fault, StoreProxy, kind_of, store_proxy
from tests.support.sweep_without_lakefs import BUCKET, finish_sweep_alone, outcomes, remaining_keys, run_alone

KEYS = [f"data/s{number % 3}/{number:04}" for number in range(60)]
OTHERS = {f"data/s1/other-{number}" for number in range(5)}
LIMIT_S = 120
EFFECTS = [
    (whom, kind, when)
    for whom in ("driver that deletes", "driver of workers", "worker")
    for kind in ("intent", "delete", "receipt")
    for when in ("before", "after")
]
MOST_LEFT = [
    ("driver that deletes", "intent", "after"),
    ("driver of workers", "delete", "after"),
    ("worker", "delete", "after"),
]
BATCH = 5


def sweep_in_this_process() -> None:
    """Run a sweep in the process that will be killed."""
    name, endpoint, access_key, secret_key, whom = sys.argv[1:]
    server = SeaweedFS(endpoint, access_key, secret_key)
    with environment({}), on_executors(whom != "driver that deletes"):
        finish_sweep_alone(run_alone(name, server.settings(), SparkResource(), delete_batch=BATCH), KEYS)


def workers_of(session: int) -> list[int]:
    """The Python worker processes of a Spark driver, which leads a session of its own."""
    workers = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                line, own_session = (process / "cmdline").read_bytes(), os.getsid(int(process.name))
            except (OSError, ValueError):
                continue
            if b"spark_resources.spark.worker_daemon" in line and own_session == session:
                workers.append(int(process.name))
    return workers


def wait_for_workers_to_end(session: int) -> None:
    """Wait until no worker of a killed driver can still send a delete. A real run would wait for the lease instead."""
    limit = time.monotonic() + LIMIT_S
    while workers_of(session):
        assert time.monotonic() < limit, "workers outlive their driver"
        time.sleep(0.05)  # the step of a poll with a limit


@pytest.fixture(scope="module")
def proxy(seaweedfs: SeaweedFS) -> Iterator[StoreProxy]:
    seaweedfs.make_bucket(BUCKET)
    with store_proxy(seaweedfs.endpoint_url) as forwarding:
        yield forwarding


def killing(process: subprocess.Popen[bytes], whom: str) -> Callable[[], None]:
    dead: list[int] = []

    def kill() -> None:
        if dead:
            return
        dead.append(process.pid)
        for pid in workers_of(process.pid) if whom == "worker" else [process.pid]:
            os.kill(pid, signal.SIGKILL)

    return kill


@pytest.mark.parametrize(("whom", "kind", "when"), EFFECTS if os.environ.get("LAKEGC_ALL_KILLS") else MOST_LEFT)
def test_a_sweep_that_is_killed_at_any_effect_ends_as_if_it_had_not_been_killed(
    seaweedfs: SeaweedFS, proxy: StoreProxy, whom: str, kind: str, when: str
) -> None:
    """Once it is resumed, every approved key ends as deleted, no other key is gone, and no report says otherwise.

    kopia/kopia#3563, kopia/kopia#4769
    """
    name, client = uuid.uuid4().hex, seaweedfs.client()
    for key in [*KEYS, *OTHERS]:
        client.put_object(Bucket=BUCKET, Key=f"{name}/{key}", Body=b"12345")
    script = f"from {__name__} import sweep_in_this_process as it; it()"
    arguments = [name, proxy.endpoint, seaweedfs.access_key, seaweedfs.secret_key, whom]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    kill, count = killing(process, whom), [0]

    def plan(method: str, path: str, _: bytes) -> Fault | None:
        count[0] += kind_of(method, path) == kind
        if when == "before" and kind_of(method, path) == kind and count[0] == 2:
            kill()
            return Fault.BROKEN
        return None

    def done(what: str) -> None:
        if when == "after" and what == kind and count[0] >= 2:
            kill()

    proxy.plan, proxy.done = plan, done
    try:
        process.wait(LIMIT_S)
    finally:
        proxy.plan, proxy.done = (lambda *_: None), (lambda _: None)
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    wait_for_workers_to_end(process.pid)
    assert count[0] >= 2
    assert process.returncode, "it ended as if nothing had happened"
    with environment({}):
        # the killed process's lease hasn't expired, so in this test the next process runs under another name
        run = run_alone(name, seaweedfs.settings(), SharedSpark(), delete_batch=BATCH, take_over=True)
        finish_sweep_alone(run, KEYS)
        run.lease.release()
        booked = outcomes(run)

    assert remaining_keys(run) == OTHERS
    assert booked == dict.fromkeys(KEYS, "deleted")
