"""Which paths are probed on branches: each one at which a branch may serve a candidate. Candidates whose probes aren't
sent are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.rules import path_probes
from lakegc_assets.rules.path_probes import PROBES_BY_SIZE, SizeSet
from spark_resources.model import PATHS_TO_PROBE, SERVED

Entry = tuple[str | None, int]  # its path and size


def sizes(*values: int) -> SizeSet:
    return SizeSet(pa.array(values, pa.int64()))


def probes(entries: Sequence[Entry], branches: Sequence[str], wanted: SizeSet) -> list[tuple[Any, ...]]:
    paths, entry_sizes = (
        pa.array([entry[position] for entry in entries], kind) for position, kind in ((0, pa.string()), (1, pa.int64()))
    )
    batches = list(path_probes.paths_to_probe(paths, entry_sizes, "lake", branches, wanted))
    assert all(batch.schema == PATHS_TO_PROBE for batch in batches)
    return sorted((tuple(row.values()) for batch in batches for row in batch.to_pylist()), key=str)


def test_each_path_with_an_entry_of_a_candidates_size_is_probed_on_each_branch() -> None:
    """A path that isn't probed would hide a live object."""
    entries: list[Entry] = [("p", 1), ("q", 2), ("too large", 3), (None, 1)]

    assert probes(entries, ["main", "dev"], sizes(2, 1, 1)) == [
        ("lake", "dev", "p", 1), ("lake", "dev", "q", 2), ("lake", "dev", None, 1),
        ("lake", "main", "p", 1), ("lake", "main", "q", 2), ("lake", "main", None, 1),
    ]  # fmt: skip
    assert probes(entries, ["main"], sizes()) == probes(entries, ["main"], sizes(4)) == []
    assert probes(entries, [], sizes(1)) == probes([], ["main"], sizes(1)) == []


@pytest.mark.parametrize("rows", [1, 2, 5, 100])
def test_no_path_is_lost_between_batches(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(path_probes, "BATCH_ROWS", rows)
    paths, branches = [f"p{number}" for number in range(4)], [f"b{number}" for number in range(7)]

    assert probes([(path, 1) for path in paths], branches, sizes(1)) == [
        ("lake", branch, path, 1) for branch in branches for path in paths
    ]


number = st.integers(0, 2**63 - 1) | st.integers(0, 5)


@given(st.lists(number), st.lists(number))
def test_a_size_set_contains_exactly_its_sizes(in_set: list[int], asked: list[int]) -> None:
    asked = [*asked, *in_set[:3]]

    contained = sizes(*in_set).contains(pa.array(asked, pa.int64()))

    assert contained.to_pylist() == [size in in_set for size in asked]
    assert sizes(*in_set).as_array().to_pylist() == sorted(set(in_set))


def test_sizes_that_need_the_fewest_probes_are_probed_first_up_to_the_limit() -> None:
    """The limit applies to the total number of probes. No size is probed in part. If counts are equal, the smaller size
    comes first."""
    wanted = [("lake", "main", f"{size}/{number}", size) for size in (7, 9, 8) for number in range(2)]
    wanted += [("lake", "main", f"6/{number}", 6) for number in range(3)]
    paths = pa.Table.from_pylist([dict(zip(PATHS_TO_PROBE.names, row, strict=True)) for row in wanted], PATHS_TO_PROBE)

    in_parts = [path_probes.count_by_size(paths.slice(start, 4)) for start in range(0, len(paths), 4)]
    counts = path_probes.sum_by_size(pa.concat_tables(in_parts))

    assert counts.schema == PROBES_BY_SIZE
    beyond = {limit: path_probes.beyond_limit(counts, limit).to_pylist() for limit in (0, 1, 2, 3, 4, 5, 6, 8, 9)}
    assert {limit: sorted(unsent) for limit, unsent in beyond.items()} == {
        0: [6, 7, 8, 9], 1: [6, 7, 8, 9], 2: [6, 8, 9], 3: [6, 8, 9], 4: [6, 9], 5: [6, 9], 6: [6], 8: [6], 9: [],
    }  # fmt: skip


def test_a_probe_that_is_not_sent_is_unclear_and_names_no_address() -> None:
    """Every candidate of its size is therefore kept."""
    wanted = [("lake", "main", "p", 1), ("lake", "dev", None, 2)]
    rows = [dict(zip(PATHS_TO_PROBE.names, row, strict=True)) for row in wanted]

    results = path_probes.unsent_probes(pa.RecordBatch.from_pylist(rows, PATHS_TO_PROBE), "there are too many")

    assert results.schema == SERVED
    assert [tuple(row.values()) for row in results.to_pylist()] == [
        ("lake", "main", "p", 1, None, "there are too many"),
        ("lake", "dev", None, 2, None, "there are too many"),
    ]
