"""Which commits only holds retain, and which paths holds match. Pure decisions, each with the holds' ids.

A hold can only keep more. Commits that the rules retain anyway are not attributed to a hold.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase, translate
from typing import TypeAlias

from lakegc_assets.rules.retention import Reason, Verdict, commit_verdicts
from spark_resources.errors import DamagedData
from spark_resources.mark_store.hold_file import (
    BranchHold,
    CommitHold,
    Hold,
    PathHold,
    PrefixHold,
    TagHold,
    literal_prefix,
)
from spark_resources.model import HOLD_SEPARATOR, Commit, Rules

NamedCommit: TypeAlias = tuple[str, str]  # a branch or tag, and its commit


@dataclass(frozen=True, slots=True)
class References:
    """Branches and tags as read: each snapshot of the branches, and the tags of all snapshots together."""

    branches: Sequence[Mapping[str, str]]
    tags: Collection[NamedCommit] = ()


def in_force(holds: Iterable[Hold], now: datetime) -> tuple[Hold, ...]:
    """The holds that haven't expired. `now` is by the lakeFS server's clock."""
    return tuple(hold for hold in holds if not hold.has_expired(now))


def commits_on_hold(
    holds: Iterable[Hold], commits: Mapping[str, Commit], references: References, rules: Rules | None, *, now: datetime
) -> dict[str, tuple[str, ...]]:
    """The commits on hold, each with the sorted ids of its holds. The rules may also retain these commits.

    Raises `DamagedData` if a commit that a hold reaches is not in the graph.
    """
    ids_by_commit: dict[str, set[str]] = {}
    for hold in in_force(holds, now):
        for commit_id in _reached_by(hold, commits, references, rules, now):
            ids_by_commit.setdefault(commit_id, set()).add(hold.id)
    return {commit_id: tuple(sorted(ids)) for commit_id, ids in ids_by_commit.items()}


def with_holds(verdicts: Iterable[Verdict], on_hold: Mapping[str, Sequence[str]]) -> list[Verdict]:
    """The verdicts, with each commit that only holds retain changed to retained, with the ids of its holds."""
    return [
        replace(verdict, retained=True, why=Reason.ON_HOLD, hold=HOLD_SEPARATOR.join(on_hold[verdict.commit_id]))
        if not verdict.retained and verdict.commit_id in on_hold
        else verdict
        for verdict in verdicts
    ]


def _reached_by(
    hold: Hold, commits: Mapping[str, Commit], references: References, rules: Rules | None, now: datetime
) -> set[str]:
    match hold:
        case TagHold():
            tagged = tagged_commits([hold], references.tags)
            return (
                with_ancestors(commits, tagged)
                if hold.with_history
                else {_known(commits, commit_id).id for commit_id in tagged}
            )
        case CommitHold():
            return {commit.id for commit in commits.values() if hold.matches(commit.metadata)}
        case BranchHold():
            return _retained_longer(hold, commits, references, rules, now)
        case _:
            return set()


def tagged_commits(holds: Iterable[Hold], tags: Iterable[NamedCommit], *, history: bool | None = None) -> set[str]:
    """The commits of all tags that match a hold. `history` limits this to holds with, or without, history; None
    means both."""
    named = [hold for hold in holds if isinstance(hold, TagHold) and history in (None, hold.with_history)]
    return {commit_id for tag, commit_id in tags if any(fnmatchcase(tag, hold.tags) for hold in named)}


def with_ancestors(commits: Mapping[str, Commit], starts: Iterable[str]) -> set[str]:
    """These commits and all their ancestors, along all parents. Raises `DamagedData` if one is not in the graph."""
    reached: set[str] = set()
    waiting = list(starts)
    while waiting:
        commit = _known(commits, waiting.pop())
        if commit.id not in reached:
            reached.add(commit.id)
            waiting.extend(commit.parents)
    return reached


def _retained_longer(
    hold: BranchHold, commits: Mapping[str, Commit], references: References, rules: Rules | None, now: datetime
) -> set[str]:
    """The commits that would be retained if the rule of every branch that matches the hold had at least `min_days`.
    Empty without rules, because in that case nothing expires."""
    if rules is None:
        return set()
    retained: set[str] = set()
    for heads in references.branches:
        longer = {
            branch: max(rules.days(branch), hold.min_days) for branch in heads if fnmatchcase(branch, hold.branches)
        }
        if longer:
            extended = Rules(rules.default_days, {**rules.branch_days, **longer})
            verdicts = commit_verdicts(commits.values(), heads, extended, now=now)
            retained |= {verdict.commit_id for verdict in verdicts if verdict.retained}
    return retained


def _known(commits: Mapping[str, Commit], commit_id: str) -> Commit:
    if commit_id not in commits:
        raise DamagedData(
            f"commit {commit_id}, which a hold reaches, is not in the commit graph. It may have been created while "
            "the graph was being read: make a new mark. If this error persists, run 'lakegc fsck'.",
            invariant=3,
        )
    return commits[commit_id]


# --- holds that need the whole graph --------------------------------------------------------------------------------


def unresolvable(holds: Iterable[Hold], *, graph_known: bool) -> list[str]:
    """The ids of the holds that can't be applied completely to the known commits.

    Without the whole graph, commits that no branch or tag reaches are unknown, and so is the content of expired
    commits.
    """
    return [] if graph_known else [hold.id for hold in holds if isinstance(hold, CommitHold | PathHold)]


# --- paths and prefixes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PathHolds:
    """The path holds in force, as an executor applies them. `patterns` are pairs of hold id and pattern."""

    patterns: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, holds: Iterable[Hold]) -> PathHolds:
        return cls(tuple((hold.id, hold.paths) for hold in holds if isinstance(hold, PathHold)))

    def may_match_between(self, min_key: bytes, max_key: bytes) -> bool:
        """Whether a range of paths from `min_key` to `max_key` (inclusive) can contain a path on hold."""
        prefixes = (literal_prefix(pattern).encode() for _, pattern in self.patterns)
        return any(min_key[: len(prefix)] <= prefix <= max_key for prefix in prefixes)

    def matching(self, paths: Sequence[bytes]) -> Iterator[tuple[str, list[int]]]:
        """The id of each hold that matches a path, with the indices of all paths that it matches. A byte that is not
        UTF-8 counts as a character."""
        for hold_id, pattern in self.patterns:
            prefix, matches = literal_prefix(pattern).encode(), re.compile(translate(pattern)).match
            indices = [
                index
                for index, path in enumerate(paths)
                if path.startswith(prefix) and matches(path.decode(errors="surrogateescape"))
            ]
            if indices:
                yield hold_id, indices


def prefixes_of(holds: Iterable[Hold]) -> list[tuple[str, str]]:
    """The physical prefixes on hold, as pairs of hold id and prefix."""
    return [(hold.id, hold.prefix) for hold in holds if isinstance(hold, PrefixHold)]
