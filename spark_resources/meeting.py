"""Tables that meet by address: all rows of one address come to one task, in lumps and not one by one.

Spark sends rows around one at a time, and the JVM takes and gives each of them: for millions of short rows that is most
of the work of a join. Here tasks sort the rows of a file into buckets by the hash of the address and send each bucket's
share as one piece of Arrow, so Spark moves a few thousand large rows; what is done with a bucket is Arrow's, too. A
bucket holds so many rows that a task can, however large the tables are, and what doesn't fit meanwhile is on disk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.datasets import Batches, Dataset, Place, arrow_to_spark, read_file
from spark_resources.errors import LakegcError
from spark_resources.executors import on_executor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_A_BUCKET = 500_000
ROWS_WORTH_A_TASK = 25_000
_LUMPS = pa.schema(
    [
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("side", pa.int32(), nullable=False),
        pa.field("hashed", pa.int64(), nullable=False),
        pa.field("rows", pa.binary(), nullable=False),
    ]
)
_SAMPLE = ("", "data/s/1", "data/gg4hubj2cdk0000003eg/d8vt40r2cdk0000003f0", "data/é\n")

Met: TypeAlias = Mapping[str, pa.Table]
"""The rows of each side, by its name."""


@dataclass(frozen=True, slots=True)
class Side:
    """Datasets of one schema, of which some columns are wanted, the address among them; with `distinct`, only the
    address, and most of what a file has many times just once."""

    name: str
    datasets: tuple[Dataset, ...]
    schema: pa.Schema
    distinct: bool = False

    @property
    def wanted(self) -> pa.Schema:
        return pa.schema([self.schema.field("address")]) if self.distinct else self.schema

    def read(self, place: Place, folder: str, file_number: int, dataset: Dataset) -> pa.Table:
        found = read_file(place, folder, dataset.files[file_number], self.schema)
        return pa.table([pc.unique(found["address"])], schema=self.wanted) if self.distinct else found


def meet(
    spark: SparkSession, place: Place, sides: Sequence[Side], settle: Callable[[Met], Batches], schema: pa.Schema
) -> DataFrame:
    """What `settle` makes of all sides, bucket by bucket: rows of `schema`. Each file is verified.

    `settle` gets every row of the addresses that it gets any row of; it is called once a task, maybe with no rows.
    What is collected raises `DamagedData` for a file that isn't the one that was written, `LakegcError` where machines
    hash in different ways.
    """
    files = [
        (number, dataset, file)
        for number, side in enumerate(sides)
        for dataset in side.datasets
        for file in range(len(dataset.files))
    ]
    cores = spark.sparkContext.defaultParallelism
    rows = sum(dataset.rows for side in sides for dataset in side.datasets)
    buckets = buckets_for(rows, cores)

    def share(batches: Batches) -> Batches:
        for task in (number for batch in batches for number in batch.column(0).to_pylist()):
            number, dataset, file = files[task]
            found = sides[number].read(place, dataset.folder, file, dataset)
            yield from lumps(found, number, buckets)

    def gather(batches: Batches) -> Batches:
        pieces: dict[str, list[pa.Table]] = {side.name: [] for side in sides}
        for batch in batches:
            _, numbers, hashed, packed = batch.columns
            check_hashed_alike(hashed)
            for number, lump in zip(numbers.to_pylist(), packed, strict=True):
                pieces[sides[number].name].append(pa.ipc.open_stream(lump.as_buffer()).read_all())
        empty = {side.name: side.wanted.empty_table() for side in sides}
        yield from settle({name: pa.concat_tables([empty[name], *some]) for name, some in pieces.items()})

    tasks = spark.range(0, len(files), 1, max(1, min(len(files), 4 * cores)))
    shared = tasks.mapInArrow(on_executor(share), arrow_to_spark(_LUMPS))
    return _by_bucket(shared, buckets).mapInArrow(on_executor(gather), arrow_to_spark(schema))


def buckets_for(rows: int, cores: int) -> int:
    """So many that a task can hold one, and where rows are worth it, one for every core."""
    return max(-(-rows // ROWS_A_BUCKET), min(cores, rows // ROWS_WORTH_A_TASK), 1)


def lumps(table: pa.Table, side: int, buckets: int) -> Iterator[pa.RecordBatch]:
    """The rows of a table by bucket, each bucket's in one piece (bucket, side, rows)."""
    for at in range(0, len(table), ROWS_A_BUCKET):
        some = table.slice(at, ROWS_A_BUCKET).combine_chunks()
        of_rows = bucket_of(some["address"], buckets)
        ordered = some.take(pa.array(np.argsort(of_rows, kind="stable")))
        ends = np.cumsum(np.bincount(of_rows, minlength=buckets))
        found = [(bucket, start, end) for bucket, (start, end) in enumerate(zip([0, *ends], ends, strict=False))]
        there = [(bucket, ordered.slice(start, end - start)) for bucket, start, end in found if end > start]
        arrays = (
            pa.array([bucket for bucket, _ in there], pa.int32()),
            pa.array([side] * len(there), pa.int32()),
            pa.array([how_hashed()] * len(there), pa.int64()),
            pa.array([_packed(piece) for _, piece in there], pa.binary()),
        )
        yield pa.RecordBatch.from_arrays(list(arrays), schema=_LUMPS)


def bucket_of(addresses: pa.ChunkedArray, buckets: int) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The bucket of each address, the same in every process."""
    import pandas as pd

    kind = np.uint16 if buckets < 1 << 16 else np.uint32  # the smaller one is sorted by its digits
    if buckets == 1:
        return np.zeros(len(addresses), kind)
    hashes: npt.NDArray[np.uint64] = pd.util.hash_array(addresses.to_numpy(), categorize=False)
    return (hashes % np.uint64(buckets)).astype(kind)


@functools.cache
def how_hashed() -> int:
    """A number for the way in which this process hashes."""
    import pandas as pd

    return int(pd.util.hash_array(np.array(_SAMPLE, dtype=object), categorize=False).sum() >> np.uint64(1))


def check_hashed_alike(hashed: pa.Array) -> None:
    """Raise `LakegcError` where another process hashed otherwise: then rows of one address would miss each other, and
    what is live would look like garbage."""
    if any(one != how_hashed() for one in pc.unique(hashed).to_pylist()):
        raise LakegcError(
            "two machines of the cluster hash addresses in different ways, so lakegc can't compare what they read. "
            "Give all of them the very same packages, and run it again; nothing was marked."
        )


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _by_bucket(shared: DataFrame, buckets: int) -> DataFrame:
    """A task a bucket; some have several and some none where Spark is too old to be told which."""
    if buckets == 1:
        return shared.coalesce(1)
    by_id = getattr(shared, "repartitionById", None)
    return by_id(buckets, "bucket") if by_id is not None else shared.repartition(buckets, "bucket")
