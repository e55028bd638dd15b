"""Notes on the tables of other repositories: what the mark of any repository found in a table, for the marks of all
repositories.

Without them, each repository's first mark would read every table of the server: with N repositories, each table would
be read N times. Only signed notes are used (see `spark_resources.mark_store.table_notes`). Heads, rules and staged
objects are never noted: each mark reads them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.earlier_references import COMMITTED
from lakegc_assets.rules import table_notes
from lakegc_assets.rules.path_probes import SizeSet
from spark_resources.errors import LakegcError
from spark_resources.lakefs.ranges import full_addresses
from spark_resources.mark_store.mark import mark_folder
from spark_resources.mark_store.table_notes import read_table_notes, write_table_notes
from spark_resources.model import TABLE_NOTES
from spark_resources.spark.datasets import (
    Dataset,
    File,
    file_batches,
    finish_dataset,
    parquet_bytes,
    remove_leftovers,
    write_file,
)
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel

NOTES_PART, MERGED_PART = "table_notes", "merged_table_notes"
MAX_DATASETS = 4  # if its namespace has more, a mark merges them into one
ROWS_PER_BATCH, ROWS_WITH_SIZES = 1_000_000, 50_000
NOTED_COLUMNS = ("address", "address_type", "size")  # of a range


@dataclass(frozen=True, slots=True)
class AllTableNotes:
    """The notes of all repositories that a mark can read (TABLE_NOTES), each dataset with its namespace."""

    datasets: list[tuple[Place, Dataset]] = field(default_factory=list)

    @classmethod
    def read(cls, place: Place, others: Iterable[Place]) -> AllTableNotes:
        """The notes in these namespaces, as far as they can be read; empty without a signing key."""
        places = [place, *others] if place.seal is not None else []
        found = zip(places, fetch_in_parallel(places, read_table_notes), strict=True)
        return cls([(owner, dataset) for owner, datasets in found for dataset in datasets])

    def without_address(self, tables: pa.Array, place: Place) -> pa.Array:
        """Which of these tables (ids) certainly contain no full address in this namespace."""
        return self._tables(tables, "folders", lambda folders: table_notes.have_no_address_in(folders, place.namespace))

    def without_size(self, tables: pa.Array, sizes: SizeSet) -> pa.Array:
        """Which of these tables (ids) certainly contain no entry of these sizes."""
        return self._tables(tables, "sizes", lambda noted: table_notes.have_no_size_in(noted, sizes))

    def _tables(self, tables: pa.Array, column: str, is_wanted: Callable[[pa.Array], pa.Array]) -> pa.Array:
        """Which of these tables have a wanted value in a column. A table's notes say the same wherever they are, so one
        is enough."""
        found, undecided = [pa.array([], pa.string())], tables
        for place, dataset in self.datasets:
            if not len(undecided):
                break
            for rows in readable_rows(place, dataset, ("table_id", column)):
                noted = rows.filter(pc.and_(pc.is_in(rows["table_id"], undecided), pc.is_valid(rows[column])))
                if len(noted):
                    ids, values = (noted[name].combine_chunks() for name in noted.column_names)
                    found.append(ids.filter(is_wanted(values)))
                    undecided = undecided.filter(pc.invert(pc.is_in(undecided, value_set=ids)))
        return pc.unique(pa.concat_arrays(found))


def readable_rows(place: Place, dataset: Dataset, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Like `noted_rows`, but stops at a file that can't be read: a table without a note is simply read."""
    with suppress(LakegcError):
        yield from noted_rows(place, dataset, columns)


def noted_rows(place: Place, dataset: Dataset, columns: Sequence[str]) -> Iterator[pa.Table]:
    """These columns of a dataset of TABLE_NOTES, in batches. Raises `DamagedData`, and the store's errors."""
    rows = ROWS_WITH_SIZES if "sizes" in columns else ROWS_PER_BATCH
    for file in dataset.files:
        yield from file_batches(place, dataset.folder, file, TABLE_NOTES, rows=rows, columns=columns)


def note_on(table_id: str, entries: pa.RecordBatch | None) -> pa.RecordBatch:
    """The note on a verified table (TABLE_NOTES, one row). `entries` are those of a range (NOTED_COLUMNS); None for any
    other kind of table, which has neither addresses nor sizes."""
    folders: pa.Array | None = pa.array([], pa.string())
    sizes: pa.Array | None = pa.array([], pa.int64())
    if entries is not None:
        folders = table_notes.folders_of(full_addresses(entries.column("address"), entries.column("address_type"))[0])
        sizes = table_notes.sizes_of(entries.column("size"))
    row = {
        "table_id": table_id,
        "folders": None if folders is None else folders.to_pylist(),
        "sizes": None if sizes is None else sizes.to_pylist(),
    }
    return pa.RecordBatch.from_pylist([row], schema=TABLE_NOTES)


def add_notes(run: MarkRun, notes: StepNotes, written: Dataset, tables: pa.Array) -> None:
    """Add the notes that this mark wrote to those of its namespace. If they are then in more than MAX_DATASETS
    datasets, merges them into one, with one note for each of `tables` (the ids of the other repositories' tables)."""
    if not written.rows:
        return
    own_folder = mark_folder(run.mark.record.mark_id)  # may have notes of an interrupted attempt, too
    earlier = [dataset for dataset in read_table_notes(run.place) if not dataset.folder.startswith(own_folder)]
    datasets = [*earlier, written]
    if len(datasets) > MAX_DATASETS:
        datasets = [write_merged(run.place, run.mark.folder(COMMITTED, MERGED_PART), datasets, tables)]
        notes.add_dataset(datasets[0], MERGED_PART)
    write_table_notes(run.place, datasets)
    if (known := run.other_repositories.notes) is not None:
        known.datasets.append((run.place, written))


def write_merged(place: Place, folder: str, datasets: Sequence[Dataset], tables: pa.Array) -> Dataset:
    """Write one note for each of these tables (ids) that has any, leaving out what can't be read."""
    remove_leftovers(place, folder)
    files, missing = list[File](), tables
    for dataset in reversed(datasets):
        for rows in readable_rows(place, dataset, TABLE_NOTES.names):
            first = rows.filter(pc.is_in(rows["table_id"], value_set=missing))
            missing = missing.filter(pc.invert(pc.is_in(missing, value_set=first["table_id"])))
            if len(first):
                name = f"part-{len(files):05}.parquet"
                files.append(write_file(place, folder, name, parquet_bytes(first), len(first)))
    return finish_dataset(place, folder, files)
