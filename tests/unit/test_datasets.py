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

from spark_resources.datasets import (
    Dataset,
    File,
    Place,
    all_rows,
    finish_dataset,
    first_rows,
    open_dataset,
    parquet_bytes,
    read_dataset,
    read_distinct,
    read_file,
    write_dataset,
    write_file,
    write_rows,
)
from spark_resources.errors import DamagedData
from spark_resources.executors import errors_from_executors
from spark_resources.model import Namespace
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
    """Where the dataset lies."""
    return tmp_path / "lake" / FOLDER


@pytest.fixture
def dataset(place: Place) -> Dataset:
    """Three rows in two files."""
    files = [
        write_file(place, FOLDER, name, parquet_bytes(table(rows)), len(rows))
        for name, rows in (("b.parquet", ROWS[:1]), ("a.parquet", ROWS[1:]))
    ]
    return finish_dataset(place, FOLDER, files)


def table(rows: Sequence[Any], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def rewrite(place: Place, dataset: Dataset, other: pa.Table, **said: Any) -> Dataset:
    """The dataset with another first file that its list vouches for, but for what is said of it."""
    data = parquet_bytes(other)
    place.store().write(FOLDER + dataset.files[0].name, data)
    file = File(dataset.files[0].name, dataset.files[0].rows, len(data), hashlib.sha256(data).hexdigest())
    return finish_dataset(place, FOLDER, [replace(file, **said), *dataset.files[1:]])


# --- whole ones -----------------------------------------------------------------------------------------------------


def test_a_dataset_is_read_as_another(place: Place, dataset: Dataset) -> None:
    """What was written is read back, in the order of the files' names, with every byte of a text."""
    opened = open_dataset(place, FOLDER, sha256=dataset.sha256)

    assert opened == dataset
    assert [file.name for file in opened.files] == ["a.parquet", "b.parquet"]
    assert all_rows(place, opened, SCHEMA) == [*ROWS[1:], ROWS[0]]
    assert first_rows(place, opened, SCHEMA, 1) == [ROWS[1]]
    assert (opened.rows, opened.size) == (3, sum(file.size for file in dataset.files))


def test_an_empty_dataset_is_a_missing_one(place: Place, spark: SparkSession) -> None:
    """A dataset without rows is one, has no files, and is read as no rows of its schema."""
    write_rows(place, FOLDER, [], SCHEMA)

    opened = open_dataset(place, FOLDER)

    assert (opened.rows, opened.files) == (0, ())
    assert all_rows(place, opened, SCHEMA) == first_rows(place, opened, SCHEMA, 9) == []
    assert read_dataset(spark, place, opened, SCHEMA).schema.names == SCHEMA.names


def test_executors_lose_rows(place: Place, folder: Path, spark: SparkSession) -> None:
    """Executors write every row once, in as many files as tasks had rows, and read every row back."""
    numbers = spark.range(0, 1000, 1, 3).selectExpr("concat('data/', id) address", "id size", "'x' other")
    nothing = spark.range(0, 0, 1, 1).selectExpr("'' address", "id size", "'' other")

    written = write_dataset(numbers.union(nothing), place, FOLDER, SCHEMA)

    found = read_dataset(spark, place, open_dataset(place, FOLDER, sha256=written.sha256), SCHEMA)
    assert {(row["address"], row["size"]) for row in found.collect()} == {(f"data/{n}", n) for n in range(1000)}
    assert (written.rows, len(written.files), found.count()) == (1000, 3, 1000)
    assert {path.name for path in folder.iterdir()} == {"_files.json", *(file.name for file in written.files)}


def test_an_address_of_many_ranges_is_lost_with_its_copies(place: Place, spark: SparkSession) -> None:
    """Read without copies, a column has every value of every file, and nothing else."""
    names = [["data/a", "data/b", "data/a", "data/\u00e9"], ["data/b", "data/c"], []]
    files = []
    for number, some in enumerate(names):
        rows = table([{"address": name, "size": number} for name in some])
        files.append(write_file(place, FOLDER, f"{number}.parquet", parquet_bytes(rows), len(rows)))
    dataset = finish_dataset(place, FOLDER, files)

    read = read_distinct(spark, place, dataset, SCHEMA, "address")

    assert sorted(row["address"] for row in read.collect()) == ["data/a", "data/b", "data/b", "data/c", "data/\u00e9"]
    assert read.columns == ["address"]
    assert read_distinct(spark, place, Dataset(FOLDER, ()), SCHEMA, "address").collect() == []


def test_a_damaged_file_is_read_without_copies(
    place: Place, folder: Path, dataset: Dataset, spark: SparkSession
) -> None:
    """A file that isn't the one that was written stops this way of reading as it does any other."""
    (folder / dataset.files[0].name).write_bytes(b"PAR1")

    with pytest.raises(DamagedData), errors_from_executors():
        read_distinct(spark, place, dataset, SCHEMA, "address").collect()


def test_what_an_earlier_try_left_is_read(place: Place, folder: Path) -> None:
    """What lies beside the listed files is no part of the dataset, and writing it anew removes that first."""
    write_rows(place, FOLDER, ROWS, SCHEMA)
    write_file(place, FOLDER, "part-left.parquet", parquet_bytes(table(ROWS)), len(ROWS))

    assert open_dataset(place, FOLDER).rows == len(ROWS)
    written = write_rows(place, FOLDER, ROWS[:1], SCHEMA)

    assert {path.name for path in folder.iterdir()} == {"_files.json", "part-00000.parquet"}
    assert all_rows(place, written, SCHEMA) == ROWS[:1]


def test_removing_a_folder_removes_its_neighbours(place: Place) -> None:
    """A dataset that is written anew leaves those beside it and below it alone."""
    for folder in (FOLDER, FOLDER + "part/", FOLDER.removesuffix("/") + "-b/"):
        write_rows(place, folder, ROWS, SCHEMA)

    write_rows(place, FOLDER, [], SCHEMA)

    assert open_dataset(place, FOLDER + "part/").rows == len(ROWS)
    assert open_dataset(place, FOLDER.removesuffix("/") + "-b/").rows == len(ROWS)


# --- unfinished and damaged ones ------------------------------------------------------------------------------------


def test_an_unfinished_dataset_is_one(place: Place) -> None:
    """Files without a list are no dataset: the list is written last."""
    write_file(place, FOLDER, "a.parquet", parquet_bytes(table(ROWS)), len(ROWS))

    with pytest.raises(DamagedData, match=r"has no _files\.json: it was never finished, or lost") as damaged:
        open_dataset(place, FOLDER)

    assert damaged.value.invariant == 12


def test_a_second_try_that_stops_leaves_the_first_ones_list(place: Place) -> None:
    """While a dataset is written anew it isn't one, so a stopped second try can't pass for the first."""
    write_rows(place, FOLDER, ROWS, SCHEMA)

    with pytest.raises(pa.ArrowException):
        write_rows(place, FOLDER, [{"address": "data/a", "size": "no number"}], SCHEMA)

    with pytest.raises(DamagedData, match=r"has no _files\.json"):
        open_dataset(place, FOLDER)


def test_a_changed_list_is_believed(place: Place, folder: Path, dataset: Dataset) -> None:
    """A list that isn't the recorded one to the byte is damage, a shorter one of whole files, too."""
    shorter = Dataset(FOLDER, dataset.files[:1])
    for data in (shorter.listing(), dataset.listing() + b"\n", b""):
        (folder / "_files.json").write_bytes(data)

        with pytest.raises(DamagedData, match=r"_files.json in .* was changed after it was written") as damaged:
            open_dataset(place, FOLDER, sha256=dataset.sha256)
        assert damaged.value.invariant == 12


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"files": null}', b'{"files": [{"name": "a"}]}', b"\xff"])
def test_an_unreadable_list_is_empty(place: Place, folder: Path, dataset: Dataset, data: bytes) -> None:
    """A list that says something else than files is damage, not no files."""
    (folder / "_files.json").write_bytes(data)

    with pytest.raises(DamagedData, match=r"_files\.json in .* is not a list of files"):
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
def test_a_damaged_file_is_fewer_rows(place: Place, folder: Path, dataset: Dataset, harm: Harm) -> None:
    """A file that is missing, short, changed or another one is damage that names it, never fewer rows."""
    harm(folder / "a.parquet")

    for use in (
        lambda: all_rows(place, dataset, SCHEMA),
        lambda: first_rows(place, dataset, SCHEMA, 1),
        lambda: read_file(place, FOLDER, dataset.files[0], SCHEMA),
    ):
        with pytest.raises(DamagedData, match=rf"{FOLDER}a\.parquet in .* {HARMS[harm]}"):
            use()


def test_executors_read_a_damaged_file_as_fewer_rows(
    place: Place, folder: Path, dataset: Dataset, spark: SparkSession
) -> None:
    """What an executor finds damaged stops the job that reads it."""
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
    "nothing where something must be": pa.table({"address": [None, "b"], "size": [1, 2]}),
}


@pytest.mark.parametrize("what", OTHER_COLUMNS)
def test_other_columns_are_taken_for_these(place: Place, dataset: Dataset, what: str) -> None:
    """A file with other columns than the schema's is damage, even where its list vouches for its bytes."""
    other = rewrite(place, dataset, OTHER_COLUMNS[what])

    with pytest.raises(DamagedData, match=r"a\.parquet in .* is not what its list says, 2 rows of address, size"):
        all_rows(place, other, SCHEMA)


@pytest.mark.parametrize("rows", [1, 3, 0, -1])
def test_other_counts_are_believed(place: Place, dataset: Dataset, rows: int) -> None:
    """A file with more or fewer rows than its list says is damage."""
    other = rewrite(place, dataset, table(ROWS[1:]), rows=rows)

    with pytest.raises(DamagedData, match=rf"a\.parquet in .* is not what its list says, {rows} rows"):
        all_rows(place, other, SCHEMA)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"\x00" * 100 + b"PAR1", b"address,size\na,1\n"])
def test_no_parquet_is_no_rows(place: Place, dataset: Dataset, data: bytes) -> None:
    """Bytes that are no Parquet are damage, even where the list vouches for them."""
    place.store().write(FOLDER + "a.parquet", data)
    file = File("a.parquet", 2, len(data), hashlib.sha256(data).hexdigest())

    with pytest.raises(DamagedData, match=r"a\.parquet in .* is not what its list says"):
        read_file(place, FOLDER, file, SCHEMA)


def test_equal_datasets_have_other_hashes(place: Place, dataset: Dataset) -> None:
    """A dataset's hash names its files, rows and bytes: the order of writing is nothing, and everything else counts."""
    files = dataset.files

    assert finish_dataset(place, FOLDER, files[::-1]).sha256 == finish_dataset(place, FOLDER, files).sha256
    for change in ({"name": "c.parquet"}, {"rows": 9}, {"size": 9}, {"sha256": "0" * 64}):
        assert finish_dataset(place, FOLDER, [replace(files[0], **change), files[1]]).sha256 != dataset.sha256
    assert json.loads(dataset.listing()) == {"files": [asdict(file) for file in files]}
