"""The SparkSession of a run: local by default and sized to the machine, any master by configuration."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource

from spark_resources.errors import LakegcError, WrongUsage
from spark_resources.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSIONS = (17, 21)
_LOG4J = Path(__file__).with_name("log4j2.properties")


# --- Java -----------------------------------------------------------------------------------------------------------


def java_version(environ: Mapping[str, str]) -> int | None:
    """The major version of the Java that Spark would start, or None where there is none."""
    home = environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH"))
    if command is None:
        return None
    try:
        answer = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if found is None:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major


def check_java(environ: Mapping[str, str]) -> int:
    """The version of a Java that Spark can run on. Raises `WrongUsage` that says how to get one."""
    version = java_version(environ)
    how = (
        "Install a Java runtime, for example 'apt-get install openjdk-17-jre-headless', 'dnf install java-17-openjdk-headless' "
        "or 'brew install openjdk@17' (or from https://adoptium.net), and set JAVA_HOME if several are installed."
    )
    if version is None:
        raise WrongUsage(f"lakegc needs Java 17 or 21 and found none. {how}")
    if version < JAVA_VERSIONS[0]:
        raise WrongUsage(f"lakegc needs Java 17 or 21 and found Java {version}. {how}")
    return version


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
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.driver.extraJavaOptions": QUIET,
    }


QUIET = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"
QUICK_START = {"spark.driver.extraJavaOptions": f"{QUIET} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For small data: a JVM that compiles less and so starts in half the processor time."""


class SparkResource(LazyPySparkResource):
    """The lazy PySpark resource with teardown, and a check that its settings took.

    What isn't configured here comes from `LAKEGC_SPARK_MASTER` and `LAKEGC_SPARK_CONF`. A second SparkSession in a process silently gets the first one's settings: then this raises instead.
    """

    spark_config: dict[str, Any] = {}

    def _init_session(self) -> None:
        if self._spark_session is None:
            settings = Settings.load(os.environ, Path.home())
            configured = {"spark.master": settings.spark_master, **settings.spark_conf, **self.spark_config}
            self._spark_session = start_session({str(key): str(value) for key, value in configured.items()})

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        if self._spark_session is not None:
            self._spark_session.stop()
            self._spark_session = None


def start_session(overrides: Mapping[str, str]) -> SparkSession:
    """A new SparkSession with lakegc's settings under `overrides`. Raises `LakegcError` if one with others is running."""
    check_java(os.environ)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the executors need the very same packages
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark.sql import SparkSession

    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 20
    page_size = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
    settings = local_settings(os.cpu_count() or 2, pages * page_size) | fixed_settings() | dict(overrides)
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    taken = session.sparkContext.getConf()
    # Spark puts options of its own before those for the JVM
    lost = {key: taken.get(key) for key in overrides if not str(taken.get(key)).endswith(settings[key])}
    if lost:
        raise LakegcError(
            f"a SparkSession with other settings is already running in this process ({lost}); "
            "stop it first, or run lakegc in a process of its own"
        )
    return session
