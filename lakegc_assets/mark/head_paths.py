"""Reads the tables of branch heads, of this and of other repositories: metaranges → ranges → the paths to probe.

A table is read once, however many branches have it. Until the paths are known, rows name metaranges instead of
branches, because thousands of branches may share thousands of ranges.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.other_repositories import UnreadRepositories
from lakegc_assets.rules import path_probes
from lakegc_assets.rules.path_probes import SizeSet
from spark_resources import sstable
from spark_resources.lakefs.ranges import decoder_for, range_tasks, read_table, utf8_paths, verified_entries
from spark_resources.model import HEADS, PATHS_TO_PROBE, RANGE_REFS
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.tasks import Batches, Rows, mapped
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import prefetch

Row: TypeAlias = dict[str, Any]
Guard: TypeAlias = Callable[[str, UnreadRepositories], AbstractContextManager[None]]
"""Wraps each read of a repository: errors are raised, or recorded as the reason why the repository is unread."""

MAX_PATHS_ON_DRIVER = 200_000  # more paths might not fit into the driver's memory
REPOSITORY = PATHS_TO_PROBE.field("repository")
BRANCH_HEADS = pa.schema([REPOSITORY, HEADS.field("branch"), HEADS.field("metarange_id")])
NUMBERED_METARANGES = pa.schema([REPOSITORY, HEADS.field("metarange_id"), pa.field("number", pa.int32())])
RANGES = pa.schema([REPOSITORY, *RANGE_REFS, pa.field("metaranges", pa.list_(pa.int32()))])  # numbers of metaranges
PAIRS = pa.schema([REPOSITORY, RANGE_REFS.field("range_id"), pa.field("metarange", pa.int32())])


def with_unread_reason(schema: pa.Schema) -> pa.Schema:
    """Add a column `unread`, and allow nulls: the row for a repository that could not be read has only `repository` and
    the reason (`unread`)."""
    columns = [field.with_nullable(True) for field in schema if field.name != REPOSITORY.name]
    return pa.schema([REPOSITORY, *columns, pa.field("unread", pa.string())])


RANGES_OR_UNREAD, PATHS_OR_UNREAD = with_unread_reason(RANGES), with_unread_reason(PATHS_TO_PROBE)


@dataclass(frozen=True, slots=True)
class Heads:
    """Branch heads by metarange: `metaranges` (NUMBERED_METARANGES), and for each number the branches with that
    metarange (`branches`)."""

    metaranges: pa.Table
    branches: Sequence[Sequence[str]]

    @classmethod
    def of(cls, heads: pa.Table) -> Heads:
        """Group heads (BRANCH_HEADS) by metarange. Each head must have a metarange."""
        branches: dict[tuple[str, str], list[str]] = {}
        for row in heads.to_pylist():
            branches.setdefault((row["repository"], row["metarange_id"]), []).append(row["branch"])
        numbered = ((*metarange, number) for number, metarange in enumerate(branches))
        rows = [dict(zip(NUMBERED_METARANGES.names, row, strict=True)) for row in numbered]
        return cls(pa.Table.from_pylist(rows, schema=NUMBERED_METARANGES), list(branches.values()))


@dataclass(frozen=True, slots=True)
class Tables:
    """Where the tables of each repository are (`places`, by repository), and the guard for reading them."""

    places: Mapping[str, Place]
    guard: Guard

    def fetch_tables(self, rows: Sequence[Row], key: str, unread: UnreadRepositories) -> Iterator[tuple[Row, bytes]]:
        """Each row, with the bytes of the table that it names by repository and `key`; empty bytes if the table can't
        be read and the guard recorded this in `unread`."""
        rows_by_name = {f"{row['repository']}/{row[key]}": row for row in rows}

        def fetch(name: str) -> bytes:
            repository = rows_by_name[name]["repository"]
            with self.guard(repository, unread):
                return read_table(
                    self.places[repository], rows_by_name[name][key], referrer=f"a branch of {repository}"
                )
            return b""  # not a valid table, so decoding it fails, too

        ahead = max((place.settings.reading_requests for place in self.places.values()), default=1)
        for name, data in prefetch(rows_by_name, fetch, ahead):
            yield rows_by_name[name], data


def read_ranges(run: MarkRun, metaranges: pa.Table, tables: Tables) -> pa.Table:
    """The ranges of these metaranges (NUMBERED_METARANGES): RANGES_OR_UNREAD, with each range once per task."""

    def read(batches: Batches) -> Batches:
        rows, unread = [row for batch in batches for row in batch.to_pylist()], UnreadRepositories()
        numbers: dict[tuple[Any, ...], array[int]] = {}
        for row, data in tables.fetch_tables(rows, "metarange_id", unread):
            with tables.guard(row["repository"], unread):
                for ref in sstable.read_verified_ranges(data, name=row["metarange_id"]):
                    range_row = (row["repository"], ref.id, ref.count, ref.min_key, ref.max_key)
                    numbers.setdefault(range_row, array("i")).append(row["number"])
        columns = [*zip(*numbers, strict=True), list(numbers.values())] if numbers else [[] for _ in RANGES]
        found = [pa.array(values, field.type) for values, field in zip(columns, RANGES, strict=True)]
        reasons = pa.nulls(len(numbers), pa.string())
        yield pa.RecordBatch.from_arrays([*found, reasons], schema=RANGES_OR_UNREAD)
        yield unread_batch(unread, RANGES_OR_UNREAD)

    return tasks_from_rows(run.spark, metaranges, batch_size=16).collected(read, RANGES_OR_UNREAD)


def pairs_in(ranges: pa.Table) -> pa.Table:
    """The pairs of range and metarange (PAIRS) in rows of RANGES."""
    parents = pc.list_parent_indices(ranges["metaranges"])
    rows = ranges.select(["repository", "range_id"]).take(parents)
    return rows.append_column("metarange", pc.list_flatten(ranges["metaranges"])).cast(PAIRS)


def with_metaranges(refs: pa.Table, pairs: pa.Table) -> pa.Table:
    """These ranges (REPOSITORY and RANGE_REFS; each must be in `pairs`, PAIRS) with their metaranges: RANGES."""
    distinct = pairs.group_by(PAIRS.names, use_threads=False).aggregate([])
    lists = distinct.group_by(PAIRS.names[:2], use_threads=False).aggregate([("metarange", "list")])
    positions = pc.index_in(_names(refs), value_set=_names(lists))
    return refs.append_column("metaranges", lists["metarange_list"].take(positions)).cast(RANGES)


def _names(ranges: pa.Table) -> pa.Array:
    return pc.binary_join_element_wise(ranges["repository"], ranges["range_id"], "/").combine_chunks()


def read_paths(run: MarkRun, ranges: pa.Table, heads: Heads, sizes: SizeSet, tables: Tables) -> Rows:
    """The paths to probe on the branches that have these ranges (RANGES): PATHS_OR_UNREAD, possibly with duplicates."""
    branches, tasks = heads.branches, range_tasks(run.spark, ranges)
    if max_path_count(ranges, heads) > MAX_PATHS_ON_DRIVER:
        tasks = replace(tasks, max_on_driver=0)

    def read(batches: Batches) -> Batches:
        refs, unread = [row for batch in batches for row in batch.to_pylist()], UnreadRepositories()
        decoder = decoder_for(refs)
        for ref, data in tables.fetch_tables(refs, "range_id", unread):
            repository = ref["repository"]
            with tables.guard(repository, unread):
                entries = verified_entries(data, ref, ("path", "size"), decoder)
                on_branches = sorted({branch for number in ref["metaranges"] for branch in branches[number]})
                paths = utf8_paths(entries.column("path"))
                for batch in path_probes.paths_to_probe(paths, entries.column("size"), repository, on_branches, sizes):
                    columns = [*batch.columns, pa.nulls(len(batch), pa.string())]
                    yield pa.RecordBatch.from_arrays(columns, schema=PATHS_OR_UNREAD)
        yield unread_batch(unread, PATHS_OR_UNREAD)

    return mapped(tasks, read, PATHS_OR_UNREAD)


def max_path_count(ranges: pa.Table, heads: Heads) -> int:
    """The largest possible number of paths to probe: one for each entry of these ranges (RANGES) on each branch."""
    branches = pa.array(map(len, heads.branches), pa.int64()).take(pc.list_flatten(ranges["metaranges"]))
    entries = ranges["entries"].take(pc.list_parent_indices(ranges["metaranges"]))
    return int(pc.sum(pc.multiply(branches, entries), min_count=0).as_py())


def without_unread(paths: Rows) -> Rows:
    """The paths among these rows of PATHS_OR_UNREAD (PATHS_TO_PROBE)."""

    def step(batches: Batches) -> Batches:
        for batch in batches:
            found = batch.filter(pc.is_null(batch.column("unread"))).select(PATHS_TO_PROBE.names)
            yield pa.RecordBatch.from_arrays(found.columns, schema=PATHS_TO_PROBE)

    return mapped(paths, step, PATHS_TO_PROBE)


def unread_batch(unread: UnreadRepositories, schema: pa.Schema) -> pa.RecordBatch:
    rows = [{"repository": repository, "unread": why} for repository, why in sorted(unread.items())]
    return pa.RecordBatch.from_pylist(rows, schema=schema)
