"""Which ranges commits have, by their metaranges: in the words of this mark or an earlier one, or read."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakegc_assets.marking.retained_commits import HEADS_PART
from lakegc_assets.marking.run import MarkRun
from lakegc_assets.marking.since import METARANGES, RANGES, Base, pairs_of
from spark_resources.datasets import all_rows
from spark_resources.entries import ranges_of, row_tasks
from spark_resources.errors import DamagedData
from spark_resources.model import (
    COMMIT_VERDICTS,
    HEADS,
    METARANGE_RANGES,
    RANGE_REFS,
    Scope,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def counted_metaranges(run: MarkRun) -> list[str]:
    """Those of the commits that count: retained ones, and for the scope `uncommitted` all."""
    return metaranges(run, expired_too=run.mark.record.scope is Scope.UNCOMMITTED)


def metaranges(run: MarkRun, *, expired_too: bool) -> list[str]:
    verdicts = run.rows("retained_commits", COMMIT_VERDICTS)
    by_rules = (row for row in verdicts if expired_too or (row["retained"] and not row["hold"]))
    return sorted({row["metarange_id"] for row in by_rules} - {""})


def head_metaranges(run: MarkRun) -> frozenset[str]:
    """Those that branches have at their heads."""
    return frozenset(row["metarange_id"] for row in run.rows("retained_commits", HEADS, HEADS_PART)) - {""}


def distinct_ranges(ranges: DataFrame) -> DataFrame:
    """Each range once; a range that two metaranges describe differently stays twice, and is then refused when read."""
    return ranges.select(*RANGE_REFS.names).dropDuplicates()


def refs_of(run: MarkRun, metaranges: Collection[str], base: Base | None) -> DataFrame:
    """The ranges of metaranges (METARANGE_RANGES), read as far as neither this mark nor an earlier one did."""
    known, unknown = known_refs_of(run, metaranges, base)
    found = ranges_of(run.spark(), run.place, unknown)
    return found.unionByName(row_tasks(run.spark(), known, batch=10_000)) if len(known) else found


def known_refs_of(run: MarkRun, metaranges: Collection[str], base: Base | None) -> tuple[pa.Table, list[str]]:
    """The ranges of the metaranges that this mark or an earlier one read (METARANGE_RANGES), and the other metaranges.

    For the steps after `committed_addresses`. Raises `DamagedData` where a mark wrote down a range and not what it is.
    """
    datasets, refs = [], dict[str, dict[str, Any]]()
    if base is not None:
        datasets += base.metaranges
        refs |= base.refs
    if METARANGES[1] in run.mark.record.step(METARANGES[0]).datasets:
        datasets.append(run.mark.dataset(*METARANGES))
        refs |= {row["range_id"]: row for row in all_rows(run.place, run.mark.dataset(*RANGES), RANGE_REFS)}
    pairs = {tuple(row.values()) for row in pairs_of(run.place, datasets, metaranges).to_pylist()}
    if lost := {range_id for _, range_id in pairs} - refs.keys():
        raise DamagedData(f"no mark says what the ranges {sorted(lost)[:3]} are. Make a new one with --clean.")
    rows = [{"metarange_id": metarange_id, **refs[range_id]} for metarange_id, range_id in sorted(pairs)]
    unknown = sorted(set(metaranges) - {metarange_id for metarange_id, _ in pairs})
    return pa.Table.from_pylist(rows, schema=METARANGE_RANGES), unknown
