"""`lakegc fsck` on the terminal: what was proved, everything that is wrong, and who needs it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lakegc_assets.cli.console import console, harmless, size
from lakegc_assets.cli.escaping import print_error, print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import AS_IT_IS, Server
from lakegc_assets.formatting import plural
from lakegc_assets.fsck.check import Checked, check
from lakegc_assets.fsck.findings import Finding, LostObject, Needs, Report
from lakegc_assets.progress import tell
from spark_resources.errors import WrongUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = 20  # alien files and lost objects, in a table for people

SOUND, DAMAGED = 0, 1


@contextmanager
def session() -> Iterator[Callable[[], SparkSession]]:
    """A Spark session of this command's own, started when it is first asked for and stopped at the end."""
    from spark_resources.spark.resource import SparkResource

    resource = SparkResource()
    try:
        yield lambda: resource.spark_session
    finally:
        resource.teardown_after_execution(None)  # type: ignore[arg-type]


def run(repository: str, *, missing: Path | None) -> Report:
    """Check a repository; write the addresses of lost objects to a file, where one is asked for."""
    refuse_unwritable(missing)
    server = Server.configured()
    target = server.target(repository)
    left_out: list[str] = []
    with session() as spark:
        keep = (lambda lost: left_out.extend(write_list(missing, lost))) if missing else None
        report = check(Checked(target, server.lakefs, spark, tell, keep))
    report.hints += [f"{harmless(one)} can't be written one a line and is not in {missing}." for one in left_out]
    return report


# --- the list for `lakegc mark --accept-missing` --------------------------------------------------------------------


def refuse_unwritable(path: Path | None) -> None:
    if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise WrongUsage(f"--write-missing {path}: this can't be written as a file")


def write_list(path: Path, lost: Iterator[str]) -> list[str]:
    """Write addresses one a line, replacing the file at the end. Returns those that hold a line break."""
    left_out: list[str] = []
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("w", encoding="utf-8", newline="") as file:
        for address in lost:
            if "\n" in address or "\r" in address:
                left_out.append(address)
            else:
                file.write(f"{address}\n")
    unfinished.replace(path)
    return left_out


# --- shown ----------------------------------------------------------------------------------------------------------


def show(report: Report, *, missing: Path | None, as_json: bool) -> int:
    """Print a report and return the exit code."""
    if as_json:
        print_text(json.dumps(document(report, missing), indent=1))
    else:
        show_proved(report)
        show_wrong(report)
        show_notes(report, missing)
    if report.sound:
        return SOUND
    print_error(f"lakegc: {harmless(verdict(report))}")
    return DAMAGED


def verdict(report: Report) -> str:
    parts = []
    if report.findings:
        parts.append(
            f"{len(report.findings):,} {'thing' if len(report.findings) == 1 else 'things'} wrong in its metadata"
        )
    if report.lost_count:
        parts.append(f"{report.lost_count:,} live {'object' if report.lost_count == 1 else 'objects'} missing")
    return f"{report.repository} is {'sound' if report.sound else 'damaged: ' + ' and '.join(parts)}"


def show_proved(report: Report) -> None:
    table = Table(title=f"Check of {report.repository}", show_header=False, title_justify="left")

    def n(name: str) -> str:
        return f"{report.proved[name]:,}"

    live = f"{n('live')} ({n('live_committed')} committed, {n('live_staged')} staged) against {n('listed')} stored"
    read = f"{size(report.proved['bytes'])} of tables in {report.proving_seconds:.1f} s"
    rows = {
        "commits": f"{n('commits')} proved by their ids",
        "metaranges": f"{n('metaranges')} proved by content hash",
        "ranges": f"{n('ranges')} proved by content hash, {n('entries')} entries decoded",
        "other tables": f"{n('dump_tables')} of the dump of references, {n('other_tables')} that nothing refers to",
        "live objects": live,
        "outside the namespace": f"{n('outside')} addresses, not looked up",
        "read": f"{read}, {size(int(report.rate))}/s; {report.seconds:.1f} s in all",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console().print(table)


def show_wrong(report: Report) -> None:
    out = console()
    for one in report.findings:
        out.print(f"{one.problem.upper()}: {finding_words(one)}", markup=False, highlight=False, soft_wrap=True)
    if report.lost_count:
        where = f"; branches that break: {', '.join(report.lost_branches)}" if report.lost_branches else ""
        out.print(f"MISSING: {report.lost_count:,} live objects{where}", markup=False, soft_wrap=True)
    for lost in report.lost[:SHOWN]:
        out.print(f"  {lost_words(lost)}", markup=False, highlight=False, soft_wrap=True)
    if report.lost_count > SHOWN:
        out.print(f"  … and {report.lost_count - SHOWN:,} more (--write-missing FILE writes all)", markup=False)


def finding_words(one: Finding) -> str:
    return harmless(f"{one.what} {one.id}: {one.why}{needs_words(one.needs)}")


def lost_words(one: LostObject) -> str:
    how = " and ".join(word for word, is_so in (("committed", one.committed), ("staged", one.staged)) if is_so)
    return harmless(f"{one.address} ({how}{f' at {one.path}' if one.path is not None else ''}){needs_words(one.needs)}")


def needs_words(needs: Needs) -> str:
    parts = []
    if needs.branches:
        parts.append(f"breaks {', '.join(needs.branches)}")
    if needs.commits:
        rest = needs.commit_count - len(needs.commits)
        more = f" and {rest:,} more" if rest else ""
        parts.append(f"needed by commits {', '.join(needs.commits)}{more} ({needs.retained:,} retained)")
    if needs.history_of:
        parts.append(f"in the history of {', '.join(needs.history_of)}")
    return f"; {'; '.join(parts)}" if parts else ""


def show_notes(report: Report, missing: Path | None) -> None:
    out = console()
    for key in report.alien[:SHOWN]:
        out.print(f"Alien file: {harmless(key)}", markup=False, highlight=False, soft_wrap=True)
    if report.alien_count > SHOWN:
        out.print(f"… and {report.alien_count - SHOWN:,} more alien files", markup=False)
    for one in report.strange_tables:
        out.print(
            f"Alien file: _lakefs/{one.id} is named like a table and isn't one ({harmless(one.why)}); nothing needs it",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    for sentence in report.not_proved:
        out.print(f"Not proved: {harmless(sentence)}", markup=False, highlight=False, soft_wrap=True)
    for sentence in report.hints:
        out.print(f"Note: {sentence}", markup=False, highlight=False, soft_wrap=True)
    following = command("mark", report.repository)
    if report.lost_count and missing is None:
        listed = command("fsck", report.repository, "--write-missing", "FILE")
        out.print(f"Write the list that 'mark --accept-missing FILE' takes: {listed}", **AS_IT_IS)
    elif missing is not None:
        out.print(f"{plural(report.lost_count, 'address')} in {missing}", markup=False, soft_wrap=True)
        following = command("mark", report.repository, "--accept-missing", str(missing))
    if report.sound:
        out.print(f"{verdict(report)}.", markup=False)
    if report.sound or missing is not None:
        out.print(f"Next: {following}", **AS_IT_IS)


def document(report: Report, missing: Path | None) -> dict[str, Any]:
    """The report as one JSON document."""
    return {
        "repository": report.repository,
        "namespace": report.namespace,
        "sound": report.sound,
        "findings": [asdict(one) for one in report.findings],
        "missing": {
            "count": report.lost_count,
            "branches": report.lost_branches,
            "objects": [asdict(one) for one in report.lost],
            "list": str(missing) if missing else None,
        },
        "alien": {"count": report.alien_count, "files": report.alien},
        "named_like_tables": [asdict(one) for one in report.strange_tables],
        "not_proved": report.not_proved,
        "hints": report.hints,
        "proved": report.proved,
        "seconds": round(report.seconds, 2),
        "proving_seconds": round(report.proving_seconds, 2),
        "table_bytes_per_second": round(report.rate),
    }
