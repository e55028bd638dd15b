"""What the first mark of each of N repositories on one server costs, compared with a repository alone.

    uv run python -m tests.bench.fleet --repositories 50

Marks every repository of a sandbox (or the first `--marks`) once, in one session of Spark: first as if it were alone
on the server (all others are trusted), then with the others, with a signing key, and then without one. Prints the mean
seconds of a mark, how much of that reads the others' heads and staged objects, which each mark must read anew, and how
often tables are read.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from lakegc_assets.mark import other_repositories, other_repository_heads
from lakegc_assets.mark.committed_addresses import ASSET
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.model import Rules
from tests.support.mark_runs import ANY_AGE, Marker

READ_ANEW = (
    (other_repositories, "read_at_the_end"),
    (other_repositories, "read_staged"),
    (other_repository_heads, "paths_to_probe"),
)
"""What reads the heads and the staged objects of other repositories, for each mark."""


@dataclass(slots=True)
class Costs:
    """Sums over the marks of all repositories. `anew` are the seconds spent in READ_ANEW."""

    marks: int = 0
    seconds: float = 0.0
    anew: float = 0.0
    tables_read: int = 0


def build(sandbox: Sandbox, repositories: int, *, objects: int, commits: int) -> None:
    """Repositories with one commit per day, the last 7 days of which are retained. Each commit adds objects and
    overwrites one. No two objects of the server have the same size, so that no path needs a probe elsewhere."""
    now, size = sandbox.now(), 0
    for number in range(repositories):
        sandbox.set_clock(now - timedelta(days=commits + 10))
        repository = sandbox.create(f"repository-{number:04}")
        for day in range(commits):
            sandbox.set_clock(now - timedelta(days=commits - day))
            names = [f"day={day:03}/part-{part:03}" for part in range(objects // commits)] + ["latest"]
            put = []
            for name in names:
                size += 1
                put.append((name, bytes(size)))
            repository.put_many("main", put)
            repository.commit("main", f"day {day}")
        set_rules(repository, Rules(7))
    sandbox.set_clock(None)


@contextmanager
def timing(costs: Costs) -> Iterator[None]:
    """Add the duration of each call of READ_ANEW to the costs."""

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            begun = time.monotonic()
            try:
                return function(*arguments, **named)
            finally:
                costs.anew += time.monotonic() - begun

        return call

    with ExitStack() as patches:
        for module, name in READ_ANEW:
            patches.enter_context(mock.patch.object(module, name, timed(getattr(module, name))))
        yield


def mark_all(sandbox: Sandbox, settings: Mapping[str, str], repositories: int, mark_id: str) -> Costs:
    costs = Costs()
    with timing(costs):
        for number in range(repositories):
            begun = time.monotonic()
            marked = Marker().mark(settings, f"repository-{number:04}", mark_id, replace(ANY_AGE, full=True))
            costs.seconds += time.monotonic() - begun
            costs.tables_read += marked.facts(ASSET)["elsewhere"].get("tables_read", 0)
            costs.marks += 1
    return costs


def tables_on(sandbox: Sandbox) -> int:
    """The number of tables under `_lakefs/`, without lakegc's own files."""
    names = (
        file.name for folder in sandbox.local_path.glob("*/_lakefs") for file in folder.iterdir() if file.is_file()
    )
    return len({name for name in names if len(name) == 64})


def show(name: str, costs: Costs, alone: Costs, tables: int) -> None:
    mean, mean_alone = costs.seconds / costs.marks, alone.seconds / alone.marks
    without = (costs.seconds - costs.anew) / costs.marks
    print(
        f"{name}: {mean:.2f} s a mark ({mean / mean_alone:.2f} times alone); without heads and staged objects "
        f"elsewhere {without:.2f} s ({without / mean_alone:.2f} times); {costs.tables_read:,} tables of other "
        f"repositories read, of {tables:,} on the server",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", type=int, default=50)
    parser.add_argument("--objects", type=int, default=100)
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--marks", type=int, default=10_000, help="mark only the first ones")
    chosen = parser.parse_args()
    count = min(chosen.marks, chosen.repositories)
    with tempfile.TemporaryDirectory() as temporary, Sandbox(Path(temporary)) as sandbox:
        build(sandbox, chosen.repositories, objects=chosen.objects, commits=chosen.commits)
        trusting = {**sandbox.settings, "trusted_repositories": "*"}
        mark_all(sandbox, trusting, min(count, 3), "warm-up")
        alone = mark_all(sandbox, trusting, count, "alone")
        show("alone", alone, alone, tables_on(sandbox))
        signing = {**sandbox.settings, "signing_key": "4b" * 32}
        show("with a signing key", mark_all(sandbox, signing, count, "signed"), alone, tables_on(sandbox))
        show("without", mark_all(sandbox, sandbox.settings, min(count, 20), "unsigned"), alone, tables_on(sandbox))


if __name__ == "__main__":
    main()
