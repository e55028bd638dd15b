"""Objects and bytes of an expired set, grouped by reason, age, path and slice.

Executors count the rows that they write, so that totals are the sums of these counts and no row is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.mark_store.mark import Mark
from spark_resources.model import EXPIRED_OBJECTS, EXPIRED_TOTALS
from spark_resources.spark.datasets import Output, parquet_bytes, read_file

PART = "totals"
KINDS = ("reason", "age", "prefix", "slice")
AGES = (
    ("under a day", 1),
    ("a day to a week", 7),
    ("a week to a month", 30),
    ("1 to 3 months", 90),
    ("3 months to a year", 365),
)
OLDEST = "over a year"
MAX_LABELS = 100_000  # per kind; the other labels are counted as one


class Label(NamedTuple):
    """The label of a group of objects. `name` is None if unknown; only reasons have `branch` and `days`."""

    name: str | None
    branch: str | None = None
    days: int | None = None


EVERYTHING_ELSE = Label("…")


@dataclass(slots=True)
class Sum:
    objects: int = 0
    bytes: int = 0

    def add(self, objects: int, size: int) -> None:
        self.objects += objects
        self.bytes += size


@dataclass(slots=True)
class Totals:
    """Totals by kind and label, in bounded memory."""

    whole: Sum = field(default_factory=Sum)
    by: dict[str, dict[Label, Sum]] = field(default_factory=lambda: {kind: {} for kind in KINDS})

    def add(self, counts: pa.Table) -> None:
        """Add counts made by an executor (EXPIRED_TOTALS)."""
        for row in counts.to_pylist():
            known, label = self.by[row["kind"]], Label(row["label"], row["branch"], row["days"])
            if label not in known and len(known) >= MAX_LABELS:
                label = EVERYTHING_ELSE
            known.setdefault(label, Sum()).add(row["objects"], row["bytes"])
            if row["kind"] == KINDS[0]:
                self.whole.add(row["objects"], row["bytes"])

    def sorted_sums(self, kind: str) -> list[tuple[Label, Sum]]:
        """The labels of a kind with their sums, most bytes first; ages from young to old."""
        entries = self.by[kind].items()
        if kind == "age":
            names = [*(name for name, _ in AGES), OLDEST]
            return sorted(entries, key=lambda entry: names.index(entry[0].name or OLDEST))
        return sorted(entries, key=lambda entry: (-entry[1].bytes, -entry[1].objects, *map(str, entry[0])))


def label_in_words(kind: str, label: Label) -> str:
    """A label as readable text. A reason includes its rule and days; an unknown path is called unknown."""
    if kind == "reason" and label.days is not None:
        rule = f"{label.branch}'s" if label.branch is not None else "dangling: the default"
        return f"{label.name} ({rule} rule of {label.days:,} day{'s' if label.days != 1 else ''})"
    if kind == "prefix" and label.name is None:
        return "(path not known)"
    return label.name or "/"


def count_totals(objects: pa.Table, *, start: datetime, depth: int = 1) -> pa.Table:
    """Count these objects (columns of EXPIRED_OBJECTS) by every kind, as EXPIRED_TOTALS.

    Ages are those at `start` (by the store's clock); `depth` is the number of folders in a path prefix.
    """
    return pa.concat_tables(
        [
            _count_by("reason", objects, [objects["reason"], objects["branch"], objects["days"]]),
            _count_by("age", objects, [_ages(objects["modified"], start)]),
            _count_by("prefix", objects, [_prefixes(objects["path"], depth)]),
            _count_by("slice", objects, [objects["slice"]]),
        ]
    )


def _count_by(kind: str, objects: pa.Table, labels: Sequence[Any]) -> pa.Table:
    names = ["label", "branch", "days"][: len(labels)]
    table = pa.table({**dict(zip(names, labels, strict=True)), "size": objects["size"]})
    groups = table.group_by(names, use_threads=False).aggregate([("size", "count"), ("size", "sum")])
    columns: dict[str, Any] = {name: groups[name] for name in names}
    columns |= {"kind": pa.repeat(kind, len(groups)), "objects": groups["size_count"], "bytes": groups["size_sum"]}
    nothing = {name: pa.nulls(len(groups), EXPIRED_TOTALS.field(name).type) for name in ("branch", "days")}
    return pa.table({**nothing, **columns}).select(EXPIRED_TOTALS.names).cast(EXPIRED_TOTALS)


def _ages(modified: Any, start: datetime) -> Any:
    spans = pc.subtract(pa.scalar(start, EXPIRED_OBJECTS.field("modified").type), modified)
    younger = [pc.less(spans, pa.scalar(timedelta(days=days), spans.type)) for _, days in AGES]
    return pc.case_when(pc.make_struct(*younger), *(pa.scalar(name) for name, _ in AGES), pa.scalar(OLDEST))


def _prefixes(paths: Any, depth: int) -> Any:
    return pc.struct_field(pc.extract_regex(paths, rf"(?s)^(?P<prefix>(?:[^/]*/){{0,{depth}}})"), "prefix")


def recorded_totals(mark: Mark) -> Totals:
    """The totals that executors counted while they wrote a mark's expired set."""
    totals, dataset = Totals(), mark.dataset("expired_set", PART)
    for file in dataset.files:
        totals.add(read_file(mark.place, dataset.folder, file, EXPIRED_TOTALS))
    return totals


def totals_output(folder: str, start: datetime) -> Output:
    """The output of totals: a small file of EXPIRED_TOTALS for each file of an expired set."""

    def encode(objects: pa.Table) -> tuple[bytes, int]:
        totals = count_totals(objects.select(EXPIRED_OBJECTS.names).cast(EXPIRED_OBJECTS), start=start)
        return parquet_bytes(totals), len(totals)

    return Output(folder, ".parquet", encode)
