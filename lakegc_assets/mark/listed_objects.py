"""The objects that a mark found in the store, as recorded by its first step (`namespace_slices`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakegc_assets.mark.context import MarkRun
from spark_resources.model import STORED_OBJECTS
from spark_resources.spark.datasets import Dataset, read_datasets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASSET = "namespace_slices"
LOOKED_UP_PART = "looked_up"  # in an incremental mark: the addresses that were looked up and are stored
COMPARED_PART = "compared"  # all addresses that were looked up, and those that a sweep of the base mark removed
FOLDERS_PART, NO_LONGER_RETAINED_PART = "folders", "no_longer_retained"


def datasets(run: MarkRun) -> list[Dataset]:
    """The datasets with all objects that a mark found in the store (STORED_OBJECTS)."""
    looked_up = [LOOKED_UP_PART] if LOOKED_UP_PART in run.mark.record.step(ASSET).datasets else []
    return [run.mark.dataset(ASSET, part) for part in ("", *looked_up)]


def stored_objects(run: MarkRun) -> DataFrame:
    """All objects that a mark found in the store, as one DataFrame."""
    return read_datasets(run.spark(), run.place, datasets(run), STORED_OBJECTS)
