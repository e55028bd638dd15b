"""How long Dagster's pages and lakegc's ticks take with many marks in one instance.

    uv run python -m tests.bench.instance --repositories 50 --marks 365
    uv run python -m tests.bench.instance --repositories 50 --marks 365 --postgres

Makes one mark in a sandbox, and stores its materializations, with an approval, for each repository and mark of an
instance in SQLite or Postgres. Runs are stored without their steps and checks. Then sends the queries of the asset
page to Dagster's web server, and evaluates each tick as the daemon does: first with everything new, and then with
nothing new. The sensor `notifications` has no webhook here, and therefore nothing to do.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.events import DagsterEvent, StepMaterializationData
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.event_log.schema import SqlEventLogStorageTable

from lakegc_assets.assets.approval_events import DIGEST
from lakegc_assets.assets.review import APPROVAL
from lakegc_assets.cli.dagster_runs import WORKSPACE, open_instance, run_mark
from lakegc_assets.definitions import defs, mark_job
from lakegc_assets.partitions import PARTITIONS, REPOSITORY_TAG
from lakegc_assets.schedules import SCHEDULES
from lakegc_assets.sensors import SENSORS
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.model import Partition, Rules
from tests.support.mark_runs import NO_MINIMUM_AGE, environment, resources
from tests.support.postgres import postgres

EXAMPLE = Path(__file__).parents[2] / "docs" / "deploying" / "dagster.yaml"
BATCH = 40  # marks in one transaction
REPEATS = 5
START_LIMIT = 120.0  # seconds until the web server answers
NODE = 'assetNodeOrError(assetKey: {path: ["expired_set"]}) { ... on AssetNode'
QUERIES = {
    "asset graph": "{ assetNodes { assetKey { path } dependencyKeys { path } groupName kinds description "
    "hasAssetChecks partitionDefinition { name type } } }",
    "latest state of every asset": "{ assetNodes { assetKey { path } "
    "partitionStats { numMaterialized numFailed numMaterializing numPartitions } "
    "assetMaterializations(limit: 1) { runId timestamp partition } } }",
    "partitions of one asset, and their status": f"{{ {NODE} {{ partitionKeysByDimension {{ partitionKeys }} "
    "assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions failedPartitions "
    "materializingPartitions } } } } }",
    "100 latest materializations of one asset": f"{{ {NODE} {{ assetMaterializations(limit: 100) {{ runId partition "
    "timestamp metadataEntries { label ... on MarkdownMetadataEntry { mdStr } ... on IntMetadataEntry { intValue } } "
    "} } } }",
}


# --- the instance ---------------------------------------------------------------------------------------------------


def materializations_of_a_mark(sandbox: Sandbox) -> list[dg.AssetMaterialization]:
    """The materializations of one real mark, with all their metadata, and an approval."""
    lake, now = sandbox.create("example"), sandbox.now()
    for number in range(40):
        lake.put("main", f"file-{number % 20}", bytes(1000 * (number + 1)))
        if number % 10 == 9:
            lake.commit("main", f"commit {number}", date=now - timedelta(days=60 - number))
    set_rules(lake, Rules(30, {}))
    with dg.DagsterInstance.ephemeral() as instance:
        run_mark(Partition("example", "m1"), NO_MINIMUM_AGE, instance=instance, resources=resources())
        [run] = instance.get_runs()
        events = [record.dagster_event for record in instance.all_logs(run.run_id)]
    made = [
        event.step_materialization_data.materialization for event in events if event and event.is_step_materialization
    ]
    return [*made, dg.AssetMaterialization(APPROVAL, metadata={DIGEST: "0" * 64})]


def build(
    instance: dg.DagsterInstance, made: Sequence[dg.AssetMaterialization], repositories: Sequence[str], marks: int
) -> None:
    """Partitions, runs and materializations: one mark per repository and day, up to today."""
    today = datetime.now(UTC).replace(hour=3, minute=0, second=0, microsecond=0)
    days = [today - timedelta(days=ago) for ago in reversed(range(marks))]
    keys = [(str(Partition(name, f"{day:%Y%m%dT%H%M%SZ}")), day) for day in days for name in repositories]
    instance.add_dynamic_partitions(str(PARTITIONS.name), [key for key, _ in keys])
    for first in range(0, len(keys), BATCH):
        entries = []
        for key, day in keys[first : first + BATCH]:
            run = _run(key)
            instance.run_storage.add_historical_run(run, day)
            entries += [_entry(run.run_id, key, day, materialization) for materialization in made]
        _store(instance, entries)


def _run(key: str) -> dg.DagsterRun:
    tags = {"dagster/partition": key, REPOSITORY_TAG: Partition.parse(key).repository}
    run_id = str(uuid.uuid4())
    return dg.DagsterRun(job_name=mark_job.name, run_id=run_id, tags=tags, status=dg.DagsterRunStatus.SUCCESS)


def _entry(run_id: str, key: str, day: datetime, materialization: dg.AssetMaterialization) -> EventLogEntry:
    event = DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_MATERIALIZATION.value,
        job_name=mark_job.name,
        event_specific_data=StepMaterializationData(materialization._replace(partition=key)),
    )
    return EventLogEntry(None, "info", "", run_id, day.timestamp(), job_name=mark_job.name, dagster_event=event)


def _store(instance: dg.DagsterInstance, entries: Sequence[EventLogEntry]) -> None:
    """Store events in one transaction, in the index of all assets. Dagster itself needs one for each event."""
    storage: Any = instance.event_log_storage
    with storage.index_transaction() as connection:
        insert = storage.prepare_insert_event_batch(entries).returning(SqlEventLogStorageTable.c.id)
        ids = [row[0] for row in connection.execute(insert)]
        storage._store_asset_event_tags(connection, entries, ids)
        newest = {entry.dagster_event.asset_key: (entry, number) for entry, number in zip(entries, ids, strict=True)}
        for entry, number in newest.values():
            storage._store_asset_event(connection, entry, number)


# --- what is measured -----------------------------------------------------------------------------------------------


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Dagster's web server on this project, with the instance of `DAGSTER_HOME`. Yields the URL of its queries."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "dagster_webserver", "--port", str(port), "--workspace", str(WORKSPACE)]
    with (folder / "webserver.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            limit = time.monotonic() + START_LIMIT
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info").close()
                    break
                except OSError:
                    if server.poll() is not None or time.monotonic() > limit:
                        raise RuntimeError((folder / "webserver.log").read_text()) from None
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/graphql"
        finally:
            server.terminate()


def ask(url: str, query: str) -> int:
    """Send a query, and return the size of the answer in bytes."""
    body = json.dumps({"query": query}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        answer: bytes = response.read()
    if "errors" in (parsed := json.loads(answer)):
        raise RuntimeError(parsed["errors"])
    return len(answer)


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """The seconds that a call takes, and its result."""
    begun = time.monotonic()
    result = work(*arguments)
    return time.monotonic() - begun, result


def show_queries(url: str) -> None:
    print(f"{'query':45} {'first':>8} {'median':>8} {'KiB':>8}")
    for name, query in QUERIES.items():
        (first, size), *others = (timed(ask, url, query) for _ in range(REPEATS))
        later = statistics.median(seconds for seconds, _ in others)
        print(f"{name:45} {first:8.2f} {later:8.2f} {size / 1024:8,.0f}", flush=True)


def show_ticks(instance: dg.DagsterInstance) -> None:
    print(f"{'tick':45} {'all new':>8} {'no new':>8}")
    location, services = defs.get_repository_def(), {"lakefs": LakeFSResource()}
    for schedule in SCHEDULES:
        when = datetime.now(UTC).replace(hour=3, minute=0, second=0, microsecond=0) + timedelta(days=1)
        with dg.build_schedule_context(instance, when, services, location) as context:
            seconds, _ = timed(schedule.evaluate_tick, context)
        print(f"{schedule.name:45} {seconds:8.2f}", flush=True)
    for sensor in SENSORS:
        times, cursor = [], None
        for _ in range(2):
            with dg.build_sensor_context(
                cursor=cursor, repository_def=location, resources=services, instance_ref=instance.get_ref()
            ) as context:
                seconds, tick = timed(sensor.evaluate_tick, context)
            times.append(seconds)
            cursor = newest_cursor(instance, sensor.name) or tick.cursor
        print(f"{sensor.name:45} {times[0]:8.2f} {times[1]:8.2f}", flush=True)


def newest_cursor(instance: dg.DagsterInstance, sensor: str) -> str | None:
    """The cursor of `approved_sweeps` after all approvals; its first tick is only at the first twenty."""
    if sensor != "approved_sweeps":
        return None
    [newest] = instance.fetch_materializations(APPROVAL, limit=1).records
    return str(newest.storage_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", type=int, default=50)
    parser.add_argument("--marks", type=int, default=365)
    parser.add_argument("--postgres", action="store_true", help="instead of SQLite")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        home = folder / "dagster"
        home.mkdir()
        sandbox = stack.enter_context(Sandbox(folder / "sandbox"))
        stack.enter_context(environment(sandbox.settings))
        if chosen.postgres:
            os.environ.update(stack.enter_context(postgres()).environment())
            (home / "dagster.yaml").write_text(EXAMPLE.read_text())
        made = materializations_of_a_mark(sandbox)
        names = [f"repository-{number:03}" for number in range(chosen.repositories)]
        for name in names:
            sandbox.create(name)
        instance = stack.enter_context(open_instance(home))
        built, _ = timed(build, instance, made, names, chosen.marks)
        print(f"{len(names) * chosen.marks:,} marks in {'Postgres' if chosen.postgres else 'SQLite'}, {built:.0f} s")
        with web_server(folder) as url:
            show_queries(url)
        show_ticks(instance)


if __name__ == "__main__":
    main()
