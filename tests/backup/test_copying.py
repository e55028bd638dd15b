"""Tasks of backups and restores, on every store: what is copied, what isn't and why, and what comes back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from spark_resources.copying.copy_log import CopyStatus
from spark_resources.copying.verified_copy import Copier, Differs, Taken, Throttle
from spark_resources.model import Namespace
from spark_resources.stores import StoreSettings
from spark_resources.stores.base import Store, StoredObject
from spark_resources.stores.keys import KINDS, SAMPLES, kinds_of
from spark_resources.stores.place import Place
from spark_resources.stores.transfer import ObjectProperties, Streams, WrittenObject
from tests.support.azurite import Azurite
from tests.support.backup_tasks import FOLDER, Task, all_of, outcomes
from tests.support.fake_gcs import FakeGCS
from tests.support.s3_servers import MotoServer
from tests.support.store_providers import Provider

KEEP_CONDITIONS = ("seaweedfs", "azure")  # the other servers ignore the condition of a copy: it goes through here
NESTED = ("data/s/a", "data/s/deep/er/b", "data/s/ blank ", "legacy", "data/s/ünï", "data/s/a+b%20c")


def place_on(provider: Provider) -> Place:
    return Place(Namespace.parse(provider.uri()), provider.settings, provider.capabilities)


def folder_place(folder: Path, name: str = "backups") -> Place:
    (folder / name).mkdir(parents=True)
    return Place(Namespace.parse(f"local://{name}"), StoreSettings(local_path=str(folder)))


@pytest.fixture
def task(provider: Provider) -> Task:
    """A repository and the place of its backup, on one server."""
    return Task(place_on(provider), place_on(provider))


@pytest.fixture
def here(tmp_path: Path) -> Task:
    """The same in two folders."""
    return Task(folder_place(tmp_path, "lake"), folder_place(tmp_path))


def test_bytes_keys_types_and_metadata_survive_backup_and_restore(task: Task, provider: Provider) -> None:
    """Objects are backed up, deleted and restored."""
    for address in NESTED:
        task.write(address, address.encode() * 9, owner="ada")
    before = {address: task.store.streams.properties(address) for address in NESTED}
    logged = task.back_up(task.marked(NESTED), resumed=False)
    task.store.delete_many(NESTED)
    back = task.restore(list(logged.values()), server_side=provider.name in KEEP_CONDITIONS)

    assert outcomes(logged) == all_of(NESTED, CopyStatus.COPIED)
    assert {row["key"] for row in logged.values()} == {f"objects/{address}" for address in NESTED}
    assert outcomes(back) == all_of(NESTED, CopyStatus.COPIED)
    for address in NESTED:
        properties = task.store.streams.properties(address)
        assert task.store.read(address) == address.encode() * 9
        assert (properties.checksum or "").partition("-")[0] == (before[address].checksum or "").partition("-")[0]
        assert (properties.headers, properties.metadata) == (before[address].headers, before[address].metadata)


def test_objects_with_keys_that_a_folder_cannot_hold_are_restored_from_the_log(
    moto_server: MotoServer, tmp_path: Path
) -> None:
    """Some keys, types and metadata are no file names or attributes; the log of the backup has them."""
    moto_server.make_bucket("hostile")
    lake = Place(Namespace.parse("s3://hostile/ns"), moto_server.settings())
    task = Task(lake, folder_place(tmp_path))
    skipped = ("newline", "long key")  # that server's web framework has no route for the one, no store holds the other
    names = [f"data/s/{sample}" for kind, sample in SAMPLES.items() if kind not in skipped]
    names += ["data/s/both", "data/s/both/inside", "data/s/" + "long/" * 190]
    for name in names:
        task.write(name, name.encode(), owner="ada")
    logged = task.back_up(task.marked(names), resumed=False)
    renamed = {address for address, row in logged.items() if row["key"] != f"objects/{address}"}
    for name in names:
        task.store.delete_many([name])
    back = task.restore(list(logged.values()))

    assert outcomes(logged) == all_of(names, CopyStatus.COPIED)
    assert {kind for kind in KINDS if any(kind in kinds_of(address) for address in renamed)} >= {
        "NUL", "empty segment", "leading slash", "trailing slash", "dot segment", "long segment"
    } - {"leading slash"}  # fmt: skip
    assert len(renamed & {"data/s/both", "data/s/both/inside"}) == 1
    assert outcomes(back) == all_of(names, CopyStatus.COPIED)
    for name in names:
        assert task.store.read(name) == name.encode()
        assert task.store.streams.properties(name).metadata == {"owner": "ada"}


def test_copies_between_providers_are_identical_there_and_back(
    moto_server: MotoServer, azurite: Azurite, fake_gcs: FakeGCS
) -> None:
    """They pass through this machine, with types and metadata."""
    moto_server.make_bucket("across")
    fake_gcs.make_bucket("across")
    azurite.make_container("across")
    account = f"https://{azurite.account}.blob.core.windows.net/across"
    s3 = Place(Namespace.parse("s3://across/ns"), moto_server.settings())
    gcs = Place(Namespace.parse("gs://across/ns"), fake_gcs.settings())
    azure = Place(Namespace.parse(f"{account}/ns"), azurite.settings())
    for number, (lake, to) in enumerate(((s3, gcs), (gcs, azure), (azure, s3))):
        task = Task(lake, to)
        names = [f"data/{number}/{each}" for each in ("a", "b/c", "d")]
        for name in names:
            task.write(name, name.encode() * 3, owner="ada")
        logged = task.back_up(task.marked(names), resumed=False)
        task.store.delete_many(names)
        back = task.restore(list(logged.values()))

        assert outcomes(logged) == all_of(names, CopyStatus.COPIED)
        assert all(row["sha256"] for row in logged.values())
        assert outcomes(back) == all_of(names, CopyStatus.COPIED)
        for name in names:
            assert task.store.read(name) == name.encode() * 3
            assert task.store.streams.properties(name).metadata == {"owner": "ada"}


def test_vanished_and_changed_objects_are_reported_and_not_copied(task: Task) -> None:
    """What has replaced a marked object isn't garbage of this mark."""
    names = ["data/s/a", "data/s/b", "data/s/c"]
    for name in names:
        task.write(name, b"marked")
    rows = task.marked(names)
    task.store.delete_many(["data/s/a"])
    task.store.write("data/s/b", b"other bytes")
    logged = task.back_up(rows, resumed=False)

    assert outcomes(logged) == {"data/s/a": "vanished", "data/s/b": "changed", "data/s/c": "copied"}
    assert "11 bytes" in logged["data/s/b"]["why"]
    assert [one.key for page in task.to.store().pages(FOLDER + "objects/") for one in page.objects] == [
        f"{FOLDER}objects/data/s/c"
    ]


def test_an_object_of_the_same_size_and_another_time_has_changed(here: Task) -> None:
    """On a store without checksums only the time tells them apart."""
    here.write("data/s/a", b"marked")
    rows = here.marked(["data/s/a"])
    file = Path(here.lake.settings.local_path or "", "lake/data/s/a")
    file.write_bytes(b"differ")
    os.utime(file, (time.time() + 5, time.time() + 5))

    assert outcomes(here.back_up(rows, resumed=False)) == {"data/s/a": "changed"}


def test_an_archived_object_is_reported_as_cold(moto_server: MotoServer) -> None:
    """It has to be brought back from its archive tier before it can be copied."""
    moto_server.make_bucket("ice")
    task = Task(*(Place(Namespace.parse(f"s3://ice/{each}"), moto_server.settings()) for each in ("ns", "to")))
    client = moto_server.client()
    client.put_object(Bucket="ice", Key="ns/data/s/a", Body=b"ice", StorageClass="DEEP_ARCHIVE")
    rows = task.marked(["data/s/a"])
    cold = task.back_up(rows, resumed=False)
    streamed = task.back_up(rows, server_side=False)

    assert outcomes(cold) == outcomes(streamed) == {"data/s/a": "cold"}
    assert "archive" in cold["data/s/a"]["why"]


def test_a_second_run_compares_copies_that_no_log_records(task: Task) -> None:
    """A copy left by an earlier run is the same object, or the key is taken by another one."""
    for name in ("data/s/a", "data/s/b"):
        task.write(name, b"right")
    rows, to = task.marked(["data/s/a", "data/s/b"]), task.to.store()
    task.back_up(rows, resumed=False)
    to.write(f"{FOLDER}objects/data/s/b", b"wrong")
    again = task.back_up(rows)

    assert outcomes(again) == {"data/s/a": "already there", "data/s/b": "taken"}
    assert to.read(f"{FOLDER}objects/data/s/b") == b"wrong"


def test_a_restore_overwrites_nothing_and_names_lost_or_altered_copies(task: Task, provider: Provider) -> None:
    """The rest is restored."""
    names = [f"data/s/{each}" for each in ("same", "taken", "lacking", "altered", "back")]
    for name in names:
        task.write(name, b"right")
    logged = task.back_up(task.marked(names), resumed=False, server_side=False)
    task.store.delete_many([name for name in names if not name.endswith("same")])
    task.store.write("data/s/taken", b"newer")
    task.to.store().delete_many([f"{FOLDER}objects/data/s/lacking"])
    task.to.store().write(f"{FOLDER}objects/data/s/altered", b"wrong")
    can_copy_server_side = provider.name in KEEP_CONDITIONS
    back = task.restore([{**row, "kept": None} for row in logged.values()], server_side=can_copy_server_side)

    assert outcomes(back) == {
        "data/s/same": "already there", "data/s/taken": "taken", "data/s/lacking": "vanished",
        "data/s/altered": "failed", "data/s/back": "copied",
    }  # fmt: skip
    assert task.store.read("data/s/taken") == b"newer"
    assert [task.store.read(f"data/s/{name}") for name in ("same", "back")] == [b"right", b"right"]
    assert {one.key for page in task.store.pages("data/") for one in page.objects} == {
        "data/s/same", "data/s/taken", "data/s/back"
    }  # fmt: skip


def test_a_copy_with_altered_bytes_is_not_restored(here: Task) -> None:
    """Its size and time are as before: only the SHA-256 tells."""
    here.write("data/s/a", b"right")
    [row] = here.back_up(here.marked(["data/s/a"]), resumed=False).values()
    here.store.delete_many(["data/s/a"])
    here.to.store().write(f"{FOLDER}{row['key']}", b"wrong")
    found = here.to.store().stat(f"{FOLDER}{row['key']}")
    copier = Copier(here.to.store(), here.store, False, Throttle(None))
    with pytest.raises(Differs, match="altered"):
        copier.copy(StoredObject(found.key, found.size, found.modified), "data/s/a", sha256=row["sha256"])

    assert outcomes(here.restore([row])) == {"data/s/a": "failed"}
    assert [one.key for page in here.store.pages("data/") for one in page.objects] == []


class AfterCopies:
    """A store in which something happens right after each copy or put to a key."""

    def __init__(self, store: Store, then: Callable[[str], None]) -> None:
        self._store, self._then = store, then

    def __getattr__(self, name: str) -> Any:
        return self if name == "streams" else getattr(self._store, name, None) or getattr(self._store.streams, name)

    def properties(self, key: str) -> ObjectProperties:
        return self._store.streams.properties(key)

    def copy(self, source: Streams, found: StoredObject, key: str) -> Any:
        done = self._store.streams.copy(source, found, key)
        self._then(key)
        return done

    def put(self, key: str, pieces: Iterable[bytes], properties: ObjectProperties) -> Any:
        done = self._store.streams.put(key, pieces, properties)
        self._then(key)
        return done


@pytest.mark.parametrize("data", [b"theirs", b"other bytes"], ids=["of the same size", "of another size"])
@pytest.mark.parametrize("server_side", [True, False])
def test_an_object_that_replaced_a_copy_before_it_was_compared_stays(
    task: Task, server_side: bool, data: bytes, provider: Provider
) -> None:
    """A client wrote it: it isn't the copy that differs."""
    source, target = task.to.store(), task.store
    source.write("data/s/a", b"copied")
    copier = Copier(source, AfterCopies(target, lambda key: target.write(key, data)), server_side, Throttle(None))  # type: ignore[arg-type]
    found = source.stat("data/s/a")
    if provider.name != "local":  # without a checksum the copy is compared
        found = StoredObject(found.key, found.size, found.modified)
    with pytest.raises(Taken, match="not touched"):
        copier.copy(found, "data/s/a")

    assert target.read("data/s/a") == data


@pytest.mark.parametrize("size", [0, 3])
def test_a_copy_that_differs_is_removed(task: Task, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The store wrote other bytes than it was sent."""
    source, target = task.to.store(), task.store
    source.write("data/s/a", b"abc")
    streams, put = type(target.streams), type(target.streams).put

    def damaged(self: Any, key: str, pieces: Iterable[bytes], properties: ObjectProperties) -> WrittenObject:
        list(pieces)
        return WrittenObject(put(self, key, [b"x" * size], properties).tag)

    monkeypatch.setattr(streams, "put", damaged)
    with pytest.raises(Differs, match="differed"):
        Copier(source, target, False, Throttle(None)).copy(source.stat("data/s/a"), "data/s/b")

    assert [one.key for page in target.pages("data/") for one in page.objects] == []


def test_the_bandwidth_limit_holds_across_threads() -> None:
    """After the first piece no more bytes pass in a second than were allowed."""
    clock, waited = [0.0], []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        clock[0] += seconds

    throttle = Throttle(1000, lambda: clock[0], wait)
    for _ in range(5):
        throttle.take(500)

    assert clock[0] == pytest.approx(2.0)
    assert list(Throttle(None).limit([b"a"])) == [b"a"]
