"""Reads the addresses of commits: metaranges → ranges → entries. Executors fetch and decode each table once.

Ids are content hashes and tables are immutable, so a list of range ids stands for a set of addresses (formats §3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_resources import sstable
from spark_resources.errors import DamagedData, NotFound, plural
from spark_resources.model import (
    ADDRESSES,
    METARANGE_RANGES,
    RANGE_ADDRESSES,
    RANGE_REFS,
    RANGE_SIZES,
    RANGES_OF_METARANGES,
    AddressType,
    Namespace,
)
from spark_resources.spark.datasets import (
    Dataset,
    Output,
    Producer,
    all_batches,
    parquet_output,
    where_not_null,
    write_outputs,
)
from spark_resources.spark.partitioning import tasks_from_ids, tasks_from_rows
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Rows, Step, Tasks, mapped
from spark_resources.stores.base import read_to_verify
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import UNKNOWN_SIZE, prefetch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Ref: TypeAlias = dict[str, Any]  # a row of RANGE_REFS

ENTRY_BYTES = 32  # average size of an entry in a range
METARANGE_SIZE = 64 << 10  # typical size of a metarange, in bytes
METARANGES_PER_TASK = 100
ROWS_PER_BATCH = 50_000
REFS_PER_BATCH = 5_000
ENTRIES_PER_TASK, RANGES_PER_TASK = 20_000, 16  # this many of either are worth a separate task
RANGE_OVERHEAD_ENTRIES = 1_000  # decoding this many takes as long as fetching and opening a range
KNOWN_TABLES = ("ranges", "metaranges")
OBJECTS = ""  # the entity of tables of objects; dumps of references have others
KNOWN_ENTITIES = (OBJECTS, "branch", "commit", "tag")
_ID = re.compile(r"^[0-9a-f]{64}\Z")
_TABLE_KEY = re.compile(r"^_lakefs/([0-9a-f]{64})\Z")
_FULL_ADDRESS = r"^[A-Za-z][A-Za-z0-9+.\-]*://"


# --- one table ------------------------------------------------------------------------------------------------------


def table_key(table_id: str) -> str:
    """The key of a range or metarange. Raises `DamagedData` if the id is invalid."""
    if not _ID.match(table_id):
        raise DamagedData(
            f"'{table_id[:80]}' is not the id of a range or metarange (64 hex digits expected). Check the server's log."
        )
    return f"_lakefs/{table_id}"


def read_table(place: Place, table_id: str, *, referrer: str) -> bytes:
    """The bytes of a table; `referrer` says, for messages, what refers to the table.

    Raises `DamagedData` (invariant 3) if the table is missing: a missing table is never treated as an empty one.
    """
    store = place.store()
    try:
        return read_to_verify(store, table_key(table_id))
    except NotFound as error:
        raise DamagedData(
            f"table {table_id}, referenced by {referrer}, is missing from {store.where}/_lakefs/. "
            "Restore it from a backup; until then, nothing can be collected in this namespace.",
            invariant=3,
        ) from error


def prefetched_tables(
    place: Place, ids: Iterable[str], *, referrer: str, expected_size: int = UNKNOWN_SIZE
) -> Iterator[tuple[str, bytes]]:
    """Yield the id and bytes of each of these tables, in order, fetching up to `reading_requests` (a setting) ahead.

    `expected_size` is a table's approximate size in bytes. Raises the errors of `read_table`.
    """

    def fetch(table_id: str) -> bytes:
        return read_table(place, table_id, referrer=referrer)

    return prefetch(ids, fetch, place.settings.reading_requests, expected_size=expected_size)


def largest_size(refs: Iterable[Ref]) -> int:
    """A generous estimate, in bytes, of the size of the largest of these ranges (rows of RANGE_REFS)."""
    return max((int(ref["entries"]) for ref in refs), default=0) * 4 * ENTRY_BYTES


# --- metaranges → ranges --------------------------------------------------------------------------------------------


def ranges_of(spark: Callable[[], SparkSession], place: Place, metaranges: Sequence[str]) -> DataFrame:
    """The ranges that each metarange refers to (METARANGE_RANGES). Verifies the metaranges' content hashes."""
    return metarange_tasks(spark, metaranges).mapped(metarange_reader(place), METARANGE_RANGES)


def write_ranges_of(
    spark: Callable[[], SparkSession], place: Place, metaranges: Sequence[str], folder: str, *, pairs_folder: str = ""
) -> list[Dataset]:
    """Write the ranges that metaranges refer to, each once per file (RANGE_REFS).

    With `pairs_folder`, also writes the pairs of metarange and range (RANGES_OF_METARANGES). Verifies the metaranges'
    content hashes. Returns the datasets in this order.
    """
    refs_output, read_metaranges = parquet_output(folder, RANGE_REFS), metarange_reader(place)
    outputs = [Output(refs_output.folder, refs_output.suffix, lambda table: refs_output.encode(distinct_refs(table)))]
    if pairs_folder:
        outputs.append(parquet_output(pairs_folder, RANGES_OF_METARANGES))
    return write_outputs(metarange_tasks(spark, metaranges), lambda rows, _: read_metaranges(rows), place, outputs)[0]


def distinct_refs(ranges: pa.Table) -> pa.Table:
    """The distinct ranges (RANGE_REFS).

    If two metaranges describe a range differently, it is in two rows, and reading it raises an error.
    """
    return ranges.group_by(RANGE_REFS.names, use_threads=False).aggregate([]).cast(RANGE_REFS)


def metarange_tasks(spark: Callable[[], SparkSession], metaranges: Sequence[str]) -> Tasks:
    """The distinct metaranges, without the empty id, divided among tasks. Raises `DamagedData` for an invalid id."""
    distinct = sorted({table_id for table_id in metaranges if table_id})
    for table_id in distinct:
        table_key(table_id)
    return tasks_from_ids(spark, "metarange_id", distinct, batch_size=METARANGES_PER_TASK)


def metarange_reader(place: Place) -> Step:
    """A step that maps metarange ids to rows of METARANGE_RANGES."""

    def read(batches: Batches) -> Batches:
        ids = (table_id for batch in batches for table_id in batch.column(0).to_pylist())
        rows: list[tuple[Any, ...]] = []
        for metarange, data in prefetched_tables(place, ids, referrer="a commit", expected_size=METARANGE_SIZE):
            refs = sstable.read_verified_ranges(data, name=metarange)
            rows += ((metarange, ref.id, ref.count, ref.min_key, ref.max_key) for ref in refs)
            if len(rows) >= REFS_PER_BATCH:
                yield batch_of_rows(rows)
                rows = []
        if rows:
            yield batch_of_rows(rows)

    def batch_of_rows(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = zip(METARANGE_RANGES, zip(*rows, strict=True), strict=True)
        return pa.record_batch([pa.array(values, field.type) for field, values in columns], schema=METARANGE_RANGES)

    return read


def range_tasks(spark: Callable[[], SparkSession], ranges: pa.Table, *, order_by: Sequence[str] = ()) -> Tasks:
    """Divide ranges among tasks like `tasks_from_rows`: more or larger ranges get more tasks.

    `ranges` has a column `entries` (null if unknown). Some repositories have one large range and thousands of small
    ones, so tasks are balanced by entries, not by ranges.
    """
    entries = pc.fill_null(ranges["entries"], 0).to_pylist()
    batch_size = min(RANGES_PER_TASK, len(ranges) * ENTRIES_PER_TASK // max(sum(entries), 1))
    weights = [count + RANGE_OVERHEAD_ENTRIES for count in entries]
    max_on_driver = 1 if sum(entries) <= ENTRIES_PER_TASK else 0
    return tasks_from_rows(
        spark, ranges, batch_size=max(batch_size, 1), order_by=order_by, weights=weights, max_on_driver=max_on_driver
    )


# --- ranges → addresses ---------------------------------------------------------------------------------------------


def all_relative(kinds: pa.Array) -> bool:
    """Whether all addresses are relative, given their kinds (values of `AddressType`, none null)."""
    return bool((kinds.to_numpy(zero_copy_only=False) == int(AddressType.RELATIVE)).all())


def addresses_inside(addresses: pa.Array, kinds: pa.Array, namespace: Namespace) -> tuple[pa.Array, int]:
    """The addresses inside the namespace as keys relative to it (formats §4), and the number of those outside.

    Raises `Refused` (invariant 5) for an address that `Namespace.locate` classifies as a conflict.
    """
    keys, _, outside = rows_inside(addresses, kinds, namespace)
    return keys, outside


def rows_inside(addresses: pa.Array, kinds: pa.Array, namespace: Namespace) -> tuple[pa.Array, pa.Array | None, int]:
    """Like `addresses_inside`, with the row number of each key; None instead if all addresses are relative."""
    if all_relative(kinds):  # nearly always
        return addresses, None, 0
    rows = pa.array(np.arange(len(addresses)))
    relative = pc.equal(kinds, pa.scalar(int(AddressType.RELATIVE), kinds.type))
    full = pc.match_substring_regex(addresses, _FULL_ADDRESS)
    without_root = pc.or_(
        relative, pc.and_(pc.equal(kinds, pa.scalar(int(AddressType.BY_PREFIX), kinds.type)), pc.invert(full))
    )
    keys, row_numbers = [addresses.filter(without_root)], [rows.filter(without_root)]
    rest, rows = addresses.filter(pc.invert(without_root)), rows.filter(pc.invert(without_root))
    for root in (namespace.uri, *namespace.aliases):
        inside = pc.and_(pc.starts_with(rest, root + "/"), pc.invert(pc.starts_with(rest, root + "//")))
        if namespace.ambiguous_key_pattern is not None:
            inside = pc.and_(inside, pc.invert(pc.match_substring_regex(rest, namespace.ambiguous_key_pattern)))
        keys.append(pc.utf8_slice_codeunits(rest.filter(inside), start=len(root) + 1))
        row_numbers.append(rows.filter(inside))
        rest, rows = rest.filter(pc.invert(inside)), rows.filter(pc.invert(inside))
    has_scheme = pc.match_substring_regex(rest, _FULL_ADDRESS)
    ambiguous = pc.or_(pc.invert(has_scheme), pc.match_substring_regex(rest, namespace.conflict_pattern()))
    for address in rest.filter(ambiguous).to_pylist():
        namespace.check_outside(address)
    return pa.chunked_array(keys).combine_chunks(), pa.chunked_array(row_numbers).combine_chunks(), len(rest)


def full_addresses_inside(addresses: pa.Array, kinds: pa.Array, namespace: Namespace) -> pa.Array:
    """The keys of the full addresses that are inside this namespace, for entries of another namespace.

    Relative addresses are skipped, because they are in the other namespace. Raises `Refused` (invariant 5) like
    `addresses_inside`.
    """
    return addresses_inside(*full_addresses(addresses, kinds), namespace)[0]


def full_addresses(addresses: pa.Array, kinds: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The full addresses among these, with their kinds (values of `AddressType`)."""
    if all_relative(kinds):  # nearly always
        return addresses.slice(0, 0), kinds.slice(0, 0)
    relative = pc.equal(kinds, pa.scalar(int(AddressType.RELATIVE), kinds.type))
    full = pc.and_(pc.invert(relative), pc.match_substring_regex(addresses, _FULL_ADDRESS))
    return addresses.filter(full), kinds.filter(full)


def range_properties(data: bytes, *, name: str, where: str) -> sstable.TableProperties | None:
    """The unverified properties of a range of objects; None for a metarange or a table from a dump of references.

    Raises `DamagedData` for a table of an unknown kind, because its contents may be live, and for a table of another
    known kind that doesn't match its id, because it may hide the range with that id.
    """
    properties = sstable.read_properties(data, name=name)
    if properties.type not in KNOWN_TABLES or properties.entity not in KNOWN_ENTITIES:
        raise DamagedData(
            f"table {name} in {where}/_lakefs/ contains {properties.type} of {properties.entity or 'objects'}, which "
            "this version of lakegc doesn't support. Update lakegc."
        )
    if (properties.type, properties.entity) == ("ranges", OBJECTS):
        return properties
    sstable.verify_table(data, name=name)
    return None


def table_ids(place: Place) -> Iterator[str]:
    """The id of every table under `_lakefs/`, whether or not anything refers to it."""
    for page in place.store().pages("_lakefs/", delimiter="/"):
        for listed in page.objects:
            if match := _TABLE_KEY.match(listed.key):
                yield match.group(1)


def address_batches(
    place: Place, refs: Iterable[Ref], report: TaskReport, decoder: sstable.Decoder
) -> Iterator[tuple[str, pa.Array, pa.Array]]:
    """Yield the id of each range (rows of RANGE_REFS), its addresses inside the namespace and its entries' sizes.

    Counts `ranges`, `bytes`, `entries` and `outside` in the report.
    """
    known = {str(ref["range_id"]): ref for ref in refs}
    size = largest_size(known.values())
    for range_id, data in prefetched_tables(place, known, referrer="a metarange", expected_size=size):
        batch = verified_entries(data, known[range_id], ("address", "address_type", "size"), decoder)
        keys, outside = addresses_inside(batch.column(0), batch.column(1), place.namespace)
        report.count(ranges=1, bytes=len(data), entries=batch.num_rows, outside=outside)
        yield range_id, keys, batch.column(2)


def decoder_for(refs: Iterable[Ref]) -> sstable.Decoder:
    """The decoder for these ranges (rows of RANGE_REFS). The fast one pays off only for many entries."""
    return sstable.default_decoder(sum(int(ref["entries"]) for ref in refs) * ENTRY_BYTES)


def verified_entries(data: bytes, ref: Ref, columns: Sequence[str], decoder: sstable.Decoder) -> pa.RecordBatch:
    """The entries of a range (these columns of ENTRY_SCHEMA).

    Raises `DamagedData` if the content doesn't match the range's id or its description in the metarange.
    """
    batch, properties = sstable.read_verified_entries(data, name=str(ref["range_id"]), columns=columns, decoder=decoder)
    check_range(properties, ref)
    return batch


def check_range(properties: sstable.TableProperties, ref: Ref) -> None:
    """Raise `DamagedData` if a range doesn't match the description in its metarange: count, first and last key."""
    name, expected = ref["range_id"], (ref["entries"], ref["min_key"], ref["max_key"])
    if (properties.count, properties.min_key, properties.max_key) != expected:
        raise DamagedData(
            f"range {name} doesn't match the description in its metarange: {plural(properties.count, 'entry')} from "
            f"{_shown(properties.min_key)} to {_shown(properties.max_key)}, expected {ref['entries']} from "
            f"{_shown(ref['min_key'])} to {_shown(ref['max_key'])}. Nothing was deleted. Restore the range from a "
            "backup."
        )


def _shown(path: bytes) -> str:
    return repr(path.decode(errors="backslashreplace"))


def check_all_read(report: TaskReport, *, ranges: int, entries: int) -> None:
    """Raise `DamagedData` (invariant 3) unless exactly these numbers of ranges and entries were read."""
    counters = report.counters
    if (counters["ranges"], counters["entries"]) != (ranges, entries):
        raise DamagedData(
            f"lakegc read {plural(counters['ranges'], 'range')} with {plural(counters['entries'], 'entry')}, but "
            f"expected {ranges:,} with {entries:,}. The incomplete result was not used. Run the same command again.",
            invariant=3,
        )


def write_addresses(
    ranges: Tasks,
    place: Place,
    folder: str,
    *,
    total_entries: int,
    sizes_folder: str,
    sizes_wanted: Collection[str],
) -> tuple[Dataset, Dataset, TaskReport]:
    """Decode ranges (rows of RANGE_REFS, distinct ids), and write their addresses inside the namespace.

    Writes rows of RANGE_ADDRESSES to `folder`. For ranges whose ids are in `sizes_wanted`, also writes the distinct
    sizes of all entries (RANGE_SIZES) to `sizes_folder`. All rows of a range are in one file. `total_entries`, the
    number of entries of all ranges, determines the decoder. Returns both datasets and the report of `address_batches`.
    """
    numbers_with_sizes = frozenset(map(range_number, sizes_wanted))
    schema = pa.schema([pa.field(field.name, field.type) for field in (*RANGE_ADDRESSES, RANGE_SIZES.field("size"))])

    def produce(batches: Batches, report: TaskReport) -> Batches:
        refs = (row for batch in batches for row in batch.to_pylist())
        decoder = sstable.default_decoder(total_entries * ENTRY_BYTES)
        for range_id, addresses, sizes in address_batches(place, refs, report, decoder):
            number = pa.scalar(range_number(range_id), pa.int64())
            columns = [pa.repeat(number, len(addresses)), addresses, pa.nulls(len(addresses), pa.int64())]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
            if number.as_py() in numbers_with_sizes:
                distinct = pc.unique(sizes)
                columns = [pa.repeat(number, len(distinct)), pa.nulls(len(distinct), pa.string()), distinct]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    outputs = [
        where_not_null("address", parquet_output(folder, RANGE_ADDRESSES)),
        where_not_null("size", parquet_output(sizes_folder, RANGE_SIZES)),
    ]
    (addresses, sizes), report = write_outputs(ranges.select(*RANGE_REFS.names), produce, place, outputs)
    return addresses, sizes, report


def range_number(range_id: str) -> int:
    """The first 60 bits of a range's id. The id is a content hash, so collisions practically don't occur."""
    return int(range_id[:15], 16)


def address_reader(place: Place) -> Producer:
    """A producer that maps rows of RANGE_REFS to the addresses inside the namespace (ADDRESSES)."""

    def produce(batches: Batches, report: TaskReport) -> Batches:
        refs = [row for batch in batches for row in batch.to_pylist()]
        for _, addresses, _ in address_batches(place, refs, report, decoder_for(refs)):
            yield pa.RecordBatch.from_arrays([addresses], schema=ADDRESSES)

    return produce


def paths_of(
    ranges: Tasks, place: Place, schema: pa.Schema, *, rank_by: Sequence[str], wanted: pa.Array | None = None
) -> Rows:
    """The addresses in these ranges (rows of RANGE_REFS and more) that are inside the namespace, with their paths.

    The result has the columns of `schema`: the address, its path, and columns of the range's row. If several ranges of
    a task contain an address, the result has a row for the range with the largest values in the columns `rank_by`
    (null is the smallest value), and possibly rows for a few of the others. `wanted` limits the result to these
    addresses, which must fit into each task's memory.
    """
    range_columns = [name for name in schema.names if name not in ("address", "path")]
    ranked = pa.schema([*schema, pa.field("rank", pa.int64(), nullable=False)])

    def read(batches: Batches) -> Batches:
        rows = [row for batch in batches for row in batch.to_pylist()]
        keys = [tuple((row[name] is not None, row[name]) for name in rank_by) for row in rows]
        ranks = {key: rank for rank, key in enumerate(sorted(set(keys), reverse=True))}
        order = sorted(range(len(rows)), key=lambda index: ranks[keys[index]])
        refs = {str(rows[index]["range_id"]): (rows[index], ranks[keys[index]]) for index in order}
        decoder = decoder_for(rows)
        size = largest_size(rows)
        for range_id, data in prefetched_tables(place, refs, referrer="a metarange", expected_size=size):
            ref, rank = refs[range_id]
            batch = verified_entries(data, ref, ("path", "address", "address_type"), decoder)
            addresses, row_numbers, _ = rows_inside(
                batch.column("address"), batch.column("address_type"), place.namespace
            )
            paths = batch.column("path") if row_numbers is None else batch.column("path").take(row_numbers)
            arrays = {"address": addresses, "path": display_paths(paths)}
            range_values = {name: ref[name] for name in range_columns} | {"rank": rank}
            arrays |= {
                name: pa.repeat(pa.scalar(value, ranked.field(name).type), len(addresses))
                for name, value in range_values.items()
            }
            yield pa.RecordBatch.from_arrays([arrays[name] for name in ranked.names], schema=ranked)

    def read_best(batches: Batches) -> Batches:
        for batch in best_ranked_rows(read(batches), wanted):
            yield batch.select(schema.names)

    columns = [*RANGE_REFS.names, *range_columns]
    return mapped(ranges.select(*columns), read_best, schema)


def best_ranked_rows(batches: Iterable[pa.RecordBatch], wanted: pa.Array | None) -> Iterator[pa.RecordBatch]:
    """The rows with an address in `wanted` (all if that is None); for each address, only those with the lowest `rank`.

    The input is sorted by `rank`. It is processed in large chunks, because each lookup scans all wanted addresses. A
    later chunk can repeat an address with a higher `rank`: any address if `wanted` is None, otherwise only one that has
    the last rank of an earlier chunk.
    """
    buffered: list[pa.RecordBatch] = []
    still_wanted = wanted

    def flush() -> Iterator[pa.RecordBatch]:
        nonlocal still_wanted
        table = pa.Table.from_batches(buffered)
        if still_wanted is not None:
            table = table.filter(pc.is_in(table["address"], value_set=still_wanted))
        if not len(table):
            return
        encoded = table["address"].combine_chunks().dictionary_encode()
        ranks, codes = table["rank"].to_numpy(), encoded.indices.to_numpy()
        _, first = np.unique(codes, return_index=True)
        yield from table.filter(pa.array(ranks == ranks[first][codes])).to_batches()
        # A range may be split across two chunks, so addresses of the last rank stay wanted.
        if still_wanted is not None:
            complete = table.filter(pc.less(table["rank"], pa.scalar(int(ranks[-1]), pa.int64())))["address"]
            still_wanted = still_wanted.filter(pc.invert(pc.is_in(still_wanted, value_set=complete)))

    for batch in batches:
        buffered.append(batch)
        if sum(map(len, buffered)) >= max(len(wanted) if wanted is not None else 0, ROWS_PER_BATCH):
            yield from flush()
            buffered = []
    if buffered:
        yield from flush()


def display_paths(paths: pa.Array) -> pa.Array:
    """Paths as text for display; bytes that are not UTF-8 are escaped."""
    try:
        return paths.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([path.decode(errors="backslashreplace") for path in paths.to_pylist()], pa.string())


def ranges_with_sizes(place: Place, dataset: Dataset, wanted: pa.Array) -> tuple[set[int], set[int]]:
    """The range numbers (`range_number`) of all ranges with known entry sizes (rows of RANGE_SIZES), and of those with
    a wanted size.

    A few million numbers take less than a second in this process; Spark would take longer to distribute them.
    """
    known, matching = set[int](), set[int]()
    for table in all_batches(place, dataset, RANGE_SIZES, rows=1_000_000):
        known.update(pc.unique(table["range"]).to_pylist())
        rows = table.filter(pc.is_in(table["size"], value_set=wanted))
        matching.update(pc.unique(rows["range"]).to_pylist())
    return known, matching


def utf8_paths(paths: pa.Array) -> pa.Array:
    """Paths as text, for requests to the server; null for each path that is not UTF-8."""
    try:
        return paths.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([utf8_or_none(path) for path in paths.to_pylist()], pa.string())


def utf8_or_none(path: bytes) -> str | None:
    try:
        return path.decode()
    except UnicodeDecodeError:
        return None
