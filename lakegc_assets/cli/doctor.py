"""`lakegc doctor` on the terminal: each check, what it found, and what to do."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from lakegc_assets.cli.console import cell, print_command, print_sentence, print_table, printing
from lakegc_assets.cli.escaping import print_error, print_log, print_text
from lakegc_assets.cli.invocation import as_invoked, command
from lakegc_assets.doctor import configuration, machine
from lakegc_assets.doctor.checks import Checks
from lakegc_assets.doctor.examination import Surroundings
from lakegc_assets.doctor.examination import examine as examine_all
from lakegc_assets.doctor.findings import Finding, Result, Status
from lakegc_assets.formatting import plural
from spark_resources.host.user_folders import home_folder
from spark_resources.identifiers import Partition
from spark_resources.spark.session import memory_bytes

FINE, PROBLEMS = 0, 1  # exit codes
COLORS = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red", Status.NOT_TRIED: "dim"}


def examine(repository: str | None, *, with_spark: bool, status: Callable[[str], None]) -> list[Finding]:
    """The findings on this machine. Raises `WrongUsage` if the repository's id is invalid."""
    if repository is not None:
        Partition.of(repository, "any")
    surroundings = Surroundings(
        environ=dict(os.environ),
        home=home_folder(),
        now=lambda: datetime.now(UTC),
        free_bytes=free_bytes,
        memory_bytes=memory_bytes(),
        memory_limit=machine.container_memory_limit(),
        token=secrets.token_hex(8),
        start_spark=start_spark if with_spark else None,
    )
    return examine_all(repository, surroundings, Checks(show_traceback), status)


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def start_spark() -> Result:
    from lakegc_assets.cli.fsck import session

    with session() as spark:
        return machine.started_spark(spark())


def show_traceback(error: Exception) -> None:
    if os.environ.get("LAKEGC_DEBUG"):
        text = "".join(traceback.format_exception(error))
        print_error(configuration.without_secrets(text, configuration.secrets_of(os.environ, None)))


# --- output ---------------------------------------------------------------------------------------------------------


@printing()
def show(findings: Sequence[Finding], repository: str | None, *, commands: Collection[str], as_json: bool) -> int:
    """Print the findings and return the exit code. `commands` are the names of lakegc's commands."""
    counts = Counter(finding.status for finding in findings)
    if as_json:
        print_text(json.dumps(document(findings, repository), indent=1))
    else:
        print_table(
            f"lakegc and {repository}" if repository else "lakegc on this machine", as_table(findings, commands)
        )
        print_sentence(f"{', '.join(in_words(counts))}.")
        if repository is None:
            print_command("Check a repository and its store, too", command("doctor", "REPO"))
        elif not counts[Status.PROBLEM]:
            print_command("Next", command("mark", repository))
    if counts[Status.PROBLEM]:
        print_log(verdict(findings), level="ERROR", color="red")
        return PROBLEMS
    return FINE


def as_table(findings: Sequence[Finding], commands: Collection[str]) -> Table:
    table = Table()
    table.add_column("area", no_wrap=True)
    table.add_column("check", overflow="fold", max_width=31)
    table.add_column("status", no_wrap=True)
    table.add_column("finding, and what to do", overflow="fold")
    for group, members in groupby(findings, key=lambda finding: finding.group):
        for index, finding in enumerate(members):
            result = finding.result
            text = as_invoked(result.text, commands)
            name = "" if index else group
            table.add_row(name, cell(finding.name), Text(result.status, COLORS[result.status]), cell(text))
        table.add_section()
    return table


def in_words(counts: Counter[Status]) -> list[str]:
    return [
        plural(counts[Status.PROBLEM], "problem"),
        plural(counts[Status.WARNING], "warning"),
        f"{counts[Status.OK]} ok",
        f"{counts[Status.NOT_TRIED]} not tried",
    ]


def verdict(findings: Sequence[Finding]) -> str:
    names = [f"{finding.group}: {finding.name}" for finding in findings if finding.status is Status.PROBLEM]
    return f"{plural(len(names), 'problem')} ({'; '.join(names)})"


def document(findings: Sequence[Finding], repository: str | None) -> dict[str, Any]:
    """The findings as one JSON document."""
    counts = Counter(finding.status for finding in findings)
    return {
        "repository": repository,
        "fine": not counts[Status.PROBLEM],
        "counts": {status.value: counts[status] for status in Status},
        "checks": [
            {
                "group": finding.group,
                "name": finding.name,
                "status": finding.status.value,
                "found": finding.result.found,
                "advice": finding.result.advice,
            }
            for finding in findings
        ],
    }
