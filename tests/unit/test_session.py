"""The Spark session: settings take or are refused, one at a time, ended by teardown; workers fork from few threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_resources.errors import WrongUsage
from spark_resources.spark import (
    QUICK_START,
    RELIED_ON,
    check_overrides,
    collector,
    fixed_settings,
    machine_settings,
)

# What is done to sessions is done in a process of its own: the one of the other tests stays as it is.
SESSIONS = """
import json, os, pathlib, threading
import pyspark.errors.utils
from dagster import build_init_resource_context
from pyspark import SparkContext
from spark_resources.errors import LakegcError
from spark_resources.session import SparkResource
from spark_resources.spark import QUICK_START, jvm_log

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

del QUICK_START["spark.sql.shuffle.partitions"]
os.environ["LAKEGC_SPARK_CONF"] = json.dumps(QUICK_START)
counts = {"LAKEGC_PARALLELISM": "3", "LAKEGC_SHUFFLE_PARTITIONS": "5"}
os.environ.update(counts)
second = SparkResource()
found["second"] = second.spark_session.sparkContext.getConf().get("spark.sql.shuffle.partitions")
found["parallelism"] = second.spark_session.sparkContext.defaultParallelism
second.teardown_after_execution(build_init_resource_context())

from pyspark.sql import SparkSession
speculative = {**QUICK_START, "spark.master": "local[1]", "spark.speculation": "true"}
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
    """What a process that starts and ends several sessions in one JVM found, one after the other."""
    with tempfile.TemporaryDirectory() as tmp:  # sockets have short names, and pytest's own folders are too deep
        return sessions_in(Path(tmp), tmp_path_factory.mktemp("home"))


def sessions_in(tmp: Path, home: Path) -> dict[str, Any]:
    mine = {"spark.sql.shuffle.partitions": "3", "spark.hadoop.fs.s3a.secret.key": SECRET}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEGC_", "LAKECTL_"))} | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(platformdirs.user_cache_path()),  # an archive for one process isn't worth the making
        "TMPDIR": str(tmp),
        "LAKEGC_SPARK_MASTER": "local[1]",
        "LAKEGC_SPARK_CONF": json.dumps({**QUICK_START, **mine}),
    }
    command = [sys.executable, "-c", SESSIONS]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found | {"left at the end": [path.name for path in tmp.iterdir()]}


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="command lines of others are read from /proc")
def test_no_setting_is_on_the_command_line_of_the_jvm(sessions: dict[str, Any]) -> None:
    """Everybody on a machine can list its processes, and Spark's configuration may hold keys of stores."""
    [command_line] = sessions["command lines"]

    assert "SparkSubmit" in command_line
    for hidden in ("not for", "secret", "shuffle"):
        assert hidden not in command_line


def test_settings_arrive_in_the_jvm_as_they_were_given(sessions: dict[str, Any]) -> None:
    """A character that a file of settings takes for its own would change a key, or begin another setting."""
    assert sessions["secret"] == sessions["secret in Java"] == SECRET
    assert sessions["left"] == []


def test_sockets_of_workers_lie_where_nobody_else_may_enter(sessions: dict[str, Any]) -> None:
    """Who can open one of them can have a worker run anything: they ask for no secret."""
    assert sessions["modes"] == {"folder": "0o700", "log": "0o600"}
    assert sessions["sockets"]["in it"] > 0
    assert sessions["sockets"]["beside it"] == 0


def test_nothing_of_a_session_is_left_in_the_temporary_folder(sessions: dict[str, Any]) -> None:
    """Each run would leave a socket, a log or a file with keys of stores there."""
    cache = f"lakegc-{os.geteuid()}"  # stays, where the home can't be written to
    assert {name for name in sessions["left at the end"] if name.startswith((".", "lakegc"))} <= {cache}


def test_configured_settings_are_lost(sessions: dict[str, Any]) -> None:
    """LAKEGC_SPARK_MASTER and LAKEGC_SPARK_CONF take, over lakegc's defaults, and speculation is off."""
    assert sessions["taken"] == {
        "spark.master": "local[1]",
        "spark.sql.shuffle.partitions": "3",
        "spark.speculation": "false",
        "spark.sql.session.timeZone": "UTC",
    }


def test_a_resource_starts_spark_before_it_is_asked(sessions: dict[str, Any]) -> None:
    """A JVM is started by the first use of the session, not by making the resource."""
    assert sessions["lazy"] is True


def test_a_second_session_silently_gets_the_first_ones_settings(sessions: dict[str, Any]) -> None:
    """Other settings while a session runs are an error that names them, and the running session keeps its own."""
    assert sessions["other"].startswith("LakegcError: a SparkSession with other settings is already running")
    assert "(spark.sql.shuffle.partitions differ)" in sessions["other"]
    assert sessions["untouched"] == "3"
    assert sessions["same"] is True
    assert sessions["still runs"] is True


def test_a_session_outlives_its_run(sessions: dict[str, Any]) -> None:
    """Teardown stops the session and takes the JVM's log away; the next one gets settings of its own."""
    assert (sessions["stopped"], sessions["second"]) == (True, "5")
    assert (sessions["jvm_log"], sessions["jvm_log afterwards"]) == (True, False)


def test_an_expression_asks_the_jvm_where_it_was_written(sessions: dict[str, Any]) -> None:
    """Expressions are built without telling the JVM the line of each: that takes more than building them."""
    assert sessions["asks"] is False


def test_the_counts_of_tasks_do_not_reach_spark(sessions: dict[str, Any]) -> None:
    """LAKEGC_PARALLELISM and LAKEGC_SHUFFLE_PARTITIONS are what Spark reckons with."""
    assert (sessions["parallelism"], sessions["second"]) == (3, "5")


def test_spark_that_does_not_start_is_no_sentence(sessions: dict[str, Any]) -> None:
    """A master that Spark can't use is told with its name and the settings to look at, and leaves nothing running."""
    assert sessions["nonsense"].startswith("LakegcError: Spark does not start with master nonsense: ")
    assert "LAKEGC_SPARK_MASTER" in sessions["nonsense"]
    assert sessions["nothing left"] is True


def test_a_running_session_brings_speculation(sessions: dict[str, Any]) -> None:
    """A session that somebody else started with speculation on is not worked with, whatever else agrees."""
    assert "(spark.speculation differ)" in sessions["speculative"]


@pytest.mark.parametrize("value", ["true", "TRUE", " true ", "1"])
def test_speculation_is_switched_on_by_configuration(value: str) -> None:
    """Speculation in the Spark configuration is wrong usage: a copy of a task would race its twin."""
    with pytest.raises(WrongUsage, match=r"spark\.speculation has to stay false.*LAKEGC_SPARK_CONF"):
        check_overrides({"spark.master": "local[2]", "spark.speculation": value})


@pytest.mark.parametrize("key", [key for key in RELIED_ON if key != "spark.speculation"])
def test_what_correctness_hangs_on_is_configured_away(key: str) -> None:
    """Time zone and ANSI mode can't be configured either; saying what holds anyway is allowed."""
    with pytest.raises(WrongUsage, match="has to stay"):
        check_overrides({key: "Europe/Berlin"})
    check_overrides({key: RELIED_ON[key].upper()})


def test_a_configured_speculation_reaches_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The resource refuses it before a JVM is started, from LAKEGC_SPARK_CONF and from its own configuration alike."""
    from spark_resources.session import SparkResource

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # where a JVM would be looked for
    monkeypatch.setenv("LAKEGC_SPARK_CONF", '{"spark.speculation": "true"}')
    with pytest.raises(WrongUsage, match=r"spark\.speculation"):
        _ = SparkResource().spark_session
    monkeypatch.setenv("LAKEGC_SPARK_CONF", "{}")
    with pytest.raises(WrongUsage, match=r"spark\.speculation"):
        _ = SparkResource(spark_config={"spark.speculation": True}).spark_session


def test_the_defaults_do_not_fit_the_machine() -> None:
    """The heap stays between half a GiB and four and grows with the cores; shuffles have tasks for every core, and what
    they hold grows by 2 MiB at a time."""
    small, large = machine_settings("local[*]", 2, 1 << 30), machine_settings("local[*]", 64, 1 << 40)
    usual = machine_settings("local[*]", 4, 32 << 30)

    heaps = [settings["spark.driver.memory"] for settings in (small, usual, large)]
    assert heaps == ["512m", "2048m", "4096m"]
    assert (small["spark.sql.shuffle.partitions"], large["spark.sql.shuffle.partitions"]) == ("4", "128")
    assert {settings["spark.buffer.pageSize"] for settings in (small, usual, large)} == {"2m"}
    assert {small["spark.driver.host"], small["spark.driver.bindAddress"]} == {"127.0.0.1"}
    assert RELIED_ON.items() <= fixed_settings().items()


def test_a_large_heap_or_one_of_the_users_gets_the_collector_of_small_ones() -> None:
    """The collector for small heaps is taken where lakegc chose a small heap, and otherwise Java chooses."""
    chosen = [machine_settings("local[*]", cores, 1 << 40) for cores in (2, 4, 8)]

    assert [collector(settings, {}, {}) for settings in chosen] == ["-XX:+UseSerialGC", "-XX:+UseSerialGC", ""]
    assert collector({"spark.driver.memory": "1g"}, {"spark.driver.memory": "1g"}, {}) == ""


@pytest.mark.parametrize("option", ["-XX:+UseG1GC", "-Xmx1g -XX:-UseParallelGC", "-XX:+UseZGC"])
def test_two_collectors_keep_java_from_starting(option: str) -> None:
    """Where a variable or a setting names a collector, lakegc names none."""
    settings = machine_settings("local[*]", 2, 1 << 40)

    assert collector(settings, {}, {"JAVA_TOOL_OPTIONS": option}) == ""
    assert collector(settings, {"spark.driver.defaultJavaOptions": option}, {}) == ""
    assert collector(settings, {"spark.app.name": "UseG1GC"}, {"JAVA_TOOL_OPTIONS": "-Xss2m"}) == "-XX:+UseSerialGC"


@pytest.mark.parametrize(
    "master", ["yarn", "k8s://https://cluster:6443", "spark://cluster:7077", "local-cluster[2,1,512]"]
)
def test_executors_are_sent_to_their_own_loopback(master: str) -> None:
    """On a cluster the driver is where its machine's name says, and the driver's cores say nothing about its tasks."""
    assert machine_settings(master, 2, 1 << 30) == {"spark.master": master, "spark.driver.memory": "512m"}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in Linux's /proc")
def test_a_thread_runs_when_workers_are_forked() -> None:
    """What the worker daemon imports starts no thread, besides the one of pyarrow's allocator, which survives forks."""
    code = """
import os, sys, spark_resources.daemon
names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
print(len(names), *sorted(name for name in names if name != "jemalloc_bg_thd"))
print(*sorted({"pyarrow", "boto3", "pandas"} - set(sys.modules)))
"""
    environ = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert told.returncode == 0, told.stderr
    threads, not_imported = told.stdout.split("\n")[:2]
    count, *named = threads.split()
    assert len(named) == 1, threads
    assert int(count) <= 2
    assert not_imported == ""


def test_workers_import_spark_from_its_zip_files(tmp_path: Path) -> None:
    """The zip files of an installed Spark leave the path; those of another one, and all other entries, stay."""
    import pyspark

    from spark_resources.daemon import without_zips

    package = Path(pyspark.__file__).parent
    zips = [str(package / "python" / "lib" / name) for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip")]
    others = [str(tmp_path / "pyspark.zip"), str(tmp_path), str(package.parent)]

    assert without_zips([*zips, *others]) == others
    assert without_zips([*zips, str(tmp_path)]) == [*zips, str(tmp_path)]


def test_what_tasks_import_is_not_gone_through_after_each_task(spark: SparkSession) -> None:
    """Once a task has imported the compiled decoder, the collector of its worker leaves that alone."""

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
