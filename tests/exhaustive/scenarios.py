"""The small worlds that an exploration starts in, each the beginning of some way to lose data.

In all of them some time has passed: stored objects are old, unless a world says otherwise. Object 0 is usually the
object in danger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.exhaustive.world import (
    ABSENT,
    ELSEWHERE,
    FULL,
    LATELY,
    LONG_AGO,
    NEW,
    OLD,
    Branch,
    Commit,
    Entry,
    Repository,
    Universe,
    World,
)

X = Entry(ELSEWHERE, 0)  # an object that no sweep can delete
NOTHING = (None, None)


def at_p(entry: Entry) -> tuple[Entry | None, Entry | None]:
    return (entry, None)


@dataclass(frozen=True)
class Scenario:
    """A world to start in. `recorded`: the objects that an earlier mark found in the other repository."""

    name: str
    description: str
    build: Callable[[], tuple[Universe, World]]
    recorded: int = 0


SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Callable[[], tuple[Universe, World]]) -> Callable[[], tuple[Universe, World]]:
    name, text = function.__name__.replace("_", " "), " ".join((function.__doc__ or "").split())
    recorded = 1 if name.startswith("another repository") else 0
    SCENARIOS[name] = Scenario(name, text, function, recorded)
    return function


def _universe(contents: tuple[int, ...] = (0, 0)) -> Universe:
    return Universe(contents)


def _repository(universe: Universe, main: Branch, dev: Branch | None = None, *more: int) -> Repository:
    heads = {branch.head for branch in (main, dev) if branch is not None}
    commits, waiting = set(more), [*heads, *more]
    while waiting:
        commit = waiting.pop()
        commits.add(commit)
        waiting.extend(universe.commits[commit].parents)
    return Repository((main, dev), frozenset(commits))


@scenario
def staged() -> tuple[Universe, World]:
    """Object 0 is staged on main."""
    universe = _universe((0,))
    root = universe.commit(Commit((), NOTHING, LONG_AGO))
    main = Branch(root, at_p(Entry(0, 0)))
    return universe, World((OLD,), (_repository(universe, main),))


@scenario
def staged_by_its_full_address() -> tuple[Universe, World]:
    """Object 0 is staged on main, and spelled in a way that the server's list leaves out."""
    universe = _universe((0,))
    root = universe.commit(Commit((), NOTHING, LONG_AGO))
    main = Branch(root, at_p(Entry(0, 0, FULL)))
    return universe, World((OLD,), (_repository(universe, main),))


@scenario
def committed_by_its_full_address() -> tuple[Universe, World]:
    """Object 0 is in main's head, spelled as the local adapter spells linked objects."""
    universe = _universe((0,))
    root = universe.commit(Commit((), at_p(Entry(0, 0, FULL)), LONG_AGO))
    child = universe.commit(Commit((root,), at_p(X._replace(content=2)), LATELY))
    return universe, World((OLD,), (_repository(universe, Branch(child, NOTHING)),))


@scenario
def identical_content() -> tuple[Universe, World]:
    """main has an object at p and q; object 0, with the same content, is staged at p: no list shows it."""
    universe = _universe((0,))
    root = universe.commit(Commit((), (X, X), LONG_AGO))
    return universe, World((OLD,), (_repository(universe, Branch(root, at_p(Entry(0, 0)))),))


@scenario
def a_retained_commit() -> tuple[Universe, World]:
    """Object 1 is only in the parent of main's head, which is retained. Nothing refers to object 0."""
    universe = _universe((0, 0))
    root = universe.commit(Commit((), at_p(Entry(1, 0)), LONG_AGO))
    head = universe.commit(Commit((root,), at_p(X._replace(content=2)), LATELY))
    return universe, World((OLD, OLD), (_repository(universe, Branch(head, NOTHING)),))


@scenario
def an_expired_commit() -> tuple[Universe, World]:
    """Object 0 is only in the parent of main's head, which has expired."""
    universe = _universe((0,))
    root = universe.commit(Commit((), at_p(Entry(0, 0)), LONG_AGO))
    head = universe.commit(Commit((root,), at_p(X._replace(content=2)), LONG_AGO))
    return universe, World((OLD,), (_repository(universe, Branch(head, NOTHING)),))


@scenario
def an_expired_commit_and_a_rule_of_60_days() -> tuple[Universe, World]:
    """Object 0 is only in the parent of main's head, which has expired. A rule of 60 days is for a branch dev, which
    doesn't exist."""
    universe, world = an_expired_commit()
    return universe, world._replace(rules=2)


def _shared_parent(others: int) -> tuple[Universe, World]:
    """The commits that the server lists depend on their ids, and the ids on the number of `others` before them."""
    universe = _universe((0,))
    for number in range(others):
        universe.commit(Commit((), NOTHING, LATELY - 1 - number))
    root = universe.commit(Commit((), at_p(Entry(0, 0)), LONG_AGO))
    main = universe.commit(Commit((root,), at_p(X._replace(content=2)), LONG_AGO))
    dev = universe.commit(Commit((root,), at_p(X), LATELY))
    return universe, World((OLD,), (_repository(universe, Branch(main, NOTHING), Branch(dev, NOTHING)),))


@scenario
def a_shared_parent() -> tuple[Universe, World]:
    """Object 0 is in a commit with two children: main's head, which is old, and dev's, which is recent. The server
    doesn't list the commit, since it reaches it from main first."""
    return _shared_parent(1)


@scenario
def a_shared_parent_that_the_server_lists() -> tuple[Universe, World]:
    """Object 0 is in a commit with two children: main's head, which is old, and dev's, which is recent. The server
    lists the commit, since it reaches it from dev first."""
    return _shared_parent(0)


@scenario
def a_young_commit_on_no_branch() -> tuple[Universe, World]:
    """Object 0 is in a commit of yesterday, whose branch was deleted."""
    universe = _universe((0,))
    root = universe.commit(Commit((), NOTHING, LONG_AGO))
    dangling = universe.commit(Commit((root,), at_p(Entry(0, 0)), LATELY))
    return universe, World((OLD,), (_repository(universe, Branch(root, NOTHING), None, dangling),))


@scenario
def committed_on_dev() -> tuple[Universe, World]:
    """Object 0 is in the head of dev, a commit of long ago."""
    universe = _universe((0,))
    root = universe.commit(Commit((), NOTHING, LONG_AGO))
    dev = universe.commit(Commit((root,), at_p(Entry(0, 0)), LONG_AGO))
    return universe, World((OLD,), (_repository(universe, Branch(root, NOTHING), Branch(dev, NOTHING)),))


@scenario
def committed_on_dev_lately() -> tuple[Universe, World]:
    """Object 0 is in the head of dev, a commit of yesterday, which the default rule retains if dev is deleted."""
    universe = _universe((0,))
    root = universe.commit(Commit((), NOTHING, LONG_AGO))
    dev = universe.commit(Commit((root,), at_p(Entry(0, 0)), LATELY))
    return universe, World((OLD,), (_repository(universe, Branch(root, NOTHING), Branch(dev, NOTHING)),))


@scenario
def staged_at_the_other_path() -> tuple[Universe, World]:
    """Object 0 is staged at q of main."""
    universe = _universe((0,))
    root = universe.commit(Commit((), NOTHING, LONG_AGO))
    return universe, World((OLD,), (_repository(universe, Branch(root, (None, Entry(0, 0)))),))


@scenario
def garbage() -> tuple[Universe, World]:
    """Nothing refers to objects 0 and 1."""
    universe = _universe((0, 2))
    root = universe.commit(Commit((), at_p(X), LONG_AGO))
    return universe, World((OLD, OLD), (_repository(universe, Branch(root, NOTHING)),))


@scenario
def an_upload_in_progress() -> tuple[Universe, World]:
    """Object 0 is young, and not linked yet."""
    universe = _universe((0,))
    root = universe.commit(Commit((), at_p(X._replace(content=2)), LONG_AGO))
    return universe, World((NEW,), (_repository(universe, Branch(root, NOTHING)),))


@scenario
def an_old_upload_in_progress() -> tuple[Universe, World]:
    """Object 0 is a multipart upload that began long ago and isn't complete."""
    universe = _universe((0, 0))
    root = universe.commit(Commit((), at_p(X._replace(content=2)), LONG_AGO))
    return universe, World((ABSENT, OLD), (_repository(universe, Branch(root, NOTHING)),))


@scenario
def on_hold() -> tuple[Universe, World]:
    """Object 0 has a prefix that is on hold."""
    universe = _universe((0,))
    root = universe.commit(Commit((), at_p(X._replace(content=2)), LONG_AGO))
    return universe, World((OLD,), (_repository(universe, Branch(root, NOTHING)),), held=1)


@scenario
def another_repository_stages_it() -> tuple[Universe, World]:
    """Object 0 is staged in another repository, by its full address."""
    universe = _universe((0,))
    root = universe.commit(Commit((), at_p(X._replace(content=2)), LONG_AGO))
    other_head = universe.commit(Commit((), NOTHING, LONG_AGO))
    other = _repository(universe, Branch(other_head, at_p(Entry(0, 0, FULL))))
    return universe, World((OLD,), (_repository(universe, Branch(root, NOTHING)), other))


@scenario
def another_repository_stages_it_at_the_other_path() -> tuple[Universe, World]:
    """Object 0 is staged at q in another repository, by its full address."""
    universe, world = another_repository_stages_it()
    own, other = world.repositories
    main, dev = other.branches
    assert main is not None
    moved = other._replace(branches=(main._replace(staged=main.staged[::-1]), dev))
    return universe, world._replace(repositories=(own, moved))


@scenario
def another_repository_committed_it() -> tuple[Universe, World]:
    """Object 0 is in a commit of another repository."""
    universe = _universe((0,))
    root = universe.commit(Commit((), at_p(X._replace(content=2)), LONG_AGO))
    other_head = universe.commit(Commit((), at_p(Entry(0, 0, FULL)), LONG_AGO))
    other = _repository(universe, Branch(other_head, NOTHING))
    return universe, World((OLD,), (_repository(universe, Branch(root, NOTHING)), other))


@scenario
def identical_content_at_the_other_path() -> tuple[Universe, World]:
    """main has an object at p and q; object 0, with the same content, is staged at q: no list shows it."""
    universe = _universe((0,))
    root = universe.commit(Commit((), (X, X), LONG_AGO))
    return universe, World((OLD,), (_repository(universe, Branch(root, (None, Entry(0, 0)))),))


@scenario
def identical_content_at_one_path() -> tuple[Universe, World]:
    """main has an object at p only; object 0, with the same content, is staged at p."""
    universe = _universe((0,))
    root = universe.commit(Commit((), at_p(X), LONG_AGO))
    return universe, World((OLD,), (_repository(universe, Branch(root, at_p(Entry(0, 0)))),))


@scenario
def another_repository_has_identical_content_at_one_path() -> tuple[Universe, World]:
    """Another repository has a separate object at p; object 0, with the same content, is staged at p."""
    universe = _universe((0,))
    root = universe.commit(Commit((), at_p(X._replace(content=2)), LONG_AGO))
    other_head = universe.commit(Commit((), at_p(X), LONG_AGO))
    other = _repository(universe, Branch(other_head, at_p(Entry(0, 0, FULL))))
    return universe, World((OLD,), (_repository(universe, Branch(root, NOTHING)), other))


@scenario
def another_repository_has_identical_content() -> tuple[Universe, World]:
    """Another repository has a separate object at p and q; object 0, with the same content, is staged at p."""
    universe = _universe((0,))
    root = universe.commit(Commit((), at_p(X._replace(content=2)), LONG_AGO))
    other_head = universe.commit(Commit((), (X, X), LONG_AGO))
    other = _repository(universe, Branch(other_head, at_p(Entry(0, 0, FULL))))
    return universe, World((OLD,), (_repository(universe, Branch(root, NOTHING)), other))


@scenario
def garbage_beside_another_repository() -> tuple[Universe, World]:
    """Nothing refers to object 0; there is another repository."""
    universe = _universe((0,))
    root = universe.commit(Commit((), at_p(X._replace(content=2)), LONG_AGO))
    other_head = universe.commit(Commit((), at_p(X._replace(content=2)), LONG_AGO))
    own, other = (_repository(universe, Branch(head, NOTHING)) for head in (root, other_head))
    return universe, World((OLD,), (own, other))
