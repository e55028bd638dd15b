"""When a list that the server prepares for collectors is accepted."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_resources.errors import DamagedData
from spark_resources.lakefs.gc_lists import parse_commits_csv, read_uncommitted_file

A, B, C, M = ("a" * 64, "b" * 64, "c" * 64, "e" * 64)
HEADER = "commit_id,expired,metarange_id\n"


def test_only_retained_commits_are_returned() -> None:
    """Commits come in the order of the list. The commit of an empty repository has no metarange."""
    data = f"{HEADER}{B},false,{M}\n{C},true,{M}\n{A},false,\n".encode()

    assert parse_commits_csv(data, where="x") == [(B, M), (A, "")]


def test_a_list_of_commits_with_only_a_header_is_empty() -> None:
    """A list without rows is not damaged."""
    assert parse_commits_csv(HEADER.encode(), where="x") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        f"{A},false,{M}\n",
        f"commit_id,expired\n{A},false\n",
        f"commit_id, expired,metarange_id\n{A},false,{M}\n",
        f"\ufeff{HEADER}{A},false,{M}\n",
        f"{HEADER}{A},false,{M}",
        f"{HEADER}{A},fal",
        f"{HEADER}{A},false\n",
        f"{HEADER}{A},false,{M},\n",
        f"{HEADER}\n{A},false,{M}\n",
        f"{HEADER}{A},,{M}\n",
        f"{HEADER}{A},False,{M}\n",
        f"{HEADER}{A},0,{M}\n",
        f"{HEADER}{A}, false,{M}\n",
        f"{HEADER}{A.upper()},false,{M}\n",
        f"{HEADER}{A[:-1]},false,{M}\n",
        f"{HEADER},false,{M}\n",
        f"{HEADER}{A},false,{M[:-1]}\n",
        f"{HEADER}{A},false,null\n",
        f"{HEADER}{A},false,{M}\n{A},false,{M}\n",
        f"{HEADER}{A},false,{M}\n{A},true,{M}\n",
        f"{HEADER}{A},true,{M}\n{A},false,{M}\n",
        f'{HEADER}"{A},false,{M}\n',
        f'{HEADER}{A},"fal"se,{M}\n',
        HEADER + HEADER,
    ],
)
def test_a_damaged_list_of_commits_raises_an_error(text: str) -> None:
    """A list needs the exact header, complete lines, ids, and `true` or `false`. The error names the file."""
    with pytest.raises(DamagedData, match=r"^s3://x/commits\.csv") as raised:
        parse_commits_csv(text.encode(), where="s3://x/commits.csv")
    assert raised.value.invariant == 3


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (f"{A},false", "has 2 fields on line 3, not 3"),
        (f"x,false,{M}", "has 'x' on line 3, which is not a commit id"),
        (f"{A},false,y", "has 'y' on line 3, which is not a metarange id"),
        (f"{A},no,{M}", "has 'no' on line 3, where true or false is expected"),
        (f"{B},false,{M}", f"has commit {B} twice, the second time on line 3"),
    ],
)
def test_the_error_about_a_damaged_list_of_commits_states_the_line(row: str, what: str) -> None:
    """A person can then look at that line."""
    with pytest.raises(DamagedData) as raised:
        parse_commits_csv(f"{HEADER}{B},false,{M}\n{row}\n".encode(), where="s3://x/commits.csv")
    assert str(raised.value).startswith(f"s3://x/commits.csv {what}. The list was not used.")


def test_a_list_of_commits_in_another_encoding_raises_an_error() -> None:
    """A list that is not UTF-8 is damaged."""
    with pytest.raises(DamagedData, match=r"^x is not UTF-8 text\."):
        parse_commits_csv(HEADER.encode("utf-16"), where="x")


def _parquet(columns: dict[str, Any], schema: pa.Schema | None = None) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), sink)
    return sink.getvalue()


ADDRESSES = ["data/s/i", "s3://b/ns/data/s/j", "data/we ird/obj %2F + é,tok\n"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_staged_addresses_are_read_back_as_written(kind: pa.DataType) -> None:
    """Addresses may be stored in any of Parquet's text types."""
    values = [address.encode() for address in ADDRESSES] if kind == pa.binary() else ADDRESSES
    data = _parquet({"physical_address": pa.array(values, kind), "creation_date": pa.array([1, 2, 3], pa.int64())})

    table = read_uncommitted_file(data, where="x")

    assert table.to_pydict() == {"physical_address": ADDRESSES, "creation_date": [1, 2, 3]}
    assert table.schema.types == [pa.string(), pa.int64()]


def test_unknown_columns_in_a_list_of_staged_addresses_are_ignored() -> None:
    """A newer server may write additional columns."""
    data = _parquet({"physical_address": ["data/a"], "more": [1], "creation_date": [1]})

    assert read_uncommitted_file(data, where="x").column_names == ["physical_address", "creation_date"]


def test_a_list_of_staged_addresses_without_rows_is_empty() -> None:
    """The empty list must have the right columns."""
    schema = pa.schema([("physical_address", pa.string()), ("creation_date", pa.int64())])

    assert (
        read_uncommitted_file(_parquet({"physical_address": [], "creation_date": []}, schema), where="x").num_rows == 0
    )


_WHOLE = _parquet({"physical_address": ADDRESSES, "creation_date": [1, 2, 3]})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        _WHOLE[:-1],
        _WHOLE[: len(_WHOLE) // 2],
        _WHOLE[:4] + bytes(40) + _WHOLE[44:],
        _parquet({"creation_date": [1]}),
        _parquet({"physical_address": ["data/a"]}),
        _parquet({"address": ["data/a"], "creation_date": [1]}),
        _parquet({"physical_address": [1], "creation_date": [1]}),
        _parquet({"physical_address": [["data/a"]], "creation_date": [1]}),
        _parquet({"physical_address": ["data/a"], "creation_date": ["1"]}),
        _parquet({"physical_address": ["data/a", None], "creation_date": [1, 2]}),
        _parquet({"physical_address": ["data/a", ""], "creation_date": [1, 2]}),
        _parquet({"physical_address": [b"data/\xff"], "creation_date": [1]}),
    ],
)
def test_a_damaged_list_of_staged_objects_raises_an_error(data: bytes) -> None:
    """The file is truncated, lacks a column, has a column of the wrong type, or has a row without an address. The error
    names the file."""
    with pytest.raises(DamagedData, match=r"^s3://x/part") as raised:
        read_uncommitted_file(data, where="s3://x/part")
    assert raised.value.invariant == 3
