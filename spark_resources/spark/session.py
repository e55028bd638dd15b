"""Starts Spark: by default locally and sized to the machine, otherwise on any configured master."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import shlex
import shutil
import socketserver
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_resources.errors import LakegcError, WrongUsage
from spark_resources.host.private_files import open_private
from spark_resources.host.user_folders import cache_folder
from spark_resources.records.signing import without_signing_keys
from spark_resources.spark.class_archive import archive_options
from spark_resources.spark.java import check_java, java_command

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

SMALL_HEAP_MB = 2048
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_GARBAGE_COLLECTOR = re.compile(r"-XX:[+-]Use\w*GC\b")
REDACTED = (
    "(?i)secret|password|passphrase|pwd|token|credential|signature|sas|(access|account|api|private|shared)[._-]?key"
)
"""Names of Spark settings whose values Spark hides in its UI and event log. Its own pattern misses some of them."""
_LOG4J = Path(__file__).with_name("log4j2.properties")


# --- the session ----------------------------------------------------------------------------------------------------


def machine_settings(master: str, cores: int, memory_bytes: int) -> dict[str, str]:
    """Spark settings for this machine: a heap that leaves most of the memory to the Python workers.

    With a local master, also a loopback address for the driver, and two shuffle partitions per core. On a cluster, the
    executors must reach the driver, and the number of cores is known only once they have started: see
    `set_shuffle_partitions`.
    """
    # measured with 1.3 million objects on 2 cores: a heap of 4 GiB fills up, but 1 GiB is enough; the rest spills to
    # disk
    heap_mb = max(512, min(memory_bytes // (1 << 20) // 4, max(1024, 512 * cores), 4096))
    settings = {"spark.master": master, HEAP: f"{heap_mb}m"}
    if not is_local(master):
        return settings
    return settings | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(max(4, 2 * cores)),
        # every sort, aggregation and join allocates a page, however few its rows; Spark's default, which depends on the
        # heap, is 32 MiB or more
        "spark.buffer.pageSize": "2m",
    }


def is_local(master: str) -> bool:
    """Whether the driver's process does all the work: true for `local` and `local[4]`, not for `local-cluster[…]`."""
    return master == "local" or master.startswith("local[")


def set_shuffle_partitions(spark: SparkSession, overrides: Mapping[str, str]) -> None:
    """On a cluster, set the number of shuffle partitions to two per core, unless it is configured.

    The number is at least Spark's default of 200, because Spark coalesces small partitions automatically.
    """
    context, name = spark.sparkContext, "spark.sql.shuffle.partitions"
    if not is_local(str(context.master)) and name not in overrides and context.getConf().get(name) is None:
        spark.conf.set(name, str(max(200, 2 * context.defaultParallelism)))


def common_settings() -> dict[str, str]:
    """lakegc's own settings for any master. All but REQUIRED_SETTINGS can be overridden."""
    return {
        **REQUIRED_SETTINGS,
        "spark.app.name": "lakegc",
        "spark.ui.enabled": "false",
        "spark.redaction.regex": REDACTED,  # in case the UI or the event log is turned on
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.ui.explainMode": "simple",  # recorded for each query, and never shown
        # otherwise the heap holds all jobs, stages and queries for a web page that is never shown
        **dict.fromkeys(("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions"), "20"),
        "spark.ui.retainedTasks": "1000",
        "spark.python.worker.reuse": "true",
        # otherwise each column function calls the JVM four times, just to put its line number into error messages
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.python.daemon.module": "spark_resources.spark.worker_daemon",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        # measured with 100,000 objects: the second compiler (C2) takes 40 s of CPU time without any benefit, because
        # listing and decoding run in Python; executors of a cluster are not affected. With one compiler, Java reserves
        # only 48 MB for compiled code. A few dozen marks fill that, and Java would recompile the same methods forever.
        JVM_OPTIONS: f"{LOGGING_OPTION} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    }


def worker_sockets(master: str, folder: Path) -> dict[str, str]:
    """How the JVM and Python workers communicate: over Unix sockets locally, over TCP on a cluster.

    The sockets require no secret, so they are in a folder that no other user may enter. The machines of a cluster don't
    have that folder, so they use TCP with Spark's secret; so does this machine if the folder's path is too long.
    Measured: over TCP, a task waits about 50 ms for delayed acknowledgements. Takes effect in Spark 4.1 and later.
    """
    fits = len(os.fsencode(folder)) + SOCKET_NAME_BYTES <= LONGEST_SOCKET_PATH
    if not (is_local(master) and fits):
        return {"spark.python.unix.domain.socket.enabled": "false"}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
    }


SOCKET_NAME_BYTES = len("/.01234567-0123-0123-0123-0123456789ab.sock")
LONGEST_SOCKET_PATH = 103  # bytes, on macOS; four more on Linux
REQUIRED_SETTINGS = {
    "spark.speculation": "false",  # a second copy of a deleting task would race the first (invariant 11)
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
}
"""Settings that no configuration may change, because correctness depends on them."""

JVM_OPTIONS, HEAP = "spark.driver.extraJavaOptions", "spark.driver.memory"
LOGGING_OPTION = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"
MALLOC_VARIABLES = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 20),
}
"""Environment variables that make the JVM and Python workers return unused memory; otherwise each thread keeps some.

For glibc; other C libraries ignore them."""
SMALL_DATA_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings for small data: less compilation and planning. Not for large data."""


_start_lock = threading.Lock()
_keep_running = threading.Event()


def start_ahead(overrides: Mapping[str, str], *, keep_running: bool) -> None:
    """Start the session for these overrides, and its Python workers, in a background thread, before `start_session`
    is called.

    Only for a process that needs exactly this session, because the process can't end before Spark has started. With
    `keep_running`, the session is never stopped: it ends with the process. Its last tasks may end a moment later, so
    they must not delete anything. Any failure recurs in `start_session`, which raises it. On a cluster, nothing is
    started ahead of time: a command that is refused immediately would take cores from others.
    """
    if not is_local(overrides.get("spark.master", "local")):
        return
    import pyspark.sql.classic.dataframe
    import pyspark.sql.pandas.map_ops  # noqa: F401  # here, so that no other thread imports them at the same time

    if keep_running:
        _keep_running.set()
    threading.Thread(target=_start_with_workers, args=(overrides,), name="spark").start()


def session_ends_with_process() -> bool:
    """Whether Spark is left running until the process ends, because stopping it can take a second."""
    return _keep_running.is_set()


def _start_with_workers(overrides: Mapping[str, str]) -> None:
    with suppress(Exception):
        spark = start_session(overrides)
        tasks = spark.sparkContext.defaultParallelism
        if threading.main_thread().is_alive():  # a refused or interrupted command needs no workers
            spark.range(0, tasks, 1, tasks).mapInArrow(_drop_rows, "id long").collect()


def _drop_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch for batch in batches if not batch.num_rows)


def start_session(overrides: Mapping[str, str]) -> SparkSession:
    """A new SparkSession with `overrides` on top of lakegc's settings, or the running one if its settings agree.

    Raises `WrongUsage` for overrides that lakegc can't work with, and `LakegcError` if a session with other settings is
    running or Spark doesn't start. The JVM's own output goes to a file, `jvm_log()`: users see lakegc's messages.
    """
    with _start_lock:
        return _session(overrides)


def _session(overrides: Mapping[str, str]) -> SparkSession:
    check_overrides(overrides)
    check_java(os.environ)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the executors need exactly the same packages
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    machine = machine_settings(overrides.get("spark.master", "local[*]"), os.cpu_count() or 2, memory_bytes())
    settings = machine | common_settings() | worker_sockets(machine["spark.master"], own_folder()) | dict(overrides)
    for name, value in MALLOC_VARIABLES.items():  # the local JVM and its workers inherit this environment
        settings.setdefault(f"spark.executorEnv.{name}", os.environ.setdefault(name, value))
    if JVM_OPTIONS not in overrides:
        settings[JVM_OPTIONS] += (
            f" {garbage_collector_option(settings, overrides, os.environ)} {class_archive_options()}"
        )
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    check_same_settings(SparkContext._active_spark_context or start_context(conf), overrides)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    cache_java_classes(session)
    set_shuffle_partitions(session, overrides)
    return session


JAVA_CLASSES = (
    "PythonSQLUtils",
    "PythonUtils",
    "SimplePythonFunction",
    "functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.execution.python.UserDefinedPythonFunction",
    "org.apache.spark.sql.functions",
    "org.apache.spark.storage.StorageLevel",
)
"""The Java classes that PySpark looks up for each column, function and DataFrame that it creates."""


def cache_java_classes(spark: SparkSession) -> None:
    """Cache the classes in `JAVA_CLASSES`, which PySpark would otherwise look up again at each use.

    Java searches each imported package, in all of Spark's jars, for a name without a package. Measured with small
    marks: these searches take a quarter of the time of the JVM's planning thread.
    """
    java = spark.sparkContext._jvm
    for name in JAVA_CLASSES:
        setattr(java, name, getattr(java, name))  # PySpark uses an attribute of the object before it asks Java


def garbage_collector_option(
    settings: Mapping[str, str], overrides: Mapping[str, str], environment: Mapping[str, str]
) -> str:
    """The JVM option for the serial garbage collector, if lakegc chose the heap and it is small; otherwise empty.

    Also empty if a garbage collector is configured, because Java doesn't start with two. Measured with 1.3 million
    objects on 2 cores: about 200 MiB less than with Java's default, in the same time.
    """
    configured = [environment.get(name, "") for name in JAVA_VARIABLES] + list(overrides.values())
    is_configured = HEAP in overrides or any(_GARBAGE_COLLECTOR.search(options) for options in configured)
    is_small = not is_configured and int(settings[HEAP].removesuffix("m")) <= SMALL_HEAP_MB
    return "-XX:+UseSerialGC" if is_small else ""


def class_archive_options() -> str:
    """JVM options that make Spark start faster from the second time on."""
    import pyspark

    java = java_command(os.environ)
    return archive_options(java, Path(pyspark.__file__).parent, folder=cache_folder(), now=time.time()) if java else ""


def check_overrides(overrides: Mapping[str, str]) -> None:
    """Raise `WrongUsage` if a configuration would change a setting that lakegc relies on."""
    for key, value in REQUIRED_SETTINGS.items():
        if overrides.get(key, value).strip().casefold() != value.casefold():
            raise WrongUsage(
                f"{key} must be {value} for correct marks, but the Spark configuration sets another value. Remove "
                f"{key} from LAKEGC_SPARK_CONF."
            )


def start_context(conf: SparkConf) -> SparkContext:
    """A new SparkContext, with a new JVM if this process has none yet."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    try:
        gateway = SparkContext._gateway
        if gateway is None:
            with open_private(jvm_log()) as log, settings_in_private_file(conf):
                options = _WithoutKeys(stdout=log, stderr=log)
                gateway = launch_gateway(None, options)  # type: ignore[no-untyped-call]
        hide_stack_traces_of_lost_connections()
        context = SparkContext(conf=conf, gateway=gateway)
        atexit.register(jvm_log().unlink, missing_ok=True)  # kept only if Spark didn't start or the process died
        return context
    except (Py4JError, PySparkException) as error:
        why = str(getattr(error, "java_exception", error)).partition("\n")[0]
        raise LakegcError(
            f"Spark does not start with master {conf.get('spark.master')}: {why}\nCheck LAKEGC_SPARK_MASTER and "
            f"LAKEGC_SPARK_CONF. Spark's own log is {jvm_log()}."
        ) from error


def hide_stack_traces_of_lost_connections() -> None:
    """Have Spark's servers in this process, and py4j, print no stack trace if Java is killed: the next call to Java
    fails anyway, with a message (`failure_kinds.JAVA_ENDED`)."""
    from pyspark import accumulators

    logging.getLogger().addFilter(is_not_from_py4j)  # py4j logs lost connections directly to the root logger

    def handle_error(self: Any, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | OSError):
            socketserver.BaseServer.handle_error(self, request, client_address)

    for name in ("AccumulatorServer", "AccumulatorTCPServer", "AccumulatorUnixServer"):  # the first in Spark 4.0 only
        if server := getattr(accumulators, name, None):
            server.handle_error = handle_error


def is_not_from_py4j(record: logging.LogRecord) -> bool:
    return "/py4j/" not in record.pathname


class _WithoutKeys(dict[str, Any]):
    """The options for the JVM's process, without the signing keys.

    PySpark sets `env` to a copy of this process's environment; the signing keys are removed from it, so that neither
    the JVM nor the Python workers that it starts have them.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, without_signing_keys(value) if name == "env" else value)


@contextmanager
def settings_in_private_file(conf: SparkConf) -> Iterator[None]:
    """Within this context, `spark-submit` reads these settings from a file that only this user may read.

    On the JVM's command line, every user of this machine could read them, including credentials for stores.
    """
    file, name = own_folder() / "spark.properties", "PYSPARK_SUBMIT_ARGS"
    previous = os.environ.get(name)
    *options, resource = shlex.split(previous or "pyspark-shell")
    if "--properties-file" in options:
        raise WrongUsage(
            f"{name} contains --properties-file: move that file's settings to LAKEGC_SPARK_CONF, and remove the option"
        )
    with open_private(file, os.O_TRUNC) as opened:
        opened.write(as_properties(conf.getAll()).encode("ascii"))
    os.environ[name] = shlex.join([*options, "--load-spark-defaults", "--properties-file", str(file), resource])
    try:
        yield
    finally:
        file.unlink()
        if previous is None:
            del os.environ[name]
        else:
            os.environ[name] = previous


def as_properties(settings: Iterable[tuple[str, str]]) -> str:
    """Settings in the format of Java properties, with everything but ASCII letters and digits escaped."""

    def escaped(text: str) -> str:
        units = text.encode("utf-16-be")
        codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
        return "".join(chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}" for code in codes)

    return "".join(f"{escaped(name)}={escaped(value)}\n" for name, value in settings)


def check_same_settings(context: SparkContext, overrides: Mapping[str, str]) -> None:
    """Raise `LakegcError` if a running context has settings other than these. Call this before changing the context."""
    conf = context.getConf()
    required = {"spark.speculation": "false", **overrides}
    actual = {key: str(conf.get(key, "false" if key == "spark.speculation" else None)) for key in required}
    # Spark puts its own JVM options in front of the configured ones
    differing = [key for key, value in required.items() if not actual[key].endswith(value)]
    if differing:
        raise LakegcError(
            "a SparkSession with different settings is already running in this process "
            f"(they differ in {', '.join(sorted(differing))}); stop it first, or run lakegc in a separate process"
        )


def own_folder() -> Path:
    """A temporary folder of this process, which no other user may enter; removed at exit, unless the log is kept."""
    return _folder_of(os.getpid())


@functools.cache
def _folder_of(process: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lakegc-"))
    atexit.register(_remove, folder, process)
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process and not (folder / JVM_LOG).exists():  # a forked child leaves the folder to its parent
        shutil.rmtree(folder, ignore_errors=True)


JVM_LOG = "jvm.log"


def jvm_log() -> Path:
    """The file that this process's JVM writes its own messages to."""
    return own_folder() / JVM_LOG


def memory_bytes() -> int:
    """The machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
