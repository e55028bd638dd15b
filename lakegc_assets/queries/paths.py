"""Paths and addresses: which address a path has or had in which commit, and at which paths an address is.

Keys of ranges are paths, so for a path, only the ranges whose bounds include it are read. An address can be at any
path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.queries.history import History, in_threads
from spark_resources.errors import NotFound
from spark_resources.lakefs.ranges import (
    decoder_for,
    display_paths,
    largest_size,
    metarange_reader,
    metarange_tasks,
    prefetched_tables,
    range_tasks,
    rows_inside,
    verified_entries,
)
from spark_resources.model import (
    COMMIT_VERDICTS,
    METARANGE_RANGES,
    RANGE_REFS,
    RANGES_OF_METARANGES,
    Location,
    Namespace,
)
from spark_resources.spark.tasks import Batches
from spark_resources.stores.prefetch import fetch_in_parallel

METARANGES_ON_DRIVER = 10_000  # more are read by the executors
ENTRIES_ON_DRIVER = 5_000_000
MAX_BRANCHES = 50  # branches that are probed for the object that they serve
COLUMNS = ("path", "address", "address_type")

ENTRIES = pa.schema(
    [
        RANGE_REFS.field("range_id"),
        pa.field("path", pa.string(), nullable=False),  # bytes that are not UTF-8 are escaped
        pa.field("address", pa.string(), nullable=False),  # a key of the namespace, or a full address outside it
        pa.field("inside", pa.bool_(), nullable=False),
    ]
)
COMMITTED_ENTRIES = pa.schema([*(field for field in ENTRIES if field.name != "range_id"), *COMMIT_VERDICTS])

Keep: TypeAlias = Callable[[pa.RecordBatch, pa.Array], pa.Array]
"""Which entries to keep, given the entries and, for each, its key in the namespace or its full address outside."""


# --- entries of ranges ----------------------------------------------------------------------------------------------


def entries_at(history: History, path: str) -> pa.Table:
    """The entries at this path in all commits that the mark knew (COMMITTED_ENTRIES), newest commit first."""
    key = path.encode(errors="surrogateescape")
    pairs, refs = ranges_covering(history, key)
    wanted = pa.scalar(key, pa.binary())
    entries = matching_entries(history, refs, lambda batch, _: pc.equal(batch.column("path"), wanted))
    return with_commits(history, entries, pairs)


def entries_with(history: History, addresses: pa.Array, ranges: Collection[int]) -> pa.Table:
    """The entries with these addresses (keys of the namespace) in these live ranges, given by number (ENTRIES)."""
    rows = [history.live_ranges[number] for number in sorted(ranges)]
    refs = pa.Table.from_pylist(rows, schema=RANGE_REFS)
    return matching_entries(history, refs, lambda _, keys: pc.is_in(keys, value_set=addresses))


def matching_entries(history: History, refs: pa.Table, keep: Keep) -> pa.Table:
    """The entries of these ranges (RANGE_REFS) for which `keep` is true (ENTRIES)."""
    place = history.place

    def read(batches: Batches) -> Batches:
        rows = {str(row["range_id"]): row for batch in batches for row in batch.to_pylist()}
        decoder = decoder_for(rows.values())
        tables = prefetched_tables(place, rows, referrer="a metarange", expected_size=largest_size(rows.values()))
        for range_id, data in tables:
            batch = verified_entries(data, rows[range_id], COLUMNS, decoder)
            keys, is_inside = located(batch, place.namespace)
            found = pc.indices_nonzero(keep(batch, keys))
            if len(found):
                paths = display_paths(batch.column("path").take(found))
                columns = [pa.repeat(range_id, len(found)), paths, keys.take(found), is_inside.take(found)]
                yield pa.RecordBatch.from_arrays(columns, schema=ENTRIES)

    refs = refs.select(RANGE_REFS.names)
    if (pc.sum(refs["entries"]).as_py() or 0) <= ENTRIES_ON_DRIVER:
        return in_threads(history.run, refs).collected(read, ENTRIES)
    return range_tasks(history.run.spark, refs).collected(read, ENTRIES)


def located(entries: pa.RecordBatch, namespace: Namespace) -> tuple[pa.Array, pa.Array]:
    """For each entry, its key in the namespace or its full address outside, and whether it is inside."""
    addresses = entries.column("address")
    keys, rows, _ = rows_inside(addresses, entries.column("address_type"), namespace)
    if rows is None:
        return keys, pa.repeat(True, len(keys))
    position = pc.index_in(pa.array(range(len(addresses)), pa.int64()), value_set=rows)
    return pc.coalesce(keys.take(position), addresses), pc.is_valid(position)


def with_commits(history: History, entries: pa.Table, pairs: pa.Table) -> pa.Table:
    """These entries (ENTRIES), once for each commit that has them (COMMITTED_ENTRIES), newest commit first.

    `pairs` says which metarange has which range (RANGES_OF_METARANGES).
    """
    by_metarange = pairs.group_by(pairs.column_names, use_threads=False).aggregate([])
    in_metaranges = entries.join(by_metarange, "range_id", join_type="inner", use_threads=False)
    rows = in_metaranges.join(history.verdicts, "metarange_id", join_type="inner", use_threads=False)
    return (
        rows.select(COMMITTED_ENTRIES.names)
        .cast(COMMITTED_ENTRIES)
        .sort_by([("created", "descending"), ("commit_id", "ascending")])
    )


# --- ranges of metaranges -------------------------------------------------------------------------------------------


def ranges_covering(history: History, key: bytes) -> tuple[pa.Table, pa.Table]:
    """The ranges of all commits whose bounds include this key: which metarange has which of them
    (RANGES_OF_METARANGES), and the ranges (RANGE_REFS)."""
    recorded = history.recorded_ranges
    near = {name: ref for name, ref in recorded.refs.items() if ref["min_key"] <= key <= ref["max_key"]}
    known = recorded.pairs_with(history.metaranges & recorded.metaranges, near)
    read_now = unrecorded_ranges_covering(history, key)
    in_pairs = set(known["range_id"].to_pylist())
    refs = pa.Table.from_pylist([ref for name, ref in near.items() if name in in_pairs], schema=RANGE_REFS)
    all_refs = pa.concat_tables([refs, read_now.select(RANGE_REFS.names).cast(RANGE_REFS)])
    distinct = all_refs.group_by(RANGE_REFS.names, use_threads=False).aggregate([]).cast(RANGE_REFS)
    return pa.concat_tables([known, read_now.select(RANGES_OF_METARANGES.names)]), distinct


def unrecorded_ranges_covering(history: History, key: bytes) -> pa.Table:
    """The ranges covering a key in metaranges that no mark recorded, such as those of expired commits
    (METARANGE_RANGES). Up to METARANGES_ON_DRIVER metaranges are read once for all keys."""
    unknown = history.unrecorded_metaranges
    if len(unknown) <= METARANGES_ON_DRIVER:
        return covering(history.unrecorded_ranges, key)
    read_metaranges = metarange_reader(history.place)

    def read(batches: Batches) -> Batches:
        for batch in read_metaranges(batches):
            yield from covering(pa.Table.from_batches([batch]), key).to_batches()

    return metarange_tasks(history.run.spark, unknown).collected(read, METARANGE_RANGES)


def covering(ranges: pa.Table, key: bytes) -> pa.Table:
    """The ranges whose bounds include this key."""
    wanted = pa.scalar(key, pa.binary())
    return ranges.filter(pc.and_(pc.less_equal(ranges["min_key"], wanted), pc.greater_equal(ranges["max_key"], wanted)))


# --- what branches serve now ----------------------------------------------------------------------------------------


def served_now(history: History, path: str) -> dict[str, str]:
    """The address that each branch serves at this path now: a key of the namespace, or a full address outside it.

    Sends one request to the server for each of the first MAX_BRANCHES branches, by name. Leaves out those that serve
    nothing there.
    """
    lakefs, repository = history.run.lakefs, history.repository
    namespace = history.place.namespace

    def address_on(branch: str) -> tuple[str, str | None]:
        try:
            served = lakefs.stat(repository, branch, path)
        except NotFound:  # deleted in the meantime
            return branch, None
        if served is None:
            return branch, None
        where, key = namespace.locate_reported(served.physical_address)
        return branch, key if where is Location.INSIDE else served.physical_address

    branches = sorted(lakefs.branches(repository))[:MAX_BRANCHES]
    return {branch: address for branch, address in fetch_in_parallel(branches, address_on) if address is not None}
