"""What Spark starts on every executor to fork its Python workers from (`spark.python.daemon.module`).

It imports once what each worker would otherwise import for itself, and puts that out of the collector's sight: a worker
collects garbage after every task, which otherwise takes longer than a small task. No thread may run at the fork, so
nothing is opened here; a test watches that the imports start none.
"""

from __future__ import annotations

import gc
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's library starts its threads when it is imported

import boto3  # noqa: F401
import lakefs_sdk  # noqa: F401
import pandas  # noqa: F401  # pyarrow looks for it at the first conversion
import pyarrow.compute
import pyarrow.parquet  # noqa: F401
from pyspark.daemon import manager

import spark_resources.entries
import spark_resources.gc_lists
import spark_resources.lakefs
import spark_resources.stores.s3  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
