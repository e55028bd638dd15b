"""The search: every interleaving of writers and faults with the steps of a mark and a sweep, up to a number of each.

    uv run python -m tests.exhaustive.explore --operations 2 --faults 1
    uv run python -m tests.exhaustive.explore --operations 3 --scenario "identical content" --processes 2
    uv run python -m tests.exhaustive.explore --operations 3 --faults 1 --minutes 30 --processes 2

It goes by the number of events: first everything that happens without any, then with one, and so on, so the first loss
that is found has the fewest events. States that were seen are not gone through again; only their hashes are kept (64
bits: among ten million states, one in half a million explorations would confuse two).

An operation right before a question matters only if it changes the answer, alone or by what it makes possible;
otherwise the same states come about when it happens after the question. So only those are tried there.

What takes too long as a whole is explored for a given time: each first event in turn, in random order, with everything
that can follow it. The number of those that are done says how far that is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pool
from random import Random
from typing import NamedTuple

from tests.exhaustive.collector import Collector
from tests.exhaustive.decisions import Read
from tests.exhaustive.invisible import LOST, judge_delete, judge_mark
from tests.exhaustive.memory import Memory, Since
from tests.exhaustive.operations import HONEST, Operation, Successor, successors
from tests.exhaustive.program import NEXT, STOPPED, Step
from tests.exhaustive.scenarios import SCENARIOS, Scenario
from tests.exhaustive.server import Answer, Question, Server
from tests.exhaustive.world import BITS, DELETED, OURS, bit

FAULTS = (
    "empty list", "truncated list", "swallowed error", "404", "503", "stale listing", "lost answer", "killed task",
    "delay", "unreadable", "altered mark", "forged base",
)  # fmt: skip
MOST_SEEN = 20_000_000
"""States that an exploration for a given time remembers in each process, in about 2 GB; then it forgets them all."""


class Event(NamedTuple):
    """An operation or a fault, at a step: `before` is the number of steps that were taken before it."""

    before: int
    step: str
    what: Operation | str


@dataclass(frozen=True)
class Loss:
    """A lost object, and the events that lost it. `at` is the step at which it is lost."""

    scenario: str
    objects: int
    events: tuple[Event, ...]
    at: str
    steps: int
    without: frozenset[str]


@dataclass(frozen=True)
class Scope:
    """What is explored: a mark, a sweep or both in one, and how many events of which kinds."""

    operations: int
    faults: int = 0
    mark: str = "full"
    sweep: bool = True
    of: tuple[str, ...] = HONEST
    kinds: tuple[str, ...] = FAULTS
    dump: bool = True


@dataclass
class Found:
    states: int = 0
    worlds: int = 0
    seconds: float = 0.0
    losses: list[Loss] = field(default_factory=list)
    excused: Counter[str] = field(default_factory=Counter)  # deletes of live objects, by what is `invisible` in them


History = tuple["History", Event] | None
State = tuple[int, int, Memory, int, int, History, int]
"""World, position in the program, memory, operations and faults so far, what happened, and the steps taken."""


class Exploration:
    """The search through everything that can happen in one scenario."""

    def __init__(
        self, scenario: Scenario, scope: Scope, without: Collection[str] = (), *, everywhere: bool = False
    ) -> None:  # fmt: skip
        """`everywhere`: try each operation before each request, even if it can't change the response."""
        self.scenario, self.scope, self.without, self.everywhere = scenario, scope, frozenset(without), everywhere
        self.universe, world = scenario.build()
        self.start = self.universe.world(world)
        self.server = Server(self.universe)
        self.collector = Collector(
            self.server, mark=scope.mark, sweep=scope.sweep, without=without, dump=scope.dump,
            recorded=scenario.recorded,
        )  # fmt: skip
        self.found = Found()
        self._seen: set[int] = set()
        self._successors: dict[int, list[Successor]] = {}
        self._relevant: dict[tuple[Question, int, int], list[Successor]] = {}
        self._after_delete: dict[tuple[int, int], int] = {}

    def run(self, progress: Callable[[Found, int], None] | None = None, *, first: bool = True) -> Found:
        """Explore. `first`: end with the first number of events at which something is lost."""
        began = time.monotonic()
        layer: list[State] = [(self.start, 0, self.beginning(), 0, 0, None, 0)]
        for events in range(self.scope.operations + self.scope.faults + 1):
            following: list[State] = []
            for number, state in enumerate(layer):
                self.follow(state, following)
                if progress is not None and number % 4096 == 0:
                    self.found.seconds = time.monotonic() - began
                    progress(self.found, events)
            if first and self.found.losses:
                break
            layer = following
        self.found.losses.sort(key=lambda loss: (len(loss.events), loss.steps))
        self.found.seconds, self.found.worlds = time.monotonic() - began, len(self.universe.worlds)
        return self.found

    def first_events(self) -> list[State]:
        """The states right after each first event."""
        states: list[State] = []
        self.follow((self.start, 0, self.beginning(), 0, 0, None, 0), states)
        return states

    def run_from(self, state: State) -> None:
        """Explore everything that follows a state, depth first: apart from the states seen, little has to be
        remembered."""
        waiting = [state]
        while waiting:
            self.follow(waiting.pop(), waiting)

    @property
    def seen(self) -> int:
        """The number of states that are remembered."""
        return len(self._seen)

    def forget(self) -> None:
        """Forget the states that were seen. If they come about again, they count again."""
        self._seen.clear()

    def beginning(self) -> Memory:
        """A sweep alone begins with what a mark of the quiet world expired."""
        if self.scope.mark:
            return Memory()
        heads, tags = (self.server.answer(question, self.start) for question in (("branches", OURS), ("tags",)))
        dumped, listed = (self.server.answer((kind,), self.start) for kind in ("dump", "server_list"))
        world = self.universe.worlds[self.start]
        read = Read(heads, dumped, listed, heads, frozenset({tags} - {-1}), world.rules)
        retained = self.collector.retention.decide(read).retained
        proven = frozenset(self.universe.commits[commit].tree for commit in retained)
        return Memory(candidates=self.universe.dead(self.start), proven=self.collector.number(proven))

    # --- one state after the other ----------------------------------------------------------------------------------

    def follow(self, state: State, following: list[State]) -> None:
        """Take the steps from a state to the end of the program; note every state in which something else happens."""
        world, position, memory, operations, faults, history, steps = state
        program, labels, visited = self.collector.steps, self.collector.labels, self._seen
        more, wrong = self.scope.operations - operations, self.scope.faults - faults
        budget = operations * 16 + faults
        while position < len(program):
            step = program[position]
            question = step.ask(memory)
            if question is None:
                position += 1
                continue
            key = hash((world, position, budget, memory))
            if key in visited:
                return
            visited.add(key)
            self.found.states += 1
            if more:
                for successor in self.relevant(question, world, more):
                    event = Event(steps, step.name, successor.operation)
                    after = self.remember(memory, world, successor)
                    following.append(
                        (successor.world, position, after, operations + 1, faults, (history, event), steps)
                    )
            answer = self.server.answer(question, world)
            if wrong:
                for fault in step.wrong(memory, answer):
                    if fault.fault in self.scope.kinds:
                        event = Event(steps, step.name, fault.sentence)
                        self.go_wrong(step, position, world, memory, fault.answer,
                                      (operations, faults + 1, (history, event), steps), following)  # fmt: skip
            if step.deletes >= 0 or step.ends:
                self.measure(step, world, memory, answer, history, steps)
                if step.deletes >= 0:
                    world = self.without_object(world, step.deletes)
            memory, label = step.take(memory, answer)
            steps += 1
            if label == NEXT:
                position += 1
            elif label == STOPPED:
                return
            else:
                position = labels[label]

    def go_wrong(
        self, step: Step, position: int, world: int, memory: Memory, answer: Answer,
        so_far: tuple[int, int, History, int], following: list[State],
    ) -> None:  # fmt: skip
        operations, faults, history, steps = so_far
        if step.deletes >= 0:  # the object is deleted in any case
            self.measure(step, world, memory, answer[1], history, steps)
            world = self.without_object(world, step.deletes)
        after, label = step.take(memory, answer)
        if label != STOPPED:
            there = position + 1 if label == NEXT else self.collector.labels[label]
            following.append((world, there, after, operations, faults, history, steps + 1))

    # --- operations -------------------------------------------------------------------------------------------------

    def remember(self, memory: Memory, before: int, successor: Successor) -> Memory:
        """The memory after an operation: lakegc knows nothing of it, but the search does."""
        absence = memory.absence | self.universe.absence(successor.world)
        if (
            successor.operation.name == "change_rules"
        ):  # commits that other rules retain behind heads are live for another reason
            absence |= ((1 << BITS) - 1) << BITS * Since.BEHIND
        moved = memory.moved
        if successor.moved:
            moved |= (moved & successor.moved) << BITS | successor.moved
        rest = tuple.__getitem__(memory, slice(3, None))
        return tuple.__new__(Memory, (absence, moved, before, *rest))

    def successors(self, world: int) -> list[Successor]:
        known = self._successors.get(world)
        if known is None:
            known = self._successors[world] = successors(self.universe, world, self.scope.of)
        return known

    def relevant(self, question: Question, world: int, more: int) -> list[Successor]:
        """The operations that change the response to a request, or that are needed for a later operation to change it
        in that way."""
        if self.everywhere:
            return self.successors(world)
        key = (question, world, more)
        known = self._relevant.get(key)
        if known is None:
            known = self._relevant[key] = [
                successor for successor in self.successors(world) if self.is_relevant(question, world, successor, more)
            ]
        return known

    def is_relevant(self, question: Question, world: int, successor: Successor, more: int) -> bool:
        answer = self.server.answer(question, successor.world)
        if answer != self.server.answer(question, world):
            return True
        return more > 1 and any(
            not self.commutes(question, world, successor, later)
            for later in self.relevant(question, successor.world, more - 1)
        )

    def commutes(self, question: Question, world: int, first: Successor, later: Successor) -> bool:
        """Whether `later` might as well come before the request, and `first` after it."""
        for other in self.successors(world):
            if other.operation == later.operation:
                swapped = next(
                    (after for after in self.successors(other.world) if after.operation == first.operation), None
                )
                return (
                    swapped is not None
                    and swapped.world == later.world
                    and self.server.answer(question, other.world) == self.server.answer(question, later.world)
                    and self.is_no_more_absent(other.world, (world, first.world, later.world))
                )
        return False

    def is_no_more_absent(self, world: int, others: Sequence[int]) -> bool:
        absence = 0
        for other in others:
            absence |= self.universe.absence(other)
        return not self.universe.absence(world) & ~absence

    def without_object(self, world: int, address: int) -> int:
        key = (world, address)
        known = self._after_delete.get(key)
        if known is None:
            before = self.universe.worlds[world]
            stored = (*before.stored[:address], DELETED, *before.stored[address + 1 :])
            known = self._after_delete[key] = self.universe.world(before._replace(stored=stored))
        return known

    # --- losses -----------------------------------------------------------------------------------------------------

    def measure(self, step: Step, world: int, memory: Memory, answer: Answer, history: History, steps: int) -> None:
        loss = 0
        for address, why in self.judge(step, memory, answer).items():
            if why == LOST:
                loss |= bit(address)
            else:
                self.found.excused[why] += 1
        if loss:
            self.found.losses.append(
                Loss(self.scenario.name, loss, tuple(events_of(history)), step.name, steps, self.without)
            )

    def judge(self, step: Step, memory: Memory, answer: Answer) -> dict[int, str]:
        """The verdict on each live object that a step expires or deletes."""
        if step.ends:
            return judge_mark(memory, answer, self.scenario.recorded)
        why = judge_delete(step.deletes, memory, answer)
        return {} if why is None else {step.deletes: why}


def events_of(history: History) -> Iterator[Event]:
    events: list[Event] = []
    while history is not None:
        history, event = history
        events.append(event)
    return reversed(events)


# --- the command ----------------------------------------------------------------------------------------------------


def explored(scenario: str, scope: Scope, without: Collection[str] = (), *, quiet: bool = True) -> Found:
    progress = None if quiet else show
    return Exploration(SCENARIOS[scenario], scope, without).run(progress)


@dataclass
class Part:
    """How far an exploration for a given time got: `done` of `all` first events."""

    done: int = 0
    all: int = 0
    states: int = 0
    losses: list[Loss] = field(default_factory=list)


def explored_for(
    seconds: float, names: Sequence[str], scope: Scope, without: Collection[str] = (), *, seed: int = 0,
    share: tuple[int, int] = (0, 1), clock: Callable[[], float] = time.monotonic,
) -> Part:  # fmt: skip
    """Explore first events in random order until the time is over; the last one is finished.

    `share`: the number of this process, and how many there are.
    """
    until, number, of = clock() + seconds, *share
    explorations = {name: Exploration(SCENARIOS[name], scope, without) for name in names}
    starts = [(name, state) for name, exploration in explorations.items() for state in exploration.first_events()]
    Random(seed).shuffle(starts)
    part = Part(all=len(starts[number::of]))
    for name, state in starts[number::of]:
        if clock() >= until:
            break
        explorations[name].run_from(state)
        part.done += 1
        if sum(exploration.seen for exploration in explorations.values()) > MOST_SEEN:
            for exploration in explorations.values():
                exploration.forget()
    part.states = sum(exploration.found.states for exploration in explorations.values())
    part.losses = [loss for exploration in explorations.values() for loss in exploration.found.losses]
    return part


def show(found: Found, events: int) -> None:
    rate = found.states / found.seconds if found.seconds else 0
    print(f"  {events} events: {found.states:,} states, {rate:,.0f} a second", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    from tests.exhaustive.traces import table

    parser = argparse.ArgumentParser(prog="tests.exhaustive.explore", description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", type=int, default=2)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--scenario", action="append", choices=sorted(SCENARIOS), default=[])
    parser.add_argument("--without", action="append", default=[], help="a safeguard to leave out")
    parser.add_argument("--mark", choices=("full", "incremental", "none"), default="full")
    parser.add_argument("--no-sweep", action="store_true")
    parser.add_argument("--without-dump", action="store_true", help="credentials that can't dump references")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--minutes", type=float, help="end after this time, and say how far that is")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which first events are explored")
    parser.add_argument("--show", type=int, default=1, help="the number of losses to print")
    options = parser.parse_args(arguments)
    scope = Scope(options.operations, options.faults, options.mark.replace("none", ""), not options.no_sweep,
                  dump=not options.without_dump)  # fmt: skip
    names = options.scenario or list(SCENARIOS)
    total, began = Found(), time.monotonic()
    if options.minutes is not None:
        parts = _parts(options.minutes * 60, names, scope, options.without, options.seed, options.processes)
        print(f"{sum(part.done for part in parts):,} of {sum(part.all for part in parts):,} first events, each with "
              "everything after it")  # fmt: skip
        total.states = sum(part.states for part in parts)
        total.losses = [loss for part in parts for loss in part.losses]
        names = []
    for name, result in _each(names, scope, options.without, options.processes, options.progress):
        print(f"{name}: {result.states:,} states, {result.worlds:,} worlds, {result.seconds:.1f} s, "
              f"{len(result.losses)} losses", flush=True)  # fmt: skip
        total.states += result.states
        total.losses += result.losses
    minutes = (time.monotonic() - began) / 60
    print(f"{total.states:,} states with up to {scope.operations} operations and {scope.faults} faults in "
          f"{minutes:.1f} minutes: {len(total.losses)} losses")  # fmt: skip
    for loss in sorted(total.losses, key=lambda loss: (len(loss.events), loss.steps))[: options.show]:
        print(table(loss))
    return 1 if total.losses else 0


def _parts(
    seconds: float, names: Sequence[str], scope: Scope, without: Collection[str], seed: int, processes: int
) -> list[Part]:
    shares = [{"seed": seed, "share": (number, processes)} for number in range(processes)]
    with Pool(processes) as pool:
        waiting = [pool.apply_async(explored_for, (seconds, names, scope, without), share) for share in shares]
        return [result.get() for result in waiting]


def _each(
    names: Sequence[str], scope: Scope, without: Collection[str], processes: int, progress: bool
) -> Iterator[tuple[str, Found]]:
    if processes == 1:
        for name in names:
            yield name, explored(name, scope, without, quiet=not progress)
        return
    with Pool(processes, maxtasksperchild=1) as pool:
        waiting = [(name, pool.apply_async(explored, (name, scope, without))) for name in names]
        for name, result in waiting:
            yield name, result.get()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
