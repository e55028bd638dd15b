"""The safeguards of live objects, each as a switch: without it, the search finds how an object is lost.

    uv run python -m tests.exhaustive.safeguards            # the smallest loss without each of them
    uv run python -m tests.exhaustive.safeguards --everywhere "path probes"     # in every scenario

Some safeguards protect from the same loss, the later one even where the earlier one errs. Then no object is lost
without one of them, in the scopes that were explored; `also` names those that are left out together with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from tests.exhaustive.explore import FAULTS, Exploration, Loss, Scope
from tests.exhaustive.play import play
from tests.exhaustive.scenarios import SCENARIOS


class Safeguard(NamedTuple):
    """A safeguard: its invariant, and what it does. In `scenario`, the smallest loss without it has this many
    operations and faults; `kind` is that of its only fault, if others are left out. `overlap` says why no object is
    lost without it, where that is so."""

    name: str
    invariant: int
    what: str
    scenario: str
    operations: int = 0
    faults: int = 0
    also: tuple[str, ...] = ()
    mark: str = "full"
    dump: bool = True
    overlap: str = ""
    kind: str = ""

    @property
    def left_out(self) -> frozenset[str]:
        return frozenset((self.name, *self.also))

    @property
    def scope(self) -> Scope:
        kinds = (self.kind,) if self.kind else FAULTS
        return Scope(self.operations, self.faults, self.mark, kinds=kinds, dump=self.dump)


class Past(NamedTuple):
    """A loss of an earlier version: where it occurs `without` its corrections. `kind` is its only fault."""

    scenario: str
    without: tuple[str, ...]
    operations: int = 0
    faults: int = 0
    mark: str = "full"
    kind: str = ""

    def losses(self) -> list[Loss]:
        kinds = (self.kind,) if self.kind else FAULTS
        scope = Scope(self.operations, self.faults, self.mark, kinds=kinds)
        return Exploration(SCENARIOS[self.scenario], scope, self.without).run().losses


CLOSING = "the closing reading"
SAFEGUARDS = (
    Safeguard(
        "the re-verification", 1,
        "A sweep reads again what is live before it deletes.",
        "an expired commit", operations=1,
    ),
    Safeguard(
        "a re-verification expires", 1,
        "No delete is sent when the last re-verification is older than a bound.",
        "an expired commit", operations=1, faults=1,
    ),
    Safeguard(
        "heads are watched", 1,
        "While a sweep deletes, branch heads are listed, and objects that a new one reaches are kept.",
        "an expired commit", operations=1,
    ),
    Safeguard(
        "the rule behind new heads", 1,
        "The rule is applied again for a new head: it also retains earlier commits of its history.",
        "an expired commit and a rule of 60 days", operations=1,
    ),
    Safeguard(
        "a permit expires", 1,
        "Deletes need a permit for a few seconds, which each listing of heads renews.",
        "an expired commit", operations=1, faults=1,
    ),
    Safeguard(
        "commits on no branch are watched", 1,
        "Before a round and every minute, all commits are dumped, because some are on no branch.",
        "an expired commit", operations=2,
    ),
    Safeguard(
        "the watch is repeated", 1,
        "Commits and other repositories are watched during the whole round.",
        "garbage beside another repository", operations=1, faults=1,
    ),
    Safeguard(
        "other repositories are watched", 1,
        "New tables of other repositories are read before and while a round deletes.",
        "garbage beside another repository", operations=1,
    ),
    Safeguard(
        "changed rules end a round", 1,
        "Changed rules or holds, and new tags covered by a hold, end a round; the mark is re-verified.",
        "an expired commit", operations=1,
    ),
    Safeguard(
        "the object is looked up", 1,
        "Right before its delete, the object at a key must still be the one that was marked.",
        "an expired commit", operations=1,
    ),
    Safeguard(
        "the listing first", 2,
        "The store is listed before staged objects are read: later readings can only add references.",
        "an old upload in progress", operations=1, also=(CLOSING,),
    ),
    Safeguard(
        "staged before commits", 2,
        "Staged objects are read before commits, because a commit moves them from one to the other.",
        "staged", operations=1, also=("path probes", CLOSING),
    ),
    Safeguard(
        "the second reading", 2,
        "Staged objects are read twice, because one reading misses an object that is moved.",
        "another repository stages it at the other path", operations=1, also=(CLOSING,),
    ),
    Safeguard(
        CLOSING, 2,
        "Staged objects, heads and new commits are read once more, after the path probes.",
        "identical content at one path", operations=1,
    ),
    Safeguard(
        "other repositories' tables at the end", 2,
        "New tables of other repositories are read once more, too.",
        "another repository has identical content at one path", operations=2,
    ),
    Safeguard(
        "the diffs of branches", 2,
        "The diff of each branch is paged, and each changed path is looked up.",
        "staged by its full address",
    ),
    Safeguard(
        "the list is repeated", 2,
        "The server's list is requested again if it can't be complete.",
        "staged at the other path", operations=1, faults=1, also=("the second reading", CLOSING), kind="404",
    ),
    Safeguard(
        "diffs that fail", 2,
        "The diff that is read fails if the server can't read a record.",
        "staged by its full address", faults=1, also=("the second reading", CLOSING),
    ),
    Safeguard(
        "a deletion is confirmed", 2,
        "A branch that isn't found is listed again before it counts as deleted.",
        "another repository stages it", operations=1, faults=1,
    ),
    Safeguard(
        "path probes", 2,
        "Each path with an entry of a candidate's size is probed, because no list shows identical content.",
        "identical content",
    ),
    Safeguard(
        "probes twice", 2,
        "Paths are probed twice, because one pass misses an object that is moved between two of them.",
        "identical content at the other path", operations=1,
    ),
    Safeguard(
        "unclear probes keep objects", 2,
        "Without a clear probe result, every candidate of this size is kept.",
        "identical content at the other path", operations=1, faults=1,
    ),
    Safeguard(
        "heads twice", 2,
        "Heads are read before and after the server prepares its list; each is retained.",
        "committed on dev lately", operations=2,
        overlap="A commit that no branch leads to any more is live only while it is young, and then the dump or the "
        "server's list has it: both are read between the two readings of heads.",
    ),
    Safeguard(
        "the rule, not only the server's list", 2,
        "The rule is applied to the whole graph: the server's list leaves out some retained commits.",
        "a shared parent",
    ),
    Safeguard(
        "commits on no branch", 2,
        "All commits are dumped: the rule retains young ones that no branch reaches.",
        "a young commit on no branch", also=("the server's list of commits", CLOSING),
    ),
    Safeguard(
        "the server's list of commits", 2,
        "Commits in the server's list are also retained: without a dump, only the list contains commits on no branch.",
        "a young commit on no branch", dump=False,
    ),
    Safeguard(
        "other repositories", 2,
        "Objects in this namespace that other repositories refer to are live.",
        "another repository stages it",
    ),
    Safeguard(
        "an unread repository counts", 2,
        "A repository that can't be read stops a sweep; a mark keeps what earlier marks found there.",
        "another repository stages it", faults=1,
    ),
    Safeguard(
        "every spelling of an address", 5,
        "Addresses are compared in one form, independent of their spelling.",
        "committed by its full address",
    ),
    Safeguard(
        "young is kept", 6,
        "Objects younger than the minimum age are kept, because an upload might not be linked yet.",
        "an upload in progress", operations=1,
    ),
    Safeguard(
        "rules and holds stay the same", 7,
        "Rules and holds that change during a mark, or before its approval, stop it.",
        "staged", operations=2,
    ),
    Safeguard(
        "the approval names this very set", 7,
        "An approval names a digest of everything that it covers; a sweep verifies it.",
        "a retained commit", faults=1,
    ),
    Safeguard(
        "holds", 7,
        "Objects on hold are kept.",
        "on hold",
    ),
    Safeguard(
        "earlier marks' ranges are read again", 8,
        "Without signatures, a sweep reads the ranges again that an incremental mark took from earlier ones.",
        "a retained commit", faults=1, mark="incremental",
    ),
    Safeguard(
        "a retry looks again", 10,
        "Before a retry of a delete, the object is looked up again: the first one may have succeeded.",
        "an expired commit", operations=1, faults=1,
    ),
    Safeguard(
        "a resumed sweep re-verifies", 10,
        "A sweep that was killed begins again with a re-verification.",
        "an expired commit", operations=1, faults=1,
    ),
)  # fmt: skip
PAST = {
    "identical content re-staged": Past("identical content", ("path probes",)),
    "shared parent": Past("a shared parent", ("the rule, not only the server's list",)),
    "empty list": Past(
        "staged",
        ("the diffs of branches", "the list is repeated", "the second reading", CLOSING),
        faults=1,
        kind="empty list",
    ),
    "other spelling": Past("committed by its full address", ("every spelling of an address",)),
    "unread neighbor": Past("another repository stages it", ("an unread repository counts",), faults=1),
    "forged base": Past(
        "a retained commit", ("earlier marks' ranges are read again",), faults=1, mark="incremental", kind="forged base"
    ),
    "late revival": Past("an expired commit", ("heads are watched",), operations=1),
}
"""The losses that were found in earlier versions of lakegc, and the corrections that they led to."""


@cache
def smallest_loss(safeguard: Safeguard, scenario: str = "") -> Loss | None:
    """The loss without a safeguard that has the fewest events, then the fewest steps, in its scenario or a different
    one. With the safeguard, the same events lose nothing, though the others that are left out with it are still left
    out."""
    name = scenario or safeguard.scenario
    exploration = Exploration(SCENARIOS[name], safeguard.scope, safeguard.left_out)
    for loss in exploration.run(first=not safeguard.also).losses:
        if not safeguard.also or not play(name, safeguard.scope, loss.events, safeguard.also).lost:
            return loss
    return None


def losses(chosen: Sequence[str]) -> Iterator[tuple[Safeguard, Loss | None]]:
    return ((safeguard, smallest_loss(safeguard)) for safeguard in SAFEGUARDS if not chosen or safeguard.name in chosen)


def main(arguments: Sequence[str]) -> int:
    from tests.exhaustive.traces import table

    everywhere, chosen = "--everywhere" in arguments, [argument for argument in arguments if argument != "--everywhere"]
    missing = 0
    for safeguard, loss in losses(chosen):
        print(f"\n{safeguard.name}")
        if everywhere:
            for name in SCENARIOS:
                smallest = smallest_loss(safeguard, name)
                print(
                    f"  {name}: {'-' if smallest is None else f'{len(smallest.events)} events, {smallest.steps} steps'}"
                )
        missing += loss is None
        print("NOTHING IS LOST" if loss is None else table(loss))
    return missing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
