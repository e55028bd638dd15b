"""Fill the caches of Spark's classes and of the compiled decoder before tests run in several processes. Otherwise, each
process would fill them itself.

    python -m tests.support.warm_caches [spark-classes] [decoder]
"""

from __future__ import annotations

import sys
import time

from pyspark import SparkContext

from spark_resources.host.user_folders import cache_folder
from spark_resources.spark.class_archive import COMPLETE_AFTER_S, adopt_finished
from spark_resources.spark.session import start_session
from spark_resources.sstable import ENTRY_SCHEMA, Entry, read_entries
from spark_resources.sstable.readers import table_id
from spark_resources.sstable.vectorized_decoder import VectorizedDecoder
from spark_resources.sstable.writer import write_range

LIMIT_S = 300.0


def archive_classes() -> None:
    """Run a query and wait for the archive of Spark's classes, which the JVM writes when it ends."""
    session = start_session({"spark.master": "local[1]"})
    counted = session.range(4).repartition(2).groupBy("id").count()
    counted.mapInArrow(lambda batches: batches, counted.schema).toArrow()
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(LIMIT_S)
    for written in cache_folder().glob("spark-*.jsa.*"):
        adopt_finished(written.with_suffix(""), time.time() + COMPLETE_AFTER_S + 1)


def compile_decoder() -> None:
    """Decode a table and compute its content hash with the compiled decoder."""
    data, decoder = write_range([Entry(b"path", "data/s/key", checksum="c")]).data, VectorizedDecoder()
    read_entries(data, name="a range", columns=ENTRY_SCHEMA.names, decoder=decoder)
    table_id(data, name="a range", decoder=decoder)


PARTS = {"spark-classes": archive_classes, "decoder": compile_decoder}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
