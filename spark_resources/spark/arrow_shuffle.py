"""Co-group Arrow tables by address. Rows are hash-partitioned and shuffled as Arrow batches instead of row by row.

Spark shuffles rows one at a time, and each passes into and out of the JVM: for millions of short rows, that is most of
the work of a join. Here, tasks sort the rows of a file into buckets by the hash of the address and send each bucket's
rows as one Arrow stream, so Spark shuffles a few thousand large rows. A bucket's rows are also combined in Arrow. A
bucket is small enough for the memory of one task, however large the tables are; the other buckets stay on disk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.errors import DamagedData, LakegcError
from spark_resources.model import ADDRESSES
from spark_resources.spark.datasets import MAX_FILES_ON_DRIVER, Dataset, Output, Producer, read_file, write_outputs
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.persistence import Persisted
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Rows, Tasks, as_frame, mapped
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BUCKET = 500_000
ROWS_PER_CHUNK, BYTES_PER_CHUNK = 200_000, 64 << 20  # packed together, whichever is less
ROWS_WORTH_A_TASK = 25_000
MAX_ROWS_ON_DRIVER = 25_000  # up to this many are grouped on the driver
ROWS_PER_BATCH = 50_000
ROWS_PER_FILE = 5_000  # opening a file takes as long as reading this many rows
ROWS_TO_REDUCE = 500_000
SAMPLED_PER_TASK = 1_000  # addresses sampled to divide rows evenly among tasks
_BATCHES = pa.schema(
    [
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("input", pa.int32(), nullable=False),
        pa.field("hash_fingerprint", pa.int64(), nullable=False),
        pa.field("read", pa.int64(), nullable=False),  # rows in the file, counted with its first batch only
        pa.field("sent", pa.int64(), nullable=False),  # selected rows of the file, also with its first batch only
        pa.field("rows", pa.binary(), nullable=False),
    ]
)
_SAMPLE = ("", "data/s/1", "data/gg4hubj2cdk0000003eg/d8vt40r2cdk0000003f0", "data/é\n")
_REPORT = "report"

GroupedRows: TypeAlias = Mapping[str, pa.Table]
"""The rows of each input, by its name: all rows of every address that occurs in any of them."""
Combine: TypeAlias = Callable[[GroupedRows, TaskReport], pa.Table]


# --- inputs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file with a known number of rows. `read` verifies and returns them; without `select`, all of them are
    grouped."""

    rows: int
    read: Callable[[], pa.Table]
    select: Callable[[pa.Table], pa.Table] | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a shuffle: rows of `schema`, which has an `address`, from `files` or from `rows`.

    `count` is the number of rows before any selection, `max_rows` the maximum number of grouped rows, if known to be
    less. `reduce` drops rows that another row of the same address makes redundant: it bounds a bucket's memory.
    """

    name: str
    schema: pa.Schema
    count: int
    files: tuple[InputFile, ...] = ()
    rows: Rows | None = None
    max_rows: int | None = None
    reduce: Callable[[pa.Table], pa.Table] | None = None

    @classmethod
    def of_files(
        cls, name: str, files: Iterable[InputFile], schema: pa.Schema, *, max_rows: int | None = None,
        reduce: Callable[[pa.Table], pa.Table] | None = None,
    ) -> Input:  # fmt: skip
        all_files = tuple(files)
        return cls(name, schema, sum(file.rows for file in all_files), all_files, max_rows=max_rows, reduce=reduce)

    @classmethod
    def selected(
        cls, name: str, place: Place, datasets: Iterable[Dataset], schema: pa.Schema, wanted: pa.Schema,
        select: Callable[[pa.Table], pa.Table], *, max_rows: int | None = None,
    ) -> Input:  # fmt: skip
        """The rows (of the schema `wanted`) that `select` returns for each file of datasets of `schema`."""
        return cls.of_files(name, dataset_files(place, datasets, schema, select), wanted, max_rows=max_rows)

    @classmethod
    def whole(cls, name: str, place: Place, datasets: Iterable[Dataset], schema: pa.Schema) -> Input:
        """All rows and columns of datasets."""
        return cls.of_files(name, dataset_files(place, datasets, schema), schema)

    @classmethod
    def of_addresses(cls, name: str, place: Place, datasets: Iterable[Dataset], schema: pa.Schema) -> Input:
        """Only the addresses in datasets, each once per file."""
        files = dataset_files(place, datasets, schema, distinct_addresses)
        return cls.of_files(name, files, ADDRESSES, reduce=distinct_addresses)

    @classmethod
    def of_rows(
        cls, name: str, rows: Rows, schema: pa.Schema, count: int, *,
        reduce: Callable[[pa.Table], pa.Table] | None = None,
    ) -> Input:  # fmt: skip
        """An input of `count` rows."""
        return cls(name, schema, count, rows=rows, reduce=reduce)

    @property
    def max_grouped_rows(self) -> int:
        """The maximum number of grouped rows."""
        return self.count if self.max_rows is None else self.max_rows


def dataset_files(
    place: Place,
    datasets: Iterable[Dataset],
    schema: pa.Schema,
    select: Callable[[pa.Table], pa.Table] | None = None,
) -> list[InputFile]:
    return [
        InputFile(file.rows, partial(read_file, place, dataset.folder, file, schema), select)
        for dataset in datasets
        for file in dataset.files
    ]


def distinct_addresses(table: pa.Table) -> pa.Table:
    """The distinct addresses of a table (ADDRESSES)."""
    return pa.table([pc.unique(table["address"])], schema=ADDRESSES)


# --- grouping -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grouped:
    """The result of a co-group: its rows, persisted if the executors have them; their number; and the report."""

    rows: Rows
    count: int
    report: TaskReport

    def as_input(self, name: str, schema: pa.Schema) -> Input:
        """The rows as an input of another shuffle, with those columns that are in `schema`."""
        return Input.of_rows(name, self.rows, schema, self.count)

    @property
    def driver_rows(self) -> pa.Table | None:
        """The rows, if the driver has them; otherwise None."""
        return self.rows.table if isinstance(self.rows, Tasks) else None


@dataclass(frozen=True, slots=True)
class Shuffled:
    """The rows of the inputs in buckets, packed: one task for each bucket, or a single one on the driver.

    All rows of an address are in one bucket. A function that combines them gets the rows of a bucket, and a report to
    fill; it is called once per task, possibly with no rows. The report's `by_key` counts the rows of each input that
    were `read`, `sent` and `received`. Combining raises `DamagedData` for a file that is not the one that was written,
    and if rows were lost (invariant 3); `LakegcError` if machines hash differently.
    """

    inputs: Sequence[Input]
    buckets: int
    packed: Rows

    def grouped(self, combine: Combine, schema: pa.Schema, persist: Persisted) -> Grouped:
        """The result of `combine` for each bucket (rows of `schema`)."""
        if isinstance(self.packed, Tasks):
            report = TaskReport()
            batches = self._producer(combine)(iter(self.packed.table.to_batches()), report)
            tables = [pa.Table.from_batches([batch]).cast(schema) for batch in batches]
            table = pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()
            self._check(report)
            return Grouped(Tasks.of(self.packed.spark, table), len(table), report)
        null_row, produce = {field.name: pa.nulls(1, field.type) for field in schema}, self._producer(combine)
        with_report = pa.schema([*(field.with_nullable(True) for field in schema), pa.field(_REPORT, pa.string())])

        def combine_batches(batches: Batches) -> Batches:
            report = TaskReport()
            for batch in produce(batches, report):
                report.count_for(_REPORT, found=batch.num_rows)
                rows = pa.Table.from_batches([batch])
                yield from rows.append_column(_REPORT, pa.nulls(len(rows), pa.string())).cast(with_report).to_batches()
            yield from pa.table({**null_row, _REPORT: [report.to_json()]}, schema=with_report).to_batches()

        frame = persist(as_frame(mapped(self.packed, combine_batches, with_report)))
        with errors_from_executors():
            reports = [row[_REPORT] for row in frame.where(f"{_REPORT} IS NOT NULL").select(_REPORT).collect()]
        total = TaskReport.summed(reports)
        self._check(total)
        rows = frame.where(f"{_REPORT} IS NULL").drop(_REPORT)
        return Grouped(rows, total.by_key["found"][_REPORT], total)

    def write(self, combine: Combine, place: Place, outputs: Sequence[Output]) -> tuple[list[Dataset], TaskReport]:
        """Write the result of `combine` for each bucket to all outputs. Returns a dataset for each, and the report."""
        datasets, report = write_outputs(self.packed, self._producer(combine), place, outputs)
        self._check(report)
        return datasets, report

    def _producer(self, combine: Combine) -> Producer:
        inputs = [(source.name, source.schema, source.reduce) for source in self.inputs]  # without files and rows

        def produce(batches: Batches, report: TaskReport) -> Batches:
            table = combine(rows_by_input(batches, inputs, report), report)
            report.count_for(_REPORT, combined=1)
            yield from table.to_batches(max_chunksize=ROWS_PER_BATCH)

        return produce

    def _check(self, report: TaskReport) -> None:
        check_all_grouped(self.inputs, report, tasks=report.by_key["combined"][_REPORT], buckets=self.buckets)


def co_group(
    spark: Callable[[], SparkSession], inputs: Sequence[Input], combine: Combine, schema: pa.Schema, persist: Persisted
) -> Grouped:
    """Group the rows of the inputs by address, and combine the rows of each bucket."""
    return shuffle(spark, inputs).grouped(combine, schema, persist)


def shuffle(
    spark: Callable[[], SparkSession], inputs: Sequence[Input], *, boundaries: pa.Array | None = None
) -> Shuffled:
    """Divide the rows of the inputs among buckets by the hash of the address or, given `boundaries`, by address range.
    Each of the boundaries (sorted addresses) begins a new range.

    If there are few rows, and the executors have none of them, there is only one bucket.
    """
    rows = sum(source.max_grouped_rows for source in inputs)
    files = [(number, file) for number, source in enumerate(inputs) for file in source.files]
    with_rows = [
        (number, source, source.rows)
        for number, source in enumerate(inputs)
        if source.rows is not None and source.count
    ]
    on_driver = all(isinstance(rows, Tasks) and rows.is_on_driver for _, _, rows in with_rows)
    if on_driver and sum(source.count for source in inputs) <= MAX_ROWS_ON_DRIVER:
        buckets = 1
    elif boundaries is not None:
        buckets = len(boundaries) + 1
    else:
        buckets = buckets_for(rows, spark().sparkContext.defaultParallelism)

    def split(batches: Batches) -> Batches:
        for number, file in (files[task] for batch in batches for task in batch.column(0).to_pylist()):
            table = file.read()
            chosen = file.select(table) if file.select else table
            yield from bucket_batches(chosen, number, buckets, read=len(table), boundaries=boundaries)

    def split_rows(number: int, schema: pa.Schema, batches: Batches) -> Batches:
        for batch in batches:
            table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
            yield from bucket_batches(table, number, buckets, read=len(table), boundaries=boundaries)

    tasks = _file_tasks(spark, [file.rows for _, file in files])
    splits = [(input_rows, partial(split_rows, number, source.schema)) for number, source, input_rows in with_rows]
    if buckets == 1 and on_driver and tasks.is_on_driver:
        tables = [tasks.collected(split, _BATCHES)]
        tables += [input_rows.collected(step, _BATCHES) for input_rows, step in splits if isinstance(input_rows, Tasks)]
        return Shuffled(inputs, buckets, Tasks(spark, _BATCHES, [pa.concat_tables(tables)]))
    frames = [as_frame(mapped(tasks, split, _BATCHES))] if files else []
    frames += [as_frame(mapped(input_rows, step, _BATCHES)) for input_rows, step in splits]
    all_frames = functools.reduce(lambda left, right: left.unionByName(right), frames)
    return Shuffled(inputs, buckets, _by_bucket(all_frames, buckets, in_order=boundaries is not None))


def check_all_grouped(inputs: Sequence[Input], total: TaskReport, *, tasks: int, buckets: int) -> None:
    """Raise `DamagedData` (invariant 3) if a bucket, or any row of an input, was lost between the tasks."""
    for name in dict.fromkeys(source.name for source in inputs):
        count = sum(source.count for source in inputs if source.name == name)
        read, sent, received = (total.by_key[what][name] for what in ("read", "sent", "received"))
        if not 0 < tasks <= buckets or read != count or received != sent:
            raise DamagedData(
                f"not all rows were grouped by address: of {count:,} rows ({name}), {read:,} were read, "
                f"{sent:,} sent and {received:,} received, in {tasks} of {buckets} tasks. The incomplete "
                "result was not used. Run the same command again.",
                invariant=3,
            )


def buckets_for(rows: int, cores: int) -> int:
    """The number of buckets: enough that a task can hold one in memory, and one per core if there are enough rows."""
    return max(-(-rows // ROWS_PER_BUCKET), min(cores, rows // ROWS_WORTH_A_TASK), 1)


def bucket_batches(
    table: pa.Table, number: int, buckets: int, *, read: int, boundaries: pa.Array | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file as record batches with one packed row per bucket; large files in several batches.

    `number` is the position of the file's input, `read` the number of rows in the file before any selection.
    """
    rows_per_chunk = max(1, min(ROWS_PER_CHUNK, len(table) * BYTES_PER_CHUNK // max(table.nbytes, 1)))
    read_and_sent = (read, len(table))
    for offset in range(0, max(len(table), 1), rows_per_chunk):
        rows_of_batch = table.slice(offset, rows_per_chunk).combine_chunks()
        addresses = rows_of_batch["address"]
        bucket_of_row = (
            bucket_of(addresses, buckets) if boundaries is None or buckets == 1 else range_of(addresses, boundaries)
        )
        rows_by_bucket = rows_of_batch.take(pa.array(np.argsort(bucket_of_row, kind="stable")))
        ends = np.cumsum(np.bincount(bucket_of_row, minlength=buckets)).tolist()
        bounds = [(bucket, start, end) for bucket, (start, end) in enumerate(zip([0, *ends], ends, strict=False))]
        slices = ((bucket, rows_by_bucket.slice(start, end - start)) for bucket, start, end in bounds if end > start)
        packed_buckets = [(bucket, _packed(rows)) for bucket, rows in slices]
        packed_buckets = packed_buckets or [(0, _packed(rows_by_bucket))]  # so that the file counts as read
        rest = [0] * (len(packed_buckets) - 1)
        columns = {
            "bucket": [bucket for bucket, _ in packed_buckets],
            "input": [number] * len(packed_buckets),
            "hash_fingerprint": [hash_fingerprint()] * len(packed_buckets),
            "read": [read_and_sent[0], *rest],
            "sent": [read_and_sent[1], *rest],
            "rows": [packed for _, packed in packed_buckets],
        }
        yield pa.RecordBatch.from_pydict(columns, schema=_BATCHES)
        read_and_sent = (0, 0)


def rows_by_input(
    batches: Batches,
    inputs: Sequence[tuple[str, pa.Schema, Callable[[pa.Table], pa.Table] | None]],
    report: TaskReport,
) -> dict[str, pa.Table]:
    """The rows of a task's batches, by the name of their input. Reports how many of each were `read`, `sent` and
    `received`. `inputs` has each input's name, its schema, and the function that reduces its rows, if there is one."""
    pieces = {name: [schema.empty_table()] for name, schema, _ in inputs}
    unreduced_rows = dict.fromkeys(pieces, 0)
    for batch in batches:
        columns = dict(zip(_BATCHES.names, batch.columns, strict=True))
        check_same_hash(columns["hash_fingerprint"])
        counted = (columns[name].to_pylist() for name in ("input", "read", "sent"))
        for number, read, sent, packed in zip(*counted, columns["rows"], strict=True):
            name, _, reduce = inputs[number]
            table = pa.ipc.open_stream(packed.as_buffer()).read_all()
            pieces[name].append(table)
            report.count_for(name, read=read, sent=sent, received=len(table))
            unreduced_rows[name] += len(table)
            if reduce is not None and unreduced_rows[name] >= ROWS_TO_REDUCE:
                pieces[name], unreduced_rows[name] = [reduce(pa.concat_tables(pieces[name]))], 0
    return {name: pa.concat_tables(tables) for name, tables in pieces.items()}


def bucket_of(addresses: pa.ChunkedArray, buckets: int) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The bucket of each address, the same in every process."""
    import pandas as pd

    dtype = np.uint16 if buckets < 1 << 16 else np.uint32  # numpy radix-sorts 16-bit integers
    if buckets == 1:
        return np.zeros(len(addresses), dtype)
    hashes: npt.NDArray[np.uint64] = pd.util.hash_array(addresses.to_numpy(), categorize=False)
    return (hashes % np.uint64(buckets)).astype(dtype)


def range_of(addresses: pa.ChunkedArray, boundaries: pa.Array) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The range of each address: the number of sorted boundaries at or before it, compared byte by byte."""
    numbers: npt.NDArray[np.uint16] = np.zeros(len(addresses), np.uint16)
    for boundary in boundaries:
        numbers += pc.greater_equal(addresses, boundary).to_numpy().astype(np.uint16)
    return numbers


def even_boundaries(addresses: pa.Array, tasks: int) -> pa.Array:
    """Sorted boundaries, each one of these addresses, that divide them evenly among at most `tasks` tasks."""
    in_order = addresses.sort()
    positions = [len(in_order) * task // tasks for task in range(1, tasks)] if len(in_order) else []
    return pc.unique(in_order.take(pa.array(positions, pa.int64())))


def sampled_boundaries(rows: DataFrame, count: int, tasks: int) -> pa.Array:
    """Like `even_boundaries`, estimated from a sample of these `count` rows, which have an `address`."""
    share = min(1.0, SAMPLED_PER_TASK * tasks / max(count, 1))
    sample = rows.select("address").sample(fraction=share, seed=0).toArrow()
    return even_boundaries(sample["address"].combine_chunks(), tasks)


@functools.cache
def hash_fingerprint() -> int:
    """A fingerprint of this process's hash function."""
    import pandas as pd

    return int(pd.util.hash_array(np.array(_SAMPLE, dtype=object), categorize=False).sum() >> np.uint64(1))


def check_same_hash(fingerprints: pa.Array) -> None:
    """Raise `LakegcError` if another process hashed differently.

    Otherwise rows of one address could end up in different tasks, and live objects would look like garbage.
    """
    if any(fingerprint != hash_fingerprint() for fingerprint in pc.unique(fingerprints).to_pylist()):
        raise LakegcError(
            "two machines in the cluster hash addresses differently, so lakegc can't co-group their rows. The result "
            "was not used. Install the same package versions on every machine in the cluster, and run the same command "
            "again."
        )


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _file_tasks(spark: Callable[[], SparkSession], rows: Sequence[int]) -> Tasks:
    """The file numbers, in tasks with about the same number of rows each; a few small files are read on the driver."""
    max_on_driver = MAX_FILES_ON_DRIVER if sum(rows) <= MAX_ROWS_ON_DRIVER else 0
    numbers = pa.table({"file": pa.array(range(len(rows)), pa.int64())})
    batch_size = -(-len(rows) // MAX_FILES_ON_DRIVER) if max_on_driver else 1
    return tasks_from_rows(
        spark,
        numbers,
        batch_size=batch_size,
        weights=[count + ROWS_PER_FILE for count in rows],
        max_on_driver=max_on_driver,
    )


def _by_bucket(split: DataFrame, buckets: int, *, in_order: bool) -> DataFrame:
    """One task per bucket. Older Spark versions can't assign buckets: there, a task may have several or none."""
    if buckets == 1:
        return split.coalesce(1)
    by_id = getattr(split, "repartitionById", None)
    if by_id is not None:
        divided: DataFrame = by_id(buckets, "bucket")
        return divided
    return split.repartitionByRange(buckets, "bucket") if in_order else split.repartition(buckets, "bucket")
