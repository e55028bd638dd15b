"""Ten thousand objects with hostile names are backed up, swept and restored with every byte and all metadata.

Each of the three commands is killed halfway and run again. Takes minutes, so it needs LAKEGC_LONG_TESTS=1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.backup.destination import parse_place
from spark_resources.errors import NotFound
from spark_resources.lakefs_sandbox import Sandbox, SandboxRepository, StorePlace
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.lease import LEASE_KEY
from spark_resources.mark_store.mark import mark_folder
from spark_resources.model import Rules
from spark_resources.settings import Settings
from spark_resources.stores import Store
from spark_resources.stores.keys import LONG_SEGMENT, NEWLINE, SAMPLES
from spark_resources.stores.transfer import ObjectProperties
from tests.support.clocks import later
from tests.support.command_line import NO_AGE, Lakegc
from tests.support.mark_runs import quick_environment, target_of
from tests.support.s3_servers import MotoServer

MANY = int(os.environ.get("LAKEGC_LONG_OBJECTS", "10000"))
LIMIT_S = 600
COMMITTED = 300  # written through lakeFS, and read again through their expired commit at the end
# moto has no route for a newline, and no mark accepts dot segments
SKIPPED = {NEWLINE, LONG_SEGMENT, "dot segment"}


def hostile(number: int) -> str:
    samples = [sample for kind, sample in sorted(SAMPLES.items()) if kind not in SKIPPED]
    return f"data/hostile{number % 7}/{number:05d}{samples[number % len(samples)]}"


def keys_below(store: Store, folder: str) -> Iterator[str]:
    """The keys under a folder; none while it doesn't exist."""
    with suppress(NotFound):
        yield from (stored.key for page in store.pages(folder) for stored in page.objects)


def kill(home: Path, settings: Mapping[str, str], arguments: tuple[str, ...], far_enough: Callable[[], bool]) -> None:
    """Run a command in a process until `far_enough`, then kill the process and its children."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEGC_", "LAKECTL_"))}
    environment = {**known, **quick_environment(settings), "DAGSTER_HOME": str(home)}
    command = [sys.executable, "-m", "lakegc_assets.cli", *arguments]
    with (home.parent / "killed.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    limit = time.monotonic() + LIMIT_S
    try:
        while not far_enough():
            assert process.poll() is None, (home.parent / "killed.log").read_text()
            assert time.monotonic() < limit, (home.parent / "killed.log").read_text()
            time.sleep(0.2)  # the step of a poll with a limit
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass
class Lake:
    """A repository with an approved mark `m1` of all its objects; `names` are the keys of the hostile ones."""

    repository: SandboxRepository
    settings: dict[str, str]
    lakegc: Lakegc
    folder: Path
    names: list[str]
    expired: str

    @property
    def store(self) -> Store:
        return target_of(self.settings, "many").place.store()

    def run(self, *arguments: str, **more: str) -> Any:
        began = time.monotonic()
        document = json.loads(self.lakegc.output({**self.settings, **more}, *arguments, "--format", "json"))
        print(f"{arguments[0]}: {time.monotonic() - began:.0f} s", flush=True)
        return document

    def run_and_kill(self, arguments: tuple[str, ...], store: Store, trace: str, **more: str) -> None:
        """Run a command and kill it once the first file of its log exists.

        The lease of the killed command is removed, because it would take ten minutes to expire.
        """
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        kill(home, {**self.settings, **more}, arguments, lambda: any(keys_below(store, trace)))
        self.store.delete_many([LEASE_KEY])

    def served(self) -> dict[int, bytes]:
        """The objects that lakeFS reads at some paths of the expired commit."""
        return {n: self.repository.read(self.expired, path_of(n))[1] for n in range(0, COMMITTED, 17)}

    def remaining(self) -> set[str]:
        return set(keys_below(self.store, "data/"))


def path_of(number: int) -> str:
    return f"p/{number:04d} +%/ü"


@pytest.fixture
def lake(moto_server: MotoServer, lakegc: Lakegc, tmp_path: Path) -> Iterator[Lake]:
    moto_server.make_bucket("many")
    with Sandbox(tmp_path, place=StorePlace("s3://many/sandbox", moto_server.settings())) as sandbox:
        repository = sandbox.create("many")
        set_rules(repository, Rules(7))
        repository.put_many("main", [(path_of(n), f"old {n}".encode()) for n in range(COMMITTED)])
        expired = repository.commit("main", "old", date=sandbox.now() - timedelta(days=30)).id
        repository.put_many("main", [(path_of(n), f"new {n}".encode()) for n in range(COMMITTED)])
        repository.commit("main", "new", date=sandbox.now() - timedelta(days=20))
        settings = {**sandbox.settings, **store_settings(moto_server)}
        names = [hostile(number) for number in range(MANY - COMMITTED)]
        large_lake = Lake(repository, settings, lakegc, tmp_path, names, expired)
        store = large_lake.store
        streams = store.streams

        def write(name: str) -> None:
            properties = ObjectProperties(0, store.now(), None, "", {"Content-Type": "text/x-lake"}, {"owner": "ada"})
            streams.put(name, [name.encode() * 2], properties)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, names))
        record = large_lake.run("mark", "many", "--mark-id", "m1", *NO_AGE)
        assert record["counts"]["expired"] == MANY
        tripped = [brake["name"] for brake in record["brakes"] if brake["tripped"]]
        released = [word for name in tripped for word in ("--release", name, "--because", "a test")]
        later(store, store.now())  # an approval in the same second as the mark's end is refused
        large_lake.run("approve", "many", "m1", "--yes", "--digest", record["digest"], *released)
        yield large_lake


@pytest.mark.skipif(not os.environ.get("LAKEGC_LONG_TESTS"), reason="takes minutes: set LAKEGC_LONG_TESTS=1")
@pytest.mark.timeout(3000)
def test_ten_thousand_objects_with_hostile_names_survive_backup_sweep_and_restore(lake: Lake, tmp_path: Path) -> None:
    """Afterwards, all bytes and metadata are the same, and lakeFS reads the expired commit again."""
    served, to, folder = lake.served(), str(tmp_path / "backups"), mark_folder("m1")
    backups = parse_place(to, Settings().store_settings()).store()

    lake.run_and_kill(("backup", "many", "m1", to), backups, "many/m1/log/")
    half_copied = len(set(keys_below(backups, "many/m1/objects/")))
    outcome = lake.run("backup", "many", "m1", to)
    lake.run_and_kill(("sweep", "many", "m1"), lake.store, f"{folder}receipts/", backup_to=to)
    half_left = len(lake.remaining() & set(lake.names))
    swept = lake.run("sweep", "many", "m1", backup_to=to)
    remaining = lake.remaining() & set(lake.names)
    lake.run_and_kill(("restore", "many", "m1", to), lake.store, f"{folder}restored/")
    half_back = len(lake.remaining() & set(lake.names))
    restored = lake.run("restore", "many", "m1", to)
    print(f"killed with {half_copied:,} copied, {half_left:,} left, {half_back:,} back", flush=True)

    assert 0 < half_copied < MANY
    assert half_left
    assert half_back < len(lake.names)
    for counts in (outcome["objects"], restored["objects"]):
        assert sum(counts.values()) == MANY
        # copied by the killed run before it could log them
        assert {name for name, count in counts.items() if count} <= {"copied", "already there"}
    assert swept["objects"] == {"deleted": MANY}
    assert not remaining
    assert restored["stored"] == MANY
    assert restored["success"]
    assert restored["paths"]["read"] == restored["paths"]["known"] == COMMITTED
    store = lake.store
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(store.read, lake.names)) == [name.encode() * 2 for name in lake.names]
        properties_before = list(pool.map(store.streams.properties, lake.names))
    assert {(properties.headers["Content-Type"], *properties.metadata.items()) for properties in properties_before} == {
        ("text/x-lake", ("owner", "ada"))
    }
    assert lake.served() == served


def store_settings(server: MotoServer) -> Mapping[str, str]:
    return {"s3_endpoint_url": server.endpoint_url, "s3_access_key_id": server.access_key,
            "s3_secret_access_key": server.secret_key, "s3_region": "us-east-1"}  # fmt: skip
