"""`lakegc fsck` on the terminal: what was verified, all findings, and what they affect."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lakegc_assets.cli.console import escaped_name, print_command, print_sentence, print_table, size
from lakegc_assets.cli.escaping import print_log, print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers, command_for_next_mark
from lakegc_assets.formatting import plural
from lakegc_assets.fsck.check import CheckRun, check
from lakegc_assets.fsck.findings import Dependents, Finding, LostObject, Report
from lakegc_assets.progress import publish
from spark_resources.errors import WrongUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_SHOWN = 20  # unknown files and lost objects in the output for people

SOUND, DAMAGED = 0, 1  # exit codes


@contextmanager
def session() -> Iterator[Callable[[], SparkSession]]:
    """A Spark session for this command, started on first use and stopped at the end."""
    from spark_resources.spark.resource import SparkResource

    resource = SparkResource()
    try:
        yield lambda: resource.spark_session
    finally:
        resource.teardown_after_execution(None)  # type: ignore[arg-type]


def run(repository: str, *, write_missing: Path | None) -> Report:
    """Check a repository, and write the addresses of lost objects to a file if one is given."""
    refuse_unwritable(write_missing)
    servers = Servers.configured()
    target = servers.target(repository)
    skipped: list[str] = []
    with session() as spark:
        write_lost = (lambda lost: skipped.extend(write_list(write_missing, lost))) if write_missing else None
        report = check(CheckRun(target, servers.lakefs, spark, publish, write_lost))
    report.hints += [
        f"{escaped_name(address)} contains a line break and was not written to {write_missing}." for address in skipped
    ]
    return report


# --- the list for `lakegc mark --accept-missing` --------------------------------------------------------------------


def refuse_unwritable(path: Path | None) -> None:
    if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise WrongUsage(
            f"--write-missing {path}: this file can't be written. Pass a file in an existing, writable folder."
        )


def write_list(path: Path, lost: Iterator[str]) -> list[str]:
    """Write one address per line, replacing the file at the end. Returns skipped addresses: those with a line break."""
    skipped: list[str] = []
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("w", encoding="utf-8", newline="") as file:
        for address in lost:
            if "\n" in address or "\r" in address:
                skipped.append(address)
            else:
                file.write(f"{address}\n")
    unfinished.replace(path)
    return skipped


# --- output ---------------------------------------------------------------------------------------------------------


def show(report: Report, *, write_missing: Path | None, as_json: bool) -> int:
    """Print a report and return the exit code."""
    if as_json:
        print_text(json.dumps(document(report, write_missing), indent=1))
    else:
        show_verified(report)
        show_problems(report)
        show_notes(report, write_missing)
    if report.is_sound:
        return SOUND
    print_log(escaped_name(verdict(report)), level="ERROR")
    return DAMAGED


def verdict(report: Report) -> str:
    parts = []
    if report.findings:
        parts.append(
            f"{len(report.findings):,} {'problem' if len(report.findings) == 1 else 'problems'} in its metadata"
        )
    if report.lost_count:
        parts.append(f"{report.lost_count:,} live {'object' if report.lost_count == 1 else 'objects'} missing")
    return f"{report.repository} is {'sound' if report.is_sound else 'damaged: ' + ' and '.join(parts)}"


def show_verified(report: Report) -> None:
    table = Table(show_header=False)

    def number(name: str) -> str:
        return f"{report.verified[name]:,}"

    live = (
        f"{number('live')} ({number('live_committed')} committed, {number('live_staged')} staged) "
        f"compared with {number('listed')} stored"
    )
    read = f"{size(report.verified['bytes'])} of tables in {report.verifying_seconds:.1f} s"
    rows = {
        "commits": f"{number('commits')} verified by their ids",
        "metaranges": f"{number('metaranges')} verified by content hash",
        "ranges": f"{number('ranges')} verified by content hash, {plural(report.verified['entries'], 'entry')} decoded",
        "other tables": f"{number('dump_tables')} in the dump of references, {number('other_tables')} unreferenced",
        "live objects": live,
        "outside the namespace": f"{plural(report.verified['outside'], 'address')}, not looked up",
        "read": f"{read}, {size(int(report.rate))}/s; {report.seconds:.1f} s in total",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    print_table(f"Check of {report.repository}", table)


def show_problems(report: Report) -> None:
    for finding in report.findings:
        print_sentence(f"{finding.problem.upper()}: {finding_in_words(finding)}")
    if report.lost_count:
        where = f"; broken branches: {', '.join(report.lost_branches)}" if report.lost_branches else ""
        print_sentence(f"MISSING: {plural(report.lost_count, 'live object')}{where}")
    for lost in report.lost[:MAX_SHOWN]:
        print_sentence(f"  {lost_in_words(lost)}")
    if report.lost_count > MAX_SHOWN:
        print_sentence(f"  … and {report.lost_count - MAX_SHOWN:,} more (--write-missing FILE lists them all)")


def finding_in_words(finding: Finding) -> str:
    return escaped_name(f"{finding.what} {finding.id}: {finding.why}{dependents_in_words(finding.needed_by)}")


def lost_in_words(lost: LostObject) -> str:
    kinds = " and ".join(kind for kind, applies in (("committed", lost.committed), ("staged", lost.staged)) if applies)
    return escaped_name(
        f"{lost.address} ({kinds}{f' at {lost.path}' if lost.path is not None else ''})"
        f"{dependents_in_words(lost.needed_by)}"
    )


def dependents_in_words(needed_by: Dependents) -> str:
    parts = []
    if needed_by.branches:
        parts.append(f"breaks {', '.join(needed_by.branches)}")
    if needed_by.commits:
        others = needed_by.commit_count - len(needed_by.commits)
        more = f" and {others:,} more" if others else ""
        parts.append(f"needed by commits {', '.join(needed_by.commits)}{more} ({needed_by.retained:,} retained)")
    if needed_by.history_of:
        parts.append(f"in the history of {', '.join(needed_by.history_of)}")
    return f"; {'; '.join(parts)}" if parts else ""


def show_notes(report: Report, write_missing: Path | None) -> None:
    for key in report.unknown_files[:MAX_SHOWN]:
        print_sentence(f"Unknown file: {key}")
    if report.unknown_count > MAX_SHOWN:
        print_sentence(f"… and {plural(report.unknown_count - MAX_SHOWN, 'more unknown file')}")
    for table in report.misnamed_files:
        print_sentence(
            f"Unknown file: _lakefs/{table.id} is named like a table but isn't one ({table.why}); nothing refers to it"
        )
    for sentence in report.not_verified:
        print_sentence(f"Not verified: {sentence}")
    for sentence in report.hints:
        print_sentence(f"Note: {sentence}")
    if report.lost_count and write_missing is None:
        write_command = command("fsck", report.repository, "--write-missing", "FILE")
        print_command("Write the list for 'mark --accept-missing FILE'", write_command)
    elif write_missing is not None:
        print_sentence(f"The list of missing addresses is in {write_missing} ({report.lost_count:,} found).")
    if report.is_sound:
        print_sentence(f"{verdict(report)}.")
    if write_missing is not None:
        print_command("Next", command("mark", report.repository, "--accept-missing", str(write_missing)))
    elif report.is_sound:
        place = Servers.configured().target(report.repository).place
        print_command("Next", command_for_next_mark(place, report.repository))


def as_json(item: Finding | LostObject) -> dict[str, Any]:
    """The JSON fields of a finding or lost object, in which `needed_by` is called `needs`."""
    fields = asdict(item)
    return {**{name: value for name, value in fields.items() if name != "needed_by"}, "needs": fields["needed_by"]}


def document(report: Report, write_missing: Path | None) -> dict[str, Any]:
    """The report as one JSON document."""
    return {
        "repository": report.repository,
        "namespace": report.namespace,
        "sound": report.is_sound,
        "findings": [as_json(finding) for finding in report.findings],
        "missing": {
            "count": report.lost_count,
            "branches": report.lost_branches,
            "objects": [as_json(lost) for lost in report.lost],
            "list": str(write_missing) if write_missing else None,
        },
        "alien": {"count": report.unknown_count, "files": report.unknown_files},
        "named_like_tables": [as_json(table) for table in report.misnamed_files],
        "not_verified": report.not_verified,
        "hints": report.hints,
        "verified": report.verified,
        "seconds": round(report.seconds, 2),
        "verifying_seconds": round(report.verifying_seconds, 2),
        "table_bytes_per_second": round(report.rate),
    }
