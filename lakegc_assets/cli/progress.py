"""Progress on stderr: the current step, how many of its tasks are done, the rate and the time left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from lakegc_assets.cli.console import EscapingConsole, escaped_name
from lakegc_assets.cli.escaping import is_json, print_error, print_json_line

POLL_SECONDS = 0.5


class TasksColumn(MofNCompleteColumn):
    """The number of Spark tasks that are done; empty if there are none, instead of `0/?`."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text()


@contextmanager
def show_progress() -> Iterator[Callable[[str], None]]:
    """Show progress while the context lasts. Yields a function that shows a sentence as the current step, or prints it
    as a line of JSON if the setting `log_format` is json."""
    if is_json():
        yield lambda sentence: print_json_line(sentence, level="INFO")
        return
    console = EscapingConsole(stderr=True)
    if not console.is_terminal:
        started = time.monotonic()
        yield lambda sentence: print_error(f"lakegc: [{time.monotonic() - started:6.1f} s] {sentence}")
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TasksColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("starting", total=None)
        ended = threading.Event()
        watcher = threading.Thread(target=_watch, args=(bars, bar, ended), daemon=True)
        watcher.start()
        try:
            yield lambda sentence: bars.reset(bar, description=escaped_name(sentence), total=None)
        finally:
            ended.set()
            watcher.join()


def _watch(bars: Progress, bar: object, ended: threading.Event) -> None:
    """Poll the progress of the running Spark stages, and update the bar."""
    while not ended.wait(POLL_SECONDS):
        done, total = spark_tasks()
        if total:
            bars.update(bar, completed=done, total=total)  # type: ignore[arg-type]


def spark_tasks() -> tuple[int, int]:
    """Finished and total tasks of the running Spark stages; (0, 0) if none is running."""
    spark = sys.modules.get("pyspark.core.context") or sys.modules.get("pyspark.context")
    context = getattr(getattr(spark, "SparkContext", None), "_active_spark_context", None)
    if context is None:
        return 0, 0
    try:
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:  # harmless: the session may end at any moment, and the bar then stops moving
        return 0, 0
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
