"""Checks of queries on a marked repository against its model, for every address there is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from lakegc_assets.queries.addresses import Decision, explain_addresses
from lakegc_assets.queries.comparison import Variant, what_if
from lakegc_assets.queries.history import History
from lakegc_assets.queries.pinned import pins_of
from spark_resources.model import Rules
from tests.support import oracle
from tests.support.mark_runs import Marked
from tests.support.repository_model import RepositoryModel


def checked_explanations(history: History, mark: Marked, model: RepositoryModel, now: datetime) -> list[dict[str, Any]]:
    """The explanations of every address that is stored or that a commit or branch has, after checking them: the
    decision is the mark's, a kept object has a reason, and the reasons are true."""
    stored = {key for key in model.stored() if not key.startswith("_lakefs/")}
    known = stored | model.live(now) | {key for tree in model.trees.values() for key in model.keys(tree.values())}
    rows = explain_addresses(history, pa.array(sorted(known), pa.string())).to_pylist()
    committed = model.keys(entry for commit in model.retained(now) for entry in model.trees[commit].values())
    assert {row["address"] for row in rows if row["decision"] == Decision.EXPIRED} == mark.expired
    for row in rows:
        address, reasons = row["address"], set(row["kept_by"])
        if not oracle.is_candidate(address, local_adapter=True):
            assert row["decision"] == Decision.NEVER_COLLECTED, row
        elif address not in stored:
            assert row["decision"] == Decision.NOT_STORED, row
        elif address not in mark.expired:
            assert row["decision"] == Decision.KEPT, row
            assert reasons, row
        assert ("committed" in reasons) is (address in committed), row
        assert not reasons & {"staged", "branch"} or address in model.live(now), row
        assert "hold" not in reasons or address in model.on_hold(now), row
        assert not reasons & {"other_repository", "scope"}, row
    return rows


def check_pins(history: History, model: RepositoryModel, now: datetime, explained: list[dict[str, Any]]) -> None:
    """Check that each branch pins exactly the objects that would be in no commit that rules or holds retain."""
    pins = {row["name"]: row["objects"] for row in pins_of(history).to_pylist() if row["kind"] == "branch"}
    stored = {row["address"] for row in explained if row["size"] is not None}
    otherwise = {row["address"] for row in explained if {"staged", "meanwhile"} & set(row["kept_by"])}
    heads, before = dict(model.heads), kept_by_commits(model, now, model.heads)
    for branch in heads:
        others = {name: head for name, head in heads.items() if name != branch}
        lost = (before - kept_by_commits(model, now, others)) & stored
        assert pins.pop(branch) == len(lost - otherwise), (branch, sorted(lost - otherwise))
    assert not pins


def kept_by_commits(model: RepositoryModel, now: datetime, heads: Mapping[str, str]) -> set[str]:
    """The keys of all commits that rules or holds retain with these heads, and those on hold by path or prefix."""
    actual, model.heads = model.heads, dict(heads)
    try:
        return model.on_hold(now) | model.keys(
            entry for commit in model.retained(now) for entry in model.trees[commit].values()
        )
    finally:
        model.heads = actual


def checked_what_if(history: History, model: RepositoryModel, now: datetime) -> tuple[pa.Table, pa.Table]:
    """What other rules, other minimum ages and dropped branches would expire, in total and by branch, after checking
    it: exactly what the oracle expires, except for objects that a path probe might keep."""
    own, min_age = history.record.rules, history.record.min_age
    rules = (own, None, Rules(0, {"main": 2}), Rules(5), Rules(99, {"main": 0}))
    variants = [Variant(f"rules {number}", one) for number, one in enumerate(rules)]
    variants += [Variant("old ones", own, min_age=timedelta(days=3)), Variant("all", own, min_age=timedelta(0))]
    branches = {branch for branch, _ in history.heads} - {history.run.target.repository.default_branch}
    dropped = Variant("dropped", own, frozenset(sorted(branches)[::2]))
    result = what_if(history, [*variants, dropped])
    resolution = history.run.store.capabilities.time_resolution
    for variant, row in zip(variants, result.totals.to_pylist(), strict=False):
        actual, model.rules = (
            model.rules,
            variant.rules and (variant.rules.default_days, dict(variant.rules.branch_days)),
        )
        try:
            age = min_age if variant.min_age is None else variant.min_age
            expected = model.garbage(model.stored(), now, age, resolution)
        finally:
            model.rules = actual
        assert 0 <= row["objects"] - len(expected) <= row["unprobed_objects"], (variant.name, row, sorted(expected))
    assert not result.totals["unprobed_objects"][0].as_py()
    return result.totals.drop_columns(["unprobed_objects", "unprobed_bytes"]), result.by_branch
