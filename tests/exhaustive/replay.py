"""Runs of the model in the sandbox: the same world, the same operations at the same moments, a real mark and sweep.

    uv run python -m tests.exhaustive.replay --runs 200 --seed 7

A moment is a message of lakegc, which stands for the step of the model that follows it. Writers' operations are done by
the sandbox as soon as the message arrives. A fault is a wrong response to one request, sent by a server in between; or
files that are hidden while lakegc lists the store; or the end of a sweep, which is then resumed. The expired and the
deleted objects must then be the same as in the model.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from starlette.responses import Response

from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.progress import listening
from lakegc_assets.rules.brakes import unread_repositories_in
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.errors import LakegcError
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.lakefs_sandbox.staging import DEFAULT_CONTENT_TYPE
from spark_resources.model import AddressType, Rules
from spark_resources.sstable import Entry as StoredEntry
from tests.exhaustive import faulty_server
from tests.exhaustive.decisions import folder, key
from tests.exhaustive.explore import Event, Exploration, Scope
from tests.exhaustive.faulty_server import (
    LIST,
    REPOSITORIES,
    Asked,
    FaultyServer,
    Nth,
    WrongAnswer,
    asked_by,
    no_branch,
    part_of,
    refused,
)
from tests.exhaustive.operations import FRESH, Operation, Successor, sentence
from tests.exhaustive.play import Outcome, Player
from tests.exhaustive.program import Step, Wrong
from tests.exhaustive.scenarios import SCENARIOS, Scenario
from tests.exhaustive.server import Answer, Question
from tests.exhaustive.world import (
    BRANCHES,
    FULL,
    LONG_AGO,
    NEW,
    OLD,
    OTHER,
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

MOST_TRIED = 400  # runs of the model, which include some with each kind of fault
CONTENTS = (b"same", b"size", b"another size")
OPTIONS = MarkOptions(min_age=timedelta(hours=1), allow_young=True)
BASE, MARKED = "base", "m1"  # the ids of marks
SINCE = timedelta(days=30)  # before a run: when old objects were written and an incremental mark's base was made
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
INCREMENTAL_MARK = {
    "mark: heads, before the listing": "searching for changes",
    "mark: lists slice 1 of the store": "listing ",
    **{step: words for step, words in MARK.items() if step != "mark: lists slice 0 of the store"},
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
LIKELY = {
    "swallowed error": 0.01,
    "truncated list": 0.1,
    "stale listing": 0.1,
    "unreadable": 0.05,
    "503": 0.1,
    "killed task": 0.6,
}
"""How likely a fault is where it can be: more for those that have few chances; one in fifty for others."""


# --- the model's side -----------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """A fault at a step. `at` is the request that it affects, or None for a fault that affects no request. `sweep` says
    whose request it is."""

    step: str
    what: Wrong
    question: Question
    sweep: bool
    at: Nth | None

    @property
    def kind(self) -> tuple[str, str]:
        """The name of the fault, and the kind of its request."""
        return self.what.fault, "" if self.at is None else self.at.asked.kind

    @property
    def is_lasting(self) -> bool:
        """Whether the other repository can no longer be read after it."""
        at_the_other = self.at is not None and self.at.asked.repository == OTHER
        return at_the_other and (self.what.fault == "unreadable" or self.is_unreadable_diff)

    @property
    def is_unreadable_diff(self) -> bool:
        return self.what.fault == "swallowed error" and self.question[0] == "change"


class RandomPlayer(Player):
    """A run with operations of writers and with faults, up to a number of each, at random moments."""

    def __init__(self, exploration: Exploration, rng: Random, most: int, faults: int = 0) -> None:
        super().__init__(exploration, [])
        self.rng, self.most, self.most_faults = rng, most, faults
        self.done: list[tuple[Event, Successor | Fault]] = []
        self.faults: list[Fault] = []
        self.counted: Counter[Asked] = Counter()
        self.asked: list[Counter[Asked]] = []

    def before(self, name: str) -> None:
        if name in ("sweep: verifies the mark's files", "sweep: a round begins"):
            self.asked.append(Counter(self.counted))
        if name == "sweep: verifies the mark's files":
            self.counted.clear()
        moments = SWEEP | (INCREMENTAL_MARK if self.exploration.scope.mark == "incremental" else MARK)
        if name not in moments or self.memory.repeats or self.probes_nothing(name):
            return
        while self.operations < self.most and self.rng.random() < 0.25:
            successors = self.exploration.successors(self.world)
            possible = [successor for successor in successors if self.can_be_done(successor.operation)]
            if possible:
                chosen = self.rng.choice(possible)
                self.done.append((Event(0, name, chosen.operation), chosen))
                self.operate(chosen.operation)

    def probes_nothing(self, name: str) -> bool:
        """Whether this is the beginning of probes of which there are none, which no message announces."""
        collector = self.exploration.collector
        return name.endswith(": choose paths") and not collector.value(collector.choose_paths(self.memory)[0].probes)

    @property
    def operations(self) -> int:
        return len(self.done) - len(self.faults)

    def can_be_done(self, operation: Operation) -> bool:
        """Whether the sandbox can do it as the model does: it imports by a stage and a commit, which would make an
        import of identical content no change. Nobody changes a repository that can't be read."""
        places = (*operation.arguments[:1], *operation.arguments[3:4])
        if OTHER in places and any(fault.is_lasting for fault in self.faults):
            return False
        if operation.name != "import_object":
            return True
        universe, (repository, number, path, address) = self.exploration.universe, operation.arguments
        branch = universe.worlds[self.world].repositories[repository].branches[number]
        assert branch is not None
        committed = universe.commits[branch.head].tree[path]
        return committed is None or committed.content != universe.contents[address]

    # --- faults -----------------------------------------------------------------------------------------------------

    def answered(self, step: Step, question: Question, answer: Answer) -> Answer:
        begun = asked_by(step.name, question)
        if begun is not None:
            self.counted[begun] += 1
        if len(self.faults) < self.most_faults:
            for wrong in step.wrong(self.memory, answer):
                fault = self.fault(step, question, wrong)
                if self.can_happen(fault) and self.rng.random() < LIKELY.get(wrong.fault, 0.02):
                    self.faults.append(fault)
                    self.done.append((Event(0, step.name, wrong.sentence), fault))
                    return wrong.answer
        return answer

    def fault(self, step: Step, question: Question, what: Wrong) -> Fault:
        part = part_of(step.name, question)
        at = None if part is None else Nth(part, self.counted[part])
        return Fault(step.name, what, question, step.name.startswith("sweep"), at)

    def can_happen(self, fault: Fault) -> bool:
        """Whether the fault can be made to happen in a real run, at exactly this request."""
        if fault.what.fault == "killed task":
            return not self.outcome.deleted and fault.question[0] == "absence"
        if fault.question[0] == "listing":
            return fault.what.fault == "truncated list"
        if fault.at is None or not fault.step.startswith(("mark", "sweep, re-verification")):
            return False
        return fault.what.fault != "503" or self.is_last_probed(fault.question)

    def is_last_probed(self, question: Question) -> bool:
        """After a branch that sent no response, a task doesn't probe later ones of its repository."""
        _, repository, branch, _ = question
        probes = self.exploration.collector.value(self.memory.probes)
        return all(at != repository or BRANCHES[at][number] <= BRANCHES[at][branch] for at, number, _ in probes)


@dataclass(frozen=True)
class ModelRun:
    """One run of the model: the operations of writers and the faults, in order, and how it ended. `asked` has the
    requests of its mark, or those of each re-verification and what came before it in its sweep."""

    scenario: str
    universe: Universe
    start: World
    done: tuple[tuple[Event, Successor | Fault], ...]
    outcome: Outcome
    incremental: bool
    sweep: bool
    asked: list[Counter[Asked]]

    def __str__(self) -> str:
        done = "; ".join(f"{sentence(event.what)} before {event.step}" if isinstance(event.what, Operation)
                         else f"{event.what} at {event.step}" for event, _ in self.done)  # fmt: skip
        return f"{self.scenario}{', incremental' if self.incremental else ''}: {done or 'nothing'}"

    @property
    def faults(self) -> list[Fault]:
        return [what for _, what in self.done if isinstance(what, Fault)]


@cache
def with_garbage() -> list[str]:
    """The scenarios in which something expires if nothing happens."""
    scope = Scope(0, sweep=False)
    return [name for name in sorted(SCENARIOS) if Player(Exploration(SCENARIOS[name], scope), []).run().expired]


def random_run(rng: Random, *, operations: int, sweep: bool, faults: int, incremental: bool) -> ModelRun:
    name = rng.choice(with_garbage() if sweep and rng.random() < 0.7 else sorted(SCENARIOS))
    return random_run_of(
        SCENARIOS[name], rng, operations=operations, sweep=sweep, faults=faults, incremental=incremental
    )


def random_run_of(
    scenario: Scenario, rng: Random, *, operations: int, sweep: bool, faults: int = 0, incremental: bool = False
) -> ModelRun:  # fmt: skip
    scenario = replace(scenario, recorded=0)  # no earlier mark has read the other repository
    mark = "incremental" if incremental else "full"
    exploration = Exploration(scenario, Scope(operations, faults, mark, sweep))
    player = RandomPlayer(exploration, rng, operations, faults)
    outcome = player.run()
    start = exploration.universe.worlds[exploration.start]
    return ModelRun(
        scenario.name, exploration.universe, start, tuple(player.done), outcome, incremental, sweep, player.asked
    )  # fmt: skip


# --- the sandbox's side ---------------------------------------------------------------------------------------------


class SandboxWorld:
    """The repositories of a sandbox, as in a world of the model."""

    def __init__(
        self, sandbox: Sandbox, universe: Universe, world: World, base: Callable[[], object] | None = None
    ) -> None:  # fmt: skip
        """`base` makes a mark when only the old part of the world exists."""
        self.sandbox, self.universe, self.now = sandbox, universe, sandbox.now()
        if base is not None:
            sandbox.set_clock(self.now - SINCE)
        self.repositories = [sandbox.create(name) for name in REPOSITORIES[: len(world.repositories)]]
        self.commits: dict[tuple[int, int], str] = {}
        for address, kind in enumerate(world.stored):
            if kind == OLD:
                self.write(address, universe.contents[address], OLD)
        set_rules(self.lake, Rules(*RULES[world.rules]))
        self.make_all(world, {LONG_AGO})
        if base is not None:
            base()
            sandbox.set_clock(None)
        for address, kind in enumerate(world.stored):
            if kind == NEW:
                self.write(address, universe.contents[address], NEW)
        self.make_all(world, {commit.date for commit in universe.commits} - {LONG_AGO})
        for number, repository in enumerate(world.repositories):
            for place, branch in enumerate(repository.branches):
                if branch is not None:
                    self.make_branch(number, place, branch)
        self.write_holds(world.held)

    @property
    def lake(self) -> SandboxRepository:
        return self.repositories[OURS]

    # --- objects ----------------------------------------------------------------------------------------------------

    def write(self, address: int, content: int, kind: int) -> None:
        self.lake.objects.write(key(address), CONTENTS[content])
        if kind == OLD:
            old = (self.now - SINCE - timedelta(days=1)).timestamp()
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

    def make_all(self, world: World, dates: set[int]) -> None:
        for number, repository in enumerate(world.repositories):
            for commit in sorted(repository.commits):
                if self.universe.commits[commit].date in dates:
                    self.make(number, commit)

    def make(self, repository: int, number: int) -> None:
        """Make a commit with its tree and date, on a temporary branch."""
        target, commit = self.repositories[repository], self.universe.commits[number]
        parents = [self.commits[repository, parent] for parent in commit.parents] or ["main"]
        before = self.universe.commits[commit.parents[0]].tree if commit.parents else (None,) * len(PATHS)
        target.create_branch("making", parents[0])
        for path, entry in enumerate(commit.tree):
            if entry != before[path]:
                self.stage(repository, "making", path, TOMBSTONE if entry is None else entry)
        date = self.now - (SINCE if commit.date == LONG_AGO else timedelta(hours=1))
        new_commit = target.commit("making", f"commit {number}", date=date, allow_empty=True)
        self.commits[repository, number] = new_commit.id
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
        lines += [f"  - {{id: h{address}, prefix: {key(address)}, owner: a, reason: b}}" for address in addresses(held)]
        file = self.lake.objects.file("_lakefs/retention/gc/lakegc/holds.yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["holds:", *lines]))

    # --- operations -------------------------------------------------------------------------------------------------

    def do(self, operation: Operation, after: World) -> None:
        """Do what the model did. `after` is the model's world afterwards."""
        name, arguments = operation
        if name in ("change_rules", "add_hold", "tag", "overwrite", "complete_old_upload", "sweep_by_another_tool"):
            getattr(self, name)(*arguments, after)
            return
        repository, place, *more = arguments
        method = self.stage_object if name == "stage" else getattr(self, name)
        method(repository, self.branch(repository, place), *more)
        place = more[0] if name == "merge" else place
        branch_state = after.repositories[repository].branches[place]
        if branch_state is not None:
            head = next(branch.commit_id for branch in self.repositories[repository].branches(include_hidden=True)
                        if branch.id == self.branch(repository, place))  # fmt: skip
            self.commits[repository, branch_state.head] = head

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
        """Import an object. Staged entries that count as no change are dropped by the commit here, as by an import."""
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
        self.repositories[repository].revert(branch, branch, parent_number=1, allow_empty=True)

    def merge(self, repository: int, branch: str, into: int) -> None:
        self.repositories[repository].merge(branch, self.branch(repository, into), strategy="source-wins")

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

    # --- faults -----------------------------------------------------------------------------------------------------

    def wrong_answer(self, fault: Fault) -> WrongAnswer:
        """The server's wrong response."""
        assert fault.at is not None
        if fault.is_lasting:
            return self.unreadable
        kind = fault.what.fault
        if kind == "stale listing":
            return partial(self.stale_heads, fault)
        if kind == "swallowed error" and fault.at.asked.kind == LIST:
            return partial(self.ending_list, *fault.question[1:])
        if kind == "swallowed error":
            return refused(500, "internal server error: staging record can't be decoded")
        return {"empty list": faulty_server.empty_list, "404": no_branch, "503": refused(503, "slow down")}[kind]

    def stale_heads(self, fault: Fault, right: Callable[[], Response]) -> Response:
        """Branches as they were before the last operation."""
        assert fault.at is not None
        repository = fault.at.asked.repository
        known = {self.branch(repository, place): self.commits[repository, head]
                 for place, head in enumerate(fault.what.answer) if head >= 0}  # fmt: skip
        return faulty_server.with_heads(known, right())

    def ending_list(self, branch: int, path: int, right: Callable[[], Response]) -> Response:
        """The list of a server that can't read what is staged on a branch from a path onwards."""
        self.sandbox.faults.unreadable_records = [(self.branch(OURS, branch), name) for name in PATHS[path:]]
        try:
            return right()
        finally:
            self.sandbox.faults.unreadable_records = ()

    def unreadable(self, right: Callable[[], Response]) -> Response:
        """Make the other repository unreadable, on the server or in the store."""
        self.sandbox.fail(REPOSITORIES[OTHER], 403)
        root = self.repositories[OTHER].objects.file("")
        root.rename(root.with_name("hidden"))
        return refused(403, "not allowed")(right)

    def readable(self) -> None:
        """Make the other repository readable again, if there is one."""
        if len(self.repositories) > 1:
            self.sandbox.fail(REPOSITORIES[OTHER], None)
            root = self.repositories[OTHER].objects.file("")
            if (hidden := root.with_name("hidden")).exists():
                hidden.rename(root)

    @contextmanager
    def without_slice(self, number: int) -> Iterator[None]:
        """Hide the objects of a slice."""
        there, hidden = self.lake.objects.file(folder(number)), self.lake.objects.file("hidden")
        if not there.exists():
            yield
            return
        there.rename(hidden)
        try:
            yield
        finally:
            hidden.rename(there)


# --- both -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealRun:
    """The end of a real run, in the form of `Outcome`. `left` are the events whose moment never came; `asked` as in
    `ModelRun`."""

    expired: int | None
    stored: int
    left: list[str]
    asked: list[Counter[Asked]]


class Killed(BaseException):
    """Ends a sweep as a signal would: none of lakegc's code catches it."""


def real_run(run: ModelRun, where: Path) -> RealRun:
    with Sandbox(where) as sandbox, faulty_server.faulty_server(sandbox.endpoint_url) as server:
        settings = {**sandbox.settings, "endpoint_url": server.endpoint, "retry_total_s": "0", "full_every": "100"}
        base = partial(Marker().mark, settings, REPOSITORIES[OURS], BASE, OPTIONS)
        there = SandboxWorld(sandbox, run.universe, run.start, base if run.incremental else None)
        script = Script(there, run, server)
        expired = None
        try:
            expired, may_be_swept = marked(run, script, settings)
            if run.sweep and expired and may_be_swept:
                swept(script, settings)
        except LakegcError:
            pass
        stored = sum(bit(address) for address in range(len(run.start.stored)) if there.file(address).exists())
        unused = [event.step for event, _ in script.waiting] + [str(request) for request in server.planned]
        return RealRun(expired, stored, unused, script.asked)


def marked(run: ModelRun, script: Script, settings: dict[str, str]) -> tuple[int, bool]:
    """The expired objects of a mark, and whether it is approved, which it isn't if a repository is unread."""
    script.begin(sweep=False)
    script.now("mark: begins")
    options = replace(OPTIONS, since=BASE) if run.incremental else OPTIONS
    try:
        with script.listening(INCREMENTAL_MARK if run.incremental else MARK):
            mark = Marker().mark(settings, REPOSITORIES[OURS], MARKED, options)
    finally:
        script.there.readable()
    assert mark.record.is_incremental == run.incremental, mark.record.basis
    numbers = {key(address): address for address in range(len(run.start.stored))}
    expired = sum(bit(numbers[expired_key]) for expired_key in mark.expired if expired_key in numbers)
    return expired, not unread_repositories_in(mark.record)


def swept(script: Script, settings: dict[str, str]) -> None:
    """A sweep, which is resumed if it is killed."""
    lake = REPOSITORIES[OURS]
    Sweeper().approve(settings, lake, MARKED)
    script.begin(sweep=True)
    script.now("sweep: verifies the mark's files")
    with script.listening(SWEEP):
        for _ in range(2):
            try:
                Sweeper().sweep(settings, lake, MARKED, SweepOptions())
                return
            except Killed:
                pass
            finally:
                script.there.readable()


class Script:
    """The operations and faults of a run of the model, each waiting for its moment; wrong responses wait for their
    request instead."""

    def __init__(self, there: SandboxWorld, run: ModelRun, server: FaultyServer) -> None:
        self.there, self.run, self.server = there, run, server
        self.waiting = [event for event in run.done if not isinstance(event[1], Fault) or event[1].at is None]
        self.asked: list[Counter[Asked]] = []
        self._hidden = ExitStack()

    def begin(self, *, sweep: bool) -> None:
        """Begin to count the requests of a mark or sweep."""
        if sweep:
            self.asked.append(Counter(self.server.counted))
        self.server.begin()
        for fault in self.run.faults:
            if fault.at is not None and fault.sweep == sweep:
                self.server.planned[fault.at] = self.there.wrong_answer(fault)

    def now(self, step: str) -> None:
        if step == "sweep: a round begins":
            self.asked.append(Counter(self.server.counted))
        self._hidden.close()
        while self.waiting and self.step_of(self.waiting[0]) == step:
            event, change = self.waiting.pop(0)
            if isinstance(change, Successor):
                assert isinstance(event.what, Operation)
                self.there.do(event.what, self.run.universe.worlds[change.world])
            elif change.what.fault == "killed task":
                raise Killed
            else:
                self._hidden.enter_context(self.there.without_slice(change.question[1]))

    def step_of(self, waiting: tuple[Event, Successor | Fault]) -> str:
        """The step at whose moment something happens."""
        event, what = waiting
        if isinstance(what, Successor):
            return event.step
        slices = "mark: lists slice 1 of the store" if self.run.incremental else "mark: lists slice 0 of the store"
        return "sweep: a round begins" if what.sweep else slices

    @contextmanager
    def listening(self, moments: dict[str, str]) -> Iterator[None]:
        def listen(message: str) -> None:
            for step, words in moments.items():
                if words and message.startswith(words):
                    self.now(step)

        with listening(listen), self._hidden:
            yield


def difference(run: ModelRun, real: RealRun) -> str:
    """How the end of a real run differs from the model's; "" if it doesn't."""
    assert run.outcome.world is not None
    stored = sum(bit(address) for address, kind in enumerate(run.outcome.world.stored) if kind in STORED)
    if run.outcome.expired != real.expired:
        return f"the model expires {run.outcome.expired}, the mark {real.expired}"
    if stored != real.stored:
        return f"after the model's sweep {stored:b} are stored, after the real one {real.stored:b}"
    return ""


def random_runs(seed: int, number: int, *, operations: int = 2, faults: int = 1) -> Iterator[ModelRun]:
    """Runs of the model, with full and incremental marks, every second one with a sweep."""
    for run_seed in range(seed, seed + number):
        yield random_run(
            Random(run_seed),
            operations=operations,
            faults=faults,
            sweep=run_seed % 2 == 1,
            incremental=run_seed % 4 > 1,
        )


def varied_runs(number: int) -> Iterator[ModelRun]:
    """A few runs, each with a different kind of fault."""
    kinds = set[tuple[str, str]]()
    for run in random_runs(0, MOST_TRIED):
        kinds_of_run = {fault.kind for fault in run.faults} - kinds
        if kinds_of_run:
            kinds |= kinds_of_run
            yield run
        if len(kinds) >= number:
            return


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.exhaustive.replay", description="The model against the sandbox.")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operations", type=int, default=2)
    parser.add_argument("--faults", type=int, default=1)
    options = parser.parse_args(arguments)
    wrong = unfinished = 0
    began = time.monotonic()
    runs = random_runs(options.seed * 100_000, options.runs, operations=options.operations, faults=options.faults)
    for number, run in enumerate(runs):
        with tempfile.TemporaryDirectory() as where:
            real = real_run(run, Path(where))
        why = "" if real.left else difference(run, real)
        wrong, unfinished = wrong + bool(why), unfinished + bool(real.left)
        state = why or (f"this moment never came: {real.left[0]}" if real.left else "agree")
        print(f"{number} ({time.monotonic() - began:.0f} s) {run}: {state}", flush=True)
    print(f"{options.runs} runs, {unfinished} in which a moment never came, {wrong} that differ")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
