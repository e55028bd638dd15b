"""Which commits and paths a hold covers: every ancestor of a merge, and every range that may contain a path on hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakegc_assets.rules.holds import (
    PathHolds,
    References,
    commits_on_hold,
    tagged_commits,
    unresolvable,
    with_ancestors,
)
from spark_resources.errors import DamagedData
from spark_resources.mark_store.hold_file import BranchHold, CommitHold, PathHold, PrefixHold, TagHold
from spark_resources.model import Commit, Rules

NOW = datetime(2026, 3, 31, tzinfo=UTC)
WHOSE = {"owner": "ada", "reason": "because"}


def graph(version: int, **parents: str) -> dict[str, Commit]:
    """A commit graph: names of commits, each with its parents as letters."""
    return {commit: Commit(commit, tuple(behind), NOW, "", version=version) for commit, behind in parents.items()}


@pytest.mark.parametrize("version", [0, 1])
def test_a_hold_with_history_covers_every_ancestor_through_each_parent_of_a_merge(version: int) -> None:
    """If only one parent were followed, the objects of the merged branch would expire."""
    commits = graph(version, a="", b="a", x="", y="x", m="by", q="", h="mq", later="h")
    hold = TagHold(id="h", tags="v*", history="true", **WHOSE)

    on_hold = commits_on_hold([hold], commits, References([{"main": "later"}], {("v1", "h")}), None, now=NOW)

    assert set(on_hold) == {"a", "b", "x", "y", "m", "q", "h"}
    assert with_ancestors(commits, ["m"]) == {"a", "b", "x", "y", "m"}


def branch_history() -> dict[str, Commit]:
    """Each commit, named by a letter, was its branch's head until its child was created: 50, 40 and 20 days ago for a,
    b and x."""
    ages = {"a": 60, "b": 50, "c": 40, "x": 30, "y": 20}
    parents = {"a": (), "b": ("a",), "c": ("b",), "x": ("a",), "y": ("x",)}
    return {
        name: Commit(name, parents[name], NOW - timedelta(days=days), "", message=name) for name, days in ages.items()
    }


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (Rules(7), {"c", "b"}),
        (Rules(7, {"main": 55}), {"c", "b", "a"}),
        (Rules(7, {"main": 30}), {"c", "b"}),
        (None, set()),
    ],
    ids=["default rule", "longer rule of the branch", "shorter rule of the branch", "no rules"],
)
def test_a_hold_on_a_branch_covers_what_its_days_or_its_longer_rule_retain(
    rules: Rules | None, expected: set[str]
) -> None:
    """Without rules, every commit is retained anyway. The other branch, dev, isn't on hold, but its head is
    retained."""
    hold = BranchHold(id="h", branches="ma*", days="45", **WHOSE)

    on_hold = commits_on_hold([hold], branch_history(), References([{"main": "c", "dev": "y"}]), rules, now=NOW)

    assert set(on_hold) - {"y"} == expected


def test_a_hold_on_a_branch_applies_to_every_reading_of_the_branches() -> None:
    """The branch was deleted or reset between two readings; without the hold, its history would expire."""
    hold = BranchHold(id="h", branches="dev", days="45", **WHOSE)

    for later in ({"main": "c"}, {"main": "c", "dev": "b"}):
        readings = [{"main": "c", "dev": "y"}, later]
        for references in (References(readings), References(readings[::-1])):
            assert {"x", "y"} <= set(commits_on_hold([hold], branch_history(), references, Rules(7), now=NOW))


def test_tagged_commits_are_those_with_a_tag_that_a_hold_matches() -> None:
    """Tagged commits can be selected by whether their hold includes their history. Holds of other kinds have no tagged
    commits."""
    holds = [
        TagHold(id="alone", tags="v*", **WHOSE),
        TagHold(id="all", tags="w*", history="true", **WHOSE),
        CommitHold(id="by-commit", commits={"legal": "hold"}, **WHOSE),
        PrefixHold(id="by-prefix", prefix="data/a", **WHOSE),
    ]
    tags = [("v1", "a"), ("w1", "b"), ("x1", "c")]

    assert tagged_commits(holds, tags) == {"a", "b"}
    assert tagged_commits(holds, tags, history=True) == {"b"}
    assert tagged_commits(holds, tags, history=False) == {"a"}
    assert commits_on_hold(holds[2:], branch_history(), References([{"main": "c"}], tags), Rules(7), now=NOW) == {}


def test_a_commit_on_hold_that_is_not_in_the_graph_stops_the_mark() -> None:
    """The objects of the commit are unknown, and may be live."""
    hold = TagHold(id="h", tags="v*", **WHOSE)

    with pytest.raises(
        DamagedData, match="commit unknown, which a hold reaches, is not in the commit graph"
    ) as damaged:
        commits_on_hold([hold], branch_history(), References([{}], {("v1", "unknown")}), Rules(7), now=NOW)
    assert damaged.value.invariant == 3


PATTERNS = ("data/*", "data/a", "a", "a?", "ab*", "*", "b/*/x", "é*")
paths = st.lists(st.sampled_from("ab/dt?é"), max_size=6).map("".join) | st.sampled_from(
    ["data/", "data/a", "data/b/c", "a", "ab", "abc", "b/", "b/x", "é", "data0"]
)


@given(st.sampled_from(PATTERNS), st.lists(paths, min_size=1, max_size=5).map(lambda some: [p.encode() for p in some]))
@example("data/*", [b"data/", b"data/a"])
@example("data/a", [b"data/a"])
@example("ab*", [b"a", b"ab"])
@example("ab*", [b"abc"])
def test_a_range_with_a_path_on_hold_is_always_read(pattern: str, there: list[bytes]) -> None:
    """If the range were skipped because of its first and last key, every path on hold in it would be lost."""
    holds = PathHolds.of([PathHold(id="h", paths=pattern, **WHOSE)])
    matching = [place for _, places in holds.matching(there) for place in places]

    assert not matching or holds.may_match_between(min(there), max(there))


@pytest.mark.parametrize(
    ("first", "last", "may"),
    [
        *((b"data/", b"data/", True), (b"data/", b"z", True), (b"a", b"data/", True), (b"data/x", b"data/y", True)),
        *((b"a", b"z", True), (b"a", b"data", False), (b"data0", b"z", False), (b"z", b"zz", False)),
    ],
)
def test_a_range_may_have_a_path_on_hold_if_its_bounds_include_the_prefix(first: bytes, last: bytes, may: bool) -> None:
    """Both bounds belong to the range, and either may be the prefix itself. Ranges before or after the prefix are not
    read."""
    assert PathHolds.of([PathHold(id="h", paths="data/*", **WHOSE)]).may_match_between(first, last) is may


def test_without_the_whole_graph_holds_on_commits_and_paths_cannot_be_applied() -> None:
    """A hold must never be applied in part, so the mark stops and names each of them."""
    holds = [
        CommitHold(id="by-commit", commits={"legal": "hold"}, **WHOSE),
        TagHold(id="by-tag", tags="v*", **WHOSE),
        PathHold(id="by-path", paths="a/*", **WHOSE),
        PrefixHold(id="by-prefix", prefix="data/a", **WHOSE),
        BranchHold(id="by-branch", branches="main", days="9", **WHOSE),
    ]

    assert unresolvable(holds, graph_known=False) == ["by-commit", "by-path"]
    assert unresolvable(holds, graph_known=True) == []


def test_each_path_hold_matches_whole_paths_whatever_their_bytes() -> None:
    """In a path that isn't UTF-8, each invalid byte counts as one character."""
    holds = PathHolds.of([PathHold(id=name, paths=paths, **WHOSE) for name, paths in (("h1", "a?b*"), ("h2", "x"))])
    there = [b"a", b"a\xffb", b"a\xff\xfeb", b"aab/c\xff", b"a/b", b"xa/b", "a\u00e9b".encode(), b"X"]

    assert list(holds.matching(there)) == [("h1", [1, 3, 4, 6])]
    assert list(holds.matching([b"x", b"a"])) == [("h2", [0])]
    assert list(holds.matching([])) == []
