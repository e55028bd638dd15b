"""What writers may do to a world, at any moment: each operation as the server carries it out, at once.

An operation is a name and its arguments. `successors` gives every one that is possible in a world, and the world after
it. Two calls of a client are two operations, except `move`: a copy and a delete of the old path together, since a world
between them keeps more than the one after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tests.exhaustive.world import (
    ABSENT,
    BRANCHES,
    DELETED,
    ELSEWHERE,
    LATELY,
    NEW,
    OLD,
    OURS,
    PATHS,
    RULES,
    SIZES,
    STORED,
    TOMBSTONE,
    Branch,
    Commit,
    Entry,
    Repository,
    Tree,
    Universe,
    World,
    bit,
)

FRESH = 2  # the content of an object that is written anew at an old key


class Operation(NamedTuple):
    name: str
    arguments: tuple[int, ...]


class Successor(NamedTuple):
    """`moved` has the addresses that were taken from a place where a branch served them, and that one still serves at
    another place: by a move, or by a stage and then a delete, an upload, a reset. Also those that were taken from all
    commits, and are still staged."""

    operation: Operation
    world: int
    moved: int = 0


Found = Iterator[tuple[tuple[int, ...], World]]
Operator = Callable[[Universe, World], Found]
OPERATIONS: dict[str, Operator] = {}


def operation(function: Operator) -> Operator:
    OPERATIONS[function.__name__] = function
    return function


def successors(universe: Universe, number: int, names: Iterable[str]) -> list[Successor]:
    """Every operation of these names that changes a world, with the world after it."""
    results = []
    world, places = universe.worlds[number], universe.places(number)
    for name in names:
        for arguments, after in OPERATIONS[name](universe, world):
            if after != world:
                there = universe.world(after)
                moved = moved_between(places, universe.places(there))
                moved |= universe.reasons(number).committed & universe.reasons(there).staged_only
                results.append(Successor(Operation(name, arguments), there, moved))
    return results


def moved_between(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """The addresses that left a place but are still at another one."""
    moved = 0
    for was, now in zip(before, after, strict=True):
        if was != now and was in after:
            moved |= bit(was)
    return moved


# --- changes to a world ---------------------------------------------------------------------------------------------


def _changed(world: World, repository: int, branch: int, new: Branch | None, *, commit: int | None = None) -> World:
    """The world with a branch replaced, and a commit added."""
    repository_state = world.repositories[repository]
    branches = (*repository_state.branches[:branch], new, *repository_state.branches[branch + 1 :])
    commits = repository_state.commits if commit is None else repository_state.commits | {commit}
    return _replaced(world, repository, Repository(branches, commits))


def _replaced(world: World, number: int, repository: Repository) -> World:
    all_of_them = (*world.repositories[:number], repository, *world.repositories[number + 1 :])
    return world._replace(repositories=all_of_them)


def _staged(world: World, repository: int, branch: int, path: int, entry: Entry | None) -> World:
    branch_state = world.repositories[repository].branches[branch]
    assert branch_state is not None
    staged = (*branch_state.staged[:path], entry, *branch_state.staged[path + 1 :])
    return _changed(world, repository, branch, branch_state._replace(staged=staged))


def _deleted(universe: Universe, world: World, repository: int, branch: int, path: int) -> World:
    """The entry after a delete: a tombstone where something is committed."""
    branch_state = world.repositories[repository].branches[branch]
    assert branch_state is not None
    committed = universe.commits[branch_state.head].tree[path]
    return _staged(world, repository, branch, path, None if committed is None else TOMBSTONE)


def _branches(world: World) -> Iterator[tuple[int, int, Branch]]:
    for repository, state in enumerate(world.repositories):
        for number, branch in enumerate(state.branches):
            if branch is not None:
                yield repository, number, branch


def _nothing() -> Tree:
    return (None,) * len(PATHS)


# --- objects --------------------------------------------------------------------------------------------------------


@operation
def upload(universe: Universe, world: World) -> Found:
    """A new object, too young for any sweep here: only the object that it replaces matters."""
    for repository, number, branch in _branches(world):
        if repository == OURS:
            for path in range(len(PATHS)):
                for content in (0, 2):
                    if universe.served(branch, path) != Entry(ELSEWHERE, content):
                        after = _staged(world, repository, number, path, Entry(ELSEWHERE, content))
                        yield (repository, number, path, content), after


@operation
def stage(universe: Universe, world: World) -> Found:
    """Stage an object that is already stored, by its address: as a link, an import, or an address that a client
    remembered."""
    for repository, number, branch in _branches(world):
        for path in range(len(PATHS)):
            for address, kind in enumerate(world.stored):
                for spelling in (0, 1) if repository == OURS else (1,):
                    entry = Entry(address, universe.contents[address], spelling)
                    if kind in STORED and universe.served(branch, path) != entry:
                        after = _staged(world, repository, number, path, entry)
                        yield (repository, number, path, address, spelling), after


@operation
def delete(universe: Universe, world: World) -> Found:
    for repository, number, branch in _branches(world):
        for path in range(len(PATHS)):
            if universe.served(branch, path) is not None:
                yield (repository, number, path), _deleted(universe, world, repository, number, path)


@operation
def move(universe: Universe, world: World) -> Found:
    """Move an object to another place, on the same branch or another one, with the same content and address."""
    places = [(repository, number, branch, path) for repository, number, branch in _branches(world)
              for path in range(len(PATHS))]  # fmt: skip
    for repository, number, branch, path in places:
        entry = universe.served(branch, path)
        if entry is None or entry.address < 0:
            continue
        for to_repository, to_number, _, to_path in places:
            if (repository, number, path) != (to_repository, to_number, to_path):
                there = entry if to_repository == repository else entry._replace(spelling=1)
                copied = _staged(world, to_repository, to_number, to_path, there)
                after = _deleted(universe, copied, repository, number, path)
                yield (repository, number, path, to_repository, to_number, to_path, entry.address), after


@operation
def overwrite(universe: Universe, world: World) -> Found:
    """New bytes at an old key, linked to a path: a link token may be used twice."""
    for address, kind in enumerate(world.stored):
        if kind in (OLD, DELETED):
            stored = (*world.stored[:address], NEW, *world.stored[address + 1 :])
            yield (address,), _staged(world._replace(stored=stored), OURS, 0, 0, Entry(address, FRESH))


@operation
def complete_old_upload(universe: Universe, world: World) -> Found:
    """A multipart upload that began long ago is completed and staged. S3 dates it by its beginning."""
    for address, kind in enumerate(world.stored):
        if kind == ABSENT:
            stored = (*world.stored[:address], OLD, *world.stored[address + 1 :])
            for path in range(len(PATHS)):
                after = _staged(
                    world._replace(stored=stored), OURS, 0, path, Entry(address, universe.contents[address])
                )
                yield (address, path), after


@operation
def sweep_by_another_tool(universe: Universe, world: World) -> Found:
    """Another collector deletes an object that nothing refers to."""
    for address, kind in enumerate(world.stored):
        if kind == OLD and universe.dead(universe.world(world)) & bit(address):
            yield (address,), world._replace(stored=(*world.stored[:address], DELETED, *world.stored[address + 1 :]))


# --- branches and commits -------------------------------------------------------------------------------------------


@operation
def commit(universe: Universe, world: World) -> Found:
    """A staged entry with the committed content at another address is no change: the older address stays."""
    for repository, number, branch in _branches(world):
        changed = [universe.is_changed(branch, path) for path in range(len(PATHS))]
        if any(changed):
            before = universe.commits[branch.head].tree
            tree = tuple(universe.served(branch, path) if changed[path] else before[path] for path in range(len(PATHS)))
            tip = universe.commit(Commit((branch.head,), tree, LATELY))
            yield (
                (repository, number),
                _changed(world, repository, number, Branch(tip, _nothing()), commit=tip),
            )


@operation
def import_object(universe: Universe, world: World) -> Found:
    """An object of our namespace is committed by its full address, to a branch without changes. In our own repository,
    where that is a stage and a commit, identical content would be no change."""
    for repository, number, branch in _branches(world):
        if any(universe.is_changed(branch, path) for path in range(len(PATHS))):
            continue
        before = universe.commits[branch.head].tree
        for path in range(len(PATHS)):
            for address, kind in enumerate(world.stored):
                entry = Entry(address, universe.contents[address], 1)
                committed = before[path]
                identical = committed is not None and committed.content == entry.content
                if kind in STORED and committed != entry and not (identical and repository == OURS):
                    tree = (*before[:path], entry, *before[path + 1 :])
                    tip = universe.commit(Commit((branch.head,), tree, LATELY))
                    after = _changed(world, repository, number, Branch(tip, _nothing()), commit=tip)
                    yield (repository, number, path, address), after


@operation
def reset(universe: Universe, world: World) -> Found:
    for repository, number, branch in _branches(world):
        if branch.staged != _nothing():
            yield (repository, number), _changed(world, repository, number, branch._replace(staged=_nothing()))


@operation
def create_branch(universe: Universe, world: World) -> Found:
    """A branch may be created at any commit, including one that no branch reaches."""
    for repository, state in enumerate(world.repositories):
        for number, branch in enumerate(state.branches):
            if branch is None:
                for commit in sorted(state.commits):
                    yield (repository, number, commit), _changed(world, repository, number, Branch(commit, _nothing()))


@operation
def delete_branch(universe: Universe, world: World) -> Found:
    for repository, number, _ in _branches(world):
        if number:
            yield (repository, number), _changed(world, repository, number, None)


@operation
def hard_reset(universe: Universe, world: World) -> Found:
    """Reset a branch without changes to another commit. Staged entries that counted as no change stay staged."""
    for repository, number, branch in _branches(world):
        if not any(universe.is_changed(branch, path) for path in range(len(PATHS))):
            for commit in sorted(world.repositories[repository].commits - {branch.head}):
                yield (repository, number, commit), _changed(world, repository, number, branch._replace(head=commit))


@operation
def revert(universe: Universe, world: World) -> Found:
    """The head of a branch without changes is undone: its parent's entries are committed again."""
    for repository, number, branch in _branches(world):
        parents = universe.commits[branch.head].parents
        if parents and not any(universe.is_changed(branch, path) for path in range(len(PATHS))):
            tip = universe.commit(Commit((branch.head,), universe.commits[parents[0]].tree, LATELY))
            yield (
                (repository, number),
                _changed(world, repository, number, Branch(tip, _nothing()), commit=tip),
            )


@operation
def merge(universe: Universe, world: World) -> Found:
    """Merge one branch's head into another branch without changes, as the server does; where both changed a path, the
    source wins."""
    for repository, into, branch in _branches(world):
        for elsewhere, number, source in _branches(world):
            if elsewhere != repository or number == into or source.head == branch.head:
                continue
            if not any(universe.is_changed(branch, path) for path in range(len(PATHS))):
                base = merge_base(universe, source.head, branch.head)
                mine, other = universe.commits[branch.head].tree, universe.commits[source.head].tree
                if other != base:
                    tip = universe.commit(Commit((branch.head, source.head), merged(other, mine, base), LATELY))
                    yield (
                        (repository, number, into),
                        _changed(world, repository, into, Branch(tip, _nothing()), commit=tip),
                    )


def merge_base(universe: Universe, left: int, right: int) -> Tree:
    """The tree of the first commit that both reach, from the highest generation down; every repository begins with an
    empty one."""

    def generation(commit: int) -> int:
        return 1 + max(map(generation, universe.commits[commit].parents), default=0)

    reached = {left: 1, right: 2}
    waiting = [left, right]
    while waiting:
        newest = max(waiting, key=generation)
        waiting.remove(newest)
        for parent in universe.commits[newest].parents:
            if parent not in reached:
                waiting.append(parent)
            reached[parent] = reached.get(parent, 0) | reached[newest]
            if reached[parent] == 3:
                return universe.commits[parent].tree
    return _nothing()


def merged(source: Tree, into: Tree, base: Tree) -> Tree:
    """Three trees merged: a range that only one side changed as a whole, others path by path and by content."""
    if base in (into, source):
        return source if into == base else into
    return tuple(
        other if _same(other, mine) or _same(mine, before) or not _same(other, before) else mine
        for other, mine, before in zip(source, into, base, strict=True)
    )


def _same(left: Entry | None, right: Entry | None) -> bool:
    """Whether two entries are the same to the server."""
    return left == right if left is None or right is None else left.content == right.content


@operation
def stage_with_a_wrong_size(universe: Universe, world: World) -> Found:
    """Stage an object by its address, declared as the content committed at the path, which has a different size."""
    for repository, number, branch in _branches(world):
        for path in range(len(PATHS)):
            committed = universe.commits[branch.head].tree[path]
            for address, kind in enumerate(world.stored):
                if repository != OURS or kind not in STORED or committed is None:
                    continue
                if SIZES[committed.content] != SIZES[universe.contents[address]]:
                    entry = Entry(address, committed.content)
                    yield (repository, number, path, address), _staged(world, repository, number, path, entry)


# --- rules and holds ------------------------------------------------------------------------------------------------


@operation
def change_rules(universe: Universe, world: World) -> Found:
    for number in range(len(RULES)):
        yield (number,), world._replace(rules=number)


@operation
def add_hold(universe: Universe, world: World) -> Found:
    for address, kind in enumerate(world.stored):
        if kind in STORED:
            yield (address,), world._replace(held=world.held | bit(address))


@operation
def tag(universe: Universe, world: World) -> Found:
    """A tag that a hold names, at a commit."""
    for commit in sorted(world.repositories[OURS].commits):
        yield (commit,), world._replace(tag=commit)


HONEST = tuple(name for name in OPERATIONS if name != "stage_with_a_wrong_size")
"""What an exploration tries: every operation but the one that nothing can show."""


# --- for people -----------------------------------------------------------------------------------------------------


def sentence(operation: Operation) -> str:
    """An operation in words."""
    name, arguments = operation

    def branch(at: int) -> str:
        return BRANCHES[arguments[at]][arguments[at + 1]]

    def path(at: int) -> str:
        return PATHS[arguments[at]]

    match name:
        case "upload":
            return f"{branch(0)}: a new object is uploaded to `{path(2)}`"
        case "stage":
            form = " by its full address" if arguments[4] and arguments[0] == OURS else ""
            return f"{branch(0)}: object {arguments[3]} is staged at `{path(2)}`{form}"
        case "stage_with_a_wrong_size":
            return f"{branch(0)}: object {arguments[3]} is staged at `{path(2)}` with the size of the committed one"
        case "delete":
            return f"{branch(0)}: `{path(2)}` is deleted"
        case "import_object":
            return f"{branch(0)}: object {arguments[3]} is imported to `{path(2)}`, which makes a commit"
        case "move":
            there = f"`{path(5)}`" if arguments[:2] == arguments[3:5] else f"`{path(5)}` of {branch(3)}"
            return f"{branch(0)}: object {arguments[6]} is moved from `{path(2)}` to {there}"
        case "overwrite":
            return f"object {arguments[0]} is overwritten with new bytes, which main stages at `p`"
        case "complete_old_upload":
            return f"main: an upload begun long ago is completed as object {arguments[0]}, and staged at `{path(1)}`"
        case "sweep_by_another_tool":
            return f"another tool deletes object {arguments[0]}"
        case "commit" | "reset" | "revert":
            verb = {"commit": "commits", "reset": "is reset", "revert": "reverts its last commit"}[name]
            return f"{branch(0)} {verb}"
        case "create_branch":
            return f"{branch(0)} is created at commit {arguments[2]}"
        case "delete_branch":
            return f"{branch(0)} is deleted"
        case "hard_reset":
            return f"{branch(0)} is reset to commit {arguments[2]}"
        case "merge":
            return f"{branch(0)} is merged into {BRANCHES[arguments[0]][arguments[2]]}"
        case "change_rules":
            days, by_branch = RULES[arguments[0]]
            more = "".join(f", {days} for {name}" for name, days in by_branch.items())
            return f"the rules become {days} days{more}"
        case "add_hold":
            return f"object {arguments[0]} is put on hold"
        case "tag":
            return f"commit {arguments[0]} gets a tag that a hold names"
    raise AssertionError(name)
