"""Stream every object of a set: lines for people, CSV, JSON lines, or one JSON array."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.cli.console import age, escaped_name, size
from lakegc_assets.cli.escaping import print_text
from spark_resources.model import EXPIRED_OBJECTS

ROWS_PER_BATCH = 10_000
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # first characters of cells that spreadsheets evaluate


def list_rows(
    tables: Iterable[pa.Table], now: datetime, output_format: str, *, leading_columns: Sequence[str] = ()
) -> None:
    """Print every row of these tables (`leading_columns`, then the columns of EXPIRED_OBJECTS) in a `--list` format."""
    print_rows(
        tables,
        [*leading_columns, *EXPIRED_OBJECTS.names],
        output_format,
        line_of=lambda row: as_line(row, now, leading_columns),
        if_empty="Nothing changed." if leading_columns else "Nothing is expired.",
    )


def print_rows(
    tables: Iterable[pa.Table],
    names: Sequence[str],
    output_format: str,
    *,
    line_of: Callable[[Mapping[str, Any]], str],
    if_empty: str,
) -> None:
    """Print these columns of every row in a `--list` format. For people, `line_of` formats a row, and `if_empty` is
    printed if there are no rows."""
    rows = rows_of(tables if output_format == "table" else map(with_times_as_text, tables), names)
    if output_format == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        escape = escaped_name if sys.stdout.isatty() else str  # in a file, keys are left unchanged
        writer.writerows([escape(as_cell(row[name])) for name in names] for row in rows)
    elif output_format == "jsonl":
        for row in rows:
            print_text(as_json_line(row))
    elif output_format == "json":
        separator = "["
        for row in rows:
            print_text(f"{separator}\n{as_json_line(row)}", end="")
            separator = ","
        print_text("\n]" if separator == "," else "[]")
    else:
        empty = True
        for row in rows:
            empty = False
            print_text(line_of(row))
        if empty:
            print_text(if_empty)


def rows_of(tables: Iterable[pa.Table], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for table in tables:
        for batch in table.select(list(names)).to_batches(max_chunksize=ROWS_PER_BATCH):
            yield from batch.to_pylist()


def with_times_as_text(table: pa.Table) -> pa.Table:
    """Format times like `datetime.isoformat`, but vectorized: row by row, it would double the run time."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            text = pc.strftime(table.column(number).cast(pa.timestamp("us")), "%Y-%m-%dT%H:%M:%S")
            formatted = pc.binary_join_element_wise(pc.replace_substring_regex(text, r"\.000000$", ""), "+00:00", "")
            table = table.set_column(number, field.name, formatted)
    return table


def as_line(row: Mapping[str, Any], now: datetime, leading_columns: Sequence[str]) -> str:
    is_stored = row["size"] is not None  # objects of a foreign mark may have been deleted since then
    size_text, age_text = (size(row["size"]), age(now - row["modified"])) if is_stored else ("gone", "")
    path_text = f"  {escaped_name(row['path'])}" if row["path"] is not None else ""
    leading_text = f"{', '.join(row[name] for name in leading_columns if row[name]):<51}" if leading_columns else ""
    return (
        f"{leading_text}{size_text:>10}  {age_text:>10}  {escaped_name(row['address'])}{path_text}  ({row['reason']})"
    )


def as_json_line(row: Mapping[str, Any]) -> str:
    """One line of ASCII: control sequences are escaped."""
    return json.dumps(row)


def as_json(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def as_cell(value: object) -> str:
    """A CSV cell that no spreadsheet evaluates as a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if isinstance(value, str) and text[:1] in FORMULA_STARTS else text
