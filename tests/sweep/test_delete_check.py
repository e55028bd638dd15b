"""The check right before a delete: every key gets exactly one verdict, and nothing that changed is garbage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_resources.deleting.lookup import FOUND
from spark_resources.deleting.sweep_task import PENDING, Judged
from spark_resources.model import Outcome

MARKED = datetime(2026, 11, 1, 12, 0, 0, 250_000, tzinfo=UTC)
CUTOFF = MARKED + timedelta(days=1)
SECOND = timedelta(seconds=1)


def pending(address: str = "data/s/a", **changes: Any) -> dict[str, Any]:
    known = {"size": 5, "modified": MARKED, "checksum": "abc", "slice": "data/s/", "intended": False}
    return {"address": address, **known, **changes}


def there(address: str = "data/s/a", **changes: Any) -> dict[str, Any]:
    return {"address": address, "size": 5, "modified": MARKED, "checksum": "abc", **changes}


def judged(rows: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> Judged:
    return Judged.of(
        pa.Table.from_pylist(list(rows), schema=PENDING), pa.Table.from_pylist(list(found), schema=FOUND), CUTOFF
    )


def addresses(table: pa.Table) -> list[str]:
    found: list[str] = table["address"].to_pylist()
    return found


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


@given(st.lists(st.tuples(objects, found_objects), max_size=12))
def test_every_key_gets_exactly_one_verdict(pairs: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    """Garbage, changed, gone or cut off; the sizes of all are known."""
    rows = [pending(f"data/s/{number:02}", **one) for number, (one, _) in enumerate(pairs)]
    found = [there(f"data/s/{number:02}", **one) for number, (_, one) in enumerate(pairs) if one is not None]
    result = judged(rows, found)
    parts = (result.garbage, result.changed, result.gone, result.cut_off)
    present = {row["address"] for row in found}

    assert sorted(key for part in parts for key in addresses(part)) == [row["address"] for row in rows]
    assert {*addresses(result.garbage), *addresses(result.changed)} == present
    assert {row["address"] for row in rows if row["intended"]} - present == set(addresses(result.cut_off))
    assert all(part["size"].null_count == 0 for part in parts)
    assert len(result.receipts(CUTOFF)) == len(result.changed) + len(result.gone)


@pytest.mark.parametrize(
    "now",
    [
        there(size=6),
        there(checksum="def"),
        there(modified=MARKED + SECOND),
        there(modified=MARKED - SECOND),
    ],
    ids=["size", "checksum", "later", "earlier"],
)
def test_an_object_of_another_size_checksum_or_second_has_changed(now: dict[str, Any]) -> None:
    """It is left alone."""
    result = judged([pending()], [now])

    assert (len(result.garbage), addresses(result.changed)) == (0, ["data/s/a"])
    assert result.receipts(CUTOFF)["outcome"].to_pylist() == [Outcome.CHANGED.value]


@pytest.mark.parametrize(
    ("marked", "now"),
    [
        (pending(), there(modified=MARKED.replace(microsecond=0))),
        (pending(checksum=None), there()),
        (pending(), there(checksum=None)),
        (pending(modified=None), there(modified=CUTOFF)),
    ],
    ids=["a part of a second", "no checksum then", "no checksum now", "no time then"],
)
def test_unknown_values_and_fractions_of_a_second_are_no_change(marked: dict[str, Any], now: dict[str, Any]) -> None:
    """Not every request reports them."""
    assert addresses(judged([marked], [now]).garbage) == ["data/s/a"]


def test_an_object_younger_than_the_cutoff_of_a_mark_without_times_has_changed() -> None:
    """Such a mark doesn't record what it marked."""
    result = judged([pending(modified=None)], [there(modified=CUTOFF + timedelta(milliseconds=1))])

    assert addresses(result.changed) == ["data/s/a"]


def test_an_object_that_appeared_since_the_listing_has_changed() -> None:
    """Where nothing was listed at its key, it was verified without knowing its size."""
    result = judged([pending(size=None, modified=None, checksum=None)], [there(modified=MARKED)])

    assert addresses(result.changed) == ["data/s/a"]
