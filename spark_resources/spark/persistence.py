"""What Spark keeps between two looks at the same rows, and when it lets go of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Persisted:
    """The DataFrames that one piece of work had kept, so that its end can let go of all of them.

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
        """Let go of all, the newest first: earlier ones are what these were made from."""
        while self._frames:
            self._frames.pop().unpersist()
