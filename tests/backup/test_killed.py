"""A backup or a restore that is killed at any write resumes, and ends as if it had not been killed.

LAKEGC_ALL_KILLS=1 tries more writes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_resources.copying import backup_task, restore_task
from spark_resources.copying.copy_log import HAS_COPY
from spark_resources.model import Namespace
from spark_resources.stores.base import Capabilities
from spark_resources.stores.place import Place
from tests.support.backup_tasks import FOLDER, Task
from tests.support.s3_servers import SeaweedFS
from tests.support.store_proxy import Fault, StoreProxy, store_proxy

BUCKET = "killed"
KEYS = [f"data/s{number % 3}/{number:03}" for number in range(60)]
LIMIT_S = 60
ALL = os.environ.get("LAKEGC_ALL_KILLS")
BACKUP_KILLS = [("/objects/", 33), ("/log/", 3), ("/objects/", 1), ("/log/", 1)]
RESTORE_KILLS = [("/lake/data/", 33), ("/restored/", 1), ("/restored/", 3)]
CAPABILITIES = Capabilities(byte_order=False)


def task_of(server: SeaweedFS, name: str) -> Task:
    lake, to = (Namespace.parse(f"s3://{BUCKET}/{name}/{folder}") for folder in ("lake", "to"))
    return Task(Place(lake, server.settings(), CAPABILITIES), Place(to, server.settings(), CAPABILITIES))


def repository_with_objects(server: SeaweedFS) -> tuple[str, Task]:
    """A new repository's name, and the task of a repository that has all objects."""
    name = uuid.uuid4().hex
    task = task_of(server, name)
    for key in KEYS:
        task.write(key, key.encode())
    return name, task


def work_in_this_process() -> None:
    """Run a backup or a restore; called in the process that is killed."""
    work, name, endpoint, access_key, secret_key = sys.argv[1:]
    backup_task.CHUNK = restore_task.CHUNK = 20
    task = task_of(SeaweedFS(endpoint, access_key, secret_key), name)
    if work == "backup":
        task.back_up(task.mark_rows(KEYS), resumed=False)
    else:
        task.restore(list(merged(task).values()))


def merged(task: Task) -> dict[str, dict[str, object]]:
    """The outcome of each object over all runs: copied if any run copied it."""
    rows = [row for key in sorted(task.log.keys()) for row in task.log.read(key).to_pylist()]
    by_address = {row["address"]: row for row in rows}
    return by_address | {row["address"]: row for row in rows if row["outcome"] in HAS_COPY}


@pytest.fixture(scope="module")
def proxy(seaweedfs: SeaweedFS) -> Iterator[StoreProxy]:
    seaweedfs.make_bucket(BUCKET)
    with store_proxy(seaweedfs.endpoint_url) as forwarding:
        yield forwarding


def kill_at(proxy: StoreProxy, server: SeaweedFS, name: str, work: str, path_part: str, number: int) -> None:
    """Start a process, and kill it before its nth write to a path with `path_part` in it is done."""
    script = f"from {__name__} import work_in_this_process as it; it()"
    arguments = [work, name, proxy.endpoint, server.access_key, server.secret_key]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    count = [0]

    def plan(method: str, path: str, _: bytes) -> Fault | None:
        count[0] += method == "PUT" and path_part in path
        if count[0] < number:
            return None
        os.kill(process.pid, signal.SIGKILL)
        return Fault.BROKEN

    proxy.plan = plan
    try:
        process.wait(LIMIT_S)
    finally:
        proxy.plan = lambda *_: None
        process.kill()
    assert count[0] >= number
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("path_part", "number"), BACKUP_KILLS if ALL else BACKUP_KILLS[:2])
def test_a_killed_backup_resumes_and_copies_every_object_once(
    seaweedfs: SeaweedFS, proxy: StoreProxy, path_part: str, number: int
) -> None:
    """The log describes each object correctly."""
    name, task = repository_with_objects(seaweedfs)
    kill_at(proxy, seaweedfs, name, "backup", path_part, number)
    before = {address for address, row in merged(task).items() if row["outcome"] in HAS_COPY}
    rows = task.mark_rows(KEYS)
    remaining = rows.filter(pa.array([address not in before for address in rows["address"].to_pylist()]))
    task.back_up(remaining)
    there = {stored.key for page in task.to.store().pages(FOLDER + "objects/") for stored in page.objects}

    assert len(before) < len(KEYS)
    assert {row["outcome"] for row in merged(task).values()} <= set(HAS_COPY)
    assert there == {f"{FOLDER}objects/{key}" for key in KEYS} == {f"{FOLDER}{r['key']}" for r in merged(task).values()}
    assert all(task.to.store().read(f"{FOLDER}objects/{key}") == key.encode() for key in KEYS)


@pytest.mark.parametrize(("path_part", "number"), RESTORE_KILLS if ALL else RESTORE_KILLS[:1])
def test_a_killed_restore_resumes_and_restores_every_object(
    seaweedfs: SeaweedFS, proxy: StoreProxy, path_part: str, number: int
) -> None:
    """Every object is restored byte for byte."""
    name, task = repository_with_objects(seaweedfs)
    task.back_up(task.mark_rows(KEYS), resumed=False)
    task.store.delete_many(KEYS)
    kill_at(proxy, seaweedfs, name, "restore", path_part, number)
    back = task.restore(list(merged(task).values()))

    assert {row["outcome"] for row in back.values()} <= set(HAS_COPY)
    assert all(task.store.read(key) == key.encode() for key in KEYS)
