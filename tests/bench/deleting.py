"""The deletes of a sweep compared with a plain loop of the SDK's batch delete, with as many requests in flight, over as
many keys of the same SeaweedFS.

    uv run python -m tests.bench.deleting --objects 50000 --pairs 5

The keys are uploaded twice for each pair, before anything is measured. One half is deleted by a round of a sweep (Spark
is running, the re-verification is done: listing again, intents, deletes and receipts count), the other by the loop,
and the two take turns at being first. The last line is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from lakegc_assets.sweep.context import SweepRun
from lakegc_assets.sweep.delete_rounds import run_round
from lakegc_assets.sweep.head_watch import HeadWatch
from spark_resources.deleting.batches import IN_FLIGHT
from spark_resources.deleting.sweep_task import Action
from spark_resources.model import Outcome
from spark_resources.spark.resource import SparkResource
from spark_resources.spark.tasks import Tasks, as_frame
from tests.support.mark_runs import environment
from tests.support.s3_servers import SeaweedFS, seaweedfs
from tests.support.sweep_without_lakefs import BUCKET, NOTHING_NEW, approved, run_alone

SLICES, LOAD = 50, b"x" * 100


def keys_of(objects: int) -> list[str]:
    return [f"data/{number % SLICES:04}slice/{number:08x}" for number in range(objects)]


def upload(server: SeaweedFS, prefix: str, keys: list[str]) -> None:
    client = server.client()

    def put(some: list[str]) -> None:
        for key in some:
            client.put_object(Bucket=BUCKET, Key=prefix + key, Body=LOAD)

    with ThreadPoolExecutor(max_workers=10) as pool:
        list(pool.map(put, [keys[start::10] for start in range(10)]))


def loop(server: SeaweedFS, prefix: str, keys: list[str], in_flight: int) -> float:
    """The duration of the plain loop in seconds."""
    client, began = server.client(), time.monotonic()

    def delete(start: int) -> None:
        batch = [{"Key": prefix + key} for key in keys[start : start + 1000]]
        response = client.delete_objects(Bucket=BUCKET, Delete={"Objects": batch})  # type: ignore[typeddict-item]
        assert not response.get("Errors")

    with ThreadPoolExecutor(max_workers=in_flight) as pool:
        list(pool.map(delete, range(0, len(keys), 1000)))
    return time.monotonic() - began


def round_(run: SweepRun, keys: list[str]) -> float:
    """The duration of a round of a sweep in seconds."""
    rows = as_frame(Tasks.of(run.spark, approved(run, keys))).persist()
    rows.count()
    began = time.monotonic()
    until = datetime.now(UTC) + timedelta(minutes=30)
    tally = run_round(run, rows, Action.DELETE, run.receipts, 1, until, len(keys), HeadWatch.of(run, NOTHING_NEW))
    seconds = time.monotonic() - began
    assert tally.objects == {Outcome.DELETED.value: len(keys)}, tally
    print(f"{seconds:7.2f} s  a round of a sweep, {len(keys) / seconds:,.0f} keys a second, {tally.requests} requests")
    run.lease.release()
    rows.unpersist()
    return seconds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--objects", type=int, default=50_000)
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--in-flight", type=int, default=2 * IN_FLIGHT, help="requests of the loop at once")
    options.add_argument("--rate", type=float, default=None)
    options.add_argument("--wait", action="store_true", help="after the upload, wait for Enter on a quiet machine")
    chosen = options.parse_args()
    keys, ratios = keys_of(chosen.objects), []
    with environment({}), seaweedfs() as server:
        server.make_bucket(BUCKET)
        pairs = {pair: keys if pair >= 0 else keys[:2000] for pair in range(-1, chosen.pairs)}  # the first one warms up
        for pair, some in pairs.items():
            for prefix in (f"lake{pair}/", f"loop{pair}/"):
                upload(server, prefix, some)
            print(f"uploaded pair {pair}", flush=True)
        if chosen.wait:
            input("uploaded; press Enter to begin")
        spark = SparkResource()
        for pair, some in pairs.items():
            run = run_alone(f"lake{pair}", server.settings(), spark, rate=chosen.rate)
            took = {}
            for which in ("ours", "theirs") if pair % 2 else ("theirs", "ours"):
                took[which] = (
                    round_(run, some) if which == "ours" else loop(server, f"loop{pair}/", some, chosen.in_flight)
                )
            print(f"{took['theirs']:7.2f} s  the loop; ratio {took['ours'] / took['theirs']:.2f}", flush=True)
            if pair >= 0:
                ratios.append(took["ours"] / took["theirs"])
    print(f"median of {len(ratios)} pairs: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
