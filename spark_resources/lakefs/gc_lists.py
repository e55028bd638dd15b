"""Parses the lists that the server prepares for garbage collection (formats §2): retained commits, staged addresses.

Pure: bytes of CSV or Parquet in, values out. Both lists determine which objects are kept, so anything unreadable raises
`DamagedData` (invariant 3).
"""

from __future__ import annotations

import csv
import io
import re

import pyarrow as pa

from spark_resources.errors import DamagedData, plural
from spark_resources.records.parquet_files import open_parquet, parquet_rows, reading_errors

COMMITS_HEADER = ("commit_id", "expired", "metarange_id")

UNCOMMITTED_COLUMNS = ("physical_address", "creation_date")

_ID = re.compile(r"[0-9a-f]{64}")


def parse_commits_csv(data: bytes, *, where: str) -> list[tuple[str, str]]:
    """The retained commits of a `commits.csv`, as (commit id, metarange id) in the file's order.

    A commit of an empty repository has the metarange id "". Rows marked as expired are left out. Raises `DamagedData`
    for anything that violates the format, such as an `expired` that is neither `true` nor `false`.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise _damaged_list(where, "is not UTF-8 text") from None
    if not text.endswith("\n"):
        raise _damaged_list(where, "ends in the middle of a line, so rows may be missing")
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise _damaged_list(where, f"is not CSV ({error})") from None
    if not rows or tuple(rows[0]) != COMMITS_HEADER:
        raise _damaged_list(where, f"does not begin with the header {','.join(COMMITS_HEADER)}")
    seen: set[str] = set()
    retained: list[tuple[str, str]] = []
    for line_number, row in enumerate(rows[1:], start=2):
        commit_id, expired, metarange_id = _commit_row(row, where, line_number)
        if commit_id in seen:
            raise _damaged_list(where, f"has commit {commit_id} twice, the second time on line {line_number}")
        seen.add(commit_id)
        if not expired:
            retained.append((commit_id, metarange_id))
    return retained


def _commit_row(row: list[str], where: str, line_number: int) -> tuple[str, bool, str]:
    if len(row) != len(COMMITS_HEADER):
        raise _damaged_list(where, f"has {plural(len(row), 'field')} on line {line_number}, not {len(COMMITS_HEADER)}")
    commit_id, expired, metarange_id = row
    if not _ID.fullmatch(commit_id):
        raise _damaged_list(where, f"has '{commit_id[:80]}' on line {line_number}, which is not a commit id")
    if metarange_id and not _ID.fullmatch(metarange_id):
        raise _damaged_list(where, f"has '{metarange_id[:80]}' on line {line_number}, which is not a metarange id")
    if expired not in ("true", "false"):
        raise _damaged_list(where, f"has '{expired[:80]}' on line {line_number}, where true or false is expected")
    return commit_id, expired == "true", metarange_id


def read_uncommitted_file(data: bytes, *, where: str) -> pa.Table:
    """The columns `physical_address` (text) and `creation_date` (int64) of one file, as the server wrote them.

    Addresses are relative or full; `model.Namespace.locate` distinguishes them. Raises `DamagedData` if the file is not
    Parquet, lacks a column, has one of the wrong type, or has a row without an address.
    """
    try:
        table = parquet_rows(data, UNCOMMITTED_COLUMNS)
        with reading_errors(), open_parquet(data) as file:
            stated_rows = file.metadata.num_rows
    except ValueError as error:
        raise _damaged_list(where, f"is not a readable Parquet file ({error})") from None
    if table.num_rows != stated_rows:
        raise _damaged_list(where, f"has {plural(table.num_rows, 'row')}, but its footer states {stated_rows}")
    addresses = _column(table, "physical_address", (pa.string(), pa.large_string(), pa.binary()), where)
    dates = _column(table, "creation_date", (pa.int64(),), where)
    try:
        # Arrow reads a text column without a type annotation as binary; the cast verifies that it is UTF-8.
        addresses = addresses.cast(pa.string())
    except pa.ArrowInvalid:
        raise _damaged_list(where, "has a physical_address that is not UTF-8 text") from None
    if addresses.null_count or "" in addresses.to_pylist():
        raise _damaged_list(where, "has a row without a physical_address")
    return pa.table({"physical_address": addresses, "creation_date": dates})


def _column(table: pa.Table, name: str, types: tuple[pa.DataType, ...], where: str) -> pa.ChunkedArray:
    if table.schema.names.count(name) != 1:
        raise _damaged_list(where, f"doesn't have exactly one column {name}")
    column = table.column(name)
    if column.type not in types:
        raise _damaged_list(where, f"has a column {name} of type {column.type}, not {types[0]}")
    return column


def _damaged_list(where: str, what: str) -> DamagedData:
    return DamagedData(
        f"{where} {what}. The list was not used. Make a new mark, or run the sweep again: the server then writes a new "
        "list.",
        invariant=3,
    )
