"""Work on rows of the driver. A small amount is done on the driver itself, otherwise on the executors."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_resources.errors import DamagedData, LakegcError
from spark_resources.model import Namespace
from spark_resources.spark.datasets import all_rows, parquet_output, write_outputs
from spark_resources.spark.partitioning import tasks_from_ids
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.tasks import Batches, Tasks, as_frame, distinct_rows, moved_to_driver_if_few, to_dataframe
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings

NAMES = [f"n{number}" for number in range(5)]
RESULT = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("process", pa.int64())])
TEXTS = pa.schema([pa.field("text", pa.string())])
HERE = {"on the driver": 5, "on executors": 0}


@pytest.fixture(params=HERE.values(), ids=HERE)
def tasks(request: pytest.FixtureRequest, spark: SparkSession) -> Tasks:
    """Five names in five tasks."""
    return tasks_from_ids(lambda: spark, "name", NAMES, batch_size=1, max_on_driver=request.param)


def in_process(batches: Batches) -> Batches:
    """Each name with the process that handled it. A batch without rows comes first."""
    yield pa.RecordBatch.from_pylist([], RESULT)
    for batch in batches:
        yield pa.RecordBatch.from_pylist(
            [{"name": name, "process": os.getpid()} for name in batch.column(0).to_pylist()], RESULT
        )


def test_work_gives_the_same_rows_on_the_driver_and_on_executors(tasks: Tasks) -> None:
    """The result can be read as a DataFrame and as a table. The process id shows where the work was done."""
    table, rows = tasks.collected(in_process, RESULT), tasks.mapped(in_process, RESULT).collect()

    assert table.schema.names == RESULT.names
    assert sorted(table["name"].to_pylist()) == sorted(row["name"] for row in rows) == NAMES
    for processes in ({*table["process"].to_pylist()}, {row["process"] for row in rows}):
        assert (processes == {os.getpid()}) == tasks.is_on_driver


def test_tasks_run_on_executors_if_there_are_too_many_for_the_driver(spark: SparkSession) -> None:
    """The number of tasks decides, not the number of rows."""
    assert tasks_from_ids(lambda: spark, "name", NAMES, batch_size=5).is_on_driver
    assert tasks_from_ids(lambda: spark, "name", NAMES, batch_size=1, max_on_driver=5).is_on_driver
    assert not tasks_from_ids(lambda: spark, "name", NAMES, batch_size=1, max_on_driver=4).is_on_driver
    assert not tasks_from_ids(lambda: spark, "name", NAMES, batch_size=5, max_on_driver=0).is_on_driver


def test_work_on_the_driver_needs_no_session() -> None:
    """Such work can therefore be done while Spark starts."""

    def no_session() -> NoReturn:
        raise AssertionError("a session was requested")

    tasks = tasks_from_ids(no_session, "name", NAMES, batch_size=5)

    assert tasks.collected(in_process, RESULT)["name"].to_pylist() == NAMES


def test_work_without_rows_returns_no_rows(spark: SparkSession) -> None:
    tasks = tasks_from_ids(lambda: spark, "name", [], batch_size=1)

    assert tasks.collected(in_process, RESULT) == RESULT.empty_table()
    assert tasks.mapped(in_process, RESULT).collect() == []


@pytest.mark.parametrize("use", [Tasks.collected, lambda *rest: Tasks.mapped(*rest).collect()], ids=["table", "frame"])
def test_an_error_in_one_task_is_raised_with_its_class_and_message(tasks: Tasks, use: Callable[..., object]) -> None:
    """Work that failed has no result, rather than a smaller one."""

    def failing(batches: Batches) -> Batches:
        for batch in batches:
            if batch.column(0).to_pylist() == ["n3"]:
                raise DamagedData("table n3 is damaged")
            yield from in_process(iter([batch]))

    with pytest.raises(DamagedData, match="table n3 is damaged"), errors_from_executors():
        use(tasks, failing, RESULT)


def test_an_operating_system_error_is_reported_as_a_failed_task_with_its_message(tasks: Tasks) -> None:
    """A full disk is no bug in lakegc, wherever the task ran."""

    def full(batches: Batches) -> Batches:
        yield from in_process(batches)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LakegcError, match=r"task failed: OSError.*No space left on device"), errors_from_executors():
        tasks.collected(full, RESULT)


@pytest.mark.timeout(60)
def test_a_failed_task_on_the_driver_ends_the_others_at_their_next_batch(spark: SparkSession) -> None:
    """If one branch can't be read, nobody has to wait for the result of a different, large one."""
    begun = threading.Event()

    def one_fails_and_the_others_never_end(batches: Batches) -> Batches:
        [name] = next(batches).column(0).to_pylist()
        if name == "n3":
            assert begun.wait(30)
            raise DamagedData("table n3 is damaged")
        while True:
            begun.set()
            yield pa.RecordBatch.from_pylist([{"name": name, "process": 0}], RESULT)

    with pytest.raises(DamagedData, match="table n3 is damaged"):
        tasks_from_ids(lambda: spark, "name", NAMES, batch_size=1, max_on_driver=5).collected(
            one_fails_and_the_others_never_end, RESULT
        )


def test_files_of_different_tasks_never_have_the_same_name(tasks: Tasks, tmp_path: Path) -> None:
    """Each task writes its own file, so none replaces another."""
    (tmp_path / "lake").mkdir()
    place = Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))
    (dataset,), _ = write_outputs(tasks, lambda rows, _: in_process(rows), place, [parquet_output("folder/", RESULT)])

    assert len(dataset.files) == len({file.name for file in dataset.files}) == len(NAMES)
    assert sorted(row["name"] for row in all_rows(place, dataset, RESULT)) == NAMES


@pytest.mark.parametrize("on_driver", [(True, True), (True, False), (False, False)])
def test_each_distinct_row_of_any_part_is_returned_once(spark: SparkSession, on_driver: tuple[bool, bool]) -> None:
    """The parts may be on the driver or on executors. A null is a value like any other."""
    names: list[list[str | None]] = [["a", "b", None, "a"], ["b", None, "c"]]
    tables = [pa.table([pa.array(some, pa.string())], schema=TEXTS) for some in names]
    parts = [
        Tasks.of(lambda: spark, table) if here else to_dataframe(spark, table)
        for table, here in zip(tables, on_driver, strict=True)
    ]

    distinct = distinct_rows(parts, TEXTS)

    assert distinct is not None
    assert isinstance(distinct, Tasks) == all(on_driver)
    found = [str(row["text"]) for row in as_frame(distinct).collect()]
    assert sorted(found) == ["None", "a", "b", "c"]
    assert distinct_rows([], TEXTS) is None


def test_rows_are_moved_to_the_driver_only_if_there_are_few(spark: SparkSession) -> None:
    """No row is lost, and large numbers of rows stay on the executors."""
    rows = to_dataframe(spark, pa.table([["a", "b", "c"]], schema=TEXTS))

    moved = moved_to_driver_if_few(rows, 3)

    assert isinstance(moved, Tasks)
    assert sorted(moved.table["text"].to_pylist()) == ["a", "b", "c"]
    assert moved_to_driver_if_few(rows, 2) is rows
    assert moved_to_driver_if_few(moved, 0) is moved
