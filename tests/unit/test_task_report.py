"""What tasks report beside their rows."""

from __future__ import annotations

from spark_resources.spark.task_report import SAMPLES_KEPT, TaskReport


def test_counters_of_tasks_are_summed_and_errors_stay_errors() -> None:
    """If an error were taken for a counter because of its text, a repository that could not be read wouldn't be named,
    and would look as if it referred to nothing."""
    first, second = TaskReport(), TaskReport({"tables": 3})
    first.count("tables", 2)
    first.count("unread\tlake\twhy")
    first.error("lake", "no rights\tto read\nit \x1b")
    second.error("lake", "another reason")
    second.error("archive", "damaged")
    for number in range(2 * SAMPLES_KEPT):
        first.sample("lost", f"data/{number}")
    second.sample("lost", "data/x")
    total = TaskReport.summed([first.to_json(), second.to_json(), TaskReport().to_json()])

    assert total == {"tables": 5, "unread\tlake\twhy": 1}
    assert total.errors == {"lake": "no rights\tto read\nit \x1b", "archive": "damaged"}
    assert total.samples == {"lost": [f"data/{number}" for number in range(SAMPLES_KEPT)]}
