"""The deleting of a sweep against a plain loop of the SDK's batch delete, over as many keys of the same SeaweedFS.

    uv run python -m tests.benchmarks.deleting --objects 50000 --pairs 5

Each pair uploads the keys twice, deletes one half with a round of a sweep (Spark is running, the proof is made: listing
again, intents, deletes and receipts count), the other with the loop, in turns of who is first. The last line is the
median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from lakegc_assets.marking.run import Limits, Target
from lakegc_assets.sweeping.rounds import round_of
from lakegc_assets.sweeping.run import SweepLimits, SweepRun
from spark_resources.datasets import Place
from spark_resources.deleting.task import PENDING, Action
from spark_resources.lakefs import LakeFS, LakeFSSettings, Repository
from spark_resources.lease import take_lease
from spark_resources.marks import Mark, MarkRecord
from spark_resources.model import MarkState, Namespace, Outcome, Partition, Scope
from spark_resources.session import SparkResource
from spark_resources.settings import Settings
from tests.marking import environment
from tests.servers import SeaweedFS, seaweedfs

BUCKET, SLICES, LOAD = "bench", 50, b"x" * 100


def keys_of(objects: int) -> list[str]:
    return [f"data/{number % SLICES:04}slice/{number:08x}" for number in range(objects)]


def upload(server: SeaweedFS, prefix: str, keys: list[str]) -> None:
    client = server.client()

    def put(some: list[str]) -> None:
        for key in some:
            client.put_object(Bucket=BUCKET, Key=prefix + key, Body=LOAD)

    with ThreadPoolExecutor(max_workers=10) as pool:
        list(pool.map(put, [keys[start::10] for start in range(10)]))


def loop(server: SeaweedFS, prefix: str, keys: list[str]) -> float:
    """Seconds of the plain loop."""
    client, began = server.client(), time.monotonic()
    for start in range(0, len(keys), 1000):
        batch = [{"Key": prefix + key} for key in keys[start : start + 1000]]
        answer = client.delete_objects(Bucket=BUCKET, Delete={"Objects": batch})  # type: ignore[typeddict-item]
        assert not answer.get("Errors")
    return time.monotonic() - began


def sweep_run(server: SeaweedFS, name: str, spark: SparkResource, rate: float | None) -> SweepRun:
    """A sweep of a mark that exists in name only: nothing but deleting is measured."""
    place = Place(Namespace(f"s3://{BUCKET}/{name}"), server.settings())
    now = place.store().now()
    repository = Repository(name, f"s3://{BUCKET}/{name}", "main", read_only=False, storage_id="", created=now)
    later = now + timedelta(days=1)  # everything is old enough
    record = MarkRecord(
        mark_id="m1",
        state=MarkState.SWEEPING,
        repository=name,
        repository_created=now,
        namespace=place.namespace.uri,
        scope=Scope.UNIFIED,
        min_age=timedelta(0),
        start=now,
        cutoff=later,
        server_now=now,
        rules=None,
        by="bench",
        versions={},
    )
    lease = take_lease(place.store(), who="bench", mark_id="m1", token=name, single_deployment=False)
    lakefs = LakeFS(
        LakeFSSettings.of(Settings(endpoint_url="http://127.0.0.1:1", access_key_id="a", secret_access_key="b"))
    )
    return SweepRun(
        Partition(name, "m1"), Target(repository, "s3", place), Mark(place, record, ""), lakefs,
        lambda: spark.spark_session, SweepLimits(Limits(), rate=rate), lease, "bench", lambda _: None,
    )  # fmt: skip


def round_(server: SeaweedFS, run: SweepRun, keys: list[str]) -> float:
    """Seconds of a round of a sweep."""
    listed = {one.key: one for page in run.store.pages("data/") for one in page.objects}
    nothing: list[None] = [None] * len(keys)
    columns = [
        keys,
        [listed[key].size for key in keys],
        nothing,
        nothing,
        [key.rpartition("/")[0] + "/" for key in keys],
    ]
    table = pa.table([*columns, [False] * len(keys)], schema=PENDING)
    rows = run.spark().createDataFrame(table).persist()
    rows.count()
    began = time.monotonic()
    until = datetime.now(UTC) + timedelta(minutes=30)
    tally = round_of(run, rows, Action.DELETE, run.receipts, 1, until, len(keys))
    seconds = time.monotonic() - began
    assert tally.objects == {Outcome.DELETED.value: len(keys)}, tally
    print(f"{seconds:7.2f} s  a round of a sweep, {len(keys) / seconds:,.0f} keys a second, {tally.requests} requests")
    run.lease.release()
    return seconds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--objects", type=int, default=50_000)
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--rate", type=float, default=None)
    chosen = options.parse_args()
    keys, ratios = keys_of(chosen.objects), []
    with environment({}), seaweedfs() as server:
        server.make_bucket(BUCKET)
        spark = SparkResource()
        for pair in range(-1, chosen.pairs):  # the first one warms up
            some = keys[:2000] if pair < 0 else keys
            name = f"lake{pair + 1}"
            run = sweep_run(server, name, spark, chosen.rate)
            for prefix in (f"{name}/", f"loop{pair + 1}/"):
                upload(server, prefix, some)
            took = {}
            for which in ("ours", "theirs") if pair % 2 else ("theirs", "ours"):
                took[which] = round_(server, run, some) if which == "ours" else loop(server, f"loop{pair + 1}/", some)
            print(f"{took['theirs']:7.2f} s  the loop; ratio {took['ours'] / took['theirs']:.2f}", flush=True)
            if pair >= 0:
                ratios.append(took["ours"] / took["theirs"])
    print(f"median of {len(ratios)} pairs: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
