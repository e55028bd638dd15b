"""Markdown for the pages of Dagster's UI: literal names, plots that fit inline, and links that work anywhere."""

from __future__ import annotations

import re
from urllib.parse import unquote, urljoin

import pytest

from lakegc_assets.markdown import (
    BAR_WIDTH,
    MAX_INLINE,
    as_text,
    asset_link,
    bar,
    behind_a_click,
    column_plot,
    inline,
    launchpad_link,
    table,
)


@pytest.mark.parametrize(
    ("value", "longest", "drawn"),
    [
        (0, 10, ""),
        (10, 10, "█" * BAR_WIDTH),
        (5, 10, "█" * (BAR_WIDTH // 2)),
        (1, 10**9, "▏"),
        (0, 0, ""),
    ],
)
def test_bars_are_as_long_as_their_share_of_the_longest(value: float, longest: float, drawn: str) -> None:
    """A value above 0 is never invisible."""
    assert bar(value, longest) == drawn


def test_a_plot_with_sixty_columns_is_shown_inline() -> None:
    """The UI shows longer text only behind a click."""
    drawn = column_plot("Objects per second", [float(n * 1_000) for n in range(60)])

    assert len(drawn) <= MAX_INLINE
    picture = re.fullmatch(r"!\[Objects per second\]\(data:image/svg\+xml,(\S+)\)", drawn)
    assert picture is not None
    svg = unquote(picture[1])
    assert svg.startswith("<svg ")
    assert "d='M0,64V64h8V63h8V62h8" in svg
    assert svg.endswith("V1h8V0h8V64z'/></svg>")


def test_a_plot_without_columns_or_heights_is_empty() -> None:
    assert "d='M0,64V64z'" in unquote(column_plot("none", []))
    assert "d='M0,64V64h24V64h24V64z'" in unquote(column_plot("none", [0.0, 0.0]))


def test_names_in_markdown_are_escaped() -> None:
    assert as_text("a|b*_[x](y)<z>\n") == r"a\|b\*\_\[x\]\(y\)\<z\>\\n"


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    assert table(["name", "bytes:"], [("a", "1 B")]).splitlines() == [
        "| name | bytes |",
        "| --- | --: |",
        "| a | 1 B |",
    ]


@pytest.mark.parametrize(
    ("link", "path"),
    [
        (asset_link("sweep_report", "lake:m1"), "assets/sweep_report?view=partitions&partition=lake%3Am1"),
        (launchpad_link("approve", "Approve"), "guess/approve/playground"),
    ],
)
@pytest.mark.parametrize(
    ("page", "root"),
    [("https://ui/assets/expired_set?view=events", "https://ui/"), ("https://ui/prefix/runs/1f", "https://ui/prefix/")],
)
def test_links_work_from_pages_of_assets_and_runs_at_any_address(page: str, root: str, link: str, path: str) -> None:
    target = re.findall(r"\((.*)\)", link)[0]

    assert urljoin(page, target) == root + path


def test_even_short_text_can_be_put_behind_a_click() -> None:
    assert len(behind_a_click("a").value or "") > MAX_INLINE
    assert len(inline("a").value or "") == 1
