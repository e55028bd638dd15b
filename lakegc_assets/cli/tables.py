"""Totals as tables on a terminal and as JSON, shared by reviews and comparisons."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from lakegc_assets.cli.console import cell, print_table, size
from lakegc_assets.formatting import fraction
from lakegc_assets.mark.totals import EVERYTHING_ELSE, Label, Sum, Totals, label_in_words

ROWS_SHOWN = 10
HEADINGS = {"reason": "Why", "age": "Age", "prefix": "Path in lakeFS", "slice": "Slice in the store"}


def show_totals(totals: Totals, kind: str, *, title: str = "") -> None:
    """Print the largest totals of a kind, and the sum of the others."""
    sums = totals.sorted_sums(kind)
    if not sums:
        return
    table = Table()
    table.add_column(HEADINGS[kind], overflow="fold")
    for heading in ("objects", "bytes", "of the bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    known = [entry for entry in sums if entry[0] != EVERYTHING_ELSE]
    for label, total in known[:ROWS_SHOWN]:
        add_total(table, label_in_words(kind, label), total, totals.whole)
    smaller = [*known[ROWS_SHOWN:], *(entry for entry in sums if entry[0] == EVERYTHING_ELSE)]
    if smaller:
        others = Sum(sum(total.objects for _, total in smaller), sum(total.bytes for _, total in smaller))
        add_total(table, f"… and {len(smaller):,} more", others, totals.whole)
    print_table(title or f"By {kind}", table)


def add_total(table: Table, name: str, total: Sum, whole: Sum) -> None:
    share = f"{100 * fraction(total.bytes, whole.bytes):.1f}%"
    table.add_row(cell(name), f"{total.objects:,}", size(total.bytes), share)


def totals_document(totals: Totals, kinds: tuple[str, ...]) -> dict[str, Any]:
    return {
        "objects": totals.whole.objects,
        "bytes": totals.whole.bytes,
        **{
            f"by_{kind}": [
                {**label_fields(kind, label), **amount_fields(total)} for label, total in totals.sorted_sums(kind)
            ]
            for kind in kinds
        },
    }


def amount_fields(total: Sum) -> dict[str, int]:
    return {"objects": total.objects, "bytes": total.bytes}


def label_fields(kind: str, label: Label) -> dict[str, str | int | None]:
    """The fields of a label; a reason also has the branch whose rule decided, and its days."""
    if kind == "reason":
        return {"reason": label.name, "branch": label.branch, "days": label.days}
    return {kind: label.name}
