"""A table that isn't read because of its note has no address in the namespace, or no entry of a wanted size."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakegc_assets.mark.table_notes import note_on
from lakegc_assets.rules import table_notes
from lakegc_assets.rules.path_probes import SizeSet
from spark_resources.errors import Refused
from spark_resources.lakefs.ranges import full_addresses_inside
from spark_resources.model import TABLE_NOTES, AddressType, Namespace

LAKE = "s3://bucket/lake"


def noted(addresses: Sequence[str], sizes: Sequence[int] = (), kind: AddressType = AddressType.FULL) -> pa.RecordBatch:
    """The note on a range with entries of these addresses and sizes."""
    rows = len(addresses) or len(sizes)
    return note_on("table", entries(addresses or ["relative"] * rows, sizes or [1] * rows, kind))


def entries(addresses: Sequence[str], sizes: Sequence[int], kind: AddressType) -> pa.RecordBatch:
    kinds = pa.array([int(kind)] * len(addresses), pa.int8())
    columns = [pa.array(addresses, pa.string()), kinds, pa.array(sizes, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, ["address", "address_type", "size"])


def has_no_address_in(note: pa.RecordBatch, *uris: str) -> bool:
    namespace = Namespace(uris[0], tuple(uris[1:]))
    return bool(table_notes.have_no_address_in(note.column("folders"), namespace)[0].as_py())


def has_no_size_in(note: pa.RecordBatch, *sizes: int) -> bool:
    return bool(table_notes.have_no_size_in(note.column("sizes"), SizeSet(pa.array(sizes, pa.int64())))[0].as_py())


@pytest.mark.parametrize("uri", [LAKE, "gs://bucket", "local://lake", "https://account.blob.core.windows.net/c/lake"])
def test_a_table_without_full_addresses_refers_to_no_namespace(uri: str) -> None:
    assert has_no_address_in(noted(["data/a", "data/b"], kind=AddressType.RELATIVE), uri)
    assert has_no_address_in(note_on("a metarange", None), uri)


@pytest.mark.parametrize(
    ("uri", "certain"),
    [
        ("s3://bucket/lake", False),
        ("s3://bucket/lake/deeper", False),
        ("gs://BUCKET/lake", False),
        ("s3://bucket", False),
        ("s3://bucket/l%61ke", False),
        ("s3://other@bucket/pond", False),
        ("local://lake", False),
        ("s3://bucket/pond", True),
        ("s3://bucket/LAKE", True),
        ("s3://other/lake", True),
    ],
)
def test_a_table_with_full_addresses_is_read_unless_all_are_in_other_folders(uri: str, certain: bool) -> None:
    assert has_no_address_in(noted(["s3://bucket/lake/data/a", "s3://imports/2026/b"]), uri) is certain


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket//lake/data/a", "s3://bucket/x/../lake/data/a", "s3://user@bucket/lake/a", "s3://bucket:443/lake/a",
        "s3://bucket/x%2Flake/a", "s3://bucket/x?versionId=1", "s3a://bucket/x/a", "https://bucket/x/a", "s3://bucket",
    ],
)  # fmt: skip
def test_no_folders_are_noted_if_an_address_is_ambiguous(address: str) -> None:
    note = noted(["s3://imports/2026/b", address])
    assert not note.column("folders")[0].is_valid
    assert not has_no_address_in(note, "s3://quite/another")


def test_addresses_under_an_alias_of_the_namespace_count_as_inside() -> None:
    note = noted(["s3://bucket/lake/data/a"])
    assert has_no_address_in(note, "s3://bucket/pond")
    assert not has_no_address_in(note, "s3://bucket/pond", "s3://bucket/lake")


PARTS = st.sampled_from(
    ["lake", "Lake", "pond", "data", "a", "", ".", "..", "%6Cake", "l%61ke", "é", "a b", "x?y", "x#y"]
)
AUTHORITIES = st.sampled_from(["bucket", "BUCKET", "bucket:9000", "me@bucket", "other", "bucket.", ""])
URIS = st.builds(
    lambda scheme, authority, parts: f"{scheme}://{'/'.join([authority, *parts])}",
    st.sampled_from(["s3", "gs", "S3", "s3a", "local", "https"]), AUTHORITIES, st.lists(PARTS, max_size=4),
)  # fmt: skip
ADDRESS = st.one_of(URIS, st.just("data/relative"))


@given(st.lists(ADDRESS, min_size=1, max_size=4), URIS, st.sampled_from(AddressType))
@example(["s3://bucket/lake/a"], "s3://bucket/lake", AddressType.BY_PREFIX)
def test_no_table_with_an_address_in_the_namespace_is_left_unread(
    addresses: list[str], uri: str, kind: AddressType
) -> None:
    """A table with an address that may be in the namespace, and would therefore stop the mark, is also read."""
    if not has_no_address_in(noted(addresses, kind=kind), uri):
        return
    columns = entries(addresses, [1] * len(addresses), kind)
    try:
        inside = full_addresses_inside(columns.column(0), columns.column(1), Namespace(uri.rstrip("/")))
    except Refused as error:
        raise AssertionError(f"{addresses} are not clearly outside {uri}") from error
    assert len(inside) == 0


def test_sizes_are_noted_unless_there_are_too_many() -> None:
    few = noted([], [7, 7, 9])
    assert sorted(few.column("sizes")[0].as_py()) == [7, 9]
    assert (has_no_size_in(few, 8), has_no_size_in(few, 8, 9), has_no_size_in(few)) == (True, False, True)
    most, many = (noted([], range(count)) for count in (table_notes.MAX_SIZES, table_notes.MAX_SIZES + 1))
    assert has_no_size_in(most, 1_000_000)
    assert not has_no_size_in(many, 1_000_000)


def test_folders_are_noted_unless_there_are_too_many() -> None:
    most, many = (
        noted([f"s3://bucket/{number}/a" for number in range(count)])
        for count in (table_notes.MAX_FOLDERS, table_notes.MAX_FOLDERS + 1)
    )
    assert (has_no_address_in(most, LAKE), has_no_address_in(many, LAKE)) == (True, False)


def test_each_table_is_judged_by_its_own_note() -> None:
    rows = [([], [1]), (["bucket/lake"], [2]), (None, None), (["other/lake"], [3, 2]), ([], [])]
    notes = pa.table(
        [pa.array([str(n) for n in range(len(rows))]), *(pa.array(column) for column in zip(*rows, strict=True))],
        names=TABLE_NOTES.names,
    ).cast(TABLE_NOTES)
    folders, sizes = (notes[name].combine_chunks() for name in ("folders", "sizes"))
    expected = [True, False, False, True, True]
    assert table_notes.have_no_address_in(folders, Namespace(LAKE)).to_pylist() == expected
    wanted = SizeSet(pa.array([2], pa.int64()))
    assert table_notes.have_no_size_in(sizes, wanted).to_pylist() == [True, False, False, False, True]
    assert table_notes.have_no_size_in(sizes.slice(1, 3), wanted).to_pylist() == [False, False, False]
