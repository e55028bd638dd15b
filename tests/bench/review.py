"""Time and peak memory of a review, a comparison and a list of a large mark.

    uv run python -m tests.bench.review --objects 1000000 --files 4

Writes two marks directly as files into a sandbox's namespace, without Spark: a tenth of the earlier mark's objects are
missing from the later one, which has as many new ones. Then runs each command in its own process, as a user does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakegc_assets.mark.context import place_of
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.model import EXPIRED_OBJECTS, ExpiredReason
from spark_resources.settings import Settings
from spark_resources.stores.place import Place
from tests.support.finished_marks import START
from tests.support.reviewable_marks import commit, reviewable

SLICES, TABLES, COMMITS = 500, 400, 300


def rows(first: int, last: int) -> pa.Table:
    """Objects by number, with keys in the order of their slices. Two in three were in expired commits."""
    numbers = np.arange(first, last)
    draw = np.random.default_rng(first)
    slices = numbers * SLICES // 2_000_000_000
    addresses = [f"data/{10**9 + s:020d}/{n:020d}" for s, n in zip(slices.tolist(), numbers.tolist(), strict=True)]
    known = draw.random(len(numbers)) < 2 / 3
    commits = draw.integers(0, COMMITS, len(numbers))
    ages = draw.integers(1, 800 * 86_400, len(numbers))

    def where_known(values: list[object]) -> list[object]:
        return [value if yes else None for value, yes in zip(values, known.tolist(), strict=True)]

    reasons = [ExpiredReason.EXPIRED_COMMIT if yes else ExpiredReason.NEVER_COMMITTED for yes in known.tolist()]
    columns = {
        "address": addresses,
        "size": draw.lognormal(11, 2, len(numbers)).astype("int64"),
        "modified": np.datetime64(START.replace(tzinfo=None), "us") - ages.astype("timedelta64[s]"),
        "checksum": [f"{n:032x}" for n in numbers.tolist()],
        "slice": [f"{address[:26]}" for address in addresses],
        "reason": [reason.value for reason in reasons],
        "commit_id": where_known([f"{number:064x}" for number in commits.tolist()]),
        "branch": where_known(["main"] * len(numbers)),
        "days": where_known([21] * len(numbers)),
        "until": where_known([START - timedelta(days=1)] * len(numbers)),
        "path": where_known([f"warehouse/table-{n % TABLES:03}/part-{n:09}.parquet" for n in numbers.tolist()]),
    }
    return pa.table(columns).cast(EXPIRED_OBJECTS)


def files(first: int, objects: int, count: int) -> Iterator[pa.Table]:
    per_file = -(-objects // count)
    for begin in range(first, first + objects, per_file):
        yield rows(begin, min(begin + per_file, first + objects))


def build(place: Place, *, objects: int, count: int) -> None:
    commits = [commit(f"load {n}", commit_id=f"{n:064x}", days=n) for n in range(COMMITS)]
    facts = {"candidates": 4 * objects, "candidate_bytes": objects * 10**6}
    moved = objects // 10
    reviewable(place, files(0, objects, count), "m1", commits=commits, facts=facts)
    previous = {"mark_id": "m1", "counts": {}, "unreadable": []}
    counts = {"candidates": 4 * objects, "candidate_bytes": objects * 10**6, "live": objects}
    previous["counts"] = {**counts, "expired": objects, "expired_bytes": objects}
    later = {"start": START + timedelta(days=1), "previous": previous}
    listed = (table for table in files(moved // 2, 2 * objects, 2 * count))
    reviewable(place, files(moved, objects, count), "m2", commits=commits, facts=facts, listed=listed, **later)


def measured(environment: dict[str, str], *command: str) -> None:
    """Run a command, discard its output, and print its duration and peak of resident memory."""
    begun = time.monotonic()
    lakegc = str(Path(sys.executable).with_name("lakegc"))
    program = (
        "import resource, subprocess, sys;"
        "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode;"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, code)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program, lakegc, *command],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    peak, code = map(int, completed.stdout.split())
    print(f"{time.monotonic() - begun:7.1f} s  {peak / 1024:6.0f} MiB  lakegc {' '.join(command)} (exit {code})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=4)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, Sandbox(Path(temporary)) as sandbox:
        sandbox.create("large")
        settings = Settings.load(sandbox.environment, Path(temporary))
        lakefs = LakeFS(*LakeFSSettings.of(settings))
        repository = lakefs.repository("large")
        begun = time.monotonic()
        build(place_of(repository, "local", settings.store_settings()), objects=chosen.objects, count=chosen.files)
        print(f"{time.monotonic() - begun:7.1f} s  writing two marks of {chosen.objects:,} objects")
        for command in (
            ("review", "large", "m1"),
            ("review", "large", "m2"),
            ("review", "large", "m2", "--format", "json"),
            ("diff", "large", "m1", "m2"),
            *(("review", "large", "m2", "--list", "--format", form) for form in ("table", "jsonl", "csv", "json")),
            ("diff", "large", "m1", "m2", "--list", "--format", "jsonl"),
            ("review", "large", "nowhere"),
        ):
            measured(sandbox.environment, *command)


if __name__ == "__main__":
    main()
