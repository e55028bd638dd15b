"""Errors of Spark and its tasks, in a readable form."""

from __future__ import annotations

import base64
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_resources.deleting.sweep_task import ReverificationTooOld
from spark_resources.errors import DamagedData, Forbidden, LakegcError, NotFound, Refused, Unavailable
from spark_resources.model import Namespace
from spark_resources.spark.remote_errors import as_text, errors_from_executors, from_text, with_encoded_errors
from spark_resources.stores import open_store
from spark_resources.stores.base import Changed
from spark_resources.stores.polling import poll
from tests.support.store_providers import replying


def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise ValueError("no such thing\nand more")


def dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    os._exit(3)


def fills_the_heap(spark: SparkSession) -> None:
    spark.sql("select array_repeat(1, 2000000000)").collect()


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda spark: spark.range(9).mapInArrow(fails, "id long").count(), ["ValueError: no such thing"]),
        (lambda spark: spark.range(9).mapInArrow(dies, "id long").count(), ["worker exited", "LAKEGC_SPARK_MASTER"]),
        (fills_the_heap, ["OutOfMemoryError: Java heap space", "spark.driver.memory"]),
    ],
)
def test_the_error_of_a_failed_task_says_what_failed_and_what_to_do(
    spark: SparkSession, work: Callable[[SparkSession], object], words: list[str]
) -> None:
    """The causes are a task that raises, a worker that dies and a full heap. Each message is one line, without class
    paths."""
    with pytest.raises(LakegcError) as raised, errors_from_executors():
        work(spark)

    for word in words:
        assert word in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "org.apache" not in str(raised.value)


@pytest.fixture
def cancels_jobs_on_ctrl_c(spark: SparkSession) -> Iterator[None]:
    """The handler of Ctrl-C that PySpark installs, and that a Dagster run of another test in this process removes."""

    def cancel_jobs(*_: object) -> NoReturn:
        spark.sparkContext.cancelAllJobs()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, cancel_jobs)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("cancels_jobs_on_ctrl_c")
def test_ctrl_c_while_a_result_is_fetched_is_raised_as_an_interrupt(spark: SparkSession) -> None:
    """PySpark's handler of Ctrl-C cancels all jobs. PySpark would then raise the error of the cancelled job."""
    main_thread = threading.main_thread().ident or 0

    def interrupt() -> None:
        running = spark.sparkContext.statusTracker().getActiveJobsIds
        assert poll(lambda: running() or None, timeout_s=60, first_wait_s=0.05)
        signal.pthread_kill(main_thread, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt), errors_from_executors():
            spark.range(10**13).selectExpr("max(id % 7)").toArrow()  # takes longer than any test
        interrupted.result()


def test_a_response_from_a_store_is_never_run_as_code(spark: SparkSession, tmp_path: Path) -> None:
    """A store can put any text into a header, and the text ends up in errors of Spark. If lakegc unpickled it, it would
    run on the driver with all of the driver's credentials."""
    witness = tmp_path / "it ran"
    pickled = base64.b64encode(f"cposix\nsystem\n(S'touch \"{witness}\"'\ntR.".encode()).decode()
    with replying(200, b"", {"Last-Modified": f"lakegc-error[{pickled}]"}) as server:
        settings = server.settings()

        def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches
            open_store(Namespace.parse("s3://bucket/ns"), settings).stat("data/x")

        with pytest.raises(Unavailable, match="Invalid timestamp"), errors_from_executors():
            spark.range(0, 1, 1, 1).mapInArrow(with_encoded_errors(look), "id long").collect()

    assert not witness.exists()


def test_text_without_the_nonce_of_this_process_is_not_read_as_a_lakegc_error(spark: SparkSession) -> None:
    """A store that knows the format of errors still can't forge one that says that something is absent or refused."""
    forged = as_text(NotFound("nothing is staged"), "0" * 32)

    def quotes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError(f"a strange response: {forged}")

    with pytest.raises(LakegcError, match="ValueError: a strange response") as raised, errors_from_executors():
        spark.range(0, 1, 1, 1).mapInArrow(with_encoded_errors(quotes), "id long").collect()
    assert type(raised.value) is LakegcError


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (DamagedData("short\n\x1b \udc80", invariant=3), DamagedData),
        (Refused("no"), Refused),
        (ReverificationTooOld("old", invariant=1), Refused),
        (Forbidden("no permission"), Forbidden),
        (Changed("another object"), Changed),
        (LakegcError("it broke"), LakegcError),
    ],
)
def test_an_error_reaches_the_driver_with_its_class_message_and_invariant(
    raised: LakegcError, expected: type[LakegcError]
) -> None:
    """An error of a class that only one module knows arrives as the nearest shared class, and so with the same exit
    code."""
    arrived = from_text(f"org.apache.spark: RuntimeError: {as_text(raised, 'n1')}\n\tat x", "n1")

    assert type(arrived) is expected
    assert str(arrived) == str(raised)
    assert getattr(arrived, "invariant", None) == getattr(raised, "invariant", None)


@pytest.mark.parametrize(
    "error_text",
    ["not JSON", '["list"]', '{"class": "SystemExit", "message": "m", "invariant": null}', '{"class": []}', "[" * 9999],
)
def test_a_damaged_or_foreign_error_text_is_not_read_as_an_error(error_text: str) -> None:
    """Such a text is reported like any other failure of Spark."""
    assert from_text(f"lakegc-error[n1:{base64.b64encode(error_text.encode()).decode()}]", "n1") is None
