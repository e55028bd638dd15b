"""Whole sweeps in which a store of each kind refuses some deletes: what is reported, and what the next run does."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_resources.deleting.receipts import Receipts
from spark_resources.lakefs_sandbox import Sandbox, StorePlace
from spark_resources.mark_store.mark import Mark, mark_folder
from spark_resources.model import MarkState
from spark_resources.stores import Store
from tests.support.clocks import wait_until_passed
from tests.support.command_line import Lakegc, Outcome
from tests.support.delete_refusals import AZURE, GOOGLE, S3, Batches, refusing
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of
from tests.support.store_proxy import StoreProxy, store_proxy

Request = pytest.FixtureRequest
GETS_FLAGS, SETS_FLAGS, IMMUTABLE = 0x80086601, 0x40086602, 0x10  # Linux's file ioctls, and the flag of `chattr +i`


@dataclass(frozen=True)
class Lake:
    """A repository with a few expired objects, and a function that makes its store refuse to delete some of them."""

    settings: dict[str, str]
    repository: str
    garbage: set[str]
    code: str
    refuse: Callable[[set[str]], AbstractContextManager[object]]

    @property
    def store(self) -> Store:
        return target_of(self.settings, self.repository).place.store()


@dataclass(frozen=True)
class Swept:
    """The result of one run of the command: its outcome, the mark's state, receipts by key, and the remaining keys."""

    outcome: Outcome
    state: MarkState
    receipts: dict[str, list[tuple[str, str]]]
    left: set[str]

    @property
    def report(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.outcome.out)
        return document


@dataclass(frozen=True)
class Twice:
    """Two runs of a sweep. One object is already gone, and two can't be deleted in the first run."""

    lake: Lake
    gone: str
    refused: set[str]
    deleted: set[str]
    first: Swept
    second: Swept


# --- the stores -----------------------------------------------------------------------------------------------------


@contextmanager
def on_s3(request: Request, folder: Path) -> Iterator[Lake]:
    server = request.getfixturevalue("seaweedfs")
    bucket = f"refused-{uuid.uuid4().hex[:12]}"
    server.make_bucket(bucket)
    place = StorePlace(f"s3://{bucket}/under", server.settings())
    with in_a_store(folder, place, S3, "s3_endpoint_url", server.endpoint_url) as lake:
        yield lake


@contextmanager
def on_a_folder(request: Request, folder: Path) -> Iterator[Lake]:
    with Sandbox(folder) as sandbox:
        yield Lake(sandbox.settings, "lake", written(sandbox), "Forbidden", by_disk(sandbox.local_path / "lake"))


@contextmanager
def on_azure(request: Request, folder: Path) -> Iterator[Lake]:
    server = request.getfixturevalue("azurite")
    server.make_container("refused")
    to = f"https://{server.account}.blob.core.windows.net/refused/{uuid.uuid4().hex}"
    end = server.endpoint_url.removesuffix(f"/{server.account}")
    place = StorePlace(to, server.settings())
    with in_a_store(folder, place, AZURE, "azure_endpoint_url", end, f"/{server.account}") as lake:
        yield lake


@contextmanager
def on_google(request: Request, folder: Path) -> Iterator[Lake]:
    server = request.getfixturevalue("fake_gcs")
    server.make_bucket("refused")
    place = StorePlace(f"gs://refused/{uuid.uuid4().hex}", server.settings())
    with in_a_store(folder, place, GOOGLE, "gcs_endpoint_url", server.endpoint_url) as lake:
        yield lake


@contextmanager
def in_a_store(
    folder: Path, place: StorePlace, batches: Batches, setting: str, end: str, account: str = ""
) -> Iterator[Lake]:
    """A repository of a sandbox whose objects are in a store behind a proxy."""
    with store_proxy(end) as proxy, Sandbox(folder, place=place) as sandbox:
        settings = {**sandbox.settings, setting: proxy.endpoint + account}
        refuse = by_proxy(proxy, batches, sandbox.settings, "lake")
        yield Lake(settings, "lake", written(sandbox), batches.refusal, refuse)


def written(sandbox: Sandbox) -> set[str]:
    """A repository `lake` with one committed object and six unreferenced ones."""
    garbage = {f"data/s/{number}" for number in range(6)}
    lake = sandbox.create("lake")
    lake.put("main", "kept", b"kept")
    for key in garbage:
        lake.objects.write(key, b"12345")
    return garbage


def by_proxy(
    proxy: StoreProxy, batches: Batches, straight: dict[str, str], repository: str
) -> Callable[[set[str]], AbstractContextManager[object]]:
    @contextmanager
    def refuse(keys: set[str]) -> Iterator[None]:
        proxy.plan = refusing(batches, keys, target_of(straight, repository).place.store())
        yield
        proxy.plan = lambda *_: None

    return refuse


def by_disk(root: Path) -> Callable[[set[str]], AbstractContextManager[object]]:
    """Files that even root can't delete, because file permissions don't stop root. Skipped if the disk doesn't support
    that."""

    def immutable(descriptor: int, on: bool) -> None:
        flags = bytearray(8)
        fcntl.ioctl(descriptor, GETS_FLAGS, flags)
        known = struct.unpack("q", flags)[0] & ~IMMUTABLE
        fcntl.ioctl(descriptor, SETS_FLAGS, struct.pack("q", known | (IMMUTABLE if on else 0)))

    @contextmanager
    def refuse(keys: set[str]) -> Iterator[None]:
        with ExitStack() as stack:
            for key in keys:
                descriptor = os.open(root / key, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                try:
                    immutable(descriptor, on=True)
                except OSError as error:
                    pytest.skip(f"no file can be protected from deleting here: {error}")
                stack.callback(immutable, descriptor, on=False)
            yield

    return refuse


# --- two runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[on_s3, on_a_folder, on_azure, on_google])
def twice(request: Request, lakegc: Lakegc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twice]:
    with request.param(request, tmp_path_factory.mktemp("refused")) as lake:
        now = lake.store.now
        wait_until_passed(now(), now)
        mark = Marker().mark(lake.settings, lake.repository, "m1", ANY_AGE)
        assert mark.expired == lake.garbage
        wait_until_passed(now(), now)
        Sweeper().approve(lake.settings, lake.repository, "m1")
        missing, *others = sorted(lake.garbage)
        refused = set(others[1:3])
        lake.store.delete_many([missing])
        with lake.refuse(refused):
            first = swept(lakegc, lake)
        yield Twice(lake, missing, refused, set(others) - refused, first, swept(lakegc, lake))


def swept(lakegc: Lakegc, lake: Lake) -> Swept:
    outcome = lakegc(lake.settings, "sweep", lake.repository, "m1", "--format", "json")
    place = target_of(lake.settings, lake.repository).place
    receipts: dict[str, list[tuple[str, str]]] = {}
    files = Receipts(place, f"{mark_folder('m1')}receipts/")
    for row in (row for key in files.keys("receipt") for row in files.read(key).to_pylist()):
        receipts.setdefault(row["address"], []).append((row["outcome"], row["code"]))
    remaining = {stored.key for page in place.store().pages("data/") for stored in page.objects}
    return Swept(outcome, Mark.open(place, "m1").record.state, receipts, remaining)


def test_keys_that_could_not_be_deleted_fail_the_sweep_and_have_receipts(twice: Twice) -> None:
    """The exit code, the report and the mark say that the sweep failed. Each failed key has its reason.

    treeverse/lakeFS: clients/spark/src/main/scala/io/treeverse/clients/BulkRemoverFactory.scala
    """
    first, deleted = twice.first, len(twice.deleted)
    assert (first.outcome.code, first.state) == (4, MarkState.SWEPT_WITH_FAILURES), first.outcome.err
    assert first.report["objects"] == {"already gone": 1, "deleted": deleted, "failed": 2}
    assert first.report["success"] is False
    (reason,) = first.report["refusals"]
    assert (reason["code"], reason["objects"]) == (twice.lake.code, 2)
    assert reason["example"] == min(twice.refused)
    assert twice.second.report["refusals"] == []
    assert "2 could not be deleted" in first.outcome.err
    assert first.receipts == {
        twice.gone: [("already gone", "")],
        **{key: [("deleted", "")] for key in twice.deleted},
        **{key: [("failed", twice.lake.code)] for key in twice.refused},
    }
    assert first.left & twice.lake.garbage == twice.refused


def test_failed_deletes_are_retried_by_the_next_run(twice: Twice) -> None:
    """That run tries only the keys that failed, and completes the sweep.

    HUDI-7655, apache/hudi#11343, apache/hudi#11363
    """
    first, second = twice.first, twice.second
    assert (second.outcome.code, second.state) == (0, MarkState.SWEPT), second.outcome.err
    assert second.report["objects"] == {"already gone": 1, "deleted": len(twice.deleted) + 2}
    assert second.report["success"] is True
    again = {key: [*first.receipts[key], ("deleted", "")] for key in twice.refused}
    assert second.receipts == {**first.receipts, **again}
    assert second.left == first.left - twice.refused
