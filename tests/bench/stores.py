"""Servers for a synthetic repository: the sandbox's server over a folder, or over SeaweedFS for the data.

`local` has its objects in files, `s3` in a bucket; `inventory` lists them in Parquet files, and only the expired ones
are in a bucket. For the last two, tables and marks are in the bucket.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lakegc_assets.mark.context import place_of
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.store_objects import StorePlace
from spark_resources.settings import Settings
from spark_resources.stores.place import Place
from tests.bench.sinks import Bucket, Folder, Sink
from tests.support import s3_servers
from tests.support.s3_servers import SeaweedFS

STORES = ("local", "s3", "inventory")
BUCKET, REPOSITORY = "bench-bucket", "bench"
_KEY, _SECRET = "BENCH", "only-good-for-benchmarks"
_ACTIONS = ["Admin", "Read", "Write", "List", "Tagging"]


@dataclass(frozen=True)
class Serving:
    """A running sandbox and its store. `prefix` is the beginning of keys in the bucket; `processes` are the store's."""

    sandbox: Sandbox
    tables: Sink
    objects: Sink
    prefix: str = ""
    store: SeaweedFS | None = None
    processes: tuple[int, ...] = ()
    metrics_port: int = 0
    requests: tuple[list[str], ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that `lakegc` needs."""
        variables = dict(self.sandbox.environment)
        if self.store is not None:
            variables |= {"LAKEGC_S3_ACCESS_KEY_ID": _KEY, "LAKEGC_S3_SECRET_ACCESS_KEY": _SECRET}
        return variables

    def place(self) -> Place:
        """The repository's namespace, as `lakegc` opens it."""
        settings = Settings.load(self.environment, Path("/nonexistent"))
        lakefs = LakeFS(*LakeFSSettings.of(settings))
        return place_of(
            lakefs.repository(REPOSITORY), "local" if self.store is None else "s3", settings.store_settings()
        )


@contextmanager
def serving(folder: Path, store: str) -> Iterator[Serving]:
    lines: list[str] = []
    if store == "local":
        with Sandbox(folder / "sandbox", request_log=lines.append) as sandbox:
            files = Folder(sandbox.local_path / REPOSITORY)
            yield Serving(sandbox, files, files, requests=(lines,))
        return
    with seaweedfs_in(folder / "seaweedfs") as (server, process, filer, metrics):
        server.make_bucket(BUCKET)
        place = StorePlace(f"s3://{BUCKET}", server.settings())
        port, namespace = int(server.endpoint_url.rpartition(":")[2]), f"{BUCKET}/{REPOSITORY}"
        with Sandbox(folder / "sandbox", place=place, request_log=lines.append) as sandbox:
            tables, objects = Bucket(port, namespace), Bucket(filer, f"buckets/{namespace}")
            yield Serving(sandbox, tables, objects, f"{REPOSITORY}/", server, (process,), metrics, (lines,))


@contextmanager
def seaweedfs_in(folder: Path) -> Iterator[tuple[SeaweedFS, int, int, int]]:
    """SeaweedFS over a folder that is kept, its process, and the ports of its filer and metrics."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    keys = [{"accessKey": _KEY, "secretKey": _SECRET}]
    identities = [
        {"name": "bench", "credentials": keys, "actions": _ACTIONS},
        {"name": "anonymous", "actions": _ACTIONS},
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    port, metrics = s3_servers.free_port(), s3_servers.free_port()
    command = [*s3_servers._seaweedfs_command(folder, port), f"-metricsPort={metrics}"]
    filer = next(int(argument.partition("=")[2]) for argument in command if argument.startswith("-filer.port="))
    server = SeaweedFS(f"http://127.0.0.1:{port}", _KEY, _SECRET)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        s3_servers._until_ready(server, lambda: process.poll() is None, folder)
        yield server, process.pid, filer, metrics
    finally:
        process.kill()  # its data has been handed to the operating system, and an orderly shutdown takes twenty seconds
        process.wait()
        s3_servers._remove_sockets(command)
