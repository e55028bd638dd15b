"""The check right before a delete: every key gets exactly one verdict, and no changed object is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.rules.delete_check import check_before_delete, how_changed
from spark_resources.deleting.lookup import FOUND
from spark_resources.deleting.sweep_task import receipts_of_check
from spark_resources.model import PENDING, DeleteCheck, Outcome

MARKED = datetime(2026, 11, 1, 12, 0, 0, 250_000, tzinfo=UTC)
CUTOFF = MARKED + timedelta(days=1)
SECOND = timedelta(seconds=1)


def pending(address: str = "data/s/a", **changes: Any) -> dict[str, Any]:
    known = {"size": 5, "modified": MARKED, "checksum": "abc", "slice": "data/s/", "intended": False}
    return {"address": address, **known, **changes}


def stored_row(address: str = "data/s/a", **changes: Any) -> dict[str, Any]:
    return {"address": address, "size": 5, "modified": MARKED, "checksum": "abc", **changes}


def tables(rows: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> tuple[pa.Table, pa.Table]:
    return pa.Table.from_pylist(list(rows), schema=PENDING), pa.Table.from_pylist(list(found), schema=FOUND)


def checked(rows: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> DeleteCheck:
    return check_before_delete(*tables(rows, found), cutoff=CUTOFF)


def addresses(table: pa.Table) -> list[str]:
    names: list[str] = table["address"].to_pylist()
    return names


objects = st.fixed_dictionaries(
    {
        "size": st.none() | st.integers(0, 2),
        "modified": st.none() | st.sampled_from([MARKED, MARKED + SECOND, CUTOFF + SECOND]),
        "checksum": st.none() | st.sampled_from(["abc", "def"]),
        "intended": st.booleans(),
    }
)
found_objects = st.none() | st.fixed_dictionaries(
    {
        "size": st.integers(0, 2),
        "modified": st.sampled_from([MARKED, MARKED + SECOND, CUTOFF + SECOND]),
        "checksum": st.none() | st.sampled_from(["abc", "def"]),
    }
)


@settings(deadline=None)  # the first call makes Arrow import pandas
@given(st.lists(st.tuples(objects, found_objects), max_size=12))
def test_every_key_gets_exactly_one_verdict(pairs: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    """The verdict is unchanged, changed, gone or interrupted. The sizes of all objects are known."""
    rows = [pending(f"data/s/{number:02}", **marked) for number, (marked, _) in enumerate(pairs)]
    verdicts = [
        stored_row(f"data/s/{number:02}", **current) for number, (_, current) in enumerate(pairs) if current is not None
    ]
    result = checked(rows, verdicts)
    parts = (result.unchanged, result.changed, result.gone, result.interrupted)
    present = {row["address"] for row in verdicts}

    assert sorted(key for part in parts for key in addresses(part)) == [row["address"] for row in rows]
    assert {*addresses(result.unchanged), *addresses(result.changed)} == present
    assert {row["address"] for row in rows if row["intended"]} - present == set(addresses(result.interrupted))
    assert all(part["size"].null_count == 0 for part in parts)
    assert len(receipts_of_check(result, CUTOFF)) == len(result.changed) + len(result.gone)


@settings(deadline=None)  # the first call makes Arrow import pandas
@given(st.lists(st.tuples(objects, found_objects), max_size=12))
def test_backups_and_sweeps_count_the_same_objects_as_changed(
    pairs: list[tuple[dict[str, Any], dict[str, Any] | None]],
) -> None:
    """Both use the same rule, except that a backup also copies objects that a mark recorded without a size."""
    rows = [
        pending(f"data/s/{number:02}", **marked)
        for number, (marked, _) in enumerate(pairs)
        if marked["size"] is not None
    ]
    verdicts = [
        stored_row(f"data/s/{number:02}", **current) for number, (_, current) in enumerate(pairs) if current is not None
    ]
    sentences = how_changed(*tables(rows, verdicts), cutoff=CUTOFF)

    assert [row["address"] for row, sentence in zip(rows, sentences, strict=True) if sentence] == addresses(
        checked(rows, verdicts).changed
    )


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        ({"size": 6}, "it has 6 bytes, but had 5 when it was marked"),
        ({"checksum": "def"}, "its checksum is def, but was abc when it was marked"),
        (
            {"modified": MARKED + SECOND},
            "its modification time is 2026-11-01 12:00:01 UTC, but was 2026-11-01 12:00:00 UTC when",
        ),
    ],
)
def test_a_backup_records_how_an_object_has_changed(now: dict[str, Any], sentence: str) -> None:
    """The sentence has the recorded and the current value of the first difference."""
    [difference] = how_changed(*tables([pending()], [stored_row(**now)]), cutoff=None)
    [young] = how_changed(*tables([pending(modified=None)], [stored_row(modified=CUTOFF + SECOND)]), cutoff=CUTOFF)

    assert sentence in difference
    assert young == "it was written at 2026-11-02 12:00:01 UTC, after the mark's cutoff"


@pytest.mark.parametrize(
    "now",
    [
        stored_row(size=6),
        stored_row(checksum="def"),
        stored_row(modified=MARKED + SECOND),
        stored_row(modified=MARKED - SECOND),
    ],
    ids=["size", "checksum", "later", "earlier"],
)
def test_an_object_with_a_different_size_checksum_or_modification_time_counts_as_changed(now: dict[str, Any]) -> None:
    """A changed object is not deleted."""
    result = checked([pending()], [now])

    assert (len(result.unchanged), addresses(result.changed)) == (0, ["data/s/a"])
    assert receipts_of_check(result, CUTOFF)["outcome"].to_pylist() == [Outcome.CHANGED.value]


@pytest.mark.parametrize(
    ("marked", "now"),
    [
        (pending(), stored_row(modified=MARKED.replace(microsecond=0))),
        (pending(checksum=None), stored_row()),
        (pending(), stored_row(checksum=None)),
        (pending(modified=None), stored_row(modified=CUTOFF)),
        (pending(modified=CUTOFF + SECOND), stored_row(modified=CUTOFF + SECOND)),
    ],
    ids=["a part of a second", "no checksum then", "no checksum now", "no time then", "the same time, though young"],
)
def test_unknown_values_fractions_of_a_second_and_unchanged_late_times_do_not_count_as_changes(
    marked: dict[str, Any], now: dict[str, Any]
) -> None:
    """Some requests don't report all values, or report times in whole seconds."""
    assert addresses(checked([marked], [now]).unchanged) == ["data/s/a"]


def test_an_object_younger_than_the_cutoff_of_a_mark_without_times_counts_as_changed() -> None:
    """Such a mark doesn't record the objects' times."""
    result = checked([pending(modified=None)], [stored_row(modified=CUTOFF + timedelta(milliseconds=1))])

    assert addresses(result.changed) == ["data/s/a"]


def test_an_object_that_appeared_since_the_listing_counts_as_changed() -> None:
    """If no object was listed at a key, its size was unknown at the re-verification."""
    result = checked([pending(size=None, modified=None, checksum=None)], [stored_row(modified=MARKED)])

    assert addresses(result.changed) == ["data/s/a"]


def test_the_reported_size_comes_from_the_mark_or_else_from_the_object_found() -> None:
    """A report with sizes that differ from the approved ones would mislead its readers."""
    rows = [pending("a"), pending("b", size=None), pending("c", size=None), pending("d")]
    result = checked(rows, [stored_row("a", size=7), stored_row("b", size=7)])

    assert result.changed.select(["address", "size"]).to_pylist() == [
        {"address": "a", "size": 5}, {"address": "b", "size": 7}
    ]  # fmt: skip
    assert result.gone.select(["address", "size"]).to_pylist() == [
        {"address": "c", "size": 0}, {"address": "d", "size": 5}
    ]  # fmt: skip
