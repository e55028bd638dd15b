"""The metaranges of commits, and the ranges in them, as recorded by this mark and the earlier ones of its chain."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.mark_chain import METARANGES, RANGES, MarkChain, metaranges_in, pairs_of, ranges_within
from lakegc_assets.mark.retained_commits import HEADS_PART
from spark_resources.errors import DamagedData
from spark_resources.lakefs.ranges import Ref
from spark_resources.model import COMMIT_VERDICTS, HEADS, METARANGE_RANGES, RANGE_REFS, RANGES_OF_METARANGES, Scope
from spark_resources.spark.datasets import Dataset, all_rows
from spark_resources.stores.place import Place


def committed_metaranges(run: MarkRun) -> list[str]:
    """The metaranges of the commits whose objects are live: those that the rules retain, or all commits for the scope
    `uncommitted`."""
    return metaranges(run, include_expired=run.mark.record.scope is Scope.UNCOMMITTED)


def metaranges(run: MarkRun, *, include_expired: bool) -> list[str]:
    """The metaranges of the commits that the rules retain (without those that only holds retain), or of all commits."""
    verdicts = run.rows("retained_commits", COMMIT_VERDICTS)
    by_rules = (row for row in verdicts if include_expired or (row["retained"] and not row["hold"]))
    return sorted({row["metarange_id"] for row in by_rules} - {""})


def head_metaranges(run: MarkRun) -> frozenset[str]:
    """The metaranges of branch heads."""
    return frozenset(row["metarange_id"] for row in run.rows("retained_commits", HEADS, HEADS_PART)) - {""}


@dataclass(frozen=True, slots=True)
class RecordedRanges:
    """The metaranges that this mark and the earlier ones of its chain read, for the steps after `committed_addresses`.

    `pairs` are datasets of RANGES_OF_METARANGES, `refs` rows of RANGE_REFS by range id.
    """

    place: Place
    pairs: tuple[Dataset, ...]
    refs: Mapping[str, Ref]
    metaranges: frozenset[str]

    @classmethod
    def of(cls, run: MarkRun, chain: MarkChain) -> RecordedRanges:
        pairs, refs = chain.metarange_datasets, dict(chain.refs)
        if METARANGES[1] in run.mark.record.step(METARANGES[0]).datasets:
            pairs.append(run.mark.dataset(*METARANGES))
            refs |= {row["range_id"]: row for row in all_rows(run.place, run.mark.dataset(*RANGES), RANGE_REFS)}
        return cls(run.place, tuple(pairs), refs, metaranges_in(run.place, pairs))

    def ranges_of(self, metaranges: Collection[str]) -> pa.Table:
        """The distinct ranges in any of these metaranges (RANGE_REFS).

        Raises `DamagedData` if a mark recorded that a metarange contains a range, but no mark recorded the range
        itself.
        """
        ids = ranges_within(self.place, self.pairs, metaranges)
        if unknown := ids - self.refs.keys():
            raise DamagedData(f"no mark recorded the ranges {sorted(unknown)[:3]}. Make a new mark with --full.")
        return pa.Table.from_pylist([self.refs[range_id] for range_id in sorted(ids)], schema=RANGE_REFS)

    def pairs_with(self, metaranges: Collection[str], ranges: Collection[str]) -> pa.Table:
        """Which of these metaranges contain which of these ranges (RANGES_OF_METARANGES), possibly with duplicates."""
        wanted = pa.array(sorted(ranges), pa.string())
        tables = (
            table.filter(pc.is_in(table["range_id"], value_set=wanted))
            for table in pairs_of(self.place, self.pairs, metaranges)
        )
        return pa.concat_tables([RANGES_OF_METARANGES.empty_table(), *tables])

    def ranges_by_metarange(self, metaranges: Collection[str]) -> pa.Table:
        """The ranges of these metaranges (METARANGE_RANGES)."""
        refs = self.ranges_of(metaranges)
        pairs = self.pairs_with(metaranges, refs["range_id"].to_pylist())
        joined = pairs.join(refs, "range_id", join_type="inner", use_threads=False)
        return joined.group_by(METARANGE_RANGES.names, use_threads=False).aggregate([]).cast(METARANGE_RANGES)
