"""Which commits only one branch or tag retains. Pure: decides with the rules of `retention` and `holds`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from lakegc_assets.rules.holds import NamedCommit, References, commits_on_hold
from lakegc_assets.rules.retention import commit_verdicts
from spark_resources.mark_store.hold_file import Hold, TagHold
from spark_resources.model import Commit, Rules


def main_children(commits: Iterable[Commit]) -> dict[str, list[str]]:
    """The commits with each commit as their main parent."""
    children: dict[str, list[str]] = {}
    for commit in commits:
        if commit.main_parent is not None:
            children.setdefault(commit.main_parent, []).append(commit.id)
    return children


def kept_only_by_branch(
    retained_by_branch: Collection[str],
    commits: Mapping[str, Commit],
    children: Mapping[str, list[str]],
    other_heads: Collection[NamedCommit],
    rules: Rules | None,
    *,
    now: datetime,
) -> frozenset[str]:
    """The commits that the rules would expire without a branch.

    `retained_by_branch` are the commits that this branch retains longest, according to the rules: no other commits can
    be lost. `children` are the `main_children` of all commits, and `other_heads` the heads of all other branches. A
    verdict depends only on the commits whose main lines lead to it, so only these are decided again.
    """
    graph = _lines_to(retained_by_branch, commits, children)
    heads = [(branch, head) for branch, head in sorted(other_heads) if head in graph]
    verdicts = commit_verdicts(graph.values(), dict(heads), rules, now=now)
    still_retained = {verdict.commit_id for verdict in verdicts if verdict.retained}
    return frozenset(retained_by_branch) - still_retained - {head for _, head in heads}


def _lines_to(
    commit_ids: Collection[str], commits: Mapping[str, Commit], children: Mapping[str, list[str]]
) -> dict[str, Commit]:
    """These commits, and all commits whose main lines lead to one of them; parents outside these are left out."""
    reached, waiting = set[str](), list(commit_ids)
    while waiting:
        commit_id = waiting.pop()
        if commit_id not in reached:
            reached.add(commit_id)
            waiting.extend(children.get(commit_id, ()))
    graph = {}
    for commit_id in reached:
        parent = commits[commit_id].main_parent
        graph[commit_id] = replace(commits[commit_id], parents=(parent,) if parent in reached else ())
    return graph


def kept_only_by_tag(
    on_hold: Collection[str],
    holds: Collection[Hold],
    commits: Mapping[str, Commit],
    references: References,
    rules: Rules | None,
    *,
    now: datetime,
) -> dict[NamedCommit, frozenset[str]]:
    """For each tag that a hold matches, the commits among `on_hold` (those that only holds retain) that would be lost
    without it."""
    tag_holds = [hold for hold in holds if isinstance(hold, TagHold)]
    others = [hold for hold in holds if not isinstance(hold, TagHold)]
    by_other_holds = set(commits_on_hold(others, commits, references, rules, now=now))
    reached = {
        tag: set(commits_on_hold(tag_holds, commits, References(references.branches, {tag}), rules, now=now))
        for tag in references.tags
    }
    counts = Counter(commit_id for of_tag in reached.values() for commit_id in of_tag)
    only_once = {commit_id for commit_id, count in counts.items() if count == 1} & set(on_hold) - by_other_holds
    return {tag: frozenset(of_tag & only_once) for tag, of_tag in reached.items() if of_tag}
