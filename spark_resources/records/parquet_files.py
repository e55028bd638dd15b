"""Parquet files that others could have written, read with a limit on memory and with all text checked.

A column can repeat one long text in a few bytes, so a file of some kilobytes can have gigabytes of rows; and Arrow's
reader doesn't check that text is UTF-8, so an error would come later, from whatever uses the text first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from spark_resources.errors import shortened

#: The maximum size of the rows that are in memory at once: of a whole file, or of one batch. The same as for a table.
MAX_BYTES = 1 << 30
_ROWS_PER_BATCH = 512  # decoded before their size is known; fewer would be slower


def parquet_rows(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a file, or only these columns. Raises `ValueError` with the reason if it can't be read."""
    batches = list(parquet_batches(data, rows=sys.maxsize, columns=columns))
    if batches:
        return batches[0]
    with reading_errors(), open_parquet(data) as file:
        schema = file.schema_arrow
    return (schema if columns is None else pa.schema(field for field in schema if field.name in columns)).empty_table()


def parquet_batches(data: bytes, *, rows: int, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """All rows of a file in batches of about `rows` rows. Raises as `parquet_rows` does."""
    with reading_errors(), open_parquet(data) as file:
        pending: list[pa.RecordBatch] = []
        count = size = 0
        # without Arrow's threads: a process that ends right after they start is sometimes aborted
        for batch in map(_decoded, file.iter_batches(min(rows, _ROWS_PER_BATCH), columns=columns, use_threads=False)):
            if batch.num_rows < 0:  # len() would be an error in Python
                raise ValueError("it states a negative number of rows")
            pending.append(batch)
            count, size = count + batch.num_rows, size + batch.nbytes
            if size > MAX_BYTES:
                raise ValueError(f"its rows take more than {MAX_BYTES:,} bytes of memory")
            if count >= rows:
                yield _valid(pa.Table.from_batches(pending))
                pending, count, size = [], 0, 0
        if pending:
            yield _valid(pa.Table.from_batches(pending))


def open_parquet(data: bytes) -> pq.ParquetFile:
    """The file's metadata. Raises Arrow's errors (see `reading_errors`)."""
    return pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)


@contextmanager
def reading_errors() -> Iterator[None]:
    """Turns every error of a file that can't be read into a `ValueError` with a short reason on one line."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(shortened(" ".join(str(error).split()), 300)) from error


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without dictionaries, which would be decoded later, all rows at once."""
    if not any(pa.types.is_dictionary(column.type) for column in batch):
        return batch
    columns = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _valid(table: pa.Table) -> pa.Table:
    table.validate(full=True)
    return table.combine_chunks()
