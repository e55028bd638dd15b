"""The paths to probe on branches of other repositories (invariant 2; formats §2, §4).

There, too, no list contains a staged object with the same content as the committed one at its path, yet the branch
serves the staged address, which may be in this namespace. So each branch is probed at every path where an entry of its
head, in any namespace, has the size of an unreferenced object. The ranges of all heads are read for this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.earlier_references import FACTS
from lakegc_assets.mark.other_repositories import (
    OtherRepositories,
    Unread,
    branch_heads,
    list_other_repositories,
    record_unread,
    recording_unread,
)
from lakegc_assets.mark.path_probes import ignoring_deleted
from lakegc_assets.rules import path_probes
from spark_resources import sstable
from spark_resources.lakefs.ranges import (
    decoder_for,
    prefetch,
    range_tasks,
    read_table,
    utf8_paths,
    verified_entries,
)
from spark_resources.model import HEAD_ENTRIES, HEADS, METARANGE_RANGES, RANGE_REFS
from spark_resources.spark.partitioning import row_tasks
from spark_resources.spark.tasks import Batches, Tasks
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = dict[str, Any]

REPOSITORY = pa.field("repository", pa.string(), nullable=False)
BRANCH_HEADS = pa.schema([REPOSITORY, HEADS.field("branch"), HEADS.field("metarange_id")])
METARANGES = pa.schema([REPOSITORY, HEADS.field("metarange_id")])


def with_unread_reason(schema: pa.Schema) -> pa.Schema:
    """Add a column `unread`: the reason why a repository could not be read, with all other columns null."""
    columns = [pa.field(field.name, field.type) for field in schema]
    return pa.schema([REPOSITORY, *columns, pa.field("unread", pa.string())])


RANGES = with_unread_reason(METARANGE_RANGES)
ENTRIES = with_unread_reason(HEAD_ENTRIES)


def paths_to_probe(
    run: MarkRun, notes: StepNotes, sizes: DataFrame, wanted: pa.Array | None, seen: set[tuple[str, str, str]]
) -> DataFrame | None:
    """The paths to probe in other repositories (columns repository, branch, path, size); None if there are none.

    `sizes` are the sizes of unreferenced objects; `wanted` has the same sizes, and is None if there are too many. Heads
    (repository, branch, commit) in `seen` are not read again, and new heads are added to it. Records which repositories
    could not be read, and raises `Refused` like `record_unread`.
    """
    listing = list_other_repositories(run)
    heads = heads_of(run, listing, seen)
    paths = paths_with_size(run, notes, listing, heads, sizes, wanted) if len(heads) else None
    facts = notes.facts.setdefault(FACTS, {"branches": 0, "unread": {}})
    record_unread(
        run, {repository: why for repository, why in listing.unread.items() if repository not in facts["unread"]}
    )
    facts["branches"] += len(heads)
    facts["unread"] = {**listing.unread, **facts["unread"]}
    return paths


def heads_of(run: MarkRun, listing: OtherRepositories, seen: set[tuple[str, str, str]]) -> pa.Table:
    """The metarange at each head of a branch of another repository that was not `seen` (BRANCH_HEADS), unless it is
    empty."""
    lakefs, unread = run.lakefs, listing.unread

    def metarange(head: tuple[str, str]) -> str:
        repository, commit_id = head
        with recording_unread(repository, unread), ignoring_deleted(lakefs, repository):
            return lakefs.commit(repository, commit_id).metarange_id
        return ""

    heads = [head for head in branch_heads(run, sorted(listing.places), unread) if head not in seen]
    seen.update(heads)
    commits = sorted({(repository, head) for repository, _, head in heads})
    with ThreadPoolExecutor(max_workers=lakefs.settings.probe_requests) as pool:
        metaranges = dict(zip(commits, pool.map(metarange, commits), strict=True))
    rows = [
        {"repository": repository, "branch": branch, "metarange_id": metaranges[repository, head]}
        for repository, branch, head in heads
    ]
    table = pa.Table.from_pylist(rows, schema=BRANCH_HEADS)
    return table.filter(pc.not_equal(table["metarange_id"], ""))


def paths_with_size(
    run: MarkRun,
    notes: StepNotes,
    listing: OtherRepositories,
    heads: pa.Table,
    sizes: DataFrame,
    wanted: pa.Array | None,
) -> DataFrame | None:
    """The paths of these heads at which an entry has the size of an unreferenced object."""
    run.log_message(
        f"reading the heads of {plural(len(heads), 'branch')} of {plural(len(listing.places), 'other repository')}"
    )
    metaranges = heads.select(METARANGES.names).group_by(METARANGES.names).aggregate([]).cast(METARANGES)
    pairs = run.persist(ranges_of(row_tasks(run.spark, metaranges, batch=16), listing.places))
    refs = pairs.select("repository", *RANGE_REFS.names, "unread").dropDuplicates().toArrow()
    note_unread(refs, listing.unread)
    refs = refs.filter(pc.is_valid(refs["range_id"])).select(["repository", *RANGE_REFS.names])
    notes.facts["ranges_of_other_heads"] = notes.facts.get("ranges_of_other_heads", 0) + len(refs)
    if not len(refs):
        return None
    entries = run.persist(entries_of_size(range_tasks(run.spark, refs), listing.places, wanted))
    note_unread(entries.where(entries["unread"].isNotNull()).toArrow(), listing.unread)
    branch_ranges = pairs.join(row_tasks(run.spark, heads, batch=10_000).frame(), METARANGES.names)
    return path_probes.probes(
        entries.where(entries["unread"].isNull()),
        branch_ranges.select("repository", "branch", "range_id"),
        sizes,
    )


def note_unread(rows: pa.Table, unread: Unread) -> None:
    failed = rows.filter(pc.is_valid(rows["unread"])).select(["repository", "unread"])
    for row in failed.sort_by([("repository", "ascending"), ("unread", "ascending")]).to_pylist():
        unread.setdefault(row["repository"], row["unread"])


def ranges_of(metaranges: Tasks, places: Mapping[str, Place]) -> DataFrame:
    """The ranges of each metarange of a repository (RANGES)."""

    def decode(row: Row, data: bytes) -> pa.RecordBatch:
        name = row["metarange_id"]
        refs = sstable.read_verified_ranges(data, name=name)
        rows = [
            {
                "repository": row["repository"], "metarange_id": name, "range_id": ref.id, "entries": ref.count,
                "min_key": ref.min_key, "max_key": ref.max_key,
            }
            for ref in refs
        ]  # fmt: skip
        return pa.RecordBatch.from_pylist(rows, schema=RANGES)

    def read(batches: Batches) -> Batches:
        rows = [row for batch in batches for row in batch.to_pylist()]
        return decode_tables(rows, "metarange_id", places, decode, RANGES)

    return metaranges.mapped(read, RANGES)


def entries_of_size(ranges: Tasks, places: Mapping[str, Place], wanted: pa.Array | None) -> DataFrame:
    """The entries of ranges that have a wanted size (ENTRIES); all entries if `wanted` is None."""

    def read(batches: Batches) -> Batches:
        rows = [row for batch in batches for row in batch.to_pylist()]
        decoder = decoder_for(rows)

        def decode(row: Row, data: bytes) -> pa.RecordBatch:
            batch = verified_entries(data, row, ("path", "size"), decoder)
            if wanted is not None:
                batch = batch.filter(pc.is_in(batch.column("size"), value_set=wanted))
            repository, range_id, unread = (
                pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
                for value in (row["repository"], row["range_id"], None)
            )
            columns = {"repository": repository, "range_id": range_id, "unread": unread, "size": batch.column("size")}
            columns["path"] = utf8_paths(batch.column("path"))
            return pa.RecordBatch.from_arrays([columns[name] for name in ENTRIES.names], schema=ENTRIES)

        yield from decode_tables(rows, "range_id", places, decode, ENTRIES)

    return ranges.mapped(read, ENTRIES)


def decode_tables(
    rows: list[Row],
    key: str,
    places: Mapping[str, Place],
    decode: Callable[[Row, bytes], pa.RecordBatch],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Decode the tables that these rows name by repository and `key`. At the end, yield one row for each repository
    with an unreadable table, with the reason."""
    unread: Unread = {}
    named = {f"{row['repository']}/{row[key]}": row for row in rows}

    def fetch(name: str) -> bytes:
        repository = named[name]["repository"]
        with recording_unread(repository, unread):
            return read_table(places[repository], named[name][key], referrer=f"a branch of {repository}")
        return b""  # not a valid table, so decoding it fails, too

    ahead = max((place.settings.reading_requests for place in places.values()), default=1)
    for name, data in prefetch(named, fetch, ahead):
        batch = None
        with recording_unread(named[name]["repository"], unread):
            batch = decode(named[name], data)
        if batch is not None:
            yield batch
    failed = [{"repository": repository, "unread": why} for repository, why in sorted(unread.items())]
    yield pa.RecordBatch.from_pylist(failed, schema=schema)
