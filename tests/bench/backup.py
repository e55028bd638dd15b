"""A backup compared with `rclone copy` of the same list, on the same SeaweedFS, alternately.

    uv run python -m tests.bench.backup --objects 5000 --pairs 3

Both copy from bucket to bucket within the store. lakegc is timed with Spark running, from the marked set to the
summary: looking up the originals, copying, writing the log, looking up the copies, and listing the objects. For rclone,
the time of its process counts, once with its defaults and once with as many concurrent transfers as lakegc has copies;
the faster one is used. The last line is the median of the pairs' ratios of objects per second, lakegc's to rclone's:
above 1, lakegc is faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from lakegc_assets.backup.backup import back_up
from lakegc_assets.backup.context import CONCURRENT_COPIES, BackupRun, CopyLimits, MarkedSet
from lakegc_assets.backup.manifest import Subject
from lakegc_assets.mark.context import Target
from spark_resources.lakefs import Repository
from spark_resources.model import Namespace
from spark_resources.spark.resource import SparkResource
from spark_resources.stores.base import Capabilities
from spark_resources.stores.place import Place
from tests.support.mark_runs import environment
from tests.support.s3_servers import SeaweedFS, seaweedfs

SLICES = 10
CAPABILITIES = Capabilities(byte_order=False)
RCLONE = Path(sys.executable).with_name("rclone")


def keys_of(objects: int) -> list[str]:
    return [f"data/{number % SLICES:04}slice/{number:08x}" for number in range(objects)]


def upload(server: SeaweedFS, keys: list[str], size: int) -> None:
    client, load = server.client(), b"x" * size

    def put(some: list[str]) -> None:
        for key in some:
            client.put_object(Bucket="lake", Key=f"ns/{key}", Body=load, Metadata={"owner": "ada"})

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(put, [keys[start::8] for start in range(8)]))


def backup_seconds(server: SeaweedFS, keys: list[str], pair: int, spark: SparkResource, at_once: int) -> float:
    """The duration of a backup in seconds."""
    lake = Place(Namespace("s3://lake/ns"), server.settings(), CAPABILITIES)
    to = Place(Namespace(f"s3://backups/ours{pair}"), server.settings(), CAPABILITIES)
    now = lake.store().now()
    repository = Repository("lake", lake.namespace.uri, "main", read_only=False, storage_id="", created=now)
    subject = Subject("lake", now.isoformat(), lake.namespace.uri, "m1", "unified", "0" * 64)
    marked = MarkedSet(subject, None, pa.chunked_array([pa.array(keys, pa.string())]))
    run = BackupRun(
        Target(repository, "s3", lake), marked, to, "lake/m1/", False, lambda: spark.spark_session,
        CopyLimits(at_once), "the benchmark", lambda _: None,
    )  # fmt: skip
    began = time.monotonic()
    outcomes = back_up(run)
    assert outcomes.objects == {"copied": len(keys)}, outcomes
    return time.monotonic() - began


def rclone_seconds(server: SeaweedFS, keys: list[str], name: str, options: list[str]) -> float:
    """The duration of an `rclone copy` in seconds."""
    remote = {
        "TYPE": "s3", "PROVIDER": "SeaweedFS", "ENDPOINT": server.endpoint_url, "ACCESS_KEY_ID": server.access_key,
        "SECRET_ACCESS_KEY": server.secret_key,
    }  # fmt: skip
    known = {f"RCLONE_CONFIG_STORE_{setting}": value for setting, value in remote.items()}
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "marked.txt")
        listed.write_text("".join(f"{key}\n" for key in keys))
        environ = {"PATH": os.environ["PATH"], "HOME": folder, "RCLONE_CONFIG": os.devnull, **known}
        command = [RCLONE, "copy", "--files-from-raw", listed, "--no-traverse", *options, "store:lake/ns"]
        began = time.monotonic()
        subprocess.run([*command, f"store:backups/{name}"], env=environ, check=True)
        return time.monotonic() - began


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--objects", type=int, default=5_000)
    options.add_argument("--size", type=int, default=1_000, help="of an object, in bytes")
    options.add_argument("--pairs", type=int, default=3)
    options.add_argument("--at-once", type=int, default=CONCURRENT_COPIES)
    chosen = options.parse_args()
    keys, ratios = keys_of(chosen.objects), []
    with environment({"spark_master": "local[*]"}), seaweedfs() as server:
        for bucket in ("lake", "backups"):
            server.make_bucket(bucket)
        upload(server, keys, chosen.size)
        spark, many = SparkResource(), [f"--transfers={chosen.at_once}", f"--checkers={chosen.at_once}"]
        backup_seconds(server, keys[:1000], -1, spark, chosen.at_once)  # warms up
        for pair in range(chosen.pairs):
            took: dict[str, float] = {}
            for which in ("ours", "default", "many") if pair % 2 else ("default", "many", "ours"):
                if which == "ours":
                    took[which] = backup_seconds(server, keys, pair, spark, chosen.at_once)
                else:
                    took[which] = rclone_seconds(server, keys, f"{which}{pair}", many if which == "many" else [])
            ratios.append(min(took["default"], took["many"]) / took["ours"])
            rates = ", ".join(f"{which} {len(keys) / seconds:,.0f} a second" for which, seconds in sorted(took.items()))
            print(f"{rates}; ratio {ratios[-1]:.2f}", flush=True)
    print(f"median of {len(ratios)} pairs: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
