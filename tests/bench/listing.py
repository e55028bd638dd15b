"""Listing compared with its limit: the same keys of one SeaweedFS, requested over HTTP and not parsed.

    uv run python -m tests.bench.listing --objects 100000 --slices 20 --rounds 3

In each round, every method lists all keys, one method after the other. The limit is raw HTTP: signed requests whose
responses are only searched for the next page. The output has keys per second (the median of the rounds), processor
seconds of this process, and the time relative to the limit; `--way` selects one or more methods.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

from lakegc_assets.mark import full_listing
from spark_resources.model import STORED_OBJECTS, Namespace
from spark_resources.spark.datasets import write_produced
from spark_resources.spark.resource import SparkResource
from spark_resources.stores.base import Store
from spark_resources.stores.parallel_listing import CONCURRENT_LISTINGS, pages_of_parts
from spark_resources.stores.place import Place
from tests.bench.limits import raw
from tests.support.mark_runs import environment
from tests.support.s3_servers import S3Server, seaweedfs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET, NAMESPACE = "listing", "lake"
LOAD = b"x" * 10


def upload(server: S3Server, objects: int, slices: int) -> list[str]:
    """Upload objects with keys as lakeFS names them, evenly distributed over slices. Returns the slices."""
    client = server.client()
    folders = [f"data/gpj2k6c8kq2h3m1{number:05}/" for number in range(slices)]

    def put(some: range) -> None:
        for number in some:
            key = f"{NAMESPACE}/{folders[number % slices]}cpj2k6c8kq2h{number:08}"
            client.put_object(Bucket=BUCKET, Key=key, Body=LOAD)

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(put, [range(start, objects, 8) for start in range(8)]))
    return folders


# --- the ways ---------------------------------------------------------------------------------------------------------


def plain_boto3(server: S3Server, folders: list[str]) -> int:
    """boto3's own paginator, which does its own parsing, one folder after another."""
    pages = server.client().get_paginator("list_objects_v2").paginate
    return sum(
        len(page.get("Contents", ())) for at in folders for page in pages(Bucket=BUCKET, Prefix=f"{NAMESPACE}/{at}")
    )


def rows(store: Store, folders: list[str]) -> int:
    """`Store.pages`: one Python object per key, one folder after another."""
    return sum(len(page.objects) for folder in folders for page in store.pages(folder))


def arrow(store: Store, folders: list[str], at_once: int) -> int:
    """Arrow, in one process."""
    parts = [full_listing.Part(folder) for folder in folders]
    return sum(len(page.objects) for _, page in pages_of_parts(store, parts, at_once=at_once))


def step(spark: SparkSession, place: Place, folders: list[str]) -> int:
    """The listing step of a mark: tasks that list and write Parquet to the store."""
    parts = full_listing.split_parts(place.store(), full_listing.all_parts(place.store()), max_pieces=8)
    run = SimpleNamespace(place=place, store=place.store(), spark=lambda: spark)  # what the function uses of a MarkRun
    tasks = full_listing.listing_tasks(run, parts)  # type: ignore[arg-type]
    produce = full_listing.listing_producer(place, local_adapter=False)
    return write_produced(tasks, produce, place, "_lakefs/retention/gc/lakegc/b/slices/", STORED_OBJECTS)[0].rows


# --- measuring --------------------------------------------------------------------------------------------------------


def measured(ways: dict[str, Callable[[], int]], objects: int, rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):  # the first one warms up
        for name, way in ways.items():
            began, used = time.monotonic(), time.process_time()
            listed = way()
            assert listed == objects, f"{name} found {listed} of {objects}"
            if number:
                seconds[name].append(time.monotonic() - began)
                processor[name].append(time.process_time() - used)
    limits = {name: statistics.median(seconds[name]) for name in ways if name.startswith("raw")}
    for name in ways:
        took, used = statistics.median(seconds[name]), statistics.median(processor[name])
        ratios = ", ".join(f"{took / limit:.2f} x {which}" for which, limit in limits.items())
        print(f"{name:24} {objects / took:9,.0f} keys a second  {used:6.2f} s of processor  {ratios}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--objects", type=int, default=100_000)
    options.add_argument("--slices", type=int, default=20)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--at-once", type=int, default=CONCURRENT_LISTINGS)
    options.add_argument("--way", action="append", default=[])
    chosen = options.parse_args()
    with environment({}), seaweedfs() as server:
        server.make_bucket(BUCKET)
        began = time.monotonic()
        folders = upload(server, chosen.objects, chosen.slices)
        print(f"uploaded in {time.monotonic() - began:.0f} s", flush=True)
        place = Place(Namespace.parse(f"s3://{BUCKET}/{NAMESPACE}"), server.settings())
        store = place.store()
        place = replace(place, capabilities=replace(store.capabilities, byte_order=False))  # as a probe finds
        at_once, prefixes = chosen.at_once, [f"{NAMESPACE}/{folder}" for folder in folders]
        ways: dict[str, Callable[[], int]] = {
            "raw, one at once": lambda: raw(server, BUCKET, prefixes, 1),
            "raw": lambda: raw(server, BUCKET, prefixes, at_once),
            "boto3": lambda: plain_boto3(server, folders),
            "rows, one at once": lambda: rows(store, folders),
            "arrow, one at once": lambda: arrow(place.store(), folders, 1),
            "arrow": lambda: arrow(place.store(), folders, at_once),
        }
        if not chosen.way or "spark" in chosen.way:
            spark = SparkResource().spark_session
            ways["spark"] = lambda: step(spark, place, folders)
        wanted = {name: way for name, way in ways.items() if not chosen.way or name in chosen.way}
        measured(wanted, chosen.objects, chosen.rounds)


if __name__ == "__main__":
    main()
