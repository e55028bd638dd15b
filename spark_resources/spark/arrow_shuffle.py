"""Co-group Arrow tables by address. Rows are hash-partitioned and shuffled as Arrow batches instead of row by row.

Spark shuffles rows one at a time, and each passes into and out of the JVM: for millions of short rows, that is most of
the work of a join. Here, tasks sort the rows of a file into buckets by the hash of the address and send each bucket's
rows as one Arrow stream, so Spark shuffles a few thousand large rows; Arrow also combines each bucket. A bucket is
small enough for the memory of one task, however large the tables are; the other rows stay on disk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.errors import DamagedData, LakegcError
from spark_resources.model import ADDRESSES
from spark_resources.spark.datasets import FILES_HERE, Dataset, read_file
from spark_resources.spark.partitioning import row_tasks
from spark_resources.spark.persistence import Persisted
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Tasks, frame_of, mapped
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BUCKET = 500_000
ROWS_AT_ONCE, BYTES_AT_ONCE = 200_000, 64 << 20  # cut into batches in one go, whichever is less
ROWS_WORTH_A_TASK = 25_000
ROWS_HERE = 25_000  # at most, to be grouped on the driver
ROWS_A_BATCH = 50_000
ROWS_PER_FILE = 5_000  # opening a file takes as long as reading so many rows
_BATCHES = pa.schema(
    [
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("input", pa.int32(), nullable=False),
        pa.field("hashed", pa.int64(), nullable=False),
        pa.field("read", pa.int64(), nullable=False),  # rows in the file, counted with its first batch only
        pa.field("sent", pa.int64(), nullable=False),  # rows of the file that are sent, likewise
        pa.field("rows", pa.binary(), nullable=False),
    ]
)
_SAMPLE = ("", "data/s/1", "data/gg4hubj2cdk0000003eg/d8vt40r2cdk0000003f0", "data/é\n")
_REPORT = "report"

GroupedRows: TypeAlias = Mapping[str, pa.Table]
"""The rows of each input, by its name: all rows of every address that occurs in any of them."""
Combine: TypeAlias = Callable[[GroupedRows, TaskReport], pa.Table]


@dataclass(frozen=True, slots=True)
class Grouped:
    """The result of a co-group: its rows, persisted by address; if it was computed on the driver, the same as a table;
    and the report."""

    rows: DataFrame
    few: pa.Table | None
    report: TaskReport


@dataclass(frozen=True, slots=True)
class Input:
    """Datasets of one schema, as one input of a co-group.

    `select` turns the rows of a file into those that are grouped, of the schema `wanted`, which has an address; without
    it, all rows are grouped. `max_rows` is the maximum number of grouped rows, if known to be less than all.
    """

    name: str
    datasets: tuple[Dataset, ...]
    schema: pa.Schema
    wanted: pa.Schema
    select: Callable[[pa.Table], pa.Table] | None = None
    max_rows: int | None = None

    @classmethod
    def whole(cls, name: str, datasets: Iterable[Dataset], schema: pa.Schema) -> Input:
        """All rows and columns."""
        return cls(name, tuple(datasets), schema, schema)

    @classmethod
    def of_addresses(cls, name: str, datasets: Iterable[Dataset], schema: pa.Schema) -> Input:
        """The addresses only, each once per file."""
        return cls(name, tuple(datasets), schema, ADDRESSES, addresses_once)

    @property
    def rows(self) -> int:
        return sum(dataset.rows for dataset in self.datasets)


def addresses_once(table: pa.Table) -> pa.Table:
    """The distinct addresses of a table (ADDRESSES)."""
    return pa.table([pc.unique(table["address"])], schema=ADDRESSES)


def co_group(
    spark: SparkSession,
    place: Place,
    inputs: Sequence[Input],
    combine: Combine,
    schema: pa.Schema,
    persist: Persisted,
) -> Grouped:
    """The result of `combine` on each bucket of the inputs: rows of `schema`, and its report.

    `combine` gets all rows of each address of its bucket, and a report to fill; it is called once per task, possibly
    with no rows. The report's `by_key` counts the rows of each input that were `read`, `sent` and `received`. Raises
    `DamagedData` for a file that is not the one that was written, and if rows were lost (invariant 3); `LakegcError` if
    machines hash in different ways.
    """
    datasets = [(number, dataset) for number, one in enumerate(inputs) for dataset in one.datasets]
    files = [(number, dataset.folder, file) for number, dataset in datasets for file in dataset.files]
    cores = spark.sparkContext.defaultParallelism
    buckets = buckets_for(sum(one.rows if one.max_rows is None else one.max_rows for one in inputs), cores)
    wanted = {one.name: one.wanted for one in inputs}
    reported = pa.schema([*(field.with_nullable(True) for field in schema), pa.field(_REPORT, pa.string())])

    def split(batches: Batches) -> Batches:
        for task in (number for batch in batches for number in batch.column(0).to_pylist()):
            number, folder, file = files[task]
            one = inputs[number]
            rows = read_file(place, folder, file, one.schema)
            yield from bucket_batches(one.select(rows) if one.select else rows, number, buckets, read=len(rows))

    def combine_bucket(batches: Batches) -> Batches:
        report = TaskReport()
        found = combine(rows_by_input(batches, wanted, report), report)
        nothing = {field.name: pa.nulls(1, field.type) for field in schema}
        yield from pa.table({**nothing, _REPORT: [report.to_json()]}, schema=reported).to_batches()
        rows = found.append_column(_REPORT, pa.nulls(len(found), pa.string()))
        yield from rows.cast(reported).to_batches(max_chunksize=ROWS_A_BATCH)

    tasks = _file_tasks(spark, [file.rows for _, _, file in files])
    if buckets == 1 and tasks.is_here:
        table = pa.Table.from_batches(combine_bucket(iter(tasks.collected(split, _BATCHES).to_batches())), reported)
        has_report = pc.is_valid(table[_REPORT])
        reports = table.filter(has_report)[_REPORT].to_pylist()
        few = table.filter(pc.invert(has_report)).select(schema.names).cast(schema)
        found = frame_of(spark, few)
    else:
        few = None
        shuffled = _by_bucket(tasks.mapped(split, _BATCHES), buckets)
        combined = mapped(shuffled, combine_bucket, reported)
        rows = persist(combined.repartition("address"))  # once, instead of for each of the later joins
        with errors_from_executors():
            reports = [row[_REPORT] for row in rows.where(f"{_REPORT} IS NOT NULL").select(_REPORT).collect()]
        found = rows.where(f"{_REPORT} IS NULL").drop(_REPORT)
    total = TaskReport.summed(reports)
    check_all_grouped(inputs, total, tasks=len(reports), buckets=buckets)
    return Grouped(found, few, total)


def check_all_grouped(inputs: Sequence[Input], total: TaskReport, *, tasks: int, buckets: int) -> None:
    """Raise `DamagedData` (invariant 3) if a bucket, or any row of an input, was lost between the tasks."""
    for one in inputs:
        read, sent, received = (total.by_key[name][one.name] for name in ("read", "sent", "received"))
        if tasks != buckets or read != one.rows or received != sent:
            raise DamagedData(
                f"not all rows of addresses were compared: of {one.rows:,} rows ({one.name}) {read:,} were read, "
                f"{sent:,} sent and {received:,} received, in {tasks} tasks of {buckets}. Nothing was marked. Run "
                "the same command again.",
                invariant=3,
            )


def buckets_for(rows: int, cores: int) -> int:
    """The number of buckets: enough that a task can hold one, and one per core if there are enough rows."""
    return max(-(-rows // ROWS_PER_BUCKET), min(cores, rows // ROWS_WORTH_A_TASK), 1)


def bucket_batches(table: pa.Table, number: int, buckets: int, *, read: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file as record batches with one packed row per bucket; large files in several batches.

    `number` is the position of the file's input, `read` the number of rows in the file before any selection.
    """
    at_once = max(1, min(ROWS_AT_ONCE, len(table) * BYTES_AT_ONCE // max(table.nbytes, 1)))
    announced = (read, len(table))
    for at in range(0, max(len(table), 1), at_once):
        rows_of_batch = table.slice(at, at_once).combine_chunks()
        of_rows = bucket_of(rows_of_batch["address"], buckets)
        ordered = rows_of_batch.take(pa.array(np.argsort(of_rows, kind="stable")))
        ends = np.cumsum(np.bincount(of_rows, minlength=buckets)).tolist()
        found = [(bucket, start, end) for bucket, (start, end) in enumerate(zip([0, *ends], ends, strict=False))]
        slices = ((bucket, ordered.slice(start, end - start)) for bucket, start, end in found if end > start)
        packed_buckets = [(bucket, _packed(rows)) for bucket, rows in slices]
        packed_buckets = packed_buckets or [(0, _packed(ordered))]  # a file counts as read even if no row is wanted
        rest = [0] * (len(packed_buckets) - 1)
        columns = {
            "bucket": [bucket for bucket, _ in packed_buckets],
            "input": [number] * len(packed_buckets),
            "hashed": [hash_fingerprint()] * len(packed_buckets),
            "read": [announced[0], *rest],
            "sent": [announced[1], *rest],
            "rows": [packed for _, packed in packed_buckets],
        }
        yield pa.RecordBatch.from_pydict(columns, schema=_BATCHES)
        announced = (0, 0)


def rows_by_input(batches: Batches, wanted: Mapping[str, pa.Schema], report: TaskReport) -> dict[str, pa.Table]:
    """The rows of a task's batches by input. Reports how many were `read`, `sent` and `received` for each."""
    names, pieces = list(wanted), [[schema.empty_table()] for schema in wanted.values()]
    for batch in batches:
        columns = dict(zip(_BATCHES.names, batch.columns, strict=True))
        check_same_hash(columns["hashed"])
        counted = (columns[name].to_pylist() for name in ("input", "read", "sent"))
        for number, read, sent, packed in zip(*counted, columns["rows"], strict=True):
            pieces[number].append(pa.ipc.open_stream(packed.as_buffer()).read_all())
            report.count_for(names[number], read=read, sent=sent, received=len(pieces[number][-1]))
    return {name: pa.concat_tables(tables) for name, tables in zip(names, pieces, strict=True)}


def bucket_of(addresses: pa.ChunkedArray, buckets: int) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The bucket of each address, the same in every process."""
    import pandas as pd

    kind = np.uint16 if buckets < 1 << 16 else np.uint32  # numpy radix-sorts 16-bit integers
    if buckets == 1:
        return np.zeros(len(addresses), kind)
    hashes: npt.NDArray[np.uint64] = pd.util.hash_array(addresses.to_numpy(), categorize=False)
    return (hashes % np.uint64(buckets)).astype(kind)


@functools.cache
def hash_fingerprint() -> int:
    """A fingerprint of this process's hash function."""
    import pandas as pd

    return int(pd.util.hash_array(np.array(_SAMPLE, dtype=object), categorize=False).sum() >> np.uint64(1))


def check_same_hash(hashed: pa.Array) -> None:
    """Raise `LakegcError` if another process hashed differently.

    Otherwise rows of one address would get into different tasks, and live objects would look like garbage.
    """
    if any(one != hash_fingerprint() for one in pc.unique(hashed).to_pylist()):
        raise LakegcError(
            "two machines of the cluster hash addresses differently, so lakegc can't co-group their rows. Nothing was "
            "marked. Install the same package versions on all of them, and run the same command again."
        )


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _file_tasks(spark: SparkSession, rows: Sequence[int]) -> Tasks:
    """The file numbers, in tasks with about the same number of rows each; a few small files are read on the driver."""
    here = FILES_HERE if sum(rows) <= ROWS_HERE else 0
    numbers = pa.table({"file": pa.array(range(len(rows)), pa.int64())})
    batch = -(-len(rows) // FILES_HERE) if here else 1
    return row_tasks(lambda: spark, numbers, batch=batch, weights=[each + ROWS_PER_FILE for each in rows], here=here)


def _by_bucket(split: DataFrame, buckets: int) -> DataFrame:
    """One task per bucket. In older Spark versions, which can't assign buckets, a task may have several or none."""
    if buckets == 1:
        return split.coalesce(1)
    by_id = getattr(split, "repartitionById", None)
    return by_id(buckets, "bucket") if by_id is not None else split.repartition(buckets, "bucket")
