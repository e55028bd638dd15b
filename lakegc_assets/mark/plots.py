"""Plots of an expired set for Dagster's UI."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from lakegc_assets.formatting import escaped_name, size
from lakegc_assets.mark.figures import in_markdown, new_figure
from lakegc_assets.mark.totals import EVERYTHING_ELSE, Sum, Totals, label_in_words

MAX_BARS = 12
MAX_NAME_LENGTH, LINE_LENGTH = 90, 46
TITLES: Mapping[str, str] = {"age": "Bytes by age", "prefix": "Bytes by path", "reason": "Bytes by reason"}


def plots(totals: Totals) -> dict[str, str]:
    """A plot for each of TITLES as Markdown: the largest totals as bars, one for the rest; none without objects."""
    if not totals.whole.objects:
        return {}
    return {f"bytes_by_{kind}": as_markdown(title, bars(totals, kind)) for kind, title in TITLES.items()}


def bars(totals: Totals, kind: str) -> list[tuple[str, Sum]]:
    """The bars of one plot: its largest totals, at most MAX_BARS, and one for all others."""
    ordered = totals.ordered(kind)
    known = [entry for entry in ordered if entry[0] != EVERYTHING_ELSE]
    others = Sum()
    for _, total in [*known[MAX_BARS:], *(entry for entry in ordered if entry[0] == EVERYTHING_ELSE)]:
        others.add(total.objects, total.bytes)
    shown = [(escaped_name(label_in_words(kind, label)), total) for label, total in known[:MAX_BARS]]
    return [*shown, ("all others", others)] if others.objects else shown


def as_markdown(title: str, shown: list[tuple[str, Sum]]) -> str:
    """Horizontal bars as a PNG in a line of Markdown. Names are drawn literally: a $ doesn't start a formula."""
    figure = new_figure(8, 0.9 + 0.34 * len(shown))
    axes = figure.subplots()
    drawn = axes.barh(range(len(shown)), [total.bytes for _, total in shown], color="#4f43dd")
    axes.bar_label(drawn, [f"{size(total.bytes)} in {total.objects:,}" for _, total in shown], padding=4, fontsize=8)
    names = [name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}…" for name, _ in shown]
    axes.set_yticks(
        range(len(shown)), [textwrap.fill(name, LINE_LENGTH) for name in names], fontsize=8, parse_math=False
    )
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.margins(x=0.3)
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    return in_markdown(figure, title)
