"""A Spark standalone cluster on loopback: a master and workers in separate processes, from the pyspark package."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_resources.spark.session import SMALL_DATA_SETTINGS, class_archive_options
from tests.support.s3_servers import free_port

START_LIMIT_S = 120.0
SMALL: Mapping[str, str] = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",  # the default of 200 is for many more objects
    **{name: value for name, value in SMALL_DATA_SETTINGS.items() if "codegen" in name},
}


@dataclass
class Cluster:
    """`url` is the value of `spark_master`; `workers` are processes that start executors."""

    url: str
    status_url: str
    workers: list[subprocess.Popen[bytes]]
    shipped: ShippedPython

    def alive(self) -> int:
        """How many workers are registered with the master."""
        with urllib.request.urlopen(self.status_url, timeout=5) as response:
            status: dict[str, Any] = json.load(response)
        return sum(worker["state"] == "ALIVE" for worker in status["workers"])

    def kill_a_worker(self) -> None:
        """Kill a worker and all processes that it started."""
        kill_group(self.workers[0])

    def settings(self) -> dict[str, str]:
        """Settings for executors on this cluster, to which the job ships an archive."""
        ships = {"spark.archives": f"{self.shipped.archive}#environment"}
        conf = {**SMALL, **ships, "spark.executor.extraJavaOptions": java_options()}
        return {"spark_master": self.url, "spark_conf": json.dumps(conf)}

    def variables(self) -> dict[str, str]:
        """Environment variables for executors that run the shipped Python, as if the workers had none installed."""
        return {"PYSPARK_PYTHON": "./environment/bin/python"}


@dataclass
class ShippedPython:
    """An archive whose Python is a script: it records each start and then runs this interpreter.

    A real packed environment would have about a gigabyte.
    """

    archive: Path
    notes: Path

    @classmethod
    def packed(cls, folder: Path) -> ShippedPython:
        shipped = cls(folder / "environment.tar.gz", folder / "starts")
        script = f'#!/bin/sh\npwd >> "{shipped.notes}"\nexec "{sys.executable}" "$@"\n'.encode()
        about = tarfile.TarInfo("bin/python")
        about.mode, about.size = 0o755, len(script)
        with tarfile.open(shipped.archive, "w:gz") as archive:
            archive.addfile(about, io.BytesIO(script))
        return shipped

    def started_in(self) -> set[Path]:
        """The folders of the executors that started this Python."""
        return {Path(line) for line in self.notes.read_text(encoding="utf-8").splitlines()}


@contextmanager
def cluster(folder: Path, *, workers: int = 2) -> Iterator[Cluster]:
    """A master and `workers` workers of one core each, killed afterwards with their executors."""
    port, web = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    master = ("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web))
    with ExitStack() as running:
        running.enter_context(process(folder / "master", *master))
        folders = [folder / f"worker{number}" for number in range(workers)]
        processes = [running.enter_context(process(folder, *worker_of(url, folder))) for folder in folders]
        started = Cluster(url, f"http://127.0.0.1:{web}/json/", processes, ShippedPython.packed(folder))
        until_ready(started, workers)
        yield started


def worker_of(url: str, folder: Path) -> tuple[str, ...]:
    place = ("--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(folder))
    return ("worker.Worker", *place, "--cores", "1", "--memory", "1g", url)


def java_options() -> str:
    """Options for JVMs that run for seconds only: less compiling, and the archive of Spark's classes, if lakegc has
    made one."""
    archive = class_archive_options()
    return f"-XX:TieredStopAtLevel=1 {archive if archive.startswith('-XX:SharedArchiveFile') else ''}".rstrip()


@contextmanager
def process(folder: Path, kind: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    import pyspark

    home = Path(pyspark.__file__).resolve().parent
    folder.mkdir(parents=True)
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_JAVA_OPTS": java_options(),
    }
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *options],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield started
    finally:
        kill_group(started)


def kill_group(started: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def until_ready(found: Cluster, workers: int) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit:
        with suppress(OSError, ValueError):
            if found.alive() == workers:
                return
        time.sleep(0.1)  # the step of a poll with a limit
    raise RuntimeError(f"the cluster did not get ready in {START_LIMIT_S:.0f} s")
