"""What would go, from a finished mark's files, one at a time: no Spark, and no more memory than a file takes."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from lakegc_assets.marking.run import Target
from lakegc_assets.terminal.marks import open_mark
from lakegc_assets.terminal.words import age, cell, console, harmless, printing, size
from spark_resources.datasets import open_dataset, read_file
from spark_resources.marks import MarkRecord, asset_folder
from spark_resources.model import EXPIRED_OBJECTS

AGES = (("under a day", 1), ("under a week", 7), ("under a month", 30), ("under a year", 365), ("older", 10**6))
PREFIXES_SHOWN = 10
KINDS = {"reason": "Why", "age": "Age", "prefix": "Under"}


@dataclass(slots=True)
class Totals:
    """Objects and bytes of an expired set, by what a reader asks for."""

    objects: int = 0
    bytes: int = 0
    by: dict[str, Counter[str]] = field(default_factory=lambda: {what: Counter() for what in KINDS})
    bytes_by: dict[str, Counter[str]] = field(default_factory=lambda: {what: Counter() for what in KINDS})

    def add(self, table: pa.Table, now: datetime) -> None:
        self.objects += table.num_rows
        self.bytes += pc.sum(table.column("size")).as_py() or 0
        branch = pc.fill_null(table.column("branch"), "")
        self._count("reason", table, pc.binary_join_element_wise(table.column("reason"), branch, "\t"))
        self._count("prefix", table, table.column("slice"))
        days = pc.days_between(table.column("modified"), pa.scalar(now, table.schema.field("modified").type))
        names = [pc.less(days, limit) for _, limit in AGES]
        labels = pc.case_when(pc.make_struct(*names), *[pa.scalar(name) for name, _ in AGES])
        self._count("age", table, labels)

    def _count(self, what: str, table: pa.Table, labels: Any) -> None:
        grouped = pa.table({"label": labels, "size": table.column("size")}).group_by("label", use_threads=False)
        counted = grouped.aggregate([("size", "count"), ("size", "sum")])
        for row in counted.to_pylist():
            self.by[what][row["label"]] += row["size_count"]
            self.bytes_by[what][row["label"]] += row["size_sum"]


def expired_tables(target: Target, record: MarkRecord) -> Iterator[pa.Table]:
    """The expired set, a verified file at a time."""
    folder = asset_folder(record.mark_id, "expired_set")
    dataset = open_dataset(target.place, folder, sha256=str(record.steps["expired_set"].datasets[""]["sha256"]))
    for file in dataset.files:
        yield read_file(target.place, folder, file, EXPIRED_OBJECTS)


@printing()
def show(repository: str, mark_id: str, *, every: bool, form: str) -> None:
    from lakegc_assets.terminal import reference_reviews  # which is built on this module

    if (theirs := reference_reviews.opened(repository, mark_id)) is not None:
        reference_reviews.show(theirs, every=every, form=form)
        return
    target, record = open_mark(repository, mark_id)
    if every:
        list_rows(expired_tables(target, record), record.start, form)
        return
    totals = Totals()
    for table in expired_tables(target, record):
        totals.add(table, record.start)
    if form == "table":
        show_totals(record, totals)
    else:
        print(json.dumps(document(record, totals), indent=1))


def show_totals(record: MarkRecord, totals: Totals) -> None:
    out, candidates = console(), record.counts.get("candidates", 0)
    mark = f"Mark {record.mark_id} of {record.repository}, {record.state}, scope {record.scope}"
    if not totals.objects:
        out.print(f"{mark}: nothing may go, of {candidates:,} objects.", markup=False)
        return
    share = 100 * totals.objects / candidates if candidates else 0.0
    out.print(
        f"{mark}: {totals.objects:,} of {candidates:,} objects ({share:.1f} %), {size(totals.bytes)} may go.",
        markup=False,
    )
    for what, heading in KINDS.items():
        table = Table(title=f"By {what}", title_justify="left")
        table.add_column(heading)
        table.add_column("objects", justify="right")
        table.add_column("bytes", justify="right")
        counted = totals.by[what]
        for label, count in counted.most_common(PREFIXES_SHOWN):
            table.add_row(cell(readable(what, label)), f"{count:,}", size(totals.bytes_by[what][label]))
        if len(counted) > PREFIXES_SHOWN:
            table.add_row(f"… and {len(counted) - PREFIXES_SHOWN:,} more", "", "")
        out.print(table)
    out.print(f"Every object: lakegc review {record.repository} {record.mark_id} --list", markup=False)


def readable(what: str, label: str) -> str:
    if what != "reason":
        return label or "/"
    reason, _, branch = label.partition("\t")
    return f"{reason}, by the rule of {branch or 'dangling commits'}" if "commits" in reason else reason


def document(record: MarkRecord, totals: Totals) -> dict[str, Any]:
    return {
        "repository": record.repository,
        "mark_id": record.mark_id,
        "state": record.state.value,
        "digest": record.digest,
        "candidates": record.counts.get("candidates"),
        "objects": totals.objects,
        "bytes": totals.bytes,
        **{
            f"by_{what}": [
                {**named(what, label), "objects": count, "bytes": totals.bytes_by[what][label]}
                for label, count in counted.most_common()
            ]
            for what, counted in totals.by.items()
        },
    }


def named(what: str, label: str) -> dict[str, str | None]:
    """What a label stands for; a reason has the branch whose rule decided beside it."""
    if what != "reason":
        return {what: label}
    reason, _, branch = label.partition("\t")
    return {"reason": reason, "branch": branch or None}


def list_rows(tables: Iterable[pa.Table], now: datetime, form: str) -> None:
    """Every object of these tables: a line each of a table or of CSV, or one JSON array, written as it is read."""
    names = ("address", "size", "modified", "reason", "branch", "until")
    rows = (row for table in tables for row in table.select(list(names)).to_pylist())
    if form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        shown = harmless if sys.stdout.isatty() else str  # a file gets every key as it is, a screen can't take them all
        writer.writerows([shown(as_cell(row[name])) for name in names] for row in rows)
    elif form == "json":
        separator = "["
        for row in rows:
            print(separator, json.dumps({name: as_json(row[name]) for name in names}), sep="\n", end="")
            separator = ","
        print("\n]" if separator == "," else "[]")
    else:
        row = None
        for row in rows:
            known = row["size"] is not None  # what others would delete may be gone by now
            large, old = (size(row["size"]), age(now - row["modified"])) if known else ("gone", "")
            print(f"{large:>10}  {old:>10}  {harmless(row['address'])}  ({row['reason']})")
        if row is None:
            print("Nothing may go.")


def as_json(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def as_cell(value: object) -> str:
    """A CSV cell that no spreadsheet takes for a formula."""
    text = "" if value is None else str(as_json(value))
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
