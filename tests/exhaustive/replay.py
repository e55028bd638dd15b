"""Runs of the model in the sandbox: the same world, the same operations at the same moments, a real mark and sweep.

    uv run python -m tests.exhaustive.replay --runs 200 --seed 7

A moment is a message of lakegc, which stands for the step of the model that follows it. Writers' operations are done by
the sandbox, right when the message comes. What expires and what is deleted must then be the same.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random

from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.progress import listening
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.errors import Refused
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.lakefs_sandbox.staging import DEFAULT_CONTENT_TYPE
from spark_resources.model import AddressType, Rules
from spark_resources.sstable import Entry as StoredEntry
from tests.exhaustive.decisions import key
from tests.exhaustive.explore import Event, Exploration, Scope
from tests.exhaustive.operations import FRESH, HONEST, Operation, Successor, sentence
from tests.exhaustive.play import Outcome, Player
from tests.exhaustive.scenarios import SCENARIOS
from tests.exhaustive.world import (
    BRANCHES,
    FULL,
    LONG_AGO,
    NEW,
    OLD,
    OURS,
    PATHS,
    RULES,
    STORED,
    TOMBSTONE,
    Branch,
    Entry,
    Universe,
    World,
    addresses,
    bit,
)
from tests.support.mark_runs import Marker, Sweeper

CONTENTS = (b"same", b"size", b"another size")
NAMES = ("lake", "other")
MIN_AGE = timedelta(hours=1)
OPERATIONS = tuple(name for name in HONEST if name != "merge")  # a merge of the sandbox looks for a common ancestor
MARK = {
    "mark: begins": "",
    "mark: lists slice 0 of the store": "listing ",
    "mark: staged objects, first reading: the list is requested": "reading staged addresses (first time)",
    "mark: staged objects, second reading: the list is requested": "reading staged addresses (second time)",
    "mark: commits: dump of all commits": "reading the commit graph",
    "mark: commits: the server's list of retained commits": "waiting for the server's list",
    "mark: compares what is stored with what is live": "comparing stored objects",
    "mark: path probes, pass 1: choose paths": "probing branches: ",
    "mark: path probes, pass 2: choose paths": "probing branches once more: ",
    "mark: reads once more": "reading once more: ",
    "mark: holds, at the end": "writing the expired set",
}
SWEEP = {
    "sweep: verifies the mark's files": "",
    "sweep, re-verification: staged objects, first reading: the list is requested": "reading staged addresses (first",
    "sweep, re-verification: staged objects, second reading: the list is requested": "reading staged addresses (second",
    "sweep, re-verification: commits: dump of all commits": "reading the commit graph",
    "sweep, re-verification: commits: the server's list of retained commits": "waiting for the server's list",
    "sweep, re-verification: path probes, pass 1: choose paths": "probing branches: ",
    "sweep, re-verification: path probes, pass 2: choose paths": "probing branches once more: ",
    "sweep, re-verification: reads once more": "reading once more: ",
    "sweep: a round begins": "re-verified: ",
}
"""The steps of the model before which writers come, and the message after which they do so in a real run; those
without a message come before a mark or a sweep."""


# --- the model's side -----------------------------------------------------------------------------------------------


class RandomPlayer(Player):
    """A run with operations of writers, up to a number, at random moments."""

    def __init__(self, exploration: Exploration, rng: Random, most: int) -> None:
        super().__init__(exploration, [])
        self.rng, self.most = rng, most
        self.done: list[tuple[Event, Successor]] = []

    def before(self, name: str) -> None:
        if name not in MARK | SWEEP:
            return
        while len(self.done) < self.most and self.rng.random() < 0.25:
            possible = [each for each in self.exploration.successors(self.world) if self.can_be_done(each.operation)]
            if possible:
                each = self.rng.choice(possible)
                self.done.append((Event(0, name, each.operation), each))
                self.operate(each.operation)

    def can_be_done(self, operation: Operation) -> bool:
        """An import of identical content isn't a stage and a commit, which is how the sandbox does it here."""
        if operation.name != "import_object":
            return True
        universe, (repository, number, path, address) = self.exploration.universe, operation.arguments
        branch = universe.worlds[self.world].repositories[repository].branches[number]
        assert branch is not None
        committed = universe.commits[branch.head].tree[path]
        return committed is None or committed.content != universe.contents[address]


@dataclass(frozen=True)
class ModelRun:
    """One run of the model: what the writers did, and how it ended."""

    scenario: str
    universe: Universe
    start: World
    done: tuple[tuple[Event, Successor], ...]
    outcome: Outcome
    sweep: bool

    def __str__(self) -> str:
        done = "; ".join(f"{sentence(event.what)} before {event.step}" for event, _ in self.done
                         if isinstance(event.what, Operation))  # fmt: skip
        return f"{self.scenario}: {done or 'nothing'}"


def random_run(rng: Random, *, operations: int, sweep: bool) -> ModelRun:
    name = rng.choice(sorted(SCENARIOS))
    exploration = Exploration(SCENARIOS[name], Scope(operations, sweep=sweep, of=OPERATIONS))
    player = RandomPlayer(exploration, rng, operations)
    outcome = player.run()
    start = exploration.universe.worlds[exploration.start]
    return ModelRun(name, exploration.universe, start, tuple(player.done), outcome, sweep)


# --- the sandbox's side ---------------------------------------------------------------------------------------------


class SandboxWorld:
    """The repositories of a sandbox, as in a world of the model."""

    def __init__(self, sandbox: Sandbox, universe: Universe, world: World) -> None:
        self.sandbox, self.universe = sandbox, universe
        self.repositories = [sandbox.create(name) for name in NAMES[: len(world.repositories)]]
        self.commits: dict[tuple[int, int], str] = {}
        for address, kind in enumerate(world.stored):
            if kind in STORED:
                self.write(address, universe.contents[address], kind)
        for number, repository in enumerate(world.repositories):
            for one in sorted(repository.commits):
                self.make(number, one)
            for place, branch in enumerate(repository.branches):
                if branch is not None:
                    self.make_branch(number, place, branch)
        self.write_holds(world.held)
        set_rules(self.lake, Rules(*RULES[world.rules]))

    @property
    def lake(self) -> SandboxRepository:
        return self.repositories[OURS]

    # --- objects ----------------------------------------------------------------------------------------------------

    def write(self, address: int, content: int, kind: int) -> None:
        self.lake.objects.write(key(address), CONTENTS[content])
        if kind == OLD:
            old = (self.sandbox.now() - timedelta(days=3)).timestamp()
            os.utime(self.file(address), (old, old))

    def file(self, address: int) -> Path:
        return self.lake.objects.file(key(address))

    def stage(self, repository: int, branch: str, path: int, entry: Entry | None) -> None:
        target = self.repositories[repository]
        if entry is None:
            return
        if entry == TOMBSTONE:
            target.delete(branch, [PATHS[path]])
        elif entry.address < 0:
            target.put(branch, PATHS[path], CONTENTS[entry.content])
        else:
            target.stage(branch, [self.stored_entry(path, entry)])

    def stored_entry(self, path: int, entry: Entry) -> StoredEntry:
        data = CONTENTS[entry.content]
        full = f"local://{self.sandbox.local_path}/lake/{key(entry.address)}"
        return StoredEntry(
            path=PATHS[path].encode(),
            address=full if entry.spelling == FULL else key(entry.address),
            address_type=AddressType.FULL if entry.spelling == FULL else AddressType.RELATIVE,
            size=len(data),
            checksum=hashlib.md5(data, usedforsecurity=False).hexdigest(),
            last_modified=self.sandbox.now(),
            content_type=DEFAULT_CONTENT_TYPE,
        )

    # --- commits ----------------------------------------------------------------------------------------------------

    def make(self, repository: int, number: int) -> None:
        """A commit with its tree and date, on a branch of its own that is deleted again."""
        target, commit = self.repositories[repository], self.universe.commits[number]
        parents = [self.commits[repository, one] for one in commit.parents] or ["main"]
        before = self.universe.commits[commit.parents[0]].tree if commit.parents else (None,) * len(PATHS)
        target.create_branch("making", parents[0])
        for path, entry in enumerate(commit.tree):
            if entry != before[path]:
                self.stage(repository, "making", path, TOMBSTONE if entry is None else entry)
        date = self.sandbox.now() - (timedelta(days=30) if commit.date == LONG_AGO else timedelta(hours=1))
        made = target.commit("making", f"commit {number}", date=date, allow_empty=True)
        self.commits[repository, number] = made.id
        target.delete_branch("making")

    def make_branch(self, repository: int, place: int, branch: Branch) -> None:
        target, name, head = self.repositories[repository], self.branch(repository, place), branch.head
        if place:
            target.create_branch(name, self.commits[repository, head])
        else:
            target.hard_reset(name, self.commits[repository, head])
        for path, entry in enumerate(branch.staged):
            self.stage(repository, name, path, entry)

    @staticmethod
    def branch(repository: int, place: int) -> str:
        return BRANCHES[repository][place].removeprefix("other/")

    def write_holds(self, held: int) -> None:
        lines = ['  - {id: tagged, tags: "*", owner: a, reason: b}']
        lines += [f"  - {{id: h{one}, prefix: {key(one)}, owner: a, reason: b}}" for one in addresses(held)]
        file = self.lake.objects.file("_lakefs/retention/gc/lakegc/holds.yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["holds:", *lines]))

    # --- operations -------------------------------------------------------------------------------------------------

    def do(self, operation: Operation, after: World) -> None:
        """Do what the model did; `after` is its world then."""
        name, arguments = operation
        if name in ("change_rules", "add_hold", "tag", "overwrite", "complete_old_upload", "sweep_by_another_tool"):
            getattr(self, name)(*arguments, after)
            return
        repository, place, *more = arguments
        method = self.stage_object if name == "stage" else getattr(self, name)
        method(repository, self.branch(repository, place), *more)
        made = after.repositories[repository].branches[place]
        if made is not None:
            head = next(one.commit_id for one in self.repositories[repository].branches(hidden=True)
                        if one.id == self.branch(repository, place))  # fmt: skip
            self.commits[repository, made.head] = head

    def upload(self, repository: int, branch: str, path: int, content: int) -> None:
        self.stage(repository, branch, path, Entry(-1, content))

    def stage_object(self, repository: int, branch: str, path: int, address: int, spelling: int = FULL) -> None:
        self.stage(repository, branch, path, Entry(address, self.universe.contents[address], spelling))

    def delete(self, repository: int, branch: str, path: int) -> None:
        self.repositories[repository].delete(branch, [PATHS[path]])

    def move(self, repository: int, branch: str, path: int, to: int, place: int, to_path: int, address: int) -> None:
        entry = self.repositories[repository].stat(branch, PATHS[path])
        content = next(number for number, data in enumerate(CONTENTS)
                       if hashlib.md5(data, usedforsecurity=False).hexdigest() == entry.checksum)  # fmt: skip
        spelling = FULL if to != repository or entry.address_type is AddressType.FULL else 0
        self.stage(to, self.branch(to, place), to_path, Entry(address, content, spelling))
        self.delete(repository, branch, path)

    def commit(self, repository: int, branch: str) -> None:
        self.repositories[repository].commit(branch, "during the run")

    def import_object(self, repository: int, branch: str, path: int, address: int) -> None:
        """Here, what was staged and held to be no change is dropped by the commit, as by an import."""
        self.repositories[repository].reset(branch)
        self.stage_object(repository, branch, path, address)
        self.repositories[repository].commit(branch, "an import")

    def reset(self, repository: int, branch: str) -> None:
        self.repositories[repository].reset(branch)

    def create_branch(self, repository: int, branch: str, commit: int) -> None:
        self.repositories[repository].create_branch(branch, self.commits[repository, commit])

    def delete_branch(self, repository: int, branch: str) -> None:
        self.repositories[repository].delete_branch(branch)

    def hard_reset(self, repository: int, branch: str, commit: int) -> None:
        self.repositories[repository].hard_reset(branch, self.commits[repository, commit])

    def revert(self, repository: int, branch: str) -> None:
        self.repositories[repository].revert(branch, branch, allow_empty=True)

    def change_rules(self, number: int, after: World) -> None:
        set_rules(self.lake, Rules(*RULES[number]))

    def add_hold(self, address: int, after: World) -> None:
        self.write_holds(after.held)

    def tag(self, commit: int, after: World) -> None:
        if any(name == "held" for name, _ in self.lake.tags()):
            self.lake.delete_tag("held")
        self.lake.create_tag("held", self.commits[OURS, commit])

    def overwrite(self, address: int, after: World) -> None:
        self.write(address, FRESH, NEW)
        self.stage(OURS, "main", 0, Entry(address, FRESH))

    def complete_old_upload(self, address: int, path: int, after: World) -> None:
        self.write(address, self.universe.contents[address], OLD)
        self.stage_object(OURS, "main", path, address, spelling=0)

    def sweep_by_another_tool(self, address: int, after: World) -> None:
        self.file(address).unlink()


# --- both -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealRun:
    """How a real run ended: as `Outcome`. `left` are the events whose moment never came."""

    expired: int | None
    stored: int
    left: int


def real_run(run: ModelRun, folder: Path) -> RealRun:
    with Sandbox(folder) as sandbox:
        there = SandboxWorld(sandbox, run.universe, run.start)
        script = Script(there, run)
        expired, settings = None, sandbox.settings
        script.now("mark: begins")
        try:
            with script.listening(MARK):
                marked = Marker().mark(settings, "lake", "m1", MarkOptions(min_age=MIN_AGE, allow_young=True))
            numbers = {key(one): one for one in range(len(run.start.stored))}
            expired = sum(bit(numbers[one]) for one in marked.expired if one in numbers)
            if run.sweep and expired:
                Sweeper().approve(settings, "lake", "m1")
                script.now("sweep: verifies the mark's files")
                with script.listening(SWEEP):
                    Sweeper().sweep(settings, "lake", "m1", SweepOptions())
        except Refused:
            pass
        stored = sum(bit(one) for one in range(len(run.start.stored)) if there.file(one).exists())
        return RealRun(expired, stored, len(script.waiting))


class Script:
    """The operations of a run of the model, each waiting for its moment."""

    def __init__(self, there: SandboxWorld, run: ModelRun) -> None:
        self.there, self.run, self.waiting = there, run, list(run.done)

    def now(self, step: str) -> None:
        while self.waiting and self.waiting[0][0].step == step:
            event, each = self.waiting.pop(0)
            assert isinstance(event.what, Operation)
            self.there.do(event.what, self.run.universe.worlds[each.world])

    @contextmanager
    def listening(self, moments: dict[str, str]) -> Iterator[None]:
        def listen(message: str) -> None:
            for step, words in moments.items():
                if words and message.startswith(words):
                    self.now(step)

        with listening(listen):
            yield


def difference(run: ModelRun, real: RealRun) -> str:
    """How a real run ended otherwise than the model; "" if it didn't."""
    assert run.outcome.world is not None
    stored = sum(bit(one) for one, kind in enumerate(run.outcome.world.stored) if kind in STORED)
    if run.outcome.expired != real.expired:
        return f"the model expires {run.outcome.expired}, the mark {real.expired}"
    if stored != real.stored:
        return f"after the model's sweep {stored:b} are stored, after the real one {real.stored:b}"
    return ""


def compared(seed: int, *, operations: int, sweep: bool) -> tuple[ModelRun, RealRun, str]:
    run = random_run(Random(seed), operations=operations, sweep=sweep)
    with tempfile.TemporaryDirectory() as folder:
        real = real_run(run, Path(folder))
    return run, real, "" if real.left else difference(run, real)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.exhaustive.replay", description="The model against the sandbox.")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operations", type=int, default=3)
    options = parser.parse_args(arguments)
    wrong = unfinished = 0
    began = time.monotonic()
    for number in range(options.runs):
        run, real, why = compared(
            options.seed * 100_000 + number, operations=options.operations, sweep=bool(number % 2)
        )
        wrong, unfinished = wrong + bool(why), unfinished + bool(real.left)
        state = why or ("a moment never came" if real.left else "agree")
        print(f"{number} ({time.monotonic() - began:.0f} s) {run}: {state}", flush=True)
    print(f"{options.runs} runs, {unfinished} in which a moment never came, {wrong} that differ")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
