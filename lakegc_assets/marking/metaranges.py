"""Which ranges commits have, by their metaranges: in the words of this mark or an earlier one, or read."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.incremental import union
from lakegc_assets.marking.retained_commits import HEADS_PART
from lakegc_assets.marking.run import MarkRun
from lakegc_assets.marking.since import METARANGES, RANGES, Base
from spark_resources.datasets import all_rows
from spark_resources.entries import ranges_of, row_tasks
from spark_resources.model import (
    COMMIT_VERDICTS,
    HEADS,
    METARANGE_IDS,
    METARANGE_RANGES,
    RANGE_REFS,
    RANGES_OF_METARANGES,
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
    """The ranges of metaranges (METARANGE_RANGES), read as far as neither this mark nor an earlier one did.

    For the steps after `committed_addresses`.
    """
    spark, known = run.spark(), frozenset[str]()
    pairs, refs = [], []
    if METARANGES[1] in run.mark.record.step(METARANGES[0]).datasets:
        known |= set(counted_metaranges(run))
        pairs.append(run.read_dataset(run.mark.dataset(*METARANGES), RANGES_OF_METARANGES))
        refs.append(all_rows(run.place, run.mark.dataset(*RANGES), RANGE_REFS))
    if base is not None:
        known |= base.known_metaranges
        pairs.append(base.metaranges())
        refs.append(list(base.refs.values()))
    new = ranges_of(spark, run.place, sorted(set(metaranges) - known))
    if not pairs:
        return new
    ids = pa.table({"metarange_id": sorted(known & set(metaranges))}, schema=METARANGE_IDS)
    distinct = {row["range_id"]: row for rows in refs for row in rows}
    rows = pa.Table.from_pylist(list(distinct.values()), schema=RANGE_REFS)
    before = union(pairs).join(row_tasks(spark, ids, batch=10_000), "metarange_id", "left_semi").dropDuplicates()
    before = before.join(row_tasks(spark, rows, batch=10_000), "range_id", "left")  # a range can't get lost here
    return new.unionByName(before.select(*METARANGE_RANGES.names))
