"""Checks of the machine: Java, Python, Spark, packages, memory, and the compiled decoder."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.doctor.findings import Result, ok, problem, warning
from lakegc_assets.formatting import size
from spark_resources.spark.java import JAVA_VERSIONS, java_command, supported_java
from spark_resources.sstable.decoders import can_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "machine"
PACKAGES = ("lakegc", "pyspark", "pyarrow", "dagster", "lakefs-sdk", "boto3", "pydantic", "numba")
SUPPORTED_PYTHON = ((3, 11), (3, 14))
MASTER_FORM = re.compile(
    r"local|local\[(\*|[0-9]+)(, *[0-9]+)?\]|local-cluster\[.+\]|spark://[^:,/]+:[0-9]+(,[^:,/]+:[0-9]+)*|yarn|k8s://.+"
)
MEMORY_NEEDED, MEMORY_ADVISED = 1 << 30, 2 << 30
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def java(environ: Mapping[str, str]) -> Result:
    """The Java installation that Spark would use. Raises `WrongUsage` if there is none or it is too old."""
    version = supported_java(environ)
    text = f"Java {version}: {java_command(environ)}"
    if version > JAVA_VERSIONS[-1]:
        return warning(
            f"{text}. It is newer than the supported versions (17 and 21).",
            "If Spark fails, install one of these and set JAVA_HOME to it.",
        )
    return ok(text)


def python(version_info: tuple[int, int] = sys.version_info[:2]) -> Result:
    text = f"Python {platform.python_version()}: {sys.executable}"
    oldest, newest = SUPPORTED_PYTHON
    if not oldest <= version_info <= newest:
        supported = f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
        return problem(f"{text}. lakegc supports {supported}.", "Install lakegc with one of these versions.")
    return ok(text)


def packages(names: tuple[str, ...] = PACKAGES) -> Result:
    versions, missing = [], []
    for name in names:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return problem(f"Missing: {', '.join(missing)}. Installed: {', '.join(versions)}.", "Reinstall lakegc.")
    return ok(", ".join(versions))


def spark_master(master: str) -> Result:
    """Whether the setting `spark_master` has a form that Spark understands; nothing is started."""
    if not MASTER_FORM.fullmatch(master.strip()):
        return problem(
            f"'{master}' is not a Spark master.",
            "Set LAKEGC_SPARK_MASTER to local[*], spark://host:port, yarn or k8s://…",
        )
    return ok(f"Spark {metadata.version('pyspark')}, master {master}; not started, because --spark wasn't passed")


def started_spark(spark: SparkSession) -> Result:
    """Run one task in Python on an executor. Raises Spark's error if that fails."""
    rows = spark.range(0, 1, 1, 1).mapInArrow(python_of_executor, "python string").collect()
    context = spark.sparkContext
    found = (
        f"Spark {spark.version} started with master {context.master}; parallelism {context.defaultParallelism}, "
        f"Python {rows[0]['python']} on executors"
    )
    return ok(found)


def python_of_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row with the version of the Python that runs a task."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [platform.python_version()]})
        return


def memory(machine_bytes: int, limit_bytes: int | None) -> Result:
    """The machine's memory, and the limit of this process's container, if it has one."""
    usable = machine_bytes if limit_bytes is None else min(machine_bytes, limit_bytes)
    text = size(usable) if usable == machine_bytes else f"{size(usable)} of the machine's {size(machine_bytes)}"
    advice = "Use a machine or a container with at least 2 GiB: Spark and its Python workers share the memory."
    if usable < MEMORY_NEEDED:
        return problem(f"{text}. Spark will probably not start with less than {size(MEMORY_NEEDED)}.", advice)
    if usable < MEMORY_ADVISED:
        return warning(f"{text}. Even marks of small repositories need about 1.5 GiB.", advice)
    return ok(text)


def container_memory_limit(file: Path = CGROUP_LIMIT) -> int | None:
    """The memory limit of this process's container in bytes; None if there is none or it isn't known."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def numba_finds_a_cache() -> bool:
    """Whether numba finds a folder for compiled code itself. Raises `ImportError` without numba."""
    import numba

    return can_cache(numba.njit)


def compiled_decoder(has_cache: Callable[[], bool], fallback: Callable[[], Path]) -> Result:
    """Whether numba can be used, and where it keeps compiled code: in a folder that it finds itself, or in lakegc's
    (`fallback`, which raises `OSError` if there is none)."""
    advice = "Install numba, or set NUMBA_CACHE_DIR to a writable folder."
    try:
        folder = None if has_cache() else fallback()
    except (ImportError, OSError, RuntimeError) as error:
        return warning(f"numba can't be used ({error}): tables are decoded about fifty times slower.", advice)
    where = "beside the installation, in NUMBA_CACHE_DIR or in the user's cache" if folder is None else f"in {folder}"
    return ok(f"numba {metadata.version('numba')} keeps compiled code {where}")
