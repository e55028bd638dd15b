"""Run commands of lakegc, each in a process forked from this one, which has imported other projects' packages.

    python -m tests.support.forked_commands

It imports nothing of lakegc, so each command imports, starts and ends everything of its own. Only the packages that
take seconds to import are shared. Each line of the input is a JSON document with `arguments`, `environment`, and the
files for the output; the process prints the command's exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from importlib import import_module

PACKAGES = (
    "alembic.command", "dagster", "dagster._core.storage.sqlite_storage", "dagster_pyspark", "lakefs_sdk", "numba",
    "pandas", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "pydantic_settings",
    "pyspark.sql.classic.dataframe", "pyspark.sql.pandas.map_ops", "requests", "rich.progress", "rich.table",
    "tenacity", "typer", "yaml",
)  # fmt: skip


def next_command() -> str | None:
    """In a new process, the line that describes its command; None here, once there are no more."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return line
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def run(line: str) -> None:
    """Run one command in this process, which ends as if it had been started for it."""
    command = json.loads(line)
    for descriptor, path in enumerate((os.devnull, command["out"], command["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.argv[1:] = command["arguments"]
    runpy.run_module("lakegc_assets.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for package in PACKAGES:
        import_module(package)
    if described := next_command():
        run(described)
