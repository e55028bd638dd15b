"""Writes a synthetic repository of a given size into a folder: tables, the server's state, and objects or an inventory.

    uv run python -m tests.bench.generate --size M --store s3 --folder /tmp/bench

Tables and objects are written directly to the store, and commits, branches and staged entries directly to the sandbox's
state; the sandbox's server then serves them. The expected expired set follows from the plan alone (`history`), and is
stored with the repository. Each finished part is recorded, so an interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.lakefs_sandbox.state import BranchRecord, StagedEntry
from spark_resources.model import Commit
from spark_resources.sstable import RangeRef, commit_id, write_metarange
from spark_resources.stores.arrow_pages import arrow_pages
from spark_resources.stores.base import Store
from tests.bench import names
from tests.bench.history import History
from tests.bench.names import Numbers
from tests.bench.sinks import Sink
from tests.bench.sizes import SIZES, Size
from tests.bench.stores import REPOSITORY, STORES, Serving, serving
from tests.bench.tables import path_of, values, written_range

_AT_ONCE = 100_000  # objects
INVENTORY_ROWS = 500_000  # per file


@dataclass(frozen=True, slots=True)
class Held:
    """A range of a trunk, and the commits that have it: from one commit until another."""

    since: int
    until: int
    ref: RangeRef


# --- ranges: by many processes, a file each for what is done ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    trunk: int
    place: int


_Work = Callable[[_Piece], list[Held]]


def _ranges(history: History, sink: Sink, done: Path, piece: _Piece) -> list[Held]:
    """Write all versions of one range of a trunk."""
    file = done / f"{piece.trunk:05}-{piece.place:04}"
    if file.exists():
        return [_held(row) for row in json.loads(file.read_text())]
    paths = [path_of(piece.trunk, piece.place, slot) for slot in range(history.size.entries)]
    ranges = []
    for version in history.versions(piece.trunk, piece.place):
        ref, table = written_range(history, paths, version.objects)
        sink.put(f"_lakefs/{table.id}", table.data)
        ranges.append(Held(version.since, version.until, ref))
    part = file.with_suffix(".part")
    part.write_text(json.dumps([_as_json(row) for row in ranges]))
    part.rename(file)
    return ranges


def _as_json(held: Held) -> list[Any]:
    ref = held.ref
    return [held.since, held.until, ref.id, ref.min_key.hex(), ref.max_key.hex(), ref.estimated_size, ref.count]


def _held(row: list[Any]) -> Held:
    since, until, name, min_key, max_key, size, entries = row
    return Held(since, until, RangeRef(name, bytes.fromhex(min_key), bytes.fromhex(max_key), size, entries))


def write_ranges(history: History, sink: Sink, done: Path) -> dict[int, list[list[Held]]]:
    """Write the ranges of each trunk. Returns them by place."""
    size = history.size
    done.mkdir(exist_ok=True)
    pieces = [_Piece(trunk, place) for trunk in range(size.trunks) for place in range(size.ranges)]
    history.made, history._slices  # noqa: B018  # once, for all processes
    work = partial(_ranges, history, sink, done)
    by_trunk: dict[int, list[list[Held]]] = {}
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), _take, (work,)) as pool:
        for piece, ranges in zip(pieces, pool.imap(_do, pieces, chunksize=4), strict=True):
            by_trunk.setdefault(piece.trunk, []).append(ranges)
    return by_trunk


def _take(work: _Work) -> None:
    global _work  # noqa: PLW0603  # inherited by the process, and too large to be sent with each piece
    _work = work


def _do(piece: _Piece) -> list[Held]:
    return _work(piece)


_work: _Work


# --- commits ----------------------------------------------------------------------------------------------------------


class Commits:
    """Writes metaranges, and the commits that point to them."""

    def __init__(self, history: History, sink: Sink, root: str) -> None:
        self._history, self._sink, self._root = history, sink, root
        self.commits: list[Commit] = []
        self.heads: dict[str, str] = {}

    def trunk(self, trunk: int, places: Sequence[Sequence[Held]]) -> None:
        """Write a trunk's line of commits. A fork is written after the commit at which it leaves the first trunk."""
        history, size, parent, generation = self._history, self._history.size, self._root, 1
        now = [iter(versions) for versions in places]
        current = [next(versions) for versions in now]
        starting: dict[int, list[int]] = {}
        for fork in range(size.forks if trunk == 0 else 0):
            starting.setdefault(history.forked_at(fork), []).append(fork)
        for number in range(size.commits):
            for place, version in enumerate(current):
                if version.until == number:
                    current[place] = next(now[place])
            refs = [version.ref for version in current]
            generation += 1
            date = int(history.trunk_dates[number])
            parent = self._commit(refs, trunk * size.commits + number, parent, date, generation)
            for fork in starting.get(number, ()):
                self._fork(fork, refs, parent, generation)
        self.heads[history.branch(trunk)] = parent

    def _fork(self, fork: int, refs: list[RangeRef], parent: str, generation: int) -> None:
        size = self._history.size
        for number, date in enumerate(self._history.fork_dates.tolist()):
            generation += 1
            at = size.trunks * size.commits + fork * size.fork_commits + number
            parent = self._commit(refs, at, parent, date, generation)
        self.heads[self._history.fork(fork)] = parent

    def _commit(self, refs: list[RangeRef], number: int, parent: str, date: int, generation: int) -> str:
        if self._history.size.tail:
            objects = self._history.tail(number)
            paths = [b"~log/%08d/part-%04d" % (number % 7, at) for at in range(len(objects))]
            ref, table = written_range(self._history, paths, objects)
            self._sink.put(f"_lakefs/{table.id}", table.data)
            refs = [*refs, ref]
        commit = committed(self._sink, refs, parent, datetime.fromtimestamp(date, UTC), generation, f"commit {number}")
        self.commits.append(commit)
        return commit.id


def committed(
    sink: Sink, refs: Sequence[RangeRef], parent: str, created: datetime, generation: int, message: str
) -> Commit:
    """Write a commit of these ranges and its metarange."""
    metarange = write_metarange(refs)
    sink.put(f"_lakefs/{metarange.id}", metarange.data)
    commit = Commit(
        id="", parents=(parent,), created=created, metarange_id=metarange.id,
        version=1, generation=generation, committer="bench", message=message,
    )  # fmt: skip
    return Commit(**{name: getattr(commit, name) for name in Commit.__slots__} | {"id": commit_id(commit)})


def write_state(sandbox: Sandbox, history: History, sink: Sink, ranges: dict[int, list[list[Held]]]) -> None:
    """Write metaranges, commits, branches, staged entries and the rules."""
    repository = sandbox.create(REPOSITORY)
    state = sandbox._catalog.state
    root = repository.branch("main").commit_id
    commits = Commits(history, sink, root)
    for trunk in range(history.size.trunks):
        commits.trunk(trunk, ranges[trunk])
    with state.write_transaction():
        for commit in commits.commits:
            state.put_commit(REPOSITORY, commit)
        for branch, head in commits.heads.items():
            state.put_branch(REPOSITORY, BranchRecord(branch, head))
    branches = sorted(commits.heads)
    staged = np.arange(history.firsts["staged"], history.firsts["garbage"], dtype=np.int64)
    for branch, objects in zip(branches, np.array_split(staged, len(branches)), strict=True):
        paths = [b"~staged/%08d" % number for number in objects.tolist()]
        with state.write_transaction():
            state.stage(REPOSITORY, branch, map(StagedEntry, paths, values(history, objects)))
    set_rules(repository, history.rules)


# --- objects ----------------------------------------------------------------------------------------------------------


def write_objects(history: History, sink: Sink, *, done: Path, only: Numbers | None = None) -> None:
    """Write all objects, or only the given ones, grouped by slice."""
    order, first = np.argsort(history.made, kind="stable"), int(done.read_text()) if done.exists() else 0
    if only is not None:
        order = order[np.isin(order, only)]
    for at in range(first, len(order), _AT_ONCE):
        some = order[at : at + _AT_ONCE]
        keys = [key.decode() for key in names.texts(history.addresses(some))]
        sink.fill(zip(keys, history.sizes(some).tolist(), history.made[some].tolist(), strict=True))
        done.write_text(str(at + _AT_ONCE))


def write_inventory(history: History, folder: Path, prefix: str, there: Store, expired: Numbers) -> None:
    """Write Parquet files of key, size, time and checksum. Expired objects are listed as they are in the store, all
    others as planned, without existing."""
    folder.mkdir(exist_ok=True)
    pages = (page.objects for page in arrow_pages(there, "data/"))
    for number in count():
        if not (some := list(islice(pages, INVENTORY_ROWS // 1000))):
            break
        table = pa.Table.from_batches(some)
        table = table.set_column(0, "key", pc.binary_join_element_wise(prefix, table["address"], ""))
        names_there = ["key", "size", "last_modified", "e_tag"]
        pq.write_table(table.rename_columns(names_there), folder / f"there-{number:05}.parquet")
    order = np.argsort(history.made, kind="stable")
    order = order[np.isin(order, expired, invert=True)]
    for number, at in enumerate(range(0, len(order), INVENTORY_ROWS)):
        some = order[at : at + INVENTORY_ROWS]
        keys = pa.array([f"{prefix}{key.decode()}" for key in names.texts(history.addresses(some))], pa.string())
        modified = pa.array(history.made[some] * 1_000_000, pa.timestamp("us", tz="UTC"))
        checksum = pa.array([text.decode() for text in names.texts(names.checksums(some))], pa.string())
        columns = {"key": keys, "size": pa.array(history.sizes(some)), "last_modified": modified, "e_tag": checksum}
        pq.write_table(pa.table(columns), folder / f"part-{number:05}.parquet")


def known(history: History) -> list[bytes]:
    """The addresses of the expired objects, in order."""
    return sorted(names.texts(history.addresses(expiring(history))))


def expiring(history: History) -> Numbers:
    """The numbers of the expired objects."""
    return np.flatnonzero(history.expired())


# --- all of it --------------------------------------------------------------------------------------------------------


def history_in(folder: Path, size: Size) -> History:
    """The plan of a folder, as of the time when its generation started."""
    file = folder / "plan.json"
    if not file.exists():
        file.write_text(json.dumps({"size": size.name, "now": int(time.time())}))
    plan = json.loads(file.read_text())
    if plan["size"] != size.name:
        raise SystemExit(f"{folder} holds a repository of size {plan['size']}")
    return History(size, plan["now"])


@contextmanager
def built(
    folder: Path, size: Size, store: str, log_message: Callable[[str], None]
) -> Iterator[tuple[Serving, History]]:
    """A served repository of a size. Parts that the folder doesn't have yet are written first."""
    folder.mkdir(parents=True, exist_ok=True)
    history = history_in(folder, size)
    with serving(folder, store) as served:
        steps: dict[str, Callable[[], Any]] = {
            "ranges": lambda: write_ranges(history, served.tables, folder / "ranges"),
            "commits": lambda: _write_all(served, history, folder),
            "objects": lambda: write_stored(served, history, folder, store),
        }
        for name, step in steps.items():
            finished = folder / f"{name}.done"
            if not finished.exists():
                began = time.monotonic()
                step()
                finished.write_text(f"{time.monotonic() - began:.1f}")
                log_message(f"wrote {name} in {finished.read_text()} s")
        yield served, history


def _write_all(served: Serving, history: History, folder: Path) -> None:
    write_state(served.sandbox, history, served.tables, write_ranges(history, served.tables, folder / "ranges"))


def write_stored(served: Serving, history: History, folder: Path, store: str) -> None:
    if store == "inventory":  # only the objects that will be deleted exist
        expired = expiring(history)
        write_objects(history, served.objects, done=folder / "objects.at", only=expired)
        write_inventory(history, folder / "inventory", served.prefix, served.place().store(), expired)
    else:
        write_objects(history, served.objects, done=folder / "objects.at")


def size_of(name: str, factor: float) -> Size:
    return SIZES[name].scaled(factor)


def folder_of(root: Path, size: Size, store: str) -> Path:
    return root / f"{size.name}-{store}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="M")
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--store", choices=STORES, default="s3")
    parser.add_argument("--folder", type=Path, required=True)
    chosen = parser.parse_args()
    size = size_of(chosen.size, chosen.factor)
    with built(folder_of(chosen.folder, size, chosen.store), size, chosen.store, print) as (_, history):
        expired = known(history)
        print(f"{size.objects:,} objects, of which {len(expired):,} expire: " + ", ".join(
            address.decode() for address in islice(expired, 2)) + ", …")  # fmt: skip


if __name__ == "__main__":
    main()
