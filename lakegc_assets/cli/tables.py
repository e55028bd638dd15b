"""Totals as tables on a terminal and as JSON, shared by reviews and comparisons."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from lakegc_assets.cli.console import cell, print_table, size
from lakegc_assets.formatting import part
from lakegc_assets.mark.totals import EVERYTHING_ELSE, Label, Sum, Totals, in_words

ROWS_SHOWN = 10
HEADINGS = {"reason": "Why", "age": "Age", "prefix": "Path in lakeFS", "slice": "Slice in the store"}


def show_sums(totals: Totals, kind: str, *, title: str = "") -> None:
    """Print the largest totals of a kind, and the sum of all others."""
    found = totals.ordered(kind)
    if not found:
        return
    table = Table()
    table.add_column(HEADINGS[kind], overflow="fold")
    for heading in ("objects", "bytes", "of the bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    known = [one for one in found if one[0] != EVERYTHING_ELSE]
    for label, one in known[:ROWS_SHOWN]:
        add_sum(table, in_words(kind, label), one, totals.whole)
    rest = [*known[ROWS_SHOWN:], *(one for one in found if one[0] == EVERYTHING_ELSE)]
    if rest:
        others = Sum(sum(one.objects for _, one in rest), sum(one.bytes for _, one in rest))
        add_sum(table, f"… and {len(rest):,} more", others, totals.whole)
    print_table(title or f"By {kind}", table)


def add_sum(table: Table, name: str, one: Sum, whole: Sum) -> None:
    share = f"{100 * part(one.bytes, whole.bytes):.1f} %"
    table.add_row(cell(name), f"{one.objects:,}", size(one.bytes), share)


def as_document(totals: Totals, kinds: tuple[str, ...]) -> dict[str, Any]:
    return {
        "objects": totals.whole.objects,
        "bytes": totals.whole.bytes,
        **{
            f"by_{kind}": [{**named(kind, label), **amounts(one)} for label, one in totals.ordered(kind)]
            for kind in kinds
        },
    }


def amounts(one: Sum) -> dict[str, int]:
    return {"objects": one.objects, "bytes": one.bytes}


def named(kind: str, label: Label) -> dict[str, str | int | None]:
    """The fields of a label; a reason also has the branch whose rule decided, and its days."""
    if kind == "reason":
        return {"reason": label.name, "branch": label.branch, "days": label.days}
    return {kind: label.name}
