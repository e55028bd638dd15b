"""The reason for each expired object: its last verdict, whatever the order of the rows, in files sorted by address."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.mark.writer import task_count
from lakegc_assets.rules.expiry_reasons import (
    ATTRIBUTIONS,
    EXPLAINED,
    VERDICTS,
    explained,
    sorted_verdicts,
    strongest_attributions,
)
from spark_resources.model import ADDRESSES, STORED_OBJECTS, ExpiredReason

NOW = datetime(2026, 11, 20, 8, tzinfo=UTC)
COMMITS = [
    {"commit_id": "b", "branch": "main", "days": 7, "until": NOW, "retained": False},
    {"commit_id": "a", "branch": "dev", "days": 3, "until": NOW, "retained": False},
    {"commit_id": "c", "branch": None, "days": None, "until": None, "retained": True},
    {"commit_id": "d", "branch": "main", "days": 7, "until": NOW - timedelta(days=1), "retained": False},
]
IN_ORDER = ["c", "d", "a", "b"]
NAMES = [f"data/s/{letter}" for letter in "zéaAb0"]


def objects(names: Iterable[str]) -> pa.Table:
    rows = [
        {"address": name, "size": len(name), "modified": NOW, "checksum": None, "slice": "data/s/"} for name in names
    ]
    return pa.Table.from_pylist(rows, schema=STORED_OBJECTS)


def verdict_rows(rows: Iterable[tuple[str, int, str]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ATTRIBUTIONS.names, row, strict=True)) for row in rows], schema=ATTRIBUTIONS)


def expected(
    names: Iterable[str], deletable: set[str], attributions: list[tuple[str, int, str]], *, all_known: bool
) -> list[tuple[Any, ...]]:
    """The expected rows: address, reason, commit and path."""
    rows = []
    for name in sorted(names, key=str.encode):
        _, commit, path = max(
            ((name, *rest) for address, *rest in attributions if address == name), default=(name, None, None)
        )
        commit_id = None if commit is None else IN_ORDER[commit]
        unattributed = ExpiredReason.NEVER_COMMITTED if all_known else ExpiredReason.UNKNOWN
        reason = unattributed if commit is None else ExpiredReason.EXPIRED_COMMIT
        rows.append((name, reason.value if name in deletable else None, commit_id, path))
    return rows


def test_verdicts_are_ordered_by_their_end_and_then_by_commit() -> None:
    """A verdict without an end comes first. Each verdict states the rule that applies to its commit."""
    verdicts = sorted_verdicts([*COMMITS, *COMMITS])

    assert verdicts.schema == VERDICTS
    assert verdicts["commit_id"].to_pylist() == IN_ORDER
    assert verdicts.to_pylist()[2] == {"commit_id": "a", "branch": "dev", "days": 3, "until": NOW}
    assert sorted_verdicts([]).schema == VERDICTS


@settings(deadline=None)  # the first call imports parts of Arrow
@given(
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES)),
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3), st.sampled_from(["p", "q", "é"]))),
    st.booleans(),
    st.randoms(),
)
def test_each_object_is_explained_by_its_last_verdict(
    stored: set[str],
    deletable: set[str],
    attributions: list[tuple[str, int, str]],
    all_known: bool,
    draw: random.Random,
) -> None:
    """Whatever the order of the rows, each object appears once, in order. Only expired objects have a reason."""
    of_stored, of_attributions = (
        draw.sample(rows, len(rows)) for rows in (sorted(stored), [*attributions, *attributions[::2]])
    )
    known = strongest_attributions(pa.Table.from_batches(verdict_rows(of_attributions).to_batches(), ATTRIBUTIONS))
    explanations = explained(
        objects(of_stored), addresses_only(deletable), known, sorted_verdicts(COMMITS), all_known=all_known
    )

    assert explanations.schema == EXPLAINED
    columns = [explanations[name].to_pylist() for name in ("address", "reason", "commit_id", "path")]
    assert list(zip(*columns, strict=True)) == expected(stored, deletable, attributions, all_known=all_known)


def addresses_only(names: Iterable[str]) -> pa.Table:
    return pa.table([pa.array(sorted(names), pa.string())], schema=ADDRESSES)


def test_only_the_strongest_attribution_of_an_address_is_kept() -> None:
    """The strongest attribution has the last verdict, and the largest of that verdict's paths."""
    many = verdict_rows(("data/s/a", number % 4, f"p{number:04}") for number in range(2000))

    assert strongest_attributions(many).to_pylist() == [{"address": "data/s/a", "verdict": 3, "path": "p1999"}]
    assert strongest_attributions(ATTRIBUTIONS.empty_table()).schema == ATTRIBUTIONS


def test_the_number_of_tasks_depends_on_the_number_of_rows() -> None:
    """Few rows are processed in one task, more rows in one task per core, and many rows in as many tasks as memory
    requires."""
    assert [task_count(rows, 4) for rows in (0, 99_999, 100_000, 240_000, 10_000_000)] == [1, 1, 2, 4, 101]
