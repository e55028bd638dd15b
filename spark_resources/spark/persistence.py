"""What Spark keeps between two looks at the same rows, and when it lets go of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Persisted:
    """The DataFrames that one piece of work persisted, so that its end can unpersist them all.

    A session that outlives the work would hold them otherwise: their rows, and a plan each that every later query of
    the session is compared with.
    """

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Keep the rows of a DataFrame from the first look on, in memory or on disk."""
        self._frames.append(frame.persist())
        return frame

    def release(self) -> None:
        """Unpersist all, newest first: later ones are computed from earlier ones."""
        while self._frames:
            self._frames.pop().unpersist()
