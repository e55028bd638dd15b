"""Plots of an expired set for Dagster's UI: tables with bars, which the UI shows without a click."""

from __future__ import annotations

from collections.abc import Mapping

from lakegc_assets.formatting import size
from lakegc_assets.mark.totals import EVERYTHING_ELSE, Sum, Totals, label_in_words
from lakegc_assets.markdown import MAX_INLINE, as_text, bar, table, unbroken

MAX_BARS = 10
MAX_NAME_LENGTH = 60
HEADINGS: Mapping[str, str] = {
    "reason": "reason",
    "age": "age",
    "prefix": "path in lakeFS",
}
NAMES: Mapping[str, str] = {"reason": "by_reason", "age": "by_age", "prefix": "by_path"}


def plots(totals: Totals) -> dict[str, str]:
    """A plot for each of HEADINGS as Markdown: the largest totals as bars, and one for the rest; none without
    objects."""
    if not totals.whole.objects:
        return {}
    return {NAMES[kind]: as_markdown(heading, totals, kind) for kind, heading in HEADINGS.items()}


def as_markdown(heading: str, totals: Totals, kind: str) -> str:
    """One plot as Markdown, with as many bars as the UI shows inline, but at least one."""
    for count in range(MAX_BARS, 0, -1):
        drawn = drawn_table(heading, bars(totals, kind, count))
        if len(drawn) <= MAX_INLINE:
            break
    return drawn


def bars(totals: Totals, kind: str, count: int = MAX_BARS) -> list[tuple[str, Sum]]:
    """The bars of one plot: its `count` largest totals, and one for all others."""
    sums = totals.sorted_sums(kind)
    known = [entry for entry in sums if entry[0] != EVERYTHING_ELSE]
    others = Sum()
    for _, total in [*known[count:], *(entry for entry in sums if entry[0] == EVERYTHING_ELSE)]:
        others.add(total.objects, total.bytes)
    shown = [(label_in_words(kind, label), total) for label, total in known[:count]]
    return [*shown, ("all others", others)] if others.objects else shown


def drawn_table(heading: str, shown: list[tuple[str, Sum]]) -> str:
    longest = max(total.bytes for _, total in shown)
    rows = [
        (as_text(shortened(name)), bar(total.bytes, longest), unbroken(size(total.bytes)), f"{total.objects:,}")
        for name, total in shown
    ]
    return table([heading, "", "bytes:", "objects:"], rows)


def shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}…"
