"""Parquet in a namespace: a dataset is exactly the files that were written, or an error (invariants 3 and 12)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_resources.errors import DamagedData
from spark_resources.model import Namespace
from spark_resources.records import parquet_files
from spark_resources.spark import datasets
from spark_resources.spark.datasets import (
    Dataset,
    File,
    all_rows,
    finish_dataset,
    first_rows,
    open_dataset,
    parquet_bytes,
    parquet_output,
    read_dataset,
    read_file,
    write_dataset,
    write_file,
    write_outputs,
    write_rows,
)
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings

FOLDER = "_lakefs/retention/gc/lakegc/m1/a/"
SCHEMA = pa.schema([pa.field("address", pa.string(), nullable=False), pa.field("size", pa.int64())])
ROWS = [{"address": "data/é\n", "size": 2**60}, {"address": "data/b", "size": None}, {"address": "", "size": 0}]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The namespace of a repository, in a folder."""
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The dataset's folder."""
    return tmp_path / "lake" / FOLDER


@pytest.fixture
def dataset(place: Place) -> Dataset:
    """A dataset with three rows in two files."""
    files = [
        write_file(place, FOLDER, name, parquet_bytes(table(rows)), len(rows))
        for name, rows in (("b.parquet", ROWS[:1]), ("a.parquet", ROWS[1:]))
    ]
    return finish_dataset(place, FOLDER, files)


def table(rows: Sequence[Any], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def rewrite(place: Place, dataset: Dataset, other: pa.Table, **changed: Any) -> Dataset:
    """Replace the dataset's first file and its entry in the list of files, except for the given fields."""
    data = parquet_bytes(other)
    place.store().write(FOLDER + dataset.files[0].name, data)
    file = File(dataset.files[0].name, dataset.files[0].rows, len(data), hashlib.sha256(data).hexdigest())
    return finish_dataset(place, FOLDER, [replace(file, **changed), *dataset.files[1:]])


# --- intact ones --


def test_a_dataset_is_read_back_as_written(place: Place, dataset: Dataset) -> None:
    """Rows come in the order of the files' names, and texts are unchanged to the byte."""
    opened = open_dataset(place, FOLDER, sha256=dataset.sha256)

    assert opened == dataset
    assert [file.name for file in opened.files] == ["a.parquet", "b.parquet"]
    assert all_rows(place, opened, SCHEMA) == [*ROWS[1:], ROWS[0]]
    assert first_rows(place, opened, SCHEMA, 1) == [ROWS[1]]
    assert (opened.rows, opened.size) == (3, sum(file.size for file in dataset.files))


def test_an_empty_dataset_is_read_back_as_empty(place: Place, spark: SparkSession) -> None:
    """An empty dataset has no files, but it has the columns of its schema."""
    write_rows(place, FOLDER, [], SCHEMA)

    opened = open_dataset(place, FOLDER)

    assert (opened.rows, opened.files) == (0, ())
    assert all_rows(place, opened, SCHEMA) == first_rows(place, opened, SCHEMA, 9) == []
    assert read_dataset(spark, place, opened, SCHEMA).schema.names == SCHEMA.names


def test_executors_write_and_read_every_row_once(place: Place, folder: Path, spark: SparkSession) -> None:
    """The dataset has one file for each task with rows."""
    numbers = spark.range(0, 1000, 1, 3).selectExpr("concat('data/', id) address", "id size", "'x' other")
    nothing = spark.range(0, 0, 1, 1).selectExpr("'' address", "id size", "'' other")

    written = write_dataset(numbers.union(nothing), place, FOLDER, SCHEMA)

    frame = read_dataset(spark, place, open_dataset(place, FOLDER, sha256=written.sha256), SCHEMA)
    assert {(row["address"], row["size"]) for row in frame.collect()} == {(f"data/{n}", n) for n in range(1000)}
    assert (written.rows, len(written.files), frame.count()) == (1000, 3, 1000)
    assert {path.name for path in folder.iterdir()} == {"_files.json", *(file.name for file in written.files)}


def test_rows_with_long_texts_are_written_to_files_that_are_small_enough_to_be_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million rows with long paths would otherwise exceed the limit on the memory of one file's rows, so that the
    file could never be read again."""
    limit = 100_000
    monkeypatch.setattr(parquet_files, "MAX_BYTES", limit)
    monkeypatch.setattr(datasets, "BYTES_PER_FILE", limit // 4)
    rows = [{"address": f"data/{number:04}/{'x' * 1000}", "size": number} for number in range(300)]
    batches = [*table(rows[:200]).to_batches(), *table([]).to_batches(), *table(rows[200:]).to_batches(10)]

    (written,), _ = write_outputs(
        tasks_from_rows(no_spark, pa.table({"task": [1]}), batch_size=1),
        lambda *_: iter(batches),
        place,
        [parquet_output(FOLDER, SCHEMA)],
    )

    for dataset in (written, write_rows(place, FOLDER + "part/", rows, SCHEMA)):
        assert len(dataset.files) > len(rows) * 1000 // limit
        assert all_rows(place, dataset, SCHEMA) == rows


def no_spark() -> SparkSession:
    raise AssertionError("a single task runs on the driver")


def test_files_of_an_earlier_attempt_are_ignored_and_removed(place: Place, folder: Path) -> None:
    """A file beside the listed ones isn't part of the dataset. Writing the dataset again removes it first."""
    write_rows(place, FOLDER, ROWS, SCHEMA)
    write_file(place, FOLDER, "part-left.parquet", parquet_bytes(table(ROWS)), len(ROWS))

    assert open_dataset(place, FOLDER).rows == len(ROWS)
    written = write_rows(place, FOLDER, ROWS[:1], SCHEMA)

    assert {path.name for path in folder.iterdir()} == {"_files.json", "part-00000.parquet"}
    assert all_rows(place, written, SCHEMA) == ROWS[:1]


def test_rewriting_a_dataset_leaves_neighboring_datasets_unchanged(place: Place) -> None:
    """One neighbor is in a folder below the dataset's, and the folder of the other has a name that begins in the same
    way."""
    for folder in (FOLDER, FOLDER + "part/", FOLDER.removesuffix("/") + "-b/"):
        write_rows(place, folder, ROWS, SCHEMA)

    write_rows(place, FOLDER, [], SCHEMA)

    assert open_dataset(place, FOLDER + "part/").rows == len(ROWS)
    assert open_dataset(place, FOLDER.removesuffix("/") + "-b/").rows == len(ROWS)


# --- unfinished and damaged ones --------------------------------------------------------------------------------------


def test_files_without_their_list_are_not_a_dataset(place: Place) -> None:
    """The list is written last, so without it the dataset is incomplete."""
    write_file(place, FOLDER, "a.parquet", parquet_bytes(table(ROWS)), len(ROWS))

    with pytest.raises(
        DamagedData, match=r"has no _files\.json: the dataset was never finished, or its list was lost"
    ) as damaged:
        open_dataset(place, FOLDER)

    assert damaged.value.invariant == 12


def test_a_failed_rewrite_leaves_no_dataset(place: Place) -> None:
    """The list of the earlier files is removed before new files are written, so that it never describes them."""
    write_rows(place, FOLDER, ROWS, SCHEMA)

    with pytest.raises(pa.ArrowException):
        write_rows(place, FOLDER, [{"address": "data/a", "size": "no number"}], SCHEMA)

    with pytest.raises(DamagedData, match=r"has no _files\.json"):
        open_dataset(place, FOLDER)


def test_a_changed_list_of_files_counts_as_damage(place: Place, folder: Path, dataset: Dataset) -> None:
    """Every byte counts, and a shorter list of intact files is damage as well."""
    shorter = Dataset(FOLDER, dataset.files[:1])
    for data in (shorter.files_json(), dataset.files_json() + b"\n", b""):
        (folder / "_files.json").write_bytes(data)

        with pytest.raises(DamagedData, match=r"_files.json in .* was changed after it was written") as damaged:
            open_dataset(place, FOLDER, sha256=dataset.sha256)
        assert damaged.value.invariant == 12


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"files": null}', b'{"files": [{"name": "a"}]}', b"\xff"])
def test_an_unreadable_list_of_files_counts_as_damage(
    place: Place, folder: Path, dataset: Dataset, data: bytes
) -> None:
    """An unreadable list is not read as a list of no files."""
    (folder / "_files.json").write_bytes(data)

    with pytest.raises(DamagedData, match=r"_files\.json in .* is not a valid list of files"):
        open_dataset(place, FOLDER)


def missing(file: Path) -> None:
    file.unlink()


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def exchanged(file: Path) -> None:
    file.write_bytes(file.with_name("b.parquet").read_bytes())


Harm = Callable[[Path], None]
HARMS = {missing: "is missing", **dict.fromkeys((truncated, flipped, emptied, exchanged), "isn't the file that was")}


@pytest.mark.parametrize("harm", HARMS)
def test_a_missing_or_damaged_file_raises_an_error_and_never_yields_fewer_rows(
    place: Place, folder: Path, dataset: Dataset, harm: Harm
) -> None:
    """The error names the file."""
    harm(folder / "a.parquet")

    for use in (
        lambda: all_rows(place, dataset, SCHEMA),
        lambda: first_rows(place, dataset, SCHEMA, 1),
        lambda: read_file(place, FOLDER, dataset.files[0], SCHEMA),
    ):
        with pytest.raises(DamagedData, match=rf"{FOLDER}a\.parquet in .* {HARMS[harm]}"):
            use()


def test_a_file_that_an_executor_finds_missing_stops_the_job(
    place: Place, folder: Path, dataset: Dataset, spark: SparkSession
) -> None:
    """On the driver, the error has the same class and names the file."""
    missing(folder / "a.parquet")

    with pytest.raises(DamagedData, match=r"a\.parquet in .* is missing"), errors_from_executors():
        read_dataset(spark, place, dataset, SCHEMA).collect()


OTHER_COLUMNS = {
    "one more": table([{**row, "more": 1} for row in ROWS[1:]], SCHEMA.append(pa.field("more", pa.int64()))),
    "one fewer": table(ROWS[1:]).select(["address"]),
    "other name": table(ROWS[1:]).rename_columns(["path", "size"]),
    "other order": table(ROWS[1:]).select(["size", "address"]),
    "other type": pa.table({"address": ["a", "b"], "size": ["many", "few"]}),
    "nested": pa.table({"address": [["a"], ["b"]], "size": [1, 2]}),
    "a null in a required column": pa.table({"address": [None, "b"], "size": [1, 2]}),
}


@pytest.mark.parametrize("what", OTHER_COLUMNS)
def test_a_file_with_different_columns_counts_as_damage(place: Place, dataset: Dataset, what: str) -> None:
    """The file is refused even though its hash is the listed one."""
    other = rewrite(place, dataset, OTHER_COLUMNS[what])

    with pytest.raises(
        DamagedData, match=r"a\.parquet in .* doesn't match its file list, which expects 2 rows of address, size"
    ):
        all_rows(place, other, SCHEMA)


@pytest.mark.parametrize("rows", [1, 3, 0, -1])
def test_a_file_with_a_different_number_of_rows_counts_as_damage(place: Place, dataset: Dataset, rows: int) -> None:
    """The list says how many rows each file has."""
    other = rewrite(place, dataset, table(ROWS[1:]), rows=rows)

    with pytest.raises(
        DamagedData, match=rf"a\.parquet in .* doesn't match its file list, which expects {rows} rows? of"
    ):
        all_rows(place, other, SCHEMA)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"\x00" * 100 + b"PAR1", b"address,size\na,1\n"])
def test_bytes_that_are_not_parquet_count_as_damage(place: Place, dataset: Dataset, data: bytes) -> None:
    """The file is refused even though its hash is the listed one."""
    place.store().write(FOLDER + "a.parquet", data)
    file = File("a.parquet", 2, len(data), hashlib.sha256(data).hexdigest())

    with pytest.raises(DamagedData, match=r"a\.parquet in .* doesn't match its file list"):
        read_file(place, FOLDER, file, SCHEMA)


def test_the_hash_of_a_dataset_does_not_depend_on_the_order_in_which_its_files_were_written(
    place: Place, dataset: Dataset
) -> None:
    """The hash depends on the names, rows, sizes and bytes of the files."""
    files = dataset.files

    assert finish_dataset(place, FOLDER, files[::-1]).sha256 == finish_dataset(place, FOLDER, files).sha256
    for change in ({"name": "c.parquet"}, {"rows": 9}, {"size": 9}, {"sha256": "0" * 64}):
        assert finish_dataset(place, FOLDER, [replace(files[0], **change), files[1]]).sha256 != dataset.sha256
    assert json.loads(dataset.files_json()) == {"files": [asdict(file) for file in files]}
