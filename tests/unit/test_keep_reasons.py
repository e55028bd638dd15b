"""How reasons to keep an object decide: the first reason counts, and no row is added or lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakegc_assets.rules import garbage, keep_reasons
from lakegc_assets.rules.keep_reasons import (
    BRANCH,
    COMMITTED,
    HOLD,
    INCONCLUSIVE_SIZES,
    OTHER_REPOSITORY,
    Decide,
    KeepReason,
    decided,
    inconclusive_sizes,
)
from spark_resources.model import ADDRESSES, ADDRESSES_ON_HOLD, SERVED

OBJECTS = pa.schema([*ADDRESSES, pa.field("size", pa.int64())])
NO_DOUBT = INCONCLUSIVE_SIZES.empty_table()
Rows = Mapping[str, pa.Table]


def table(schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([dict.fromkeys(schema.names) | row for row in rows], schema)


def objects(*names: str) -> pa.Table:
    return table(OBJECTS, [{"address": name, "size": len(name)} for name in names])


def addresses(*names: str) -> pa.Table:
    return table(ADDRESSES, [{"address": name} for name in names])


def decisions(rows: pa.Table) -> list[tuple[str, str | None, str | None]]:
    """Address, reason and sentence of each row, in order."""
    why = keep_reasons.sentences(rows).to_pylist()
    return list(zip(rows["address"].to_pylist(), rows["kept_by"].to_pylist(), why, strict=True))


def test_the_first_reason_that_keeps_an_object_is_reported() -> None:
    """Later reasons don't change that. An address that is found several times stays one row."""
    reasons: list[tuple[KeepReason, Decide]] = [
        (COMMITTED, keep_reasons.at_addresses("ranges")),
        (OTHER_REPOSITORY, keep_reasons.at_addresses("elsewhere")),
        (HOLD, keep_reasons.on_hold("held", [("h", "b")])),
    ]
    facts = {
        "ranges": addresses("a", "a", "x"),
        "elsewhere": addresses("a", "b", "b"),
        "held": ADDRESSES_ON_HOLD.empty_table(),
    }
    rows = decided(objects("a", "b", "c"), reasons, facts)

    assert decisions(rows) == [
        ("a", "committed", "a retained commit or a branch refers to it"),
        ("b", "other_repository", "another repository refers to it"),
        ("c", None, None),
    ]
    assert keep_reasons.not_kept(rows).to_pylist() == [{"address": "c", "size": 1}]
    assert keep_reasons.kept(rows, OTHER_REPOSITORY)["address"].to_pylist() == ["b"]
    assert keep_reasons.kept(rows)["address"].to_pylist() == ["a", "b"]
    assert keep_reasons.kept_counts(rows) == {"committed": 1, "other_repository": 1}


def test_a_probe_without_a_clear_result_keeps_every_object_of_its_size() -> None:
    """An object that a branch serves is still kept by its address. If there are several branches, the first is
    named."""
    probe = {"repository": "lake", "path": "p", "size": 1}
    probed = table(
        SERVED,
        [
            {**probe, "branch": "main", "address": "a"},
            {**probe, "branch": "dev", "address": "a"},
            {**probe, "branch": "main", "address": None},
            {**probe, "branch": "main", "size": 2, "unclear": "answered 503"},
            {**probe, "branch": "dev", "size": 2, "unclear": "closed the connection"},
            {**probe, "branch": "dev", "size": 2, "address": None},
        ],
    )
    served = probed.filter(probed["address"].is_valid())
    reasons = [(BRANCH, keep_reasons.served("served", inconclusive_sizes(probed)))]
    rows = decided(objects("a", "b", "cc", "dd", "eee"), reasons, {"served": served})
    unclear = "a branch may serve it, since a path probe was inconclusive: answered 503"

    assert decisions(rows) == [
        ("a", "branch", "branch dev of repository lake serves it"),
        ("b", None, None),
        ("cc", "branch", unclear),
        ("dd", "branch", unclear),
        ("eee", None, None),
    ]


def test_an_object_on_hold_is_kept_and_all_its_holds_are_reported() -> None:
    """The holds match by address or by prefix. Each id is listed once, in order."""
    on_hold = [{"address": "a/1", "hold": "h2"}, {"address": "a/1", "hold": "h1, h2"}, {"address": "c", "hold": "h3"}]
    reasons = [(HOLD, keep_reasons.on_hold("held", [("h0", "a/"), ("h9", "x")]))]
    results = decided(objects("a/1", "a/2", "b", "a"), reasons, {"held": table(ADDRESSES_ON_HOLD, on_hold)})

    assert decisions(results) == [
        ("a/1", "hold", "it is on hold: h0, h1, h2"),
        ("a/2", "hold", "it is on hold: h0"),
        ("b", None, None),
        ("a", None, None),
    ]
    assert results["found"].to_pylist() == ["h0, h1, h2", "h0", None, None]


NOTHING: Rows = {
    "among": ADDRESSES.empty_table(),
    "served": SERVED.empty_table(),
    "held": ADDRESSES_ON_HOLD.empty_table(),
}


@pytest.mark.parametrize("names", [(), ("a",), ("a", "bb")])
def test_no_object_is_kept_if_no_reason_applies(names: Sequence[str]) -> None:
    """No row is lost, even if there are no objects."""
    reasons = [
        (OTHER_REPOSITORY, keep_reasons.at_addresses("among")),
        (BRANCH, keep_reasons.served("served", NO_DOUBT)),
        (HOLD, keep_reasons.on_hold("held", [])),
    ]
    results = decided(objects(*names), reasons, NOTHING)

    assert decisions(results) == [(name, None, None) for name in names]
    assert keep_reasons.not_kept(results).schema == OBJECTS


def test_rows_are_selected_or_excluded_by_address_without_duplicates(spark: SparkSession) -> None:
    """Duplicate addresses and additional columns make no difference."""
    rows, some = (spark.createDataFrame(objects(*names)) for names in (("a", "b", "cc"), ("b", "b", "x")))

    assert sorted(map(tuple, rows.transform(garbage.without_addresses_in(some)).collect())) == [("a", 1), ("cc", 2)]
    assert sorted(map(tuple, rows.transform(garbage.with_addresses_in(some)).collect())) == [("b", 1)]
