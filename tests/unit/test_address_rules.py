"""The slice of an address and which addresses are possible candidates: every form of each rule, on one list."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession

from lakegc_assets.rules import addresses as rules
from spark_resources.mark_store.hold_file import BadHolds, parse_holds
from spark_resources.spark.tasks import arrow_to_spark


class Address(NamedTuple):
    """An address with its slice and the results of each rule: whether it is a possible candidate, whether it is one in
    a local store, whether a listing of the candidates would contain it, and whether it has a dot segment."""

    address: str
    slice: str
    candidate: bool
    candidate_in_local_store: bool
    listed: bool
    dot_segment: bool


def address(
    text: str,
    folder: str,
    candidate: bool,
    *,
    local: bool | None = None,
    listed: bool | None = None,
    dots: bool = False,
) -> Address:
    return Address(
        text, folder, candidate, candidate if local is None else local, candidate if listed is None else listed, dots
    )


ADDRESSES = [
    address("data/gg4hubj2cdk0000003eg/d8vt40r2cdk0000003f0", "data/gg4hubj2cdk0000003eg/", True),
    address("data/gg4hubj2cdk0000003eg/d8vt40r2cdk0000003f0,token", "data/gg4hubj2cdk0000003eg/", True),
    address("data/imported/2021/a.parquet", "data/imported/", True),
    address("data/!0a/gg4hubj2cdk0000003eg/x", "data/!0a/", True),
    address("data/x", "data/", True),
    address("data/x/", "data/x/", True),
    address("data//x", "data//", True),
    address("data//", "data//", True),
    address("data/\n/é\n", "data/\n/", True),
    address("data/a\nb", "data/", True),
    address("data/_lakefs/x", "data/_lakefs/", True),
    address("data/dummy", "data/", True),
    address("data/0a-00001", "data/", True),
    address("data/", "data/", False, listed=True),
    address("data", "", True),
    address("Data/x", "", False),
    address("/data/x", "", False, listed=True),
    address("//x", "", False, listed=True),
    address("/folder/x", "", False),
    address("./data/x", "", False, listed=True, dots=True),
    address("folder/../data/x", "", False, listed=True, dots=True),
    address("\ndata/x", "", False),
    address("\n", "", True),
    address("d8vt40r2cdk0000003f0", "", True),
    address("", "", False, listed=True),
    address("dummy", "", False, listed=True),
    address("dummy2", "", True),
    address("dummy/", "", False),
    address("_lakefs/settings", "", False),
    address("_lakefs", "", True),
    address("legacy/folder/x", "", False),
    address("0a-00001", "", True, local=False),
    address("0a-0000١", "", True, local=False),
    address("0a-00001\n", "", True, local=False),
    address("0a-00001\n\n", "", True),
    address("0g-00001", "", True),
    address("0a-000012", "", True),
    address("x0a-00001", "", True),
    address(".", "", True, dots=True),
    address("..", "", True, dots=True),
    address("...", "", True),
    address(".hidden", "", True),
    address("data/./x", "data/./", True, dots=True),
    address("data/../_lakefs/x", "data/../", True, dots=True),
    address("data/s/..", "data/s/", True, dots=True),
    address("data/s/.\n", "data/s/", True),
    address("data/s/a..b/c.", "data/s/", True),
]
KEYS = [case.address for case in ADDRESSES]
COLUMN = pa.array([*KEYS, None], pa.string())
NULL = [None]


def test_the_slice_of_an_address_is_the_folder_where_a_full_listing_finds_it(spark: SparkSession) -> None:
    """With a wrong slice, a sweep would look up an object in the wrong place, and an incremental mark would count it as
    listed."""
    wanted = [case.slice for case in ADDRESSES]
    assert [rules.slice_of(key) for key in KEYS] == wanted
    assert rules.slices_of(COLUMN).to_pylist() == wanted + NULL
    assert in_spark(spark, rules.slice_column) == wanted
    assert [rules.slice_of(name) for name in wanted] == wanted  # the slice of a listed folder is that folder


@pytest.mark.parametrize("local_adapter", [True, False])
def test_only_objects_under_data_and_at_the_root_are_possible_candidates(local_adapter: bool) -> None:
    """Everything else belongs to lakeFS or to somebody else, and must never be deleted."""
    wanted = [case.candidate_in_local_store if local_adapter else case.candidate for case in ADDRESSES]
    assert [rules.is_candidate(key, local_adapter=local_adapter) for key in KEYS] == wanted
    assert rules.are_candidates(COLUMN, local_adapter=local_adapter).to_pylist() == wanted + NULL
    assert [rules.is_candidate(key) for key in KEYS] == [case.candidate for case in ADDRESSES]


def test_the_listed_area_contains_every_possible_candidate(spark: SparkSession) -> None:
    """The area also contains every key that a store may fold into a candidate. A live address outside the area doesn't
    count as missing from the listing."""
    wanted = [case.listed for case in ADDRESSES]
    assert rules.in_listed_area(COLUMN).to_pylist() == wanted + NULL
    assert in_spark(spark, rules.listed_area_column) == wanted
    assert all(case.listed for case in ADDRESSES if case.candidate)


def test_keys_with_dot_segments_are_not_deletable() -> None:
    """A tool that resolves paths would delete another object by such a key."""
    wanted = [case.dot_segment for case in ADDRESSES]
    assert rules.have_dot_segments(COLUMN).to_pylist() == wanted + NULL
    for local_adapter in (False, True):
        candidates = [case.candidate_in_local_store if local_adapter else case.candidate for case in ADDRESSES]
        deletable = [known and not case.dot_segment for known, case in zip(candidates, ADDRESSES, strict=True)]
        assert rules.may_be_deleted(COLUMN, local_adapter=local_adapter).to_pylist() == [*deletable, False]


def test_a_hold_can_have_any_printable_prefix_of_a_possible_candidate() -> None:
    """Exceptions are prefixes with dot segments. A prefix outside the listed area is refused."""
    for case in ADDRESSES:
        key = case.address
        beginnings = (
            {key[:count] for count in range(1, len(key) + 1)} if case.candidate and not case.dot_segment else ()
        )
        for prefix in beginnings:
            if prefix.isprintable() and ".." not in prefix.split("/"):
                parse_holds(hold_of(prefix), "here")
        if not case.listed:
            with pytest.raises(BadHolds):
                parse_holds(hold_of(key), "here")


def hold_of(prefix: str) -> bytes:
    return f"holds: [{{id: h, prefix: '{prefix}', owner: ada, reason: x}}]".encode()


def in_spark(spark: SparkSession, rule: Callable[[Column], Column]) -> list[object]:
    rows = pa.table({"number": pa.array(range(len(KEYS)), pa.int64()), "address": pa.array(KEYS, pa.string())})
    frame = spark.createDataFrame(rows, arrow_to_spark(rows.schema))
    results = frame.select("number", rule(frame["address"]).alias("found")).toArrow().sort_by("number")
    return list(results["found"].to_pylist())


_texts = st.text(st.sampled_from("da/t0-é\n."), max_size=6)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(KEYS) | _texts), st.booleans())
@example([], True)
@example(["data/x", "data/y"], True)
def test_the_rules_give_the_same_results_for_columns_and_single_addresses(keys: list[str], local_adapter: bool) -> None:
    """The Arrow forms also agree with the plain ones on random addresses."""
    column = pa.array(keys, pa.string())
    candidates = [rules.is_candidate(key, local_adapter=local_adapter) for key in keys]
    assert rules.are_candidates(column, local_adapter=local_adapter).to_pylist() == candidates
    assert rules.slices_of(column).to_pylist() == [rules.slice_of(key) for key in keys]
