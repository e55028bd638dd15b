"""How long people wait for an overview: `lakegc status`, the ticks of schedule and sensors, and an asset's page.

    uv run python -m tests.bench.ui --repositories 50 --marks 365

Builds a sandbox in which each repository has one mark a day, half of them swept, and a Dagster instance (SQLite) with
their partitions and materializations. The marks have records, but no data. Prints the seconds of each, the slowest of
`--runs`; for the page, of the queries that it sends.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg

from lakegc_assets.assets.approval_events import DIGEST
from lakegc_assets.definitions import defs
from lakegc_assets.partitions import PARTITIONS
from lakegc_assets.schedules.marks import mark_repositories
from lakegc_assets.sensors.approvals import approved_sweeps
from lakegc_assets.sensors.notifications import notifications
from lakegc_assets.sensors.repositories import new_repositories, repository_key
from lakegc_assets.sweep.report import Report, report_key
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.mark_store.history import HISTORY_KEY, FinishedSweep, History
from spark_resources.mark_store.mark import mark_folder
from spark_resources.mark_store.record import CHAIN, MarkRecord, StepRecord
from spark_resources.model import MarkState, Partition, default_mark_id
from spark_resources.settings import Settings
from tests.support.finished_marks import finished_record
from tests.support.mark_runs import environment
from tests.support.s3_servers import free_port

FACTS = {f"fact_{number}": number for number in range(40)}
"""About as many facts as a step of a real mark records."""
LIMIT_S = 120.0
QUERIES: Mapping[str, str] = {
    "newest materialization": """{ assetOrError(assetKey: {path: ["expired_set"]}) { ... on Asset {
        assetMaterializations(limit: 1) { partition timestamp metadataEntries { label ... on IntMetadataEntry {
        intRepr } } } } } }""",
    "last 50 materializations": """{ assetOrError(assetKey: {path: ["expired_set"]}) { ... on Asset {
        assetMaterializations(limit: 50) { partition timestamp runId metadataEntries { label } } } } }""",
    "partitions": """{ assetNodeOrError(assetKey: {path: ["expired_set"]}) { ... on AssetNode {
        partitionKeysByDimension { name partitionKeys } partitionStats { numMaterialized numPartitions numFailed }
        assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions failedPartitions } } } } }""",
    "state of all assets": """{ assetNodes { assetKey { path } groupName partitionStats { numMaterialized
        numPartitions } assetMaterializations(limit: 1) { timestamp } } }""",
    "checks": """{ assetNodeOrError(assetKey: {path: ["expired_set"]}) { ... on AssetNode {
        assetChecksOrError { ... on AssetChecks { checks { name executionForLatestMaterialization { status } } } }
        } } }""",
}
"""The queries of the page of `expired_set`, shorter than those that the UI sends."""


def build(sandbox: Any, repositories: int, marks: int) -> datetime:
    """Write the records of all marks and of half as many sweeps, and the histories. Returns the time of the last."""
    now = sandbox.now()
    for number in range(repositories):
        name = f"repository-{number:04}"
        sandbox.create(name)
        folder, history = sandbox.local_path / name, History()
        for day in range(marks):
            start = now - timedelta(days=marks - day, minutes=number)
            swept = day % 2 == 0 and day < marks - 1
            record = mark_record(name, start, MarkState.SWEPT if swept else MarkState.MARKED)
            write(folder / mark_folder(record.mark_id) / "mark.json", record.to_json())
            history = history.with_mark(record)
            if swept:
                report = sweep_report(record)
                write(folder / report_key(record.mark_id), report.to_json())
                history = history.with_sweep(FinishedSweep(record.mark_id, report.ended, 10_000, 100_000))
        write(folder / HISTORY_KEY, history.to_json())
    return now


def mark_record(repository: str, start: datetime, state: MarkState) -> MarkRecord:
    """A mark with the counts and, nearly, the size of a real one."""
    times = (start + timedelta(minutes=1), start + timedelta(minutes=2))
    datasets = {part: {"sha256": "0" * 64, "rows": 10_000, "bytes": 100_000} for part in ("", "totals", "samples")}
    steps = {name: StepRecord(*times, number, datasets, FACTS) for number, name in enumerate(CHAIN, 1)}  # type: ignore[arg-type]
    return finished_record(
        default_mark_id(start), start=start, repository=repository, namespace=f"local://{repository}", state=state,
        steps=steps,
    )  # fmt: skip


def sweep_report(record: MarkRecord) -> Report:
    ended = record.start + timedelta(hours=1)
    return Report(
        mark_id=record.mark_id, repository=record.repository, digest=record.digest or "", by="ada@here", began=ended,
        ended=ended, approved=10_000, objects={"deleted": 10_000}, sizes={"deleted": 100_000}, seconds=2.0, requests=10,
        attempts=10_000, verifications=(ended,), late=(), late_objects=0,
    )  # fmt: skip


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def fill(instance: dg.DagsterInstance, repositories: int, marks: int, now: datetime) -> None:
    """Add the partitions of all marks, a materialization of each expired set, and half as many approvals."""
    keys = [
        str(Partition.of(f"repository-{number:04}", default_mark_id(now - timedelta(days=marks - day, minutes=number))))
        for day in range(marks)
        for number in range(repositories)
    ]
    instance.add_dynamic_partitions(str(PARTITIONS.name), keys)
    numbers = {name: number for number, name in enumerate(("expired", "expired_bytes", "candidates", "seconds"))}
    for count, key in enumerate(keys):
        instance.report_runless_asset_event(dg.AssetMaterialization("expired_set", partition=key, metadata=numbers))
        if count % 2:
            approved = dg.AssetMaterialization("sweep_approval", partition=key, metadata={DIGEST: "0" * 64})
            instance.report_runless_asset_event(approved)


# --- measuring ------------------------------------------------------------------------------------------------------


def slowest(runs: int, work: Callable[[], object]) -> float:
    """The seconds of the slowest of several calls."""
    seconds = []
    for _ in range(runs):
        began = time.monotonic()
        work()
        seconds.append(time.monotonic() - began)
    return max(seconds)


def show(what: str, seconds: float) -> None:
    print(f"{what}: {seconds:.2f} s", flush=True)


def run_status(*arguments: str) -> bytes:
    command = [sys.executable, "-m", "lakegc_assets.cli", "status", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def ticks(instance: dg.DagsterInstance, now: datetime) -> Iterator[tuple[str, Callable[[], object]]]:
    """The tick of the schedule and of each sensor, as the daemon evaluates it."""
    lakefs = LakeFS(*LakeFSSettings.of(Settings.load(os.environ, Path("/nonexistent"))))
    known = json.dumps(sorted(map(repository_key, lakefs.repositories())))
    location, resources = defs.get_repository_def(), {"lakefs": LakeFSResource()}
    newest = instance.fetch_materializations(dg.AssetKey("sweep_approval"), limit=1).records[0].storage_id

    def tick(sensor: dg.SensorDefinition, cursor: str | None) -> object:
        with dg.build_sensor_context(
            instance_ref=instance.get_ref(), cursor=cursor, repository_def=location, resources=resources
        ) as context:
            return sensor.evaluate_tick(context)

    def scheduled() -> object:
        at = now.replace(hour=3, minute=0)
        with dg.build_schedule_context(instance, at, resources=resources, repository_def=location) as context:
            return mark_repositories.evaluate_tick(context)

    yield "tick of mark_repositories, all due", scheduled
    yield "tick of new_repositories", lambda: tick(new_repositories, known)
    yield "tick of approved_sweeps, none new", lambda: tick(approved_sweeps, str(newest))
    yield "tick of approved_sweeps, 20 new", lambda: tick(approved_sweeps, None)
    yield "tick of notifications", lambda: tick(notifications, None)


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """The address of Dagster's web server on this instance."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "dagster_webserver", "-m", "lakegc_assets.definitions"]
    with (folder / "web.log").open("wb") as log:
        process = subprocess.Popen([*command, "-p", str(port)], cwd=folder, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        until = time.monotonic() + LIMIT_S
        while not is_served(address):
            assert time.monotonic() < until, (folder / "web.log").read_text()
            time.sleep(0.5)  # the step of a poll with a limit
        yield address
    finally:
        process.terminate()
        process.wait(60)


def is_served(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/server_info", timeout=5):
            return True
    except OSError:
        return False


def graphql(address: str, query: str) -> object:
    body = json.dumps({"query": query}).encode()
    request = urllib.request.Request(f"{address}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
        answer = json.load(response)
    assert "errors" not in answer, answer["errors"]
    return answer


def main() -> None:
    from spark_resources.lakefs_sandbox import Sandbox

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", type=int, default=50)
    parser.add_argument("--marks", type=int, default=365)
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, Sandbox(Path(temporary) / "sandbox") as sandbox:
        now = build(sandbox, chosen.repositories, chosen.marks)
        home = Path(temporary) / "dagster"
        home.mkdir()
        os.environ["DAGSTER_HOME"] = str(home)
        with environment(sandbox.settings):
            show("lakegc status", slowest(chosen.runs, run_status))
            show("lakegc status of one repository", slowest(chosen.runs, lambda: run_status("repository-0000")))
            show("lakegc status --format json, with every mark", slowest(1, lambda: run_status("--format", "json")))
            for history in sandbox.local_path.glob(f"*/{HISTORY_KEY}"):
                history.unlink()
            show("lakegc status without histories", slowest(1, run_status))
            with dg.DagsterInstance.get() as instance:
                fill(instance, chosen.repositories, chosen.marks, now)
                for what, tick in ticks(instance, now):
                    show(what, slowest(chosen.runs, tick))
            with web_server(home) as address:
                for what, query in QUERIES.items():
                    show(f"page of expired_set: {what}", slowest(chosen.runs, partial(graphql, address, query)))


if __name__ == "__main__":
    main()
