"""Which deletes lose data, and which ones remove objects that no collector could know to be live.

A loss is an object that is live when it is deleted, unless one of the reasons in `INVISIBLE` excuses it: it became live
too late to be seen, or in a way that nothing shows.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.exhaustive.memory import Memory, Since, part
from tests.exhaustive.server import Answer
from tests.exhaustive.world import BITS, NEW, STORED, addresses, bit

LOST = "lost"


class Invisible(NamedTuple):
    """A loss that no collector can see: how it comes about, why, and what an operator does about it."""

    name: str
    how: str
    why: str
    remedy: str


INVISIBLE = (
    Invisible(
        "became live in the last seconds",
        "An old object becomes live by a new branch, a revert, a rule, a hold or a tag, after the last listing of "
        "heads.",
        "There is always some time between the last check and the delete: here a few seconds.",
        "The report names it. With quarantine, `lakegc undo` brings it back.",
    ),
    Invisible(
        "staged by its old address",
        "An old object that nothing refers to is staged again by its own address, after a sweep began to re-verify.",
        "Lists of what is staged are too slow to be read before each delete.",
        "As above. Let clients copy objects instead of linking old addresses, or put their prefix on hold.",
    ),
    Invisible(
        "committed and left within a minute",
        "A commit with an old object is made and no branch leads to it any more, between two dumps of all commits.",
        "No list of branches shows it; dumps are made every minute.",
        "As above.",
    ),
    Invisible(
        "committed and left without a dump",
        "The credentials can't dump references; a commit is made, and no branch leads to it when heads are listed.",
        "Only a dump of references has all commits.",
        "Allow `fs:ListBranches`, `fs:ListTags` and `fs:ListCommits`.",
    ),
    Invisible(
        "imported elsewhere within a minute",
        "Another repository commits an old object of this namespace between two listings of its tables.",
        "Tables of other repositories are listed every minute, or when a branch there has a new head.",
        "As above.",
    ),
    Invisible(
        "moved twice",
        "A staged object is moved to another path twice within one mark or re-verification. A reset that leaves it "
        "staged, but in no commit, counts as a move.",
        "Each reading of a branch takes time; an object can be ahead of one and behind the next.",
        "A minimum age that is longer than such jobs take; quarantine.",
    ),
    Invisible(
        "overwritten right after its lookup",
        "New bytes are written to an old key between its last lookup and its delete; or, if the reference collector "
        "sweeps, since the store was listed.",
        "Not all stores support a delete on the condition that the object is unchanged.",
        "Versioning of the bucket, or a backup.",
    ),
    Invisible(
        "declared with a wrong size",
        "A client stages an object by its address with a size that isn't the object's, but that of what is committed.",
        "Neither lists nor sizes show that it is served; lakeFS doesn't verify the size.",
        "Clients that declare what they wrote; quarantine; a backup.",
    ),
)
REASONS = (
    (Since.STAGED, "staged by its old address"),
    (Since.HEADS, "became live in the last seconds"),
    (Since.BEHIND, "became live in the last seconds"),
    (Since.DUMP, "committed and left within a minute"),
    (Since.ELSEWHERE, "imported elsewhere within a minute"),
    (Since.HELD, "became live in the last seconds"),
)
"""For each reason of `world.Reasons`: the bound after which a life by this reason began too late, and its name."""


def judge_mark(memory: Memory, answer: Answer, recorded: int) -> dict[int, str]:
    """The verdict on the expired objects that are live when a mark is finished: LOST, or the name of an excuse.

    An object is promised if it was live ever since the mark began. While another repository can't be read, what an
    earlier mark `recorded` there is kept; nothing else of it is promised, and a brake says so. A mark on unsigned
    earlier ones can be swept by lakegc only, which reads their ranges again.
    """
    live, new = answer
    promised = memory.candidates & live & ~part(memory.absence, Since.MARK)
    if memory.unread:
        promised &= recorded
    if memory.forged:
        promised = 0
    reasons = {}
    for address in addresses(promised):
        here = bit(address)
        if memory.moved >> BITS & here:
            reasons[address] = "moved twice"
        elif new & ~memory.young & here:
            reasons[address] = "overwritten right after its lookup"
        else:
            reasons[address] = LOST
    return reasons


def judge_delete(address: int, memory: Memory, answer: Answer) -> str | None:
    """The verdict on a delete; None if nothing live is deleted.

    Live objects are promised if they were live ever since the re-verification began, or are live for a reason that
    began before the bound of this reason. An object other than the marked one is promised if it could be looked up.
    """
    kind, reasons = answer
    if kind not in STORED or not any(reasons):
        return None
    here = bit(address)
    if kind == NEW:
        return LOST if memory.kind_then == NEW else "overwritten right after its lookup"
    if memory.moved >> BITS & here:
        return "moved twice"
    if not part(memory.absence, Since.VERIFICATION) & here:
        return LOST
    bounds = [bound for lives, bound in zip(reasons, REASONS, strict=True) if lives]
    is_late = all(part(memory.absence, since) & here for since, _ in bounds)
    return bounds[0][1] if is_late else LOST
