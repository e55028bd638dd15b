"""Why objects expire: each has its last verdict, in whatever order rows arrive, in files that follow each other."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from lakegc_assets.mark.writer import in_ranges, mixed, some_addresses, tasks_for
from lakegc_assets.rules import expiry_reasons
from lakegc_assets.rules.expiry_reasons import (
    ATTRIBUTIONS,
    EXPLAINED,
    MIXED_ROWS,
    VERDICTS,
    best,
    explained,
    in_order,
    separated,
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


def with_all_columns(table: pa.Table) -> pa.Table:
    columns = [
        table[field.name] if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in MIXED_ROWS
    ]
    return pa.table(columns, schema=MIXED_ROWS)


def expected(
    names: Iterable[str], deletable: set[str], attributions: list[tuple[str, int, str]], *, all_known: bool
) -> list[tuple[Any, ...]]:
    """Row by row: address, reason, commit and path."""
    rows = []
    for name in sorted(names, key=str.encode):
        _, commit, path = max(((name, *rest) for one, *rest in attributions if one == name), default=(name, None, None))
        commit_id = None if commit is None else IN_ORDER[commit]
        unattributed = ExpiredReason.NEVER_COMMITTED if all_known else ExpiredReason.UNKNOWN
        reason = unattributed if commit is None else ExpiredReason.EXPIRED_COMMIT
        rows.append((name, reason.value if name in deletable else None, commit_id, path))
    return rows


def test_verdicts_are_ordered_by_their_end_and_then_by_commit() -> None:
    """One without an end comes first, and each has what the rule of its commit says."""
    found = in_order([*COMMITS, *COMMITS])

    assert found.schema == VERDICTS
    assert found["commit_id"].to_pylist() == IN_ORDER
    assert found.to_pylist()[2] == {"commit_id": "a", "branch": "dev", "days": 3, "until": NOW}
    assert in_order([]).schema == VERDICTS


@given(
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES)),
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3), st.sampled_from(["p", "q", "é"]))),
    st.integers(1, 4),
    st.booleans(),
    st.randoms(),
)
def test_each_object_is_explained_by_its_last_verdict(
    stored: set[str],
    deletable: set[str],
    attributions: list[tuple[str, int, str]],
    at_once: int,
    all_known: bool,
    draw: random.Random,
) -> None:
    """In whatever order rows arrive, each object is there once, in order, and only expired objects have a reason."""
    is_deletable = pa.table(
        [pa.array(sorted(deletable), pa.string()), pa.repeat(pa.scalar(True), len(deletable))], ["address", "deletable"]
    )
    met = pa.concat_tables(
        [
            with_all_columns(objects(stored)),
            with_all_columns(is_deletable),
            with_all_columns(verdict_rows(attributions)),
        ]
    )
    rows = list(range(len(met)))
    draw.shuffle(rows)
    shuffled = met.take(pa.array(rows, pa.int64()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiry_reasons, "ATTRIBUTIONS_AT_ONCE", at_once)
        parts = separated(shuffled.to_batches(max_chunksize=at_once))
    found = explained(*parts, in_order(COMMITS), all_known=all_known)

    assert found.schema == EXPLAINED
    columns = [found[name].to_pylist() for name in ("address", "reason", "commit_id", "path")]
    assert list(zip(*columns, strict=True)) == expected(stored, deletable, attributions, all_known=all_known)


def test_an_address_with_many_verdicts_is_held_in_memory_once() -> None:
    """Only the last verdict is needed, so the others are dropped while rows arrive."""
    many = with_all_columns(verdict_rows(("data/s/a", number % 4, f"p{number:04}") for number in range(2000)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiry_reasons, "ATTRIBUTIONS_AT_ONCE", 100)
        *_, attributions = separated(many.to_batches(max_chunksize=10))

    assert attributions.to_pylist() == [{"address": "data/s/a", "verdict": 3, "path": "p1999"}]
    assert best(ATTRIBUTIONS.empty_table()).schema == ATTRIBUTIONS


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("old", [True, False])
def test_tasks_follow_each_other_in_the_order_of_addresses(
    spark: SparkSession, tasks: int, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of an address are in one task, also with a Spark that can't partition by id."""
    names = [f"data/é{number % 7}/{number * 37 % 100:03}" for number in range(100)]
    rows = rows_of(spark, names, [names[0]] * 500 + names[::3])
    if old:
        for kind in (type(rows), DataFrame):
            monkeypatch.delattr(kind, "repartitionById", raising=False)

    by_task = addresses_of_tasks(in_ranges(rows, tasks, pa.array(names[::2])))

    assert len(by_task) == tasks
    assert sum(map(len, by_task)) == 100 + 50 + 534
    ends = [(part[0].encode(), part[-1].encode()) for part in by_task if part]
    assert all(last < first for (_, last), (first, _) in pairwise(ends))


def rows_of(spark: SparkSession, names: list[str], attributions: list[str]) -> DataFrame:
    """Objects of these names, half of which expire, and verdicts of some."""
    deletable = pa.table([pa.array(names[::2], pa.string())], schema=ADDRESSES)
    frames = [
        spark.createDataFrame(table)
        for table in (objects(names), deletable, verdict_rows((one, 0, "p") for one in attributions))
    ]
    return mixed(frames[0], deletable=frames[1], attributions=frames[2])


def addresses_of_tasks(rows: DataFrame) -> list[list[str]]:
    parts = rows.select("address").rdd.glom().collect()
    return [sorted((row["address"] for row in part), key=str.encode) for part in parts]


def test_objects_are_spread_evenly_however_skewed_their_verdicts_are(spark: SparkSession) -> None:
    """Tasks have about as many objects each, though a few objects have most of the verdicts."""
    names = [f"data/s/{number:05}" for number in range(4000)]
    rows = rows_of(spark, names, names[:10] * 400)
    sampled = some_addresses(spark.createDataFrame(objects(names)), 4000, 2)

    by_task = addresses_of_tasks(in_ranges(rows, 4, sampled).where("size IS NOT NULL"))

    assert 1500 < len(sampled) < 2500
    assert all(800 < len(part) < 1200 for part in by_task)


def test_without_a_sampled_address_one_task_has_all_rows(spark: SparkSession) -> None:
    """There is nothing to choose the bounds of ranges by."""
    assert len(addresses_of_tasks(in_ranges(rows_of(spark, NAMES, []), 3, pa.array([], pa.string())))) == 1


def test_the_number_of_tasks_follows_the_number_of_rows() -> None:
    """Few rows have one task, more have as many as there are cores, and many have as many as memory asks for."""
    assert [tasks_for(rows, 4) for rows in (0, 99_999, 100_000, 240_000, 10_000_000)] == [1, 1, 2, 4, 41]
