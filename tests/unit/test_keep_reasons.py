"""The decision on an object by reasons to keep it: the first counts, and no row is added or lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakegc_assets.rules import keep_reasons
from lakegc_assets.rules.keep_reasons import BRANCH, COMMITTED, HOLD, OTHER_REPOSITORY, decided
from spark_resources.model import ADDRESSES, ADDRESSES_ON_HOLD, SERVED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OBJECTS = pa.schema([*ADDRESSES, pa.field("size", pa.int64())])


def frame(spark: SparkSession, schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist([dict.fromkeys(schema.names) | row for row in rows], schema))


def objects(spark: SparkSession, *names: str) -> DataFrame:
    return frame(spark, OBJECTS, [{"address": name, "size": len(name)} for name in names])


def addresses(spark: SparkSession, *names: str) -> DataFrame:
    return frame(spark, ADDRESSES, [{"address": name} for name in names])


def decisions(rows: DataFrame) -> list[tuple[str, str | None, str | None]]:
    found = rows.select("address", "kept_by", keep_reasons.sentence().alias("why")).collect()
    return sorted((row["address"], row["kept_by"], row["why"]) for row in found)


def test_the_first_reason_that_keeps_an_object_is_reported(spark: SparkSession) -> None:
    """Whatever later reasons find. An address that is found many times stays one row."""
    rows = (
        keep_reasons.undecided(objects(spark, "a", "b", "c"))
        .transform(decided(COMMITTED, keep_reasons.among(addresses(spark, "a", "a", "x"))))
        .transform(decided(OTHER_REPOSITORY, keep_reasons.among(addresses(spark, "a", "b", "b"))))
        .transform(decided(HOLD, keep_reasons.on_hold(frame(spark, ADDRESSES_ON_HOLD, []), [("h", "b")])))
    )

    assert decisions(rows) == [
        ("a", "committed", "a retained commit or a branch refers to it"),
        ("b", "other_repository", "another repository refers to it"),
        ("c", None, None),
    ]
    assert [tuple(row) for row in keep_reasons.not_kept(rows).collect()] == [("c", 1)]
    assert [row["address"] for row in keep_reasons.kept(rows, OTHER_REPOSITORY).collect()] == ["b"]


def test_a_probe_without_a_clear_result_keeps_every_object_of_its_size(spark: SparkSession) -> None:
    """What a branch serves is kept by its address, though; of several branches the first is named."""
    probe = {"repository": "lake", "path": "p", "size": 1}
    served = [
        {**probe, "branch": "main", "address": "a"},
        {**probe, "branch": "dev", "address": "a"},
        {**probe, "branch": "main", "address": None},
        {**probe, "branch": "main", "size": 2, "unclear": "answered 503"},
    ]
    rows = keep_reasons.undecided(objects(spark, "a", "b", "cc", "dd", "eee"))
    rows = rows.transform(decided(BRANCH, keep_reasons.served(frame(spark, SERVED, served))))
    unclear = "a branch may serve it, since a path probe was inconclusive: answered 503"

    assert decisions(rows) == [
        ("a", "branch", "branch dev of repository lake serves it"),
        ("b", None, None),
        ("cc", "branch", unclear),
        ("dd", "branch", unclear),
        ("eee", None, None),
    ]


def test_an_object_on_hold_is_kept_with_the_ids_of_all_its_holds(spark: SparkSession) -> None:
    """By address or by prefix, each id once and in order."""
    held = [{"address": "a/1", "hold": "h2"}, {"address": "a/1", "hold": "h1, h2"}, {"address": "c", "hold": "h3"}]
    rows = keep_reasons.undecided(objects(spark, "a/1", "a/2", "b"))
    attribution = keep_reasons.on_hold(frame(spark, ADDRESSES_ON_HOLD, held), [("h0", "a/"), ("h9", "x")])
    found = keep_reasons.kept(rows.transform(decided(HOLD, attribution)), HOLD)

    assert sorted((row["address"], row["found"]) for row in found.collect()) == [("a/1", "h0, h1, h2"), ("a/2", "h0")]
