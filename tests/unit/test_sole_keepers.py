"""Which commits only one branch or tag retains, compared with the decision made again without that branch or tag."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from lakegc_assets.rules.holds import NamedCommit, References, commits_on_hold
from lakegc_assets.rules.retention import commit_verdicts
from lakegc_assets.rules.sole_keepers import kept_only_by_branch, kept_only_by_tag, main_children
from spark_resources.mark_store.hold_file import Hold, parse_holds
from spark_resources.model import Commit, Rules

NOW = datetime(2026, 11, 21, tzinfo=UTC)
HOLDS = b"""
holds:
  - {id: a, tags: "v*", owner: ada, reason: because}
  - {id: b, tags: "w*", history: true, owner: ada, reason: because}
  - {id: c, commits: {legal: hold}, owner: ada, reason: because}
"""


def history(seed: int) -> tuple[dict[str, Commit], set[NamedCommit], Rules | None]:
    """Commits with up to two parents and dates in any order, the heads of a few branches, and rules."""
    draw, commits = random.Random(seed), dict[str, Commit]()
    for number in range(draw.randint(1, 14)):
        parents = tuple(draw.sample(sorted(commits), min(draw.choice((0, 1, 1, 1, 2)), len(commits))))
        created = NOW - timedelta(days=draw.randint(0, 12))
        metadata = {"legal": "hold"} if not draw.randint(0, 6) else {}
        commits[f"c{number}"] = Commit(
            f"c{number}", parents, created, "", version=draw.choice((0, 1, 1)), metadata=metadata
        )
    heads = {(branch, draw.choice(sorted(commits))) for branch in ("main", "dev", "exp")[: draw.randint(1, 3)]}
    rules = Rules(draw.randint(0, 8), {"main": draw.randint(0, 12)}) if draw.randint(0, 9) else None
    return commits, heads, rules


def named_by(commits: dict[str, Commit], heads: set[NamedCommit], rules: Rules | None) -> dict[str, str | None]:
    """The retained commits, each with the branch that retains it longest."""
    verdicts = commit_verdicts(commits.values(), dict(heads), rules, now=NOW)
    return {verdict.commit_id: verdict.branch for verdict in verdicts if verdict.retained}


def test_a_branch_alone_keeps_exactly_the_commits_that_are_not_retained_without_it() -> None:
    for seed in range(200):
        commits, heads, rules = history(seed)
        retained, children = named_by(commits, heads, rules), main_children(commits.values())
        for branch, head in heads:
            others = heads - {(branch, head)}
            named = [commit_id for commit_id, by in retained.items() if by == branch]
            expected = retained.keys() - named_by(commits, others, rules).keys()
            assert kept_only_by_branch(named, commits, children, others, rules, now=NOW) == expected, (seed, branch)


def test_a_tag_alone_keeps_exactly_the_commits_that_are_not_on_hold_without_it() -> None:
    for seed in range(100):
        commits, heads, rules = history(seed)
        draw, holds = random.Random(seed), parse_holds(HOLDS, "holds.yaml")
        tags = {(tag, draw.choice(sorted(commits))) for tag in ("v1", "v2", "w1", "other")}
        expired = commits.keys() - named_by(commits, heads, rules).keys()
        on_hold = ids_on_hold(holds, commits, tags) & expired
        found = kept_only_by_tag(on_hold, holds, commits, References((dict(heads),), tags), rules, now=NOW)
        for tag in tags:
            expected = on_hold - ids_on_hold(holds, commits, tags - {tag})
            assert found.get(tag, frozenset()) == expected, (seed, tag)
        assert "other" not in {name for name, _ in found}, seed


def ids_on_hold(holds: tuple[Hold, ...], commits: dict[str, Commit], tags: set[NamedCommit]) -> set[str]:
    return set(commits_on_hold(holds, commits, References((), tags), None, now=NOW))
