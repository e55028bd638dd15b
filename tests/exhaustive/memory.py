"""The state of a mark or sweep while it runs, as a tuple of small numbers; sets of objects are bits.

The first three fields aren't known to a real run: the search needs them to tell a loss from an object that became live
too late for any collector (see `Since`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from tests.exhaustive.world import BITS

_OBJECTS = (1 << BITS) - 1


class Since(IntEnum):
    """The parts of `Memory.absence`: the objects that were not live, or not live for one reason, at some time since
    …"""

    MARK = 0
    """… the mark began: not live at all."""
    VERIFICATION = 1
    """… the last re-verification began: not live at all."""
    STAGED = 2
    """… the last re-verification began: not staged."""
    HEADS = 3
    """… the permit to delete was renewed: in no head."""
    BEHIND = 4
    """… the same: not in what rules retain behind heads."""
    DUMP = 5
    """… commits were dumped by the watch: not reached by a retained commit on no branch."""
    ELSEWHERE = 6
    """… the tables of the other repository were listed by the watch: in none of them."""
    HELD = 7
    """… the permit to delete was renewed: not on hold."""


class Memory(NamedTuple):
    """`absence` has the objects of each part of `Since`, `moved` those moved once and, above them, twice. `earlier` is
    the world before the last operation, which a stale answer shows."""

    absence: int = 0
    moved: int = 0
    earlier: int = -1

    sweeping: int = 0  # whether a sweep has begun
    candidates: int = 0  # objects that may still expire or be deleted
    young: int = 0  # candidates that were listed as young
    live: int = 0  # objects that any reading found
    compared: int = 0  # objects that an incremental mark looked up one by one
    known_live: int = 0  # objects live by the base mark's record of ranges that count now
    forged: int = 0  # objects that somebody who may write to the namespace removed from that record
    rules: int = 0  # the rules when the mark or re-verification began
    held: int = 0
    unread: int = 0  # whether the other repository could not be read

    page: int = 0  # pages of the server's list so far
    kind: int = 0  # how the list ended: see LISTS
    repeats: int = 0  # repeated requests of the list
    todo: int = 0  # the branches still to be read
    changed: int = 0  # the changed paths of the branch
    found: int = 0  # paths found by the diffs of this reading
    tries: int = 0  # attempts to read the branch

    before: int = 0  # heads; this and the next fields are indexes into the collector's table
    after: int = 0
    tags: int = 0
    dumped: int = 0
    listed: int = 0
    decided: int = 0  # Decided and Read
    proven: int = 0  # trees that the approved mark read, so a re-verification doesn't
    heads: int = 0  # every head seen: repository, branch, commit
    probes: int = 0  # paths to probe: repository, branch, path
    watch: int = 0

    late: int = 0  # whether the last lookup is too old to be relied on
    kind_then: int = 0  # the object at the key at its lookup, or when the lookup was due again


LISTS = ("whole", "empty", "none")


def part(absence: int, which: Since) -> int:
    return absence >> BITS * which & _OBJECTS


def begun(absence: int, now: int, *parts: Since) -> int:
    """The absence with these parts as they are in a world whose absence is `now`."""
    for which in parts:
        there = _OBJECTS << BITS * which
        absence = absence & ~there | now & there
    return absence
