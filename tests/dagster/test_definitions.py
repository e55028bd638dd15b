"""Loading the definitions, by Dagster or by anyone else, imports modules and does nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]

# An audit hook sees every import, including those that Python's own libraries make.
LOAD = """
import json, sys
import dagster  # runs the program 'file' on the interpreter

seen = []
watched = ("socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec",
           "os.fork", "os.posix_spawn", "os.mkdir")

def watch(event, arguments):
    if event in watched:
        seen.append(f"{event} {arguments[:2]}")
    elif event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append(f"{event} {arguments[0]}")

sys.addaudithook(watch)
from lakegc_assets.definitions import defs
defs.resolve_asset_graph()

import threading
from pyspark import SparkContext
from pyspark.sql import SparkSession
print(json.dumps({
    "seen": [path for path in seen if "__pycache__" not in path and "/dev/null" not in path],
    "modules": sorted(sys.modules),
    "jvm": SparkContext._gateway is not None,
    "session": SparkSession.getActiveSession() is not None,
    "threads": [thread.name for thread in threading.enumerate()],
}))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process without settings and without a home folder observed while it loaded the definitions."""
    home = tmp_path_factory.mktemp("home")
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-W", "default", "-c", LOAD]
    ended = subprocess.run(command, env=environ, cwd=home, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    findings: dict[str, Any] = json.loads(ended.stdout)
    return {**findings, "home": [path.name for path in home.iterdir()], "stderr": ended.stderr}


def test_loading_the_definitions_has_no_side_effects(loaded: dict[str, Any]) -> None:
    """Loading opens no connection, starts no process or thread, and writes no file, in the home folder or elsewhere."""
    assert (loaded["seen"], loaded["threads"], loaded["home"]) == ([], ["MainThread"], [])


def test_loading_the_definitions_starts_no_spark(loaded: dict[str, Any]) -> None:
    """A JVM and a session are started by the first asset that needs them."""
    assert (loaded["jvm"], loaded["session"]) == (False, False)


def test_loading_the_definitions_causes_no_warning_about_lakegcs_code(loaded: dict[str, Any]) -> None:
    """Dagster would warn, for example, of what its next version removes."""
    assert "lakegc_assets" not in loaded["stderr"], loaded["stderr"]
    assert "spark_resources" not in loaded["stderr"], loaded["stderr"]


@pytest.mark.parametrize("module", ["lakefs_sdk", "boto3", "botocore", "numba", "pandas", "uvicorn", "starlette"])
def test_loading_the_definitions_imports_no_slow_library(loaded: dict[str, Any], module: str) -> None:
    """Only some steps need these libraries, and Dagster loads the code location in several processes."""
    assert module not in loaded["modules"]


def test_the_workspace_loads_from_any_folder(tmp_path: Path) -> None:
    """The package is installed, so Dagster's own validation succeeds anywhere."""
    dagster = Path(sys.executable).with_name("dagster")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [dagster, "definitions", "validate", "-w", PROJECT / "workspace.yaml"]
    ended = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert ended.returncode == 0, ended.stderr
    assert "Validation successful for code location lakegc" in ended.stderr + ended.stdout
