"""The SparkSession of a run: local by default and sized to the machine, any master by configuration."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from spark_resources.errors import LakegcError
from spark_resources.java import check_java
from spark_resources.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = Path(__file__).with_name("log4j2.properties")


# --- the session ----------------------------------------------------------------------------------------------------


def local_settings(cores: int, memory_bytes: int) -> dict[str, str]:
    """Spark settings for one machine: its cores, and a heap that leaves most of the memory to the Python workers."""
    heap_mb = max(512, min(memory_bytes // (1 << 20) // 4, 4096))
    return {
        "spark.master": "local[*]",
        "spark.driver.memory": f"{heap_mb}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(max(4, 2 * cores)),
    }


def fixed_settings() -> dict[str, str]:
    """Settings that lakegc relies on, whatever the master."""
    return {
        "spark.app.name": "lakegc",
        "spark.speculation": "false",  # a second copy of a deleting task would race its twin (invariant 11)
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "spark_resources.daemon",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.driver.extraJavaOptions": QUIET,
    }


QUIET = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"
QUICK_START = {
    "spark.driver.extraJavaOptions": f"{QUIET} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""For small data: less compiling and planning halves the processor time of a mark; large data want neither."""


class SparkResource(LazyPySparkResource):
    """The lazy PySpark resource with teardown, and a check that its settings took.

    What isn't configured here comes from `LAKEGC_SPARK_MASTER` and `LAKEGC_SPARK_CONF`. A second SparkSession in a
    process silently gets the first one's settings: then this raises instead.
    """

    spark_config: dict[str, Any] = Field(default_factory=dict)

    def _init_session(self) -> None:
        if self._spark_session is None:
            settings = Settings.load(os.environ, Path.home())
            configured = {"spark.master": settings.spark_master, **settings.spark_conf, **self.spark_config}
            self._spark_session = start_session({str(key): str(value) for key, value in configured.items()})

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        if self._spark_session is not None:
            self._spark_session.stop()
            self._spark_session = None
            jvm_log().unlink(missing_ok=True)  # kept only where the process died before it came here


def start_session(overrides: Mapping[str, str]) -> SparkSession:
    """A new SparkSession with lakegc's settings under `overrides`. Raises `LakegcError` if one with others is running.

    What the JVM itself prints goes to a file, `jvm_log()`: people read lakegc's own messages.
    """
    check_java(os.environ)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the executors need the very same packages
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    settings = local_settings(os.cpu_count() or 2, memory_bytes()) | fixed_settings() | dict(overrides)
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    if SparkContext._active_spark_context is None and SparkContext._gateway is None:
        with jvm_log().open("ab") as log:
            SparkContext(conf=conf, gateway=launch_gateway(conf, {"stderr": log}))  # type: ignore[no-untyped-call]
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    taken = session.sparkContext.getConf()
    # Spark puts options of its own before those for the JVM
    lost = {key: taken.get(key) for key in overrides if not str(taken.get(key)).endswith(settings[key])}
    if lost:
        raise LakegcError(
            f"a SparkSession with other settings is already running in this process ({sorted(lost)} differ); "
            "stop it first, or run lakegc in a process of its own"
        )
    return session


def jvm_log() -> Path:
    """The file that this process's JVM writes its own messages to."""
    return Path(tempfile.gettempdir()) / f"lakegc-spark-{os.getuid()}-{os.getpid()}.log"


def memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
