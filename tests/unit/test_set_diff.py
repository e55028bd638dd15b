"""Two sorted sets are compared in one pass, with only a window of each in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.rules.set_diff import Change, changes
from spark_resources.errors import DamagedData

KEYS = st.text("a\ue000\U00010000é/~", max_size=3)


def in_tables(addresses: list[str], sizes: list[int]) -> Iterator[pa.Table]:
    """The addresses in tables of these sizes, which are repeated as needed."""
    at, number = 0, 0
    while at < len(addresses):
        count = sizes[number % len(sizes)] if sizes else 1
        yield pa.table({"address": pa.array(addresses[at : at + count], pa.string())})
        at, number = at + count, number + 1
        if number > 100 and not any(sizes):
            yield pa.table({"address": pa.array(addresses[at:], pa.string())})
            return


def in_order(addresses: set[str]) -> list[str]:
    return sorted(addresses, key=str.encode)


@settings(deadline=None)  # the first call imports parts of Arrow
@given(st.sets(KEYS), st.sets(KEYS), st.lists(st.integers(0, 4), max_size=5), st.lists(st.integers(1, 4), max_size=5))
def test_each_address_is_reported_once_with_its_change(
    before: set[str], after: set[str], some: list[int], other: list[int]
) -> None:
    """Addresses come in byte order, however the two sets are split into tables."""
    reported: dict[Change, list[str]] = {change: [] for change in Change}
    for change, rows in changes(in_tables(in_order(before), some), in_tables(in_order(after), other)):
        reported[change] += rows["address"].to_pylist()

    assert reported[Change.NEWLY] == in_order(after - before)
    assert reported[Change.NO_LONGER] == in_order(before - after)
    assert reported[Change.STILL] == in_order(after & before)


@pytest.mark.parametrize("tables", [["b", "a"], ["a", "a"], ["a", "b", "", "a"], ["a", "b", "", "b", "c"]])
def test_a_set_out_of_order_raises_an_error(tables: list[str]) -> None:
    """A set that contains an address twice is also refused, whether in one table or in two."""
    parts = "\n".join(tables).split("\n\n")

    def broken() -> Iterator[pa.Table]:
        return (pa.table({"address": pa.array(part.split("\n"), pa.string())}) for part in parts)

    with pytest.raises(DamagedData, match="isn't sorted by address"):
        list(changes(broken(), iter([])))
    with pytest.raises(DamagedData, match="isn't sorted by address"):
        list(changes(in_tables(["a", "b", "c", "d"], [4]), broken()))


def test_at_most_one_table_of_each_set_is_prefetched() -> None:
    """Long sets are therefore compared without being held in memory."""
    read = {"before": 0, "after": 0}

    def counted(which: str) -> Iterator[pa.Table]:
        for number in range(200):
            read[which] += 1
            yield pa.table({"address": pa.array([f"{number:05}-{which}"], pa.string())})

    differing = 0
    for _, rows in changes(counted("before"), counted("after")):
        differing += len(rows)
        assert read["before"] + read["after"] <= differing + 2

    assert differing == 400
