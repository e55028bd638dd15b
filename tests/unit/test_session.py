"""The Spark session: its settings apply or are refused, only one session runs at a time, and workers fork from a
process with few threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from socketserver import StreamRequestHandler
from typing import Any

import platformdirs
import pyarrow as pa
import pytest
from pyspark import accumulators
from pyspark.sql import SparkSession

from spark_resources.errors import WrongUsage
from spark_resources.spark.session import (
    REQUIRED_SETTINGS,
    SMALL_DATA_SETTINGS,
    check_overrides,
    common_settings,
    garbage_collector_option,
    machine_settings,
)

# Sessions are started and stopped in a separate process, so that the other tests' session isn't affected.
SESSIONS = """
import json, os, pathlib, threading
import pyspark.errors.utils
from dagster import build_init_resource_context
from pyspark import SparkContext
from spark_resources.errors import LakegcError
from spark_resources.host.user_folders import home_folder
from spark_resources.settings import Settings
from spark_resources.spark.resource import SparkResource
from spark_resources.spark.session import SMALL_DATA_SETTINGS, jvm_log, start_ahead

found = {}

def refused(**settings):
    try:
        SparkResource(**settings).spark_session
    except LakegcError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"

first = SparkResource()
found["lazy"] = SparkContext._active_spark_context is None and SparkContext._gateway is None
conf = first.spark_session.sparkContext.getConf()
names = ("spark.master", "spark.sql.shuffle.partitions", "spark.speculation", "spark.sql.session.timeZone")
found["taken"] = {name: conf.get(name) for name in names}
found["jvm_log"] = jvm_log().exists()
folder = jvm_log().parent
found["modes"] = {name: oct(path.stat().st_mode & 0o777) for name, path in (("folder", folder), ("log", jvm_log()))}
first.spark_session.range(1).mapInArrow(lambda batches: batches, "id long").count()
found["sockets"] = {
    "in it": len(list(folder.glob(".*.sock"))), "beside it": len(list(folder.parent.glob(".*.sock")))
}
jvm = SparkContext._gateway.proc.pid
found["command lines"] = [
    path.read_bytes().decode() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if path.parent.name == str(jvm)
]
found["secret"] = conf.get("spark.hadoop.fs.s3a.secret.key")
found["secret in Java"] = SparkContext._jvm.java.lang.System.getProperty("spark.hadoop.fs.s3a.secret.key")
found["left"] = [path.name for path in folder.iterdir() if path.suffix == ".properties"]
found["asks"] = pyspark.errors.utils.is_debugging_enabled()

found["other"] = refused(spark_config={"spark.sql.shuffle.partitions": "5"})
found["untouched"] = first.spark_session.conf.get("spark.sql.shuffle.partitions")
found["same"] = SparkResource().spark_session is first.spark_session
found["still runs"] = not first.spark_session.sparkContext._jsc.sc().isStopped()

first.teardown_after_execution(build_init_resource_context())
found["stopped"] = SparkContext._active_spark_context is None
found["jvm_log afterwards"] = jvm_log().exists()

found["nonsense"] = refused(spark_config={"spark.master": "nonsense"})
found["nothing left"] = SparkContext._active_spark_context is None

del SMALL_DATA_SETTINGS["spark.sql.shuffle.partitions"]
os.environ["LAKEGC_SPARK_CONF"] = json.dumps(SMALL_DATA_SETTINGS)
counts = {"LAKEGC_PARALLELISM": "3", "LAKEGC_SHUFFLE_PARTITIONS": "5"}
os.environ.update(counts)
second = SparkResource()
found["second"] = second.spark_session.sparkContext.getConf().get("spark.sql.shuffle.partitions")
found["parallelism"] = second.spark_session.sparkContext.defaultParallelism
second.teardown_after_execution(build_init_resource_context())

start_ahead(Settings.load(os.environ, home_folder()).spark_settings(), keep_running=False)
for thread in threading.enumerate():
    if thread.name == "spark":
        thread.join()
found["started ahead"] = SparkContext._active_spark_context is not None
third = SparkResource()
third.spark_session.range(1).count()
third.teardown_after_execution(build_init_resource_context())
found["third stopped"] = SparkContext._active_spark_context is None

from pyspark.sql import SparkSession
speculative = {**SMALL_DATA_SETTINGS, "spark.master": "local[1]", "spark.speculation": "true"}
foreign = SparkSession.builder.config(map=speculative).getOrCreate()
os.environ["LAKEGC_SPARK_CONF"] = "{}"
for name in counts:
    del os.environ[name]
found["speculative"] = refused()
foreign.stop()
print(json.dumps(found))
"""


SECRET = "not for: nobody's = eyes! #é\\u0041\\ \U0001f511"


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The findings of a process that starts and stops several sessions in one JVM, in order."""
    with tempfile.TemporaryDirectory() as tmp:  # sockets need short paths; those of pytest are too long
        return sessions_in(Path(tmp), tmp_path_factory.mktemp("home"))


def sessions_in(tmp: Path, home: Path) -> dict[str, Any]:
    overrides = {"spark.sql.shuffle.partitions": "3", "spark.hadoop.fs.s3a.secret.key": SECRET}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEGC_", "LAKECTL_"))} | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(platformdirs.user_cache_path()),  # creating an archive for one process isn't worth it
        "TMPDIR": str(tmp),
        "LAKEGC_SPARK_MASTER": "local[1]",
        "LAKEGC_SPARK_CONF": json.dumps({**SMALL_DATA_SETTINGS, **overrides}),
    }
    command = [sys.executable, "-c", SESSIONS]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    findings: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return findings | {"left at the end": [path.name for path in tmp.iterdir()]}


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="command lines of others are read from /proc")
def test_no_setting_is_on_the_command_line_of_the_jvm(sessions: dict[str, Any]) -> None:
    """Everybody on a machine can list its processes, and Spark's configuration may contain keys of stores."""
    [command_line] = sessions["command lines"]

    assert "SparkSubmit" in command_line
    for hidden in ("not for", "secret", "shuffle"):
        assert hidden not in command_line


def test_settings_reach_the_jvm_unchanged(sessions: dict[str, Any]) -> None:
    """A character with a special meaning in a settings file could change a key or begin another setting."""
    assert sessions["secret"] == sessions["secret in Java"] == SECRET
    assert sessions["left"] == []


def test_sockets_of_workers_are_in_a_private_folder(sessions: dict[str, Any]) -> None:
    """The sockets require no secret, so anyone who can open one can make a worker run any code."""
    assert sessions["modes"] == {"folder": "0o700", "log": "0o600"}
    assert sessions["sockets"]["in it"] > 0
    assert sessions["sockets"]["beside it"] == 0


def test_a_session_leaves_nothing_in_the_temporary_folder(sessions: dict[str, Any]) -> None:
    """Each run could leave a socket, a log or a file with keys of stores there."""
    cache = f"lakegc-{os.geteuid()}"  # stays if the home folder can't be written to
    assert {name for name in sessions["left at the end"] if name.startswith((".", "lakegc"))} <= {cache}


def test_configured_settings_override_the_defaults(sessions: dict[str, Any]) -> None:
    """The settings come from LAKEGC_SPARK_MASTER and LAKEGC_SPARK_CONF. Speculation is off."""
    assert sessions["taken"] == {
        "spark.master": "local[1]",
        "spark.sql.shuffle.partitions": "3",
        "spark.speculation": "false",
        "spark.sql.session.timeZone": "UTC",
    }


def test_a_resource_starts_no_jvm_until_its_session_is_used(sessions: dict[str, Any]) -> None:
    assert sessions["lazy"] is True


def test_a_session_started_ahead_without_keep_running_is_stopped_by_its_resource(
    sessions: dict[str, Any],
) -> None:
    """Otherwise, the last tasks of the session could delete objects after the process has ended."""
    assert (sessions["started ahead"], sessions["third stopped"]) == (True, True)


def test_different_settings_raise_an_error_while_a_session_runs(sessions: dict[str, Any]) -> None:
    """Spark itself would silently return the running session. The error names the settings, and the session keeps its
    own."""
    assert sessions["other"].startswith("LakegcError: a SparkSession with different settings is already running")
    assert "(they differ in spark.sql.shuffle.partitions)" in sessions["other"]
    assert sessions["untouched"] == "3"
    assert sessions["same"] is True
    assert sessions["still runs"] is True


def test_teardown_stops_the_session_and_removes_the_log_of_the_jvm(sessions: dict[str, Any]) -> None:
    """The next session has its own settings."""
    assert (sessions["stopped"], sessions["second"]) == (True, "5")
    assert (sessions["jvm_log"], sessions["jvm_log afterwards"]) == (True, False)


def test_expressions_are_built_without_recording_their_source_lines(sessions: dict[str, Any]) -> None:
    """Sending the source line of each expression to the JVM would take longer than building it."""
    assert sessions["asks"] is False


def test_the_configured_numbers_of_tasks_are_passed_to_spark(sessions: dict[str, Any]) -> None:
    """The counts come from LAKEGC_PARALLELISM and LAKEGC_SHUFFLE_PARTITIONS."""
    assert (sessions["parallelism"], sessions["second"]) == (3, "5")


def test_the_error_about_a_master_that_spark_cannot_use_names_it(sessions: dict[str, Any]) -> None:
    """The error says which settings to check, and no process is left running."""
    assert sessions["nonsense"].startswith("LakegcError: Spark does not start with master nonsense: ")
    assert "LAKEGC_SPARK_MASTER" in sessions["nonsense"]
    assert sessions["nothing left"] is True


def test_a_running_session_with_speculation_is_refused(sessions: dict[str, Any]) -> None:
    """Other code started the session. It is refused even if its other settings agree."""
    assert "(they differ in spark.speculation)" in sessions["speculative"]


@pytest.mark.parametrize("value", ["true", "TRUE", " true ", "1"])
def test_enabling_speculation_in_the_spark_configuration_is_wrong_usage(value: str) -> None:
    """A speculative copy of a task would race the task itself."""
    with pytest.raises(WrongUsage, match=r"spark\.speculation must be false.*LAKEGC_SPARK_CONF"):
        check_overrides({"spark.master": "local[2]", "spark.speculation": value})


@pytest.mark.parametrize("key", [key for key in REQUIRED_SETTINGS if key != "spark.speculation"])
def test_settings_that_correctness_depends_on_cannot_be_changed(key: str) -> None:
    """Setting them to the value that they already have is allowed."""
    with pytest.raises(WrongUsage, match="must be"):
        check_overrides({key: "Europe/Berlin"})
    check_overrides({key: REQUIRED_SETTINGS[key].upper()})


def test_configured_speculation_is_refused_before_a_jvm_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Speculation may be switched on by LAKEGC_SPARK_CONF or by the resource's configuration."""
    from spark_resources.spark.resource import SparkResource

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # a JVM would be searched here
    monkeypatch.setenv("LAKEGC_SPARK_CONF", '{"spark.speculation": "true"}')
    with pytest.raises(WrongUsage, match=r"spark\.speculation"):
        _ = SparkResource().spark_session
    monkeypatch.setenv("LAKEGC_SPARK_CONF", "{}")
    with pytest.raises(WrongUsage, match=r"spark\.speculation"):
        _ = SparkResource(spark_config={"spark.speculation": True}).spark_session


def test_the_defaults_follow_the_cores_and_the_memory_of_the_machine() -> None:
    """The heap grows with the cores from half a GiB to four GiB. Shuffles have tasks for every core, and the memory for
    shuffles grows by 2 MiB at a time."""
    small, large = machine_settings("local[*]", 2, 1 << 30), machine_settings("local[*]", 64, 1 << 40)
    usual = machine_settings("local[*]", 4, 32 << 30)

    heaps = [settings["spark.driver.memory"] for settings in (small, usual, large)]
    assert heaps == ["512m", "2048m", "4096m"]
    assert (small["spark.sql.shuffle.partitions"], large["spark.sql.shuffle.partitions"]) == ("4", "128")
    assert {settings["spark.buffer.pageSize"] for settings in (small, usual, large)} == {"2m"}
    assert {small["spark.driver.host"], small["spark.driver.bindAddress"]} == {"127.0.0.1"}
    assert REQUIRED_SETTINGS.items() <= common_settings().items()


def test_only_a_small_default_heap_gets_the_serial_garbage_collector() -> None:
    """If the heap is large or set by the user, Java chooses the garbage collector."""
    chosen = [machine_settings("local[*]", cores, 1 << 40) for cores in (2, 4, 8)]

    assert [garbage_collector_option(settings, {}, {}) for settings in chosen] == [
        "-XX:+UseSerialGC",
        "-XX:+UseSerialGC",
        "",
    ]
    assert garbage_collector_option({"spark.driver.memory": "1g"}, {"spark.driver.memory": "1g"}, {}) == ""


@pytest.mark.parametrize("option", ["-XX:+UseG1GC", "-Xmx1g -XX:-UseParallelGC", "-XX:+UseZGC"])
def test_a_configured_garbage_collector_replaces_the_default_one(option: str) -> None:
    """Java doesn't start if two garbage collectors are given."""
    settings = machine_settings("local[*]", 2, 1 << 40)

    assert garbage_collector_option(settings, {}, {"JAVA_TOOL_OPTIONS": option}) == ""
    assert garbage_collector_option(settings, {"spark.driver.defaultJavaOptions": option}, {}) == ""
    assert (
        garbage_collector_option(settings, {"spark.app.name": "UseG1GC"}, {"JAVA_TOOL_OPTIONS": "-Xss2m"})
        == "-XX:+UseSerialGC"
    )


@pytest.mark.parametrize(
    "master", ["yarn", "k8s://https://cluster:6443", "spark://cluster:7077", "local-cluster[2,1,512]"]
)
def test_on_a_cluster_the_driver_is_not_given_a_loopback_address(master: str) -> None:
    """With a loopback address, executors would look for the driver on their own machine. The number of executors
    doesn't follow from the driver's cores."""
    assert machine_settings(master, 2, 1 << 30) == {"spark.master": master, "spark.driver.memory": "512m"}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in Linux's /proc")
def test_the_worker_daemon_imports_nothing_that_starts_a_thread() -> None:
    """A fork has only the thread that calls it. The thread of pyarrow's allocator is an exception: it survives
    forks."""
    code = """
import os, sys, spark_resources.spark.worker_daemon
names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
print(len(names), *sorted(name for name in names if name != "jemalloc_bg_thd"))
print(*sorted({"pyarrow", "boto3", "pandas"} - set(sys.modules)))
"""
    environ = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", code]
    completed = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert completed.returncode == 0, completed.stderr
    threads, not_imported = completed.stdout.split("\n")[:2]
    count, *named = threads.split()
    assert len(named) == 1, threads
    assert int(count) <= 2
    assert not_imported == ""


def test_zip_files_of_the_installed_spark_are_removed_from_the_python_path(tmp_path: Path) -> None:
    """The installed package is imported instead. Zip files of a different Spark and all other entries stay."""
    import pyspark

    from spark_resources.spark.worker_daemon import without_zips

    package = Path(pyspark.__file__).parent
    zips = [str(package / "python" / "lib" / name) for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip")]
    others = [str(tmp_path / "pyspark.zip"), str(tmp_path), str(package.parent)]

    assert without_zips([*zips, *others]) == others
    assert without_zips([*zips, str(tmp_path)]) == [*zips, str(tmp_path)]


def test_the_garbage_collector_of_workers_ignores_modules_that_tasks_import(spark: SparkSession) -> None:
    """Otherwise, a worker would traverse the objects of the compiled decoder after each task."""

    def importing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc
        import sys

        known = "numba" in sys.modules
        objects = len(gc.get_objects())
        import numba  # noqa: F401

        yield from ([] if not list(batches) else [pa.record_batch({"known": [known], "objects": [objects]})])

    tasks = spark.range(0, 8, 1, 8)
    tasks.mapInArrow(importing, "known boolean, objects long").collect()
    again = tasks.mapInArrow(importing, "known boolean, objects long").collect()

    assert any(row["known"] for row in again)
    assert all(row["objects"] < 15_000 for row in again if row["known"])


@pytest.mark.parametrize(
    ("error", "is_shown"), [(EOFError(), False), (ConnectionResetError(), False), (KeyError(), True)]
)
def test_sparks_servers_print_no_stack_trace_if_java_is_killed(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], error: Exception, is_shown: bool
) -> None:
    """The next call to Java fails with a message. Other errors of these servers are shown."""
    server = accumulators.AccumulatorTCPServer(("127.0.0.1", 0), StreamRequestHandler, "")
    try:
        raise error
    except Exception:
        server.handle_error(None, "spark")  # type: ignore[arg-type]
    finally:
        server.server_close()

    assert ("Traceback" in capsys.readouterr().err) is is_shown
