"""The commits that are newly retained since a re-verification: they include all that a mark would retain in the whole
graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.mark.context import DecidedCommits, MarkRun
from lakegc_assets.rules.retention import commit_verdicts
from lakegc_assets.sweep import newly_retained
from lakegc_assets.sweep.newly_retained import NewlyRetained, TooManyChanges
from spark_resources import sstable
from spark_resources.model import Commit, Rules

NOW = datetime(2026, 3, 1, tzinfo=UTC)
BRANCHES = ("main", "a", "b")

Step = tuple[str, str, int, int]  # operation, branch, commit, age in days
steps = st.lists(
    st.tuples(
        st.sampled_from(("commit", "commit", "merge", "branch", "branch", "delete", "list")),
        st.sampled_from(BRANCHES),
        st.integers(0, 99),
        st.integers(0, 20),
    ),
    min_size=4,
    max_size=25,
)
rules = st.builds(Rules, st.integers(0, 20), st.dictionaries(st.sampled_from(BRANCHES), st.integers(0, 20)))


@dataclass
class History:
    """A server's commits and branches."""

    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def add(self, branch: str, parents: tuple[str, ...], age: int) -> None:
        new = Commit("", parents, NOW - timedelta(days=age), f"m{len(self.commits)}")
        new = Commit(sstable.commit_id(new), new.parents, new.created, new.metarange_id)
        self.commits[new.id] = new
        self.branches[branch] = new.id

    def do(self, step: Step) -> None:
        what, branch, number, age = step
        any_commit = list(self.commits)[number % len(self.commits)]
        if what == "branch":
            self.branches[branch] = any_commit
        elif what == "delete" and branch != "main":
            self.branches.pop(branch, None)
        elif what in ("commit", "merge") and branch in self.branches:
            self.add(branch, (self.branches[branch], *([any_commit] if what == "merge" else [])), age)

    def commit(self, repository: str, commit_id: str) -> Commit:
        return self.commits[commit_id]

    def reverified(self, rules: Rules | None) -> NewlyRetained:
        """The state right after a re-verification."""
        decided = DecidedCommits(dict(self.commits), (), dict(self.branches), set())
        run: Any = SimpleNamespace(
            lakefs=self,
            partition=SimpleNamespace(repository="lake"),
            mark=SimpleNamespace(record=SimpleNamespace(rules=rules, server_now=NOW)),
            decided=decided,
        )
        return NewlyRetained.of(cast(MarkRun, run), self.retained(rules))

    def retained(self, rules: Rules | None, known: Collection[str] | None = None) -> set[str]:
        """The commits that the rule retains, of all commits or of the known ones."""
        commits = [commit for commit in self.commits.values() if known is None or commit.id in known]
        verdicts = commit_verdicts(commits, self.branches, rules, now=NOW)
        return {verdict.commit_id for verdict in verdicts if verdict.retained}

    def reached(self) -> set[str]:
        """The commits that a branch reaches."""
        reachable, waiting = set[str](), list(self.branches.values())
        while waiting:
            if (commit := waiting.pop()) not in reachable:
                reachable.add(commit)
                waiting.extend(self.commits[commit].parents)
        return reachable


def began() -> History:
    history = History()
    history.add("main", (), 20)
    return history


def listings(before: list[Step], after: list[Step], rules: Rules | None) -> Iterator[tuple[History, NewlyRetained]]:
    """The history at the time of each listing after a re-verification."""
    history = began()
    for step in before:
        history.do(step)
    newly = history.reverified(rules)
    for step in [*after, ("list", "main", 0, 0)]:
        history.do(step)
        if step[0] == "list":
            yield history, newly


@settings(max_examples=500, deadline=None)
@given(before=steps, after=steps, rules=st.none() | rules)
def test_each_listing_finds_all_commits_that_the_rule_newly_retains(
    before: list[Step], after: list[Step], rules: Rules | None
) -> None:
    """Only commits count that the re-verification knew or that a branch reached at the time of a listing, because a
    listing can find no others."""
    known: set[str] = set()
    for history, newly in listings(before, after, rules):
        known |= newly.graph.keys() | history.reached()
        newly.add(dict(history.branches), newly.commits(history.branches))
        assert history.retained(rules, known) & history.reached() <= newly.retained


@settings(max_examples=500, deadline=None)
@given(dump_first=st.booleans(), before=steps, after=steps, rules=st.none() | rules)
def test_a_listing_and_a_dump_find_all_commits_that_the_rule_newly_retains(
    dump_first: bool, before: list[Step], after: list[Step], rules: Rules | None
) -> None:
    for history, newly in listings(before, after, rules):
        for dump in (dump_first, not dump_first):
            branches = newly.branches if dump else dict(history.branches)
            newly.add(branches, newly.commits_of(history.commits) if dump else newly.commits(branches))
        assert history.retained(rules) <= newly.retained


def test_commits_that_were_found_but_not_added_are_found_again() -> None:
    """A listing may fail after commits were found, for example because a table can't be read. It then changes
    nothing."""
    history = began()
    newly = history.reverified(Rules(1, {}))
    history.add("main", (history.branches["main"],), 0)
    history.add("main", (history.branches["main"],), 0)

    assert len(newly.commits(history.branches)) == 2
    assert len(newly.commits(history.branches)) == 2


def test_too_many_new_commits_are_left_for_the_next_re_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newly_retained, "MAX_COMMITS", 3)
    history = began()
    newly = history.reverified(Rules(1, {}))
    for _ in range(4):
        history.add("main", (history.branches["main"],), 0)

    with pytest.raises(TooManyChanges, match="branch 'main' changed: there are more than 3 new commits, too many"):
        newly.commits(history.branches)
