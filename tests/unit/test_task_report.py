"""What tasks report to the driver in addition to their rows."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark_resources.errors import DamagedData
from spark_resources.spark.task_report import SAMPLES_KEPT, TaskReport
from spark_resources.spark.tasks import Batches, partition_and_attempt, run_tasks


def test_counters_of_tasks_are_summed_and_errors_are_kept_separate() -> None:
    """If the text of an error were taken for the name of a counter, an unreadable repository would not be named. It
    would seem to refer to no objects."""
    first, second = TaskReport(), TaskReport()
    first.count(**{"tables": 2, "unread\tlake\twhy": 1})
    first.error("lake", "no permission\tto read\nit \x1b")
    second.count(tables=3, bytes=0)
    second.error("lake", "another reason")
    second.error("archive", "damaged")
    for number in range(2 * SAMPLES_KEPT):
        first.sample("lost", f"data/{number}")
    second.sample("lost", "data/x")
    total = TaskReport.summed([first.to_json(), second.to_json(), TaskReport().to_json()])

    assert total.counters == {"tables": 5, "unread\tlake\twhy": 1, "bytes": 0}
    assert total.counters["never counted"] == 0
    assert total.errors == {"lake": "no permission\tto read\nit \x1b", "archive": "damaged"}
    assert total.samples == {"lost": [f"data/{number}" for number in range(SAMPLES_KEPT)]}


def test_counters_by_key_are_summed_for_each_key() -> None:
    """Similar names of keys or counters are never confused."""
    first, second = TaskReport(), TaskReport()
    first.count_for("bytes of Ada", objects=1, bytes=10)
    first.count(objects=7)
    second.count_for("bytes of Ada", objects=2)
    second.count_for("Ada", bytes=5)
    total = TaskReport.summed([first.to_json(), second.to_json()])

    assert total.by_key == {"objects": {"bytes of Ada": 3}, "bytes": {"bytes of Ada": 10, "Ada": 5}}
    assert total.counters == {"objects": 7}


def test_the_driver_receives_the_reports_of_all_tasks(spark: SparkSession) -> None:
    """Partitions without rows also send a report."""

    def work(batches: Batches, report: TaskReport) -> None:
        report.count(tasks=1, rows=sum(batch.num_rows for batch in batches))
        partition, attempt = partition_and_attempt()
        report.count_for(str(partition), tasks=1)
        report.sample("attempts", str(attempt))

    report = run_tasks(spark.range(0, 2, 1, 3), work)

    assert report.counters == {"tasks": 3, "rows": 2}
    assert report.by_key["tasks"] == {"0": 1, "1": 1, "2": 1}
    assert len(set(report.samples["attempts"])) == 3


def test_an_error_in_a_task_is_raised_unchanged(spark: SparkSession) -> None:
    """The reports of the other tasks are never taken for the whole."""

    def work(batches: Batches, report: TaskReport) -> None:
        if any(0 in batch.column(0).to_pylist() for batch in batches):
            raise DamagedData("a range is missing", invariant=3)

    with pytest.raises(DamagedData, match="a range is missing"):
        run_tasks(spark.range(0, 2, 1, 2), work)
