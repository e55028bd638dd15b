"""Which commits are retained, by which rule and until when (formats §6): pure decisions, each with its reason.

The rule is defined by walks: each walk goes from a starting point along the line of main parents, and retains every
parent whose child is young. A single pass over the commits gives the same result: a walk with d days retains a parent
until `child's date + d`, so of all walks through one child only the one with the most days matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from spark_resources.errors import DamagedData
from spark_resources.model import Commit, Rules


class Reason(StrEnum):
    """Why a commit is retained or not."""

    HEAD = "head of the branch"
    CHILD_YOUNG = "was the branch's head until its child was created, recently enough to retain it"
    DANGLING = "dangling, younger than the default rule"
    NO_RULES = "the repository has no retention rules"
    ON_HOLD = "on hold"
    SERVER = "the server lists it as retained, though no rule known to lakegc retains it"
    CHILD_OLD = "was the branch's head until its child was created, too long ago to retain it"
    EXPIRED_DANGLING = "dangling, older than the default rule"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one commit, and why.

    `branch` and `days` name the rule that retains it longest; `branch` is None for a dangling line. `until` is when
    that rule expires it, by the server's clock; it is later than `now` if and only if the rule retains the commit.
    All three are None if no rule decides, that is, without rules or if only the server's list retains it. `until` is
    None for heads, too. `created` and `message` are None for a commit that is only on the server's list. `hold` has
    the ids of the holds that retain a commit that the rules expire; `branch`, `days` and `until` are then those of
    the rule that expired it.
    """

    commit_id: str
    retained: bool
    why: Reason
    branch: str | None
    days: int | None
    until: datetime | None
    metarange_id: str
    created: datetime | None
    message: str | None
    server_listed: bool = False
    hold: str | None = None


def commit_verdicts(
    commits: Iterable[Commit], heads: Mapping[str, str], rules: Rules | None, *, now: datetime
) -> list[Verdict]:
    """One verdict for every commit of the graph, sorted by id.

    `heads` maps each branch to its commit; if `rules` is None, the repository has none, and nothing expires; `now`
    is the time by the lakeFS server's clock. Raises `DamagedData` if the graph is inconsistent: a missing head or
    parent, two commits with one id (an exact duplicate is allowed), a cycle of main parents.
    """
    graph = _by_id(commits)
    _check_whole(graph, heads)
    order = _children_first(graph)
    verdicts: Iterator[Verdict]
    if rules is None:
        verdicts = (_verdict(commit, Reason.NO_RULES, retained=True) for commit in order)
    else:
        # A `Date` header is truncated to whole seconds. A smaller `now` retains more.
        verdicts = _decided(order, _head_lines(heads, rules), rules.default_days, now.replace(microsecond=0))
    return sorted(verdicts, key=lambda verdict: verdict.commit_id)


def with_server_list(verdicts: Iterable[Verdict], listed: Iterable[tuple[str, str]]) -> list[Verdict]:
    """The union of the rule's verdicts and the server's list of (commit id, metarange id), sorted by id (formats §6.6).

    A listed commit is retained even if the rule expires it or it isn't in the graph; commits that aren't listed keep
    the rule's verdict. Raises `DamagedData` if a commit has two metaranges, since its id is a hash that covers its
    metarange.
    """
    known = {verdict.commit_id: verdict for verdict in verdicts}
    for commit_id, metarange_id in listed:
        by_rule = known.get(commit_id)
        if by_rule is None:
            known[commit_id] = _server_only(commit_id, metarange_id)
        elif by_rule.metarange_id != metarange_id:
            raise DamagedData(
                f"commit {commit_id} has the metarange '{by_rule.metarange_id}' in the commit graph (or earlier in the "
                f"server's list) and '{metarange_id}' in the server's list of retained commits. Garbage can't be "
                "determined until this is resolved: run 'lakegc fsck' on the repository."
            )
        elif by_rule.retained:
            known[commit_id] = replace(by_rule, server_listed=True)
        else:
            known[commit_id] = _server_only(commit_id, metarange_id, created=by_rule.created, message=by_rule.message)
    return sorted(known.values(), key=lambda verdict: verdict.commit_id)


# --- the rule -------------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """A line of main parents with the rule of its starting point. `branch` is empty for a dangling commit's line.

    Lines are compared by days. Among equals, a branch beats a dangling commit, and then the last name wins.
    """

    days: int
    branch: str


class _Claim(NamedTuple):
    """The effect of a child on its main parent: the longest line through the child retains the parent until `until`."""

    until: datetime
    line: _Line


def _decided(
    children_first: Iterable[Commit], head_lines: Mapping[str, _Line], default_days: int, now: datetime
) -> Iterator[Verdict]:
    """The verdict on each commit, children first.

    The walk continues past an expired commit: dates need not be in order, so a parent can still be retained.
    """
    longest: dict[str, _Line] = {}  # the longest of the lines that reach a commit through its children
    claims: dict[str, _Claim] = {}  # of all claims on a commit, the one that ends last
    for commit in children_first:
        own, claim = head_lines.get(commit.id), claims.get(commit.id)
        if own is None and claim is None:
            own = _Line(default_days, "")
            yield _dangling(commit, own, now)
        elif own is not None:
            # A head is always retained, even with 0 days, and whatever lines reach it.
            yield _verdict(commit, Reason.HEAD, retained=True, line=own)
        elif claim is not None:
            yield _verdict_by_child(commit, claim, now)
        line = max(line for line in (own, longest.get(commit.id)) if line is not None)
        if (parent := commit.main_parent) is not None:
            longest[parent] = max(line, longest.get(parent, line))
            new = _Claim(_until(commit, line.days), line)
            claims[parent] = max(new, claims.get(parent, new))


def _dangling(commit: Commit, line: _Line, now: datetime) -> Verdict:
    until = _until(commit, line.days)
    why = Reason.DANGLING if until > now else Reason.EXPIRED_DANGLING
    return _verdict(commit, why, retained=until > now, line=line, until=until)


def _verdict_by_child(commit: Commit, claim: _Claim, now: datetime) -> Verdict:
    why = Reason.CHILD_YOUNG if claim.until > now else Reason.CHILD_OLD
    return _verdict(commit, why, retained=claim.until > now, line=claim.line, until=claim.until)


def _until(commit: Commit, days: int) -> datetime:
    """When `days` of 24 h have passed since the commit's date, rounded towards keeping (invariant 6).

    A date without a fraction may have lost it, because the API shows whole seconds; the true date is less than a second
    later. A fraction that is too fine for this type is harmless, since `now` is a whole second.
    """
    time_resolution = timedelta(0) if commit.created.microsecond else timedelta(seconds=1)
    try:
        return commit.created + time_resolution + timedelta(days=days)
    except OverflowError:  # effectively never: later than any `now`
        return datetime.max.replace(tzinfo=UTC)


def _head_lines(heads: Mapping[str, str], rules: Rules) -> dict[str, _Line]:
    """For each head commit, the longest line of the branches that point to it."""
    lines: dict[str, _Line] = {}
    for branch, commit_id in heads.items():
        line = _Line(rules.days(branch), branch)
        lines[commit_id] = max(line, lines.get(commit_id, line))
    return lines


def _verdict(
    commit: Commit, why: Reason, *, retained: bool, line: _Line | None = None, until: datetime | None = None
) -> Verdict:
    return Verdict(
        commit_id=commit.id,
        retained=retained,
        why=why,
        branch=(line.branch or None) if line else None,
        days=line.days if line else None,
        until=until,
        metarange_id=commit.metarange_id,
        created=commit.created,
        message=commit.message,
    )


def _server_only(
    commit_id: str, metarange_id: str, *, created: datetime | None = None, message: str | None = None
) -> Verdict:
    return Verdict(
        commit_id=commit_id,
        retained=True,
        why=Reason.SERVER,
        branch=None,
        days=None,
        until=None,
        metarange_id=metarange_id,
        created=created,
        message=message,
        server_listed=True,
    )


# --- the graph ------------------------------------------------------------------------------------------------------


def _by_id(commits: Iterable[Commit]) -> dict[str, Commit]:
    graph: dict[str, Commit] = {}
    for commit in commits:
        if graph.setdefault(commit.id, commit) != commit:
            raise DamagedData(
                f"two different commits have the id {commit.id}. The commit graph isn't trustworthy: make a new "
                "mark. If this error persists, run 'lakegc fsck' on the repository."
            )
    return graph


def _check_whole(graph: Mapping[str, Commit], heads: Mapping[str, str]) -> None:
    """Raise `DamagedData` if a referenced commit is not in the graph, because without a verdict its objects would look
    like garbage.

    Walks only follow main parents, but a missing merge parent stops the mark, too: the dump has the whole graph, so
    some commit was not read. That commit may be young and dangling, and the rule retains such commits.
    """
    for branch, commit_id in heads.items():
        if commit_id not in graph:
            raise DamagedData(
                f"the head of branch '{branch}', commit {commit_id}, is not in the commit graph. It may have been "
                "created while the graph was being read: make a new mark. If this error persists, "
                "run 'lakegc fsck'.",
                invariant=3,
            )
    for commit in graph.values():
        for parent in commit.parents:
            if parent not in graph:
                raise DamagedData(
                    f"commit {parent}, a parent of commit {commit.id}, is not in the commit graph. It may have been "
                    "created while the graph was being read: make a new mark. If this error persists, "
                    "run 'lakegc fsck'.",
                    invariant=3,
                )


def _children_first(graph: Mapping[str, Commit]) -> list[Commit]:
    """All commits, each after its children on main lines (`Commit.main_parent`). Raises `DamagedData` for a cycle."""
    children_left = dict.fromkeys(graph, 0)  # number of children not yet processed
    for commit in graph.values():
        if commit.main_parent is not None:
            children_left[commit.main_parent] += 1
    order = [commit for commit in graph.values() if not children_left[commit.id]]
    for commit in order:  # grows during the iteration
        if (parent := commit.main_parent) is not None:
            children_left[parent] -= 1
            if not children_left[parent]:
                order.append(graph[parent])
    if len(order) < len(graph):
        in_cycle = min(commit_id for commit_id, children in children_left.items() if children)
        raise DamagedData(
            f"commit {in_cycle} is in a cycle of main parents, which can't exist in an intact graph, since commit ids "
            "are hashes over their parents. The commit graph is damaged: run 'lakegc fsck' on the repository."
        )
    return order
