"""Markdown for the metadata of assets, as Dagster's UI shows it.

The UI shows Markdown of up to MAX_INLINE characters in its place on the page, and longer text behind a click. A value
that can't be wrapped, such as an address, makes the whole table of metadata too wide, so that the page cuts all other
values: such values belong behind the click, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

import dagster as dg

from lakegc_assets.formatting import escaped_name

MAX_INLINE = 999
BAR_WIDTH = 12
EIGHTHS = " ▏▎▍▌▋▊▉█"
PLOT_WIDTH, PLOT_HEIGHT, PLOT_COLOR = 480, 64, "%237a6ff0"
WIDEST_COLUMN = 24
SAFE_IN_SVG = "=:/'%-,"
_WEB_ADDRESS = re.compile(r"https?(?=://)|www(?=\.)", re.IGNORECASE)
_ACTIVE = {ord(mark): f"\\{mark}" for mark in "\\`*_{}[]<>#+!|~$&:.@^\"'()"}


def as_text(name: str) -> str:
    """A name as literal text: nothing in it is shown as a link, an image, a tag or a formula, or ends a table cell.

    The UI turns web addresses into links even if they are escaped, so an invisible character is inserted into them.
    """
    return _WEB_ADDRESS.sub("\\g<0>\N{WORD JOINER}", escaped_name(name)).translate(_ACTIVE)


def unbroken(text: str) -> str:
    """Text that is never wrapped, such as a number with its unit."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown. A heading that ends with a colon belongs to a column of numbers, aligned to the right."""
    titles = [heading.removesuffix(":") for heading in headings]
    rules = ["--:" if heading.endswith(":") else "---" for heading in headings]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows))


def bar(value: float, longest: float) -> str:
    """A bar of up to BAR_WIDTH characters, to an eighth of a character. The bar of a value above 0 is always
    visible."""
    eighths = max(round(8 * BAR_WIDTH * value / longest), 1) if value and longest else 0
    return f"{EIGHTHS[8] * (eighths // 8)}{EIGHTHS[eighths % 8]}".strip()


def column_plot(title: str, heights: Sequence[float]) -> str:
    """A picture with a column for each value, the highest of which fills the full height. For at most about 60 columns,
    it is short enough to be shown inline."""
    highest, width = max(heights, default=0), min(PLOT_WIDTH // max(len(heights), 1), WIDEST_COLUMN)
    drawn = [max(round(PLOT_HEIGHT * height / highest), 1) if height else 0 for height in heights]
    outline = "".join(f"V{PLOT_HEIGHT - height}h{width}" for height in drawn)
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{PLOT_WIDTH}' height='{PLOT_HEIGHT}'>"
        f"<path fill='{PLOT_COLOR}' d='M0,{PLOT_HEIGHT}{outline}V{PLOT_HEIGHT}z'/></svg>"
    )
    return f"![{title}](data:image/svg+xml,{quote(svg, safe=SAFE_IN_SVG)})"


def asset_link(asset: str, partition_key: str, text: str = "") -> str:
    """A link to an asset's page for one partition. It is relative, so that it works under any address of the UI."""
    return f"[{text or as_text(asset)}](../assets/{asset}?view=partitions&partition={quote(partition_key, safe='')})"


def launchpad_link(job: str, text: str) -> str:
    """A link to a job's launchpad. The UI finds the code location with a job of this name, whatever that is called."""
    return f"[{text}](../guess/{job}/playground)"


def checks_link(asset: str, text: str) -> str:
    return f"[{text}](../assets/{asset}?view=checks)"


def inline(text: str) -> dg.MarkdownMetadataValue:
    """Markdown that is shown in its place on the page, if it isn't too long for that."""
    return dg.MetadataValue.md(text)


def behind_a_click(text: str) -> dg.MarkdownMetadataValue:
    """Markdown that is shown in a dialog, which scrolls, however short it is."""
    return dg.MetadataValue.md(text.ljust(MAX_INLINE + 1))
