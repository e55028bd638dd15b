"""Hypothesis strategies for whole repositories: their histories, objects, rules, holds and clocks, and how they are
marked and swept. Everything is a value, so that a failing repository is printed whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

from spark_resources.lakefs_sandbox import Oversight
from tests.support import oracle
from tests.support.repository_events import (
    BRANCHES,
    DAY,
    HOUR,
    SECOND,
    Event,
    at,
    dates,
    numbers,
    one_of,
    turns,
)  # fmt: skip

T = TypeVar("T")
clocks = st.sampled_from(
    (
        at(2026, 11, 28, 12), at(2024, 2, 29, 23, 59, 58), at(2026, 3, 29, 0, 59, 59), at(2026, 11, 1, 5, 59, 59),
        at(2025, 12, 31, 23, 59, 59), at(2038, 1, 19, 3, 14, 7), at(2100, 2, 28, 23, 59, 59), at(2106, 2, 7, 6, 28, 15),
        at(1999, 12, 31, 23, 59, 59), at(1970, 1, 1, 0, 0, 5), at(1971, 1, 1),
    )
)  # fmt: skip
ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Kiritimati")
MINIMUM_AGES = (
    ("0", 0), ("0", 0), ("0", 0), ("90m", 3 * HOUR // 2), ("24h", DAY), ("1d12h", 36 * HOUR), ("7d", 7 * DAY),
)  # fmt: skip
ENDINGS = ("", "", "", "", "", "undo", "undo", "purge", "purge", "restore")
AGAIN = ("", "", "", "--full", "incremental")


# --- rules and holds ------------------------------------------------------------------------------------------------

rule_days = st.sampled_from((1, 0, 2, 3, 1, 0, 2, 7, 30, 36_500, 2_147_483_647))
given_rules = st.tuples(rule_days, st.dictionaries(st.sampled_from((*BRANCHES, "gone")), rule_days, max_size=3)).filter(
    lambda drawn: bool(drawn[0] or drawn[1])
)
rules = one_of((1, st.none()), (6, given_rules))
"""Zero days everywhere can't be written: they mean a repository without rules."""
branch_patterns = st.sampled_from(("*", "main", "exp-?", "[A-Z_]*", "[!m]*", "x"))
tag_patterns = st.sampled_from(("*", "*", "v*", "?1", "[v-w]*", "ü", "V1", "x"))
metadata_patterns = st.sampled_from(("hold", "h*", "*", "?", "[!h]*"))
path_patterns = st.sampled_from(("*", "a/*", "*x", "[a-b]/?", "*/_SUCCESS", "*\n*", "[[]*", "[!a]*", "?"))
prefixes = st.sampled_from(("data/", "data/!", "data/of/", "data/f", "0", "data/_lakefs/", "+"))
KINDS = one_of(
    (6, st.builds(oracle.H, st.sampled_from(("tag", "history")), tag_patterns)),
    (2, st.builds(oracle.H, st.just("metadata"), metadata_patterns, key=st.just("legal"))),
    (2, st.builds(oracle.H, st.just("branch"), branch_patterns, days=st.sampled_from((1, 2, 7, 30, 36_500)))),
    (2, st.builds(oracle.H, st.just("path"), path_patterns)),
    (1, st.builds(oracle.H, st.just("prefix"), prefixes)),
)
"""Mostly holds of tags, which keep something only in repositories with a fitting tag of an expired commit."""


def holds(now: int) -> st.SearchStrategy[oracle.H]:
    ends = st.sampled_from((oracle.FOR_EVER, oracle.FOR_EVER, now - DAY, now, now + 60 * SECOND, now + DAY))
    return st.builds(lambda hold, until: hold._replace(until=until), KINDS, ends)


# --- the whole ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Elsewhere:
    """A reference from another repository: staged there, committed, or committed and removed again."""

    which: int
    form: int
    how: str


@dataclass(frozen=True)
class Drawn:
    """A repository, a mark of it, what happens afterwards, and its sweep."""

    now: int
    zone: str
    range_entries: int
    page_size: int
    oversights: tuple[Oversight, ...]
    created: int
    events: tuple[Event, ...]
    elsewhere: tuple[Elsewhere, ...]
    rules: tuple[int, dict[str, int]] | None
    holds: tuple[oracle.H, ...]
    holds_in_file: int
    scope: str
    min_age: tuple[str, int]
    lost: tuple[int, ...]
    accepted: bool
    by_dagster: bool
    later: tuple[Event, ...]
    later_rules: tuple[int, dict[str, int]] | None
    later_hold: oracle.H | None
    rewritten: tuple[int, ...]
    vanished: tuple[int, ...]
    ending: str
    again: str


def mostly(usual: T, rarely: st.SearchStrategy[T], one_in: int) -> st.SearchStrategy[T]:
    """The usual value, which is the simplest one, except in one of so many examples."""
    return one_of((one_in - 1, st.just(usual)), (1, rarely))


def few(one: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(one, max_size=2).map(tuple)


def histories(now: int, longest: int) -> st.SearchStrategy[tuple[Event, ...]]:
    """The events of at most so many turns."""
    return st.lists(turns(now), max_size=longest).map(lambda drawn: tuple(event for turn in drawn for event in turn))


some_oversights = st.lists(st.sampled_from(Oversight), unique=True).map(tuple)
references_elsewhere = st.builds(Elsewhere, numbers, numbers, st.sampled_from(("staged", "committed", "removed")))


@st.composite
def repositories(draw: st.DrawFn) -> Drawn:
    now = draw(clocks)
    drawn_rules = draw(rules)
    return Drawn(
        now=now,
        zone=draw(st.sampled_from(ZONES)),
        range_entries=draw(st.sampled_from((50_000, 1, 2))),
        page_size=draw(st.sampled_from((500_000, 1))),
        oversights=draw(mostly(tuple(Oversight), some_oversights, 4)),
        created=draw(dates(now)),
        # three parts, because a single list is rarely long
        events=(*draw(histories(now, 12)), *draw(histories(now, 12)), *draw(histories(now, 12))),
        elsewhere=draw(mostly((), few(references_elsewhere), 5)),
        rules=drawn_rules,
        holds=tuple(draw(st.lists(holds(now), max_size=4))),
        holds_in_file=draw(st.integers(0, 3)),
        scope=draw(st.sampled_from(("unified", "unified", "committed", "uncommitted"))),
        min_age=draw(st.sampled_from(MINIMUM_AGES)),
        lost=draw(mostly((), few(numbers), 5)),
        accepted=draw(mostly(True, st.just(False), 5)),
        by_dagster=draw(mostly(False, st.just(True), 20)),
        later=draw(histories(now, 3)),
        later_rules=draw(mostly(drawn_rules, rules, 4)),
        later_hold=draw(mostly(None, holds(now), 4)),
        rewritten=draw(mostly((), few(numbers), 5)),
        vanished=draw(mostly((), few(numbers), 5)),
        ending=draw(st.sampled_from(ENDINGS)),
        again=draw(st.sampled_from(AGAIN)),
    )
