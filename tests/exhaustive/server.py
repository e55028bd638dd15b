"""The responses of the server and the store to each request of lakegc, in a given world.

A request is a tuple: its kind, then its arguments. Its response depends on the world alone, so each is computed once.
Where a real server was seen to leave something out (formats §2), the response here leaves it out as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from spark_resources.lakefs_sandbox.gc_api import Oversight, listed_commits
from spark_resources.lakefs_sandbox.state import BranchRecord
from tests.exhaustive import decisions
from tests.exhaustive.world import BITS, NEW, OURS, RELATIVE, STORED, TOMBSTONE, Universe, World, bit

Question: TypeAlias = tuple[Any, ...]
Answer: TypeAlias = Any

NOT_FOUND = "not found"  # 404
ENDS = "ends"  # of a scan: the rest is left out, without an error
NO_ANSWER = "no answer"  # 5xx, or none at all, after all retries

_ANSWERS: dict[str, Callable[..., Answer]] = {}


def answers(function: Callable[..., Answer]) -> Callable[..., Answer]:
    _ANSWERS[function.__name__] = function
    return function


class Server:
    """Responds to requests about the worlds of a universe."""

    def __init__(self, universe: Universe) -> None:
        self.universe, self.names = universe, decisions.CommitNames(universe)
        self._known: dict[Question, dict[int, Answer]] = {}

    def answer(self, question: Question, world: int) -> Answer:
        by_world = self._known.setdefault(question, {})
        if world not in by_world:
            kind, *particulars = question
            by_world[world] = _ANSWERS[kind](self, self.universe.worlds[world], *particulars)
        return by_world[world]


# --- the store ------------------------------------------------------------------------------------------------------


@answers
def listing(server: Server, world: World, folder: int) -> Answer:
    """The objects of a slice: old ones, and above them the young ones."""
    objects = 0
    for address, kind in enumerate(world.stored):
        if kind in STORED and decisions.slice_of(address) == folder:
            objects |= bit(address) << (BITS if kind == NEW else 0)
    return objects


@answers
def stored(server: Server, world: World, address: int) -> Answer:
    return world.stored[address]


@answers
def tables(server: Server, world: World) -> Answer:
    """The objects of our namespace in the tables of the other repository, whatever commit has them."""
    return server.universe.reached(commit for repository in world.repositories[1:] for commit in repository.commits)


# --- branches -------------------------------------------------------------------------------------------------------


@answers
def branches(server: Server, world: World, repository: int) -> Answer:
    """The head of each branch, -1 for one that doesn't exist."""
    return tuple(-1 if branch is None else branch.head for branch in world.repositories[repository].branches)


@answers
def listed(server: Server, world: World, branch: int, path: int) -> Answer:
    """The server's list of staged objects at one path: by content, and relative addresses only (formats §2)."""
    branch_state = world.repositories[OURS].branches[branch]
    if branch_state is None or not server.universe.is_changed(branch_state, path):
        return 0
    staged = branch_state.staged[path]
    return bit(staged.address) if staged is not None and staged.spelling == RELATIVE else 0


@answers
def change(server: Server, world: World, repository: int, branch: int, path: int) -> Answer:
    """Whether the diff of a branch shows something added or changed at a path."""
    branch_state = world.repositories[repository].branches[branch]
    if branch_state is None:
        return NOT_FOUND
    return server.universe.is_changed(branch_state, path) and branch_state.staged[path] != TOMBSTONE


@answers
def stat(server: Server, world: World, repository: int, branch: int, path: int) -> Answer:
    """The entry that a branch serves at a path; None if it serves nothing."""
    branch_state = world.repositories[repository].branches[branch]
    return NOT_FOUND if branch_state is None else server.universe.served(branch_state, path)


# --- commits, rules, holds ------------------------------------------------------------------------------------------


@answers
def dump(server: Server, world: World) -> Answer:
    return world.repositories[OURS].commits


@answers
def server_list(server: Server, world: World) -> Answer:
    """The commits that the server lists as retained, with its deviation from the rule (formats §6.6)."""
    names = server.names
    graph = names.graph(world.repositories[OURS].commits)
    heads = names.heads([-1 if branch is None else branch.head for branch in world.repositories[OURS].branches])
    records = [BranchRecord(branch, head) for branch, head in heads.items()]
    commits = listed_commits(
        graph, records, decisions.rules(world.rules), now=decisions.SERVER_NOW, oversights={Oversight.VISITED_COMMITS}
    )
    return names.numbers(commits)


@answers
def rules(server: Server, world: World) -> Answer:
    return world.rules


@answers
def holds(server: Server, world: World) -> Answer:
    return world.held


@answers
def tags(server: Server, world: World) -> Answer:
    return world.tag


# --- the truth ------------------------------------------------------------------------------------------------------


@answers
def nothing(server: Server, world: World) -> Answer:
    """For a step that sends no request, but during which a fault can happen."""
    return 0


@answers
def absence(server: Server, world: World) -> Answer:
    """The objects that aren't live, in the form of `Memory.absence`: the beginning of a time in which they may become
    live."""
    return server.universe.absence(server.universe.world(world))


@answers
def begin(server: Server, world: World) -> Answer:
    """The facts that a mark or re-verification records when it begins."""
    return world.rules, world.held, absence(server, world)


@answers
def truth(server: Server, world: World) -> Answer:
    """The objects that are stored and live, and the young ones among them: written after a mark listed old ones at
    their keys."""
    there = sum(bit(address) for address, kind in enumerate(world.stored) if kind in STORED)
    new = sum(bit(address) for address, kind in enumerate(world.stored) if kind == NEW)
    return server.universe.reasons(server.universe.world(world)).live & there, new


@answers
def truth_about(server: Server, world: World, address: int) -> Answer:
    """The object stored at an address, and each reason why it is live."""
    why = server.universe.reasons(server.universe.world(world))
    return world.stored[address], tuple(bool(reason & bit(address)) for reason in why)
