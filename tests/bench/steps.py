"""How long each step of a mark takes, on a sandbox repository of a chosen size.

    uv run python -m tests.bench.steps --objects 100000 --commits 300 --runs 2

Builds the repository once in a folder (`--folder` keeps it), then runs `lakegc mark` as a user does, in its own
process. The time before the listing is that of Python and Dagster; the first part of the listing is the start of Spark.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.model import Rules

OVERWRITTEN = 60
STEP = re.compile(r"\[ *([\d.]+) s\] (.*)")


def build(sandbox: Sandbox, name: str, *, objects: int, commits: int) -> None:
    """One commit per day, each with new paths and with some of the previous ones overwritten. The last 30 days are
    retained."""
    draw, now = random.Random(1), sandbox.now()
    sandbox.set_clock(now - timedelta(days=commits + 10))
    repository = sandbox.create(name)
    per_commit = objects // commits
    for day in range(commits):
        sandbox.set_clock(now - timedelta(days=commits - day))
        again = min(OVERWRITTEN, per_commit // 2) if day else 0
        fresh = per_commit - again if day < commits - 1 else objects - per_commit * (commits - 1) - again
        put = [(f"table/day={day:04}/part-{i:05}", f"{day}-{i}".encode() * draw.randint(1, 40)) for i in range(fresh)]
        put += [(f"table/day={day - 1:04}/part-{i:05}", f"over {day}-{i}".encode() * 3) for i in range(again)]
        repository.put_many("main", put)
        repository.commit("main", f"day {day}")
    set_rules(repository, Rules(30))
    sandbox.set_clock(None)


def timed(environment: dict[str, str], name: str) -> None:
    """Run a mark and print when each step started."""
    command = [str(Path(sys.executable).with_name("lakegc")), "mark", name, "--full"]
    begun = time.monotonic()
    ended = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    total = time.monotonic() - begun
    steps = [(float(match[1]), match[2]) for match in map(STEP.search, ended.stderr.splitlines()) if match]
    for (at, what), after in zip(steps, [*(at for at, _ in steps[1:]), total], strict=True):
        print(f"{after - at:7.1f} s  {what}")
    print(f"{total:7.1f} s  in all\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--commits", type=int, default=300)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, Sandbox(chosen.folder or Path(temporary)) as sandbox:
        name = f"bench-{chosen.objects}-{chosen.commits}"
        if not (sandbox.local_path / name).exists():
            build(sandbox, name, objects=chosen.objects, commits=chosen.commits)
        for _ in range(chosen.runs):
            timed({**sandbox.environment, "DAGSTER_HOME": temporary}, name)


if __name__ == "__main__":
    main()
