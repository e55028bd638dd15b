"""The process that Spark starts on every executor to fork its Python workers from (`spark.python.daemon.module`).

It imports, once, the modules that each worker would otherwise import itself, and exempts them from garbage collection:
a worker collects garbage after every task, which would otherwise take longer than a small task. Modules that a task
imports, such as the compiled decoder, are exempted as soon as the task is done. No thread may be running when a worker
is forked, so nothing is opened here; a test checks that the imports start no threads.

Spark puts its own zip files on the module path. Python compiles the modules in them at each import, and reads the
zip files' tables of contents again for every task; if the same Spark is installed as a package, the package is used
instead.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any


def without_zips(path: list[str]) -> list[str]:
    """The module path without PySpark's bundled zip files, if `pyspark` and `py4j` can be imported without them."""
    remaining = [entry for entry in path if not entry.endswith(".zip")]
    installed = PathFinder.find_spec("pyspark", remaining)
    if installed is None or installed.origin is None or PathFinder.find_spec("py4j", remaining) is None:
        return path
    zip_folder = Path(installed.origin).parent / "python" / "lib"
    return [entry for entry in path if Path(entry).parent != zip_folder]


sys.path[:] = without_zips(sys.path)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # OpenBLAS starts its threads when numpy is imported

import boto3  # noqa: F401
import pandas  # noqa: F401  # pyarrow imports it at the first conversion
import pyarrow.compute
import pyarrow.parquet  # noqa: F401
from pyspark import daemon

import spark_resources.lakefs
import spark_resources.lakefs.gc_lists
import spark_resources.lakefs.ranges
import spark_resources.stores.s3.store  # noqa: F401

_worker = daemon.worker


def worker(sock: Any, authenticated: Any) -> Any:
    """Run one task like `pyspark.daemon.worker`, then exempt the modules that it imported from garbage collection."""
    modules_before = len(sys.modules)
    code = _worker(sock, authenticated)
    if len(sys.modules) != modules_before:
        gc.collect()
        gc.freeze()
    return code


if __name__ == "__main__":
    daemon.worker = worker
    gc.collect()
    gc.freeze()
    daemon.manager()
