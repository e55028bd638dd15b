"""What executors count while they write an expired set, and how it is plotted."""

from __future__ import annotations

import io
import re
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.mark import totals as counting
from lakegc_assets.mark.plots import MAX_BARS, bars, plots
from lakegc_assets.mark.sample_objects import OBJECTS_PER_KIND, samples_output, select_samples
from lakegc_assets.mark.totals import EVERYTHING_ELSE, Label, Sum, Totals, count_totals, totals_output
from lakegc_assets.markdown import MAX_INLINE
from spark_resources.model import EXPIRED_TOTALS, HIGHLIGHTS
from tests.support.finished_marks import START
from tests.support.reviewable_marks import expired, tables

DAY = timedelta(days=1)


def totals_of(*rows: dict[str, Any], depth: int = 1) -> Totals:
    totals = Totals()
    for table in tables(rows, per_file=2):
        totals.add(count_totals(table, start=START, depth=depth))
    return totals


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
def test_an_age_is_the_time_up_to_the_start_of_the_mark(old: timedelta, label: str) -> None:
    """The age is exact to the microsecond. Calendar days don't matter."""
    totals = totals_of(expired("data/s/a", modified=START - old))

    assert totals.by["age"] == {Label(label): Sum(1, 1)}


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
def test_prefixes_have_the_requested_number_of_folders(path: str | None, depth: int, prefix: str | None) -> None:
    """A prefix includes its slashes, byte for byte. Without a path, the prefix is unknown."""
    totals = totals_of(expired("data/s/a", path=path), depth=depth)

    assert totals.by["prefix"] == {Label(prefix): Sum(1, 1)}


def test_only_a_bounded_number_of_labels_is_counted_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound limits memory. No label is undercounted, and the total is complete."""
    monkeypatch.setattr(counting, "MAX_LABELS", 3)
    rows = [expired(f"data/s{n}/a", 10) for n in range(8)] + [expired("data/s0/b", 5)]

    totals = totals_of(*rows)

    assert totals.whole == Sum(9, 85)
    assert totals.by["slice"] == {
        Label("data/s0/"): Sum(2, 15), Label("data/s1/"): Sum(1, 10), Label("data/s2/"): Sum(1, 10),
        EVERYTHING_ELSE: Sum(5, 50),
    }  # fmt: skip


def test_totals_and_sample_objects_are_written_with_their_columns() -> None:
    """The totals and sample objects lie beside each file of a set."""
    (table,) = tables([expired(f"data/s/{n:03}", n) for n in range(60)])
    shuffled = table.select(list(reversed(table.schema.names)))

    for output, schema, rows in (
        (totals_output("f/", START), EXPIRED_TOTALS, 4),
        (samples_output("f/", "m1"), HIGHLIGHTS, sum(OBJECTS_PER_KIND.values())),
    ):
        data, count = output.encode(shuffled)
        written_table = pq.read_table(io.BytesIO(data))
        assert (written_table.schema.names, len(written_table), count) == (schema.names, rows, rows)


def test_every_object_of_a_small_set_is_a_sample_object() -> None:
    """The set has fewer objects than the sample may show."""
    samples = select_samples(tables([expired("data/s/a"), expired("data/s/b")])[0], seed="m1").to_pylist()

    assert [(row["kind"], row["address"]) for row in samples][:4] == [
        ("largest", "data/s/a"), ("largest", "data/s/b"), ("newest", "data/s/a"), ("newest", "data/s/b")
    ]  # fmt: skip
    assert len(samples) == 6


# --- plots ------------------------------------------------------------------------------------------------------------


def test_paths_with_any_characters_are_plotted_literally() -> None:
    """No name is a link, a picture or a tag on the page, breaks the table, or hides the plot behind a click."""
    links = ["[x](javascript:0)/", "![x](http://y)/", "<img>/"]
    names = [*links, "$x_$/", "a|b/", "\x1b[31m/", "two\nlines/", "日本/", "`/"]
    drawn = plots(totals_of(*(expired(f"data/s/{n}", n + 1, path=f"{name}x") for n, name in enumerate(names))))

    assert set(drawn) == {"by_age", "by_path", "by_reason"}
    assert all(len(markdown) <= MAX_INLINE for markdown in drawn.values())
    header, _, *rows = drawn["by_path"].splitlines()
    assert all(len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 5 for row in (header, *rows))
    labels = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert all(not re.search(r"(?<!\\)[`<\[\]!|$:]", label.replace("\\\\", "")) for label in labels)


def test_a_plot_with_long_names_has_fewer_bars() -> None:
    """The page therefore shows the plot without a click. The last bar stands for everything that isn't shown."""
    rows = [expired(f"data/s/{n:03}", n + 1, path=f"{n}{'_' * 200}/x") for n in range(20)]

    drawn = plots(totals_of(*rows))["by_path"]

    assert len(drawn) <= MAX_INLINE
    assert 3 < len(drawn.splitlines()) < MAX_BARS
    assert "| all others |" in drawn


def test_the_bars_of_a_plot_add_up_to_the_total() -> None:
    """Each of the largest sums has one bar, and one bar stands for all others."""
    rows = [expired(f"data/s/{n:03}", n + 1, path=f"p{n:03}/x") for n in range(MAX_BARS + 5)]

    plotted = bars(totals_of(*rows), "prefix")

    assert len(plotted) == MAX_BARS + 1
    assert plotted[0] == (f"p{MAX_BARS + 4:03}/", Sum(1, MAX_BARS + 5))
    assert plotted[-1] == ("all others", Sum(5, 15))
    assert sum(bar.bytes for _, bar in plotted) == sum(row["size"] for row in rows)


def test_an_empty_set_has_no_plots() -> None:
    assert plots(Totals()) == {}


def test_the_totals_of_an_empty_set_have_no_rows() -> None:
    """The empty table still has all columns."""
    assert (
        count_totals(pa.Table.from_pylist([], tables([expired("data/s/a")])[0].schema), start=START).to_pylist() == []
    )
