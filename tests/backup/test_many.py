"""Ten thousand objects with hostile names: backed up, swept and restored, every byte and its metadata are back.

Takes minutes, so it runs where LAKEGC_LONG_TESTS=1 is set.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_resources.model import Rules
from spark_resources.sandbox import Sandbox, StorePlace
from spark_resources.sandbox.gc_api import set_rules
from spark_resources.stores.keys import LONG_SEGMENT, NEWLINE, SAMPLES
from spark_resources.stores.streams import About, streams_of
from tests.command_line import NO_AGE, Lakegc
from tests.marking import target_of
from tests.servers import MotoServer

MANY = int(os.environ.get("LAKEGC_LONG_OBJECTS", "10000"))
COMMITTED = 300  # through lakeFS, whose expired commit reads them again in the end
# that server has no route for a newline; the dot segments are what no mark takes
SKIPPED = {NEWLINE, LONG_SEGMENT, "dot segment"}


def hostile(number: int) -> str:
    samples = [sample for kind, sample in sorted(SAMPLES.items()) if kind not in SKIPPED]
    return f"data/hostile{number % 7}/{number:05d}{samples[number % len(samples)]}"


@pytest.mark.skipif(not os.environ.get("LAKEGC_LONG_TESTS"), reason="takes minutes: set LAKEGC_LONG_TESTS=1")
@pytest.mark.timeout(1800)
def test_one_of_many_hostile_names_is_lost(moto_server: MotoServer, lakegc: Lakegc, tmp_path: Path) -> None:
    """Of all objects in a mark, every byte and its metadata are there again, and lakeFS reads what it read before."""
    moto_server.make_bucket("many")
    with Sandbox(tmp_path, place=StorePlace("s3://many/sandbox", moto_server.settings())) as sandbox:
        repository = sandbox.create("many")
        set_rules(repository, Rules(7))
        repository.put_many("main", [(f"p/{n:04d} +%/ü", f"old {n}".encode()) for n in range(COMMITTED)])
        expired = repository.commit("main", "old", date=sandbox.now() - timedelta(days=30)).id
        repository.put_many("main", [(f"p/{n:04d} +%/ü", f"new {n}".encode()) for n in range(COMMITTED)])
        repository.commit("main", "new", date=sandbox.now() - timedelta(days=20))
        settings = {**sandbox.settings, **store_settings(moto_server)}
        place = target_of(settings, "many").place
        store, streams = place.store(), streams_of(place.store())
        names = [hostile(number) for number in range(MANY - COMMITTED)]

        def write(name: str) -> None:
            about = About(0, store.now(), None, "", {"Content-Type": "text/x-lake"}, {"owner": "ada"})
            streams.put(name, [name.encode() * 2], about)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, names))
        served = {n: repository.read(expired, f"p/{n:04d} +%/ü")[1] for n in range(0, COMMITTED, 17)}

        def run(*arguments: str, **more: str) -> Any:
            began = time.monotonic()
            told = json.loads(lakegc.told({**settings, **more}, *arguments, "--format", "json"))
            print(f"{arguments[0]}: {time.monotonic() - began:.0f} s", flush=True)
            return told

        record = run("mark", "many", "--mark-id", "m1", *NO_AGE)
        tripped = [brake["name"] for brake in record["brakes"] if brake["tripped"]]
        released = [word for name in tripped for word in ("--release", name, "--because", "a test")]
        run("approve", "many", "m1", "--yes", "--digest", record["digest"], *released)
        to = str(tmp_path / "backups")
        made = run("backup", "many", "m1", to)
        swept = run("sweep", "many", "m1", backup_to=to)
        left = {one.key for page in store.pages("data/") for one in page.objects}
        restored = run("restore", "many", "m1", to)

        assert record["counts"]["expired"] == MANY
        assert made["objects"] == {"copied": MANY}
        assert swept["objects"] == {"deleted": MANY}
        assert not left & set(names)
        assert (restored["objects"], restored["stored"], restored["success"]) == ({"copied": MANY}, MANY, True)
        assert restored["paths"]["read"] == restored["paths"]["known"] == COMMITTED
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(store.read, names)) == [name.encode() * 2 for name in names]
            kept = list(pool.map(streams.about, names))
        assert {(about.headers["Content-Type"], *about.metadata.items()) for about in kept} == {
            ("text/x-lake", ("owner", "ada"))
        }
        assert {n: repository.read(expired, f"p/{n:04d} +%/ü")[1] for n in served} == served


def store_settings(server: MotoServer) -> Mapping[str, str]:
    return {"s3_endpoint_url": server.endpoint_url, "s3_access_key_id": server.access_key,
            "s3_secret_access_key": server.secret_key, "s3_region": "us-east-1"}  # fmt: skip
