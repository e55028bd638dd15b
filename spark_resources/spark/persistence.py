"""Persisting DataFrames that are read more than once, and unpersisting them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from spark_resources.spark.tasks import Tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RowsT = TypeVar("RowsT", bound="DataFrame | Tasks")


class Persisted:
    """The DataFrames that one piece of work has persisted, so that all of them can be unpersisted at its end.

    Otherwise a session that outlives the work would keep their rows and their query plans, and Spark would compare
    every later query of the session with these plans.
    """

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []

    def __call__(self, rows: RowsT) -> RowsT:
        """Persist a DataFrame, in memory or on disk, once its rows are computed, and return it. `Tasks` are returned as
        they are: the driver has their rows anyway."""
        if not isinstance(rows, Tasks):
            self._frames.append(rows.persist())
        return rows

    def __enter__(self) -> Persisted:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Unpersist all DataFrames at the end of the work, but not after Ctrl-C: Spark would block until its job ends,
        and the session ends anyway."""
        if error is None or issubclass(error, Exception):
            self.release()

    def release(self) -> None:
        """Unpersist all DataFrames, newest first, because later ones are computed from earlier ones."""
        while self._frames:
            self._frames.pop().unpersist()
