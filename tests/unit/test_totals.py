"""What executors count of an expired set while they write it, and what is drawn of it."""

from __future__ import annotations

import base64
import io
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.image import imread

from lakegc_assets.marking import totals as counting
from lakegc_assets.marking.highlights import SHOWN, chosen, highlights_output
from lakegc_assets.marking.plots import BARS, bars, plots
from lakegc_assets.marking.totals import EVERYTHING_ELSE, Label, Sum, Totals, counted, totals_output
from spark_resources.model import EXPIRED_TOTALS, HIGHLIGHTS
from tests.finished import START
from tests.reviewable import expired, tables

DAY = timedelta(days=1)


def totals_of(*rows: dict[str, Any], depth: int = 1) -> Totals:
    found = Totals()
    for table in tables(rows, each=2):
        found.add(counted(table, start=START, depth=depth))
    return found


@pytest.mark.parametrize(
    ("old", "label"),
    [
        (timedelta(0), "under a day"),
        (DAY - timedelta(microseconds=1), "under a day"),
        (DAY, "a day to a week"),
        (7 * DAY, "a week to a month"),
        (30 * DAY, "1 to 3 months"),
        (90 * DAY, "3 months to a year"),
        (365 * DAY, "over a year"),
        (-DAY, "under a day"),
    ],
)
def test_an_age_is_a_matter_of_calendar_days(old: timedelta, label: str) -> None:
    """Ages are spans of time up to the start of the mark, to the microsecond, whatever day they began on."""
    found = totals_of(expired("data/s/a", modified=START - old))

    assert found.by["age"] == {Label(label): Sum(1, 1)}


@pytest.mark.parametrize(
    ("path", "depth", "prefix"),
    [
        ("a/b/c", 1, "a/"),
        ("a/b/c", 2, "a/b/"),
        ("a/b/c", 9, "a/b/"),
        ("top", 1, ""),
        ("/a", 1, "/"),
        ("a//b", 2, "a//"),
        ("two\nlines/a", 1, "two\nlines/"),
        ("é/ü", 1, "é/"),
        (None, 1, None),
    ],
)
def test_a_path_is_under_another_prefix(path: str | None, depth: int, prefix: str | None) -> None:
    """A prefix is so many folders of the path, with their slashes, byte for byte; without a path it is unknown."""
    found = totals_of(expired("data/s/a", path=path), depth=depth)

    assert found.by["prefix"] == {Label(prefix): Sum(1, 1)}


def test_totals_outgrow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound, new labels are counted as one: no label is counted short, and the whole is whole."""
    monkeypatch.setattr(counting, "LABELS_HELD", 3)
    rows = [expired(f"data/s{n}/a", 10) for n in range(8)] + [expired("data/s0/b", 5)]

    found = totals_of(*rows)

    assert found.whole == Sum(9, 85)
    assert found.by["slice"] == {
        Label("data/s0/"): Sum(2, 15), Label("data/s1/"): Sum(1, 10), Label("data/s2/"): Sum(1, 10),
        EVERYTHING_ELSE: Sum(5, 50),
    }  # fmt: skip


def test_an_empty_file_is_written() -> None:
    """Beside each file of a set lie the totals and highlights of its rows, with exactly their columns."""
    (table,) = tables([expired(f"data/s/{n:03}", n) for n in range(60)])
    shuffled = table.select(list(reversed(table.schema.names)))

    for output, schema, rows in (
        (totals_output("f/", START), EXPIRED_TOTALS, 4),
        (highlights_output("f/", "m1"), HIGHLIGHTS, sum(SHOWN.values())),
    ):
        data, count = output.encode(shuffled)
        found = pq.read_table(io.BytesIO(data))
        assert (found.schema.names, len(found), count) == (schema.names, rows, rows)


def test_few_objects_have_no_highlights() -> None:
    """Of fewer objects than are looked at, all are."""
    found = chosen(tables([expired("data/s/a"), expired("data/s/b")])[0], seed="m1").to_pylist()

    assert [(row["kind"], row["address"]) for row in found][:4] == [
        ("largest", "data/s/a"), ("largest", "data/s/b"), ("newest", "data/s/a"), ("newest", "data/s/b")
    ]  # fmt: skip
    assert len(found) == 6


# --- plots ----------------------------------------------------------------------------------------------------------


def picture(markdown: str) -> Any:
    """The pixels of a picture in Markdown; fails where it isn't one line of Markdown with a PNG in it."""
    assert markdown.count("\n") == 0
    before, after = markdown.split("(data:image/png;base64,")
    assert before.startswith("![")
    assert after.endswith(")")
    return imread(io.BytesIO(base64.b64decode(after[:-1])))


def test_a_key_breaks_a_plot() -> None:
    """Plots of bytes by age, path and reason are pictures, whatever characters paths have."""
    names = [
        "$x_$/",
        "\\frac{/",
        "$\\undefined$/",
        "\x1b[31m/",
        "two\nlines/",
        "日本/",
        "🙂/",
        "a" * 300 + "/",
        "%/",
        "_/",
    ]
    drawn = plots(totals_of(*(expired(f"data/s/{n}", n, path=f"{name}x") for n, name in enumerate(names))))

    assert set(drawn) == {"bytes_by_age", "bytes_by_prefix", "bytes_by_reason"}
    for markdown in drawn.values():
        height, width, _ = picture(markdown).shape
        assert width == 800
        assert 80 <= height <= 900


def test_a_plot_leaves_bytes_out() -> None:
    """A plot has a bar for each of the largest sums and one for all others: together they are the whole."""
    rows = [expired(f"data/s/{n:03}", n + 1, path=f"p{n:03}/x") for n in range(BARS + 5)]

    shown = bars(totals_of(*rows), "prefix")

    assert len(shown) == BARS + 1
    assert shown[0] == (f"p{BARS + 4:03}/", Sum(1, BARS + 5))
    assert shown[-1] == ("all others", Sum(5, 15))
    assert sum(one.bytes for _, one in shown) == sum(row["size"] for row in rows)


def test_nothing_is_drawn_as_something() -> None:
    """Of an empty set there are no plots."""
    assert plots(Totals()) == {}


def test_columns_of_totals_are_not_all_there() -> None:
    """Totals of no rows are no rows, with all columns."""
    assert counted(pa.Table.from_pylist([], tables([expired("data/s/a")])[0].schema), start=START).to_pylist() == []
