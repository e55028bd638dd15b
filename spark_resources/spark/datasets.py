"""DataFrames in a namespace: Parquet files written and read by the executors, and a list of exactly these files.

A dataset exists once its list of files does (`_files.json`, written last). Readers read all files in the list and check
the SHA-256 and row count of each (invariants 3 and 12). No Hadoop file system is involved.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import TypedDict

from spark_resources.errors import DamagedData, NotFound, plural
from spark_resources.records.model import AsInJson, Count, Record
from spark_resources.records.parquet_files import open_parquet, parquet_batches, parquet_rows, reading_errors
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Rows, Tasks, as_frame, collected, mapped, task_name
from spark_resources.stores.base import read_to_verify
from spark_resources.stores.prefetch import CONCURRENT_REQUESTS, fetch_in_parallel, prefetch
from spark_resources.stores.retry import delete_own_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from spark_resources.stores.place import Place

ROWS_PER_FILE = 1_000_000
BYTES_PER_FILE = 256 << 20  # of rows in memory: far less than may be read from one file (`records.parquet_files`)
BATCH_ROWS = 50_000
BYTES_PER_TASK = 1 << 18  # of files: enough work for a separate task
MAX_FILES_ON_DRIVER = 8  # read concurrently by the driver, if together they are no larger than BYTES_PER_TASK
LIST_NAME = "_files.json"


class DatasetName(TypedDict):
    """A dataset as a record names it: its folder, the hash of its list of files, and its row and byte counts."""

    folder: str
    sha256: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class File:
    """One Parquet file of a dataset; `name` is relative to its folder, `size` in bytes, `sha256` in hex."""

    name: str
    rows: Count
    size: Count
    sha256: str


@dataclass(frozen=True, slots=True)
class _FileList(Record):
    """The content of `_files.json`."""

    files: AsInJson[tuple[AsInJson[File], ...]]

    def verify(self, data: bytes) -> None:
        if any("/" in file.name for file in self.files):
            raise ValueError("it names a file in another folder")

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(f"{where} is not a valid list of files ({why}). Make a new mark.")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A finished dataset: the key of its folder (with a trailing slash) and its files."""

    folder: str
    files: tuple[File, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def files_json(self) -> bytes:
        """The bytes of `_files.json`: canonical, so that their hash identifies the dataset's exact content."""
        return json.dumps({"files": [asdict(file) for file in self.files]}, sort_keys=True, indent=1).encode()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.files_json()).hexdigest()

    def name_for_record(self) -> DatasetName:
        return DatasetName(folder=self.folder, sha256=self.sha256, rows=self.rows, bytes=self.size)


# --- writing --------------------------------------------------------------------------------------------------------

Producer: TypeAlias = Callable[[Batches, TaskReport], Batches]


@dataclass(frozen=True, slots=True)
class Output:
    """One folder that a task writes its rows to: `encode` returns a file's bytes and its number of rows."""

    folder: str
    suffix: str
    encode: Callable[[pa.Table], tuple[bytes, int]]


def parquet_output(folder: str, schema: pa.Schema) -> Output:
    """An output of Parquet files with only the columns of `schema`."""

    def encode(table: pa.Table) -> tuple[bytes, int]:
        return parquet_bytes(table.select(schema.names).cast(schema)), len(table)

    return Output(folder, ".parquet", encode)


def where_not_null(column: str, output: Output) -> Output:
    """This output, limited to rows whose `column` is not null."""

    def encode(table: pa.Table) -> tuple[bytes, int]:
        rows = pa.Table.from_batches(filter(len, map(drop_nulls, table.to_batches())), table.schema)
        return output.encode(rows) if len(rows) else (b"", 0)

    def drop_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column(column)
        if values.null_count in (0, len(values)):  # without a copy
            return batch.slice(0, len(values) - values.null_count)
        return batch.filter(pc.is_valid(values))

    return Output(output.folder, output.suffix, encode)


def parquet_bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


_FILE_SCHEMA = pa.schema(
    [
        ("output", pa.int64()),  # index in the list of outputs; -1 for the report of a task
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("size", pa.int64()),
        ("sha256", pa.string()),
        ("report", pa.string()),
    ]
)


def write_dataset(df: DataFrame, place: Place, folder: str, schema: pa.Schema) -> Dataset:
    """Write a DataFrame as Parquet files of up to about a million rows; existing files in the folder are removed first.

    Only the columns of `schema` are written. Only the list of files is collected on the driver.
    """
    return write_outputs(df.select(*schema.names), _unchanged, place, [parquet_output(folder, schema)])[0][0]


def write_produced(
    tasks: Rows, produce: Producer, place: Place, folder: str, schema: pa.Schema
) -> tuple[Dataset, TaskReport]:
    """Write the rows that `produce` yields for each task, without passing them through the JVM.

    Returns the dataset, and the sum of the reports.
    """
    datasets, report = write_outputs(tasks, produce, place, [parquet_output(folder, schema)])
    return datasets[0], report


def write_outputs(
    tasks: Rows, produce: Producer, place: Place, outputs: Sequence[Output]
) -> tuple[list[Dataset], TaskReport]:
    """Write the rows that `produce` yields to several folders in one pass.

    `produce` gets the batches of a partition and a report to fill, and yields batches. Returns a dataset for each
    output, and the sum of the reports.
    """
    list(fetch_in_parallel(outputs, lambda output: remove_leftovers(place, output.folder)))

    def run(batches: Batches) -> Batches:
        report = TaskReport()
        yield from _write_files(produce(batches, report), place, outputs)
        yield _row(-1, File("", 0, 0, ""), report.to_json())

    rows = collected(tasks, run, _FILE_SCHEMA).to_pylist()
    total = TaskReport.summed(row["report"] for row in rows if row["output"] < 0)

    def finish(numbered_output: tuple[int, Output]) -> Dataset:
        number, output = numbered_output
        files = [File(row["name"], row["rows"], row["size"], row["sha256"]) for row in rows if row["output"] == number]
        return finish_dataset(place, output.folder, files)

    return list(fetch_in_parallel(enumerate(outputs), finish)), total


def finish_dataset(place: Place, folder: str, files: Sequence[File]) -> Dataset:
    """Write the list of files, and return the dataset, which exists from then on."""
    dataset = Dataset(folder, tuple(sorted(files, key=lambda file: file.name)))
    place.store().write(folder + LIST_NAME, dataset.files_json())
    return dataset


def write_rows(place: Place, folder: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> Dataset:
    """Write a small dataset from the driver: rows that it has anyway, such as verdicts on commits, or none at all."""
    remove_leftovers(place, folder)
    return _write_table(place, folder, pa.Table.from_pylist(list(rows), schema=schema))


def write_table(place: Place, folder: str, table: pa.Table) -> Dataset:
    """Write a table that the driver has; without rows, the dataset has no file."""
    remove_leftovers(place, folder)
    return _write_table(place, folder, table)


def _write_table(place: Place, folder: str, table: pa.Table) -> Dataset:
    batches = chain.from_iterable(map(_pieces, table.combine_chunks().to_batches()))
    pieces = (pa.Table.from_batches([batch]) for batch in batches)
    files = [
        write_file(place, folder, f"part-{number:05}.parquet", parquet_bytes(piece), len(piece))
        for number, piece in enumerate(pieces)
    ]
    return finish_dataset(place, folder, files)


def _unchanged(batches: Batches, _: TaskReport) -> Batches:
    return batches


def _write_files(batches: Batches, place: Place, outputs: Sequence[Output]) -> Batches:
    """Inside a task: write its rows to every output, and yield a row for each file."""
    stem, number, rows_pending, bytes_pending = task_name(), 0, 0, 0
    pending: list[pa.RecordBatch] = []

    def flush() -> Batches:
        table = pa.Table.from_batches(pending)
        with ThreadPoolExecutor(len(outputs)) as pool:  # a file is written while the next one is encoded
            writes = []
            for output_index, output in enumerate(outputs):
                data, rows = output.encode(table)
                if rows:
                    name = f"{stem}-{number:03d}{output.suffix}"
                    writes.append((output_index, pool.submit(write_file, place, output.folder, name, data, rows)))
        for output_index, write in writes:
            yield _row(output_index, write.result(), "")

    for piece in chain.from_iterable(map(_pieces, batches)):
        pending.append(piece)
        rows_pending, bytes_pending = rows_pending + piece.num_rows, bytes_pending + piece.nbytes
        if rows_pending >= ROWS_PER_FILE or bytes_pending >= BYTES_PER_FILE:
            yield from flush()
            number, pending, rows_pending, bytes_pending = number + 1, [], 0, 0
    if rows_pending:
        yield from flush()


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in pieces of about BYTES_PER_FILE at most; nothing if it has none."""
    rows = max(batch.num_rows * BYTES_PER_FILE // max(batch.nbytes, 1), 1)
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _row(output: int, file: File, report: str) -> pa.RecordBatch:
    values = [output, file.name, file.rows, file.size, file.sha256, report]
    return pa.RecordBatch.from_arrays(
        [pa.array([value], type=field.type) for value, field in zip(values, _FILE_SCHEMA, strict=True)],
        schema=_FILE_SCHEMA,
    )


def write_file(place: Place, folder: str, name: str, data: bytes, rows: int) -> File:
    """Write one file, which belongs to the dataset only after the list of files has been written."""
    place.store().write(folder + name, data)
    return File(name, rows, len(data), hashlib.sha256(data).hexdigest())


def remove_leftovers(place: Place, folder: str) -> None:
    """Delete files that an unfinished attempt left directly in a folder of a mark (never called for a finished one).

    Raises `DamagedData` if one can't be deleted.
    """
    store = place.store()
    for page in store.pages(folder, delimiter="/"):
        failed = delete_own_files(store, [listed.key for listed in page.objects])
        if failed:
            raise DamagedData(
                f"{failed[0].key} in {store.where} was probably left by an earlier attempt and can't be "
                f"deleted ({failed[0].code}). Grant lakegc permission to delete under _lakefs/retention/gc/, and run "
                "the same command again.",
                invariant=12,
            )


# --- reading --------------------------------------------------------------------------------------------------------


def open_dataset(place: Place, folder: str, *, sha256: str | None = None) -> Dataset:
    """The dataset in a folder. Raises `DamagedData` if its list of files is missing or invalid, or has another hash."""
    store = place.store()
    try:
        data = store.read(folder + LIST_NAME)
    except NotFound as error:
        raise DamagedData(
            f"{folder} in {store.where} has no {LIST_NAME}: the dataset was never finished, or its list was lost. Make "
            "a new mark.",
            invariant=12,
        ) from error
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise DamagedData(
            f"{folder}{LIST_NAME} in {store.where} was changed after it was written. Make a new mark.", invariant=12
        )
    return Dataset(folder, _FileList.from_json(data, f"{folder}{LIST_NAME} in {store.where}").files)


def read_dataset(spark: SparkSession, place: Place, dataset: Dataset, schema: pa.Schema) -> DataFrame:
    """The rows of a dataset, read by the executors, each file verified against the list."""
    return read_datasets(spark, place, [dataset], schema)


def read_datasets(
    spark: SparkSession,
    place: Place,
    datasets: Sequence[Dataset],
    schema: pa.Schema,
    *,
    select: Callable[[pa.Table], pa.Table] = lambda table: table,
) -> DataFrame:
    """The rows of several datasets as one DataFrame: those that `select` returns for each file."""
    return as_frame(read_rows(lambda: spark, place, datasets, schema, select, schema))


def read_rows(
    spark: Callable[[], SparkSession],
    place: Place,
    datasets: Sequence[Dataset],
    schema: pa.Schema,
    change: Callable[[pa.Table], pa.Table],
    changed_schema: pa.Schema,
) -> Rows:
    """The rows of all files, verified and passed through `change`, which turns `schema` into `changed_schema`."""
    files = [(dataset.folder, file) for dataset in datasets for file in dataset.files]

    def read(batches: Batches) -> Batches:
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            folder, file = files[number]
            yield from change(read_file(place, folder, file, schema)).to_batches(max_chunksize=100_000)

    return mapped(_file_tasks(spark, [file for _, file in files]), read, changed_schema)


def _file_tasks(spark: Callable[[], SparkSession], files: Sequence[File]) -> Tasks:
    """The positions of these files: on the driver if they are few and small, otherwise in up to four tasks per core."""
    positions, size = pa.table({"file": pa.array(range(len(files)), pa.int64())}), sum(file.size for file in files)
    if size <= BYTES_PER_TASK and len(files) <= MAX_FILES_ON_DRIVER:
        return tasks_from_rows(spark, positions, batch_size=1, max_on_driver=MAX_FILES_ON_DRIVER)
    cores = spark().sparkContext.defaultParallelism
    tasks = min(len(files), 4 * cores, max(cores, size // BYTES_PER_TASK))
    return tasks_from_rows(spark, positions, batch_size=-(-len(files) // tasks), max_on_driver=0)


def first_rows(place: Place, dataset: Dataset, schema: pa.Schema, rows: int) -> list[dict[str, Any]]:
    """Up to `rows` rows from the first file of a dataset, for display, read without Spark."""
    if not dataset.files:
        return []
    sample: list[dict[str, Any]] = read_file(place, dataset.folder, dataset.files[0], schema).slice(0, rows).to_pylist()
    return sample


def all_rows(place: Place, dataset: Dataset, schema: pa.Schema) -> list[dict[str, Any]]:
    """All rows of a dataset that fits into one process, such as verdicts on commits, read without Spark."""
    tables = (_table_in(data, place, dataset.folder, file, schema) for file, data in _files_of(place, dataset))
    return [row for table in tables for row in table.to_pylist()]


def all_batches(place: Place, dataset: Dataset, schema: pa.Schema, *, rows: int = BATCH_ROWS) -> Iterator[pa.Table]:
    """All rows of a dataset in batches, for work that is faster in one process than distributed."""
    for file, data in _files_of(place, dataset):
        yield from _batches_in(data, place, dataset.folder, file, schema, rows)


def _files_of(place: Place, dataset: Dataset) -> Iterator[tuple[File, bytes]]:
    """Each file of a dataset with its bytes, fetched in parallel. Raises as `verified_bytes` does."""
    largest = max((file.size for file in dataset.files), default=0)
    return prefetch(
        dataset.files, partial(verified_bytes, place, dataset.folder), CONCURRENT_REQUESTS, expected_size=largest
    )


def read_file(place: Place, folder: str, file: File, schema: pa.Schema) -> pa.Table:
    """One verified Parquet file. Raises `DamagedData` if it is missing, or isn't the file that was written."""
    return _table_in(verified_bytes(place, folder, file), place, folder, file, schema)


def _table_in(data: bytes, place: Place, folder: str, file: File, schema: pa.Schema) -> pa.Table:
    try:
        table = parquet_rows(data)
        if table.num_rows == file.rows and table.schema.names == schema.names:
            return table.cast(schema)
        actual = f"it has {plural(table.num_rows, 'row')} of {', '.join(table.schema.names)}"
    except (pa.ArrowException, ValueError) as error:
        actual = str(error)
    raise _mismatch_error(place, folder, file, schema, actual)


def file_batches(
    place: Place, folder: str, file: File, schema: pa.Schema, *, rows: int = BATCH_ROWS, columns: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """One verified Parquet file in batches of `rows` rows, for callers that don't keep them.

    Yields all columns if `columns` is empty. Raises as `read_file` does.
    """
    yield from _batches_in(verified_bytes(place, folder, file), place, folder, file, schema, rows, columns)


def _batches_in(
    data: bytes, place: Place, folder: str, file: File, schema: pa.Schema, rows: int, columns: Sequence[str] = ()
) -> Iterator[pa.Table]:
    wanted = list(columns or schema.names)
    try:
        with reading_errors(), open_parquet(data) as parquet:
            names, count = parquet.schema_arrow.names, parquet.metadata.num_rows
        if (names, count) != (schema.names, file.rows):
            raise ValueError(f"it has {plural(count, 'row')} of {', '.join(names)}")
        types = pa.schema([schema.field(name) for name in wanted])
        for batch in parquet_batches(data, rows=rows, columns=wanted):
            yield batch.select(wanted).cast(types)
    except (pa.ArrowException, ValueError) as error:
        raise _mismatch_error(place, folder, file, schema, str(error)) from error


def verified_bytes(place: Place, folder: str, file: File) -> bytes:
    """The bytes of a dataset's file. Raises `DamagedData` if it is missing, or isn't the file that was written."""
    store = place.store()
    try:
        data = read_to_verify(store, folder + file.name)
    except NotFound as error:
        raise DamagedData(f"{folder}{file.name} in {store.where} is missing. Make a new mark.", invariant=3) from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamagedData(f"{folder}{file.name} in {store.where} isn't the file that was written. Make a new mark.")
    return data


def _mismatch_error(place: Place, folder: str, file: File, schema: pa.Schema, actual: str) -> DamagedData:
    return DamagedData(
        f"{folder}{file.name} in {place.store().where} doesn't match its file list, which expects "
        f"{plural(file.rows, 'row')} of {', '.join(schema.names)}: {actual}. Make a new mark."
    )
