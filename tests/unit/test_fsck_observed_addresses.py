"""fsck never collects listings of unbounded length on the driver."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from lakegc_assets.fsck.live_objects import listed_as_staged, stored_addresses
from spark_resources.model import Namespace
from spark_resources.spark.datasets import parquet_bytes
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings


def test_listings_and_lists_of_staged_objects_are_read_lazily_by_executors(spark: SparkSession, tmp_path: Path) -> None:
    """The executors read even a single folder or file, and only when its rows are used."""
    (tmp_path / "lake").mkdir()
    place = Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))
    listing, staged = stored_addresses(spark, place), listed_as_staged(spark, place, ["_lakefs/list"])

    place.store().write("later", b"")
    place.store().write(
        "_lakefs/list", parquet_bytes(pa.table({"physical_address": ["data/later"], "creation_date": [0]}))
    )

    for rows, address in ((listing, "later"), (staged, "data/later")):
        assert [row["address"] for row in rows.where("address is not null").collect()] == [address]
