"""The check itself: commit graph, tables, live objects, and what each finding affects."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakegc_assets.formatting import plural
from lakegc_assets.fsck import lakefs_files, live_objects
from lakegc_assets.fsck.commit_graph import Graph, read_graph, report_commits
from lakegc_assets.fsck.findings import Dependents, Finding, LostObject, Problem, Report
from lakegc_assets.fsck.tables import (
    METARANGES,
    NOT_A_TABLE,
    RANGES,
    UNREFERENCED_TABLE,
    finding_of,
    ranges_of_metaranges,
    references_to,
    verified_table_addresses,
)
from lakegc_assets.mark.context import Target
from lakegc_assets.mark.missing_objects import ALWAYS_LOOKED_UP, not_listed_now
from lakegc_assets.progress import LogMessage
from spark_resources.errors import LakegcError
from spark_resources.lakefs import LakeFS
from spark_resources.model import RANGE_IDS, RANGE_REFS
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

MAX_NAMED = 1000  # lost objects whose references are looked up; the others are only counted and listed
MAX_METARANGES_PER_RANGE = 1000  # looked up for one range; those of heads are always looked up

WriteLost = Callable[[Iterator[str]], None]


@dataclass(frozen=True, slots=True)
class CheckRun:
    """The input of a check. `write_lost` is called with all lost addresses, in order, once they are known."""

    target: Target
    lakefs: LakeFS
    spark: Callable[[], SparkSession]
    log_message: LogMessage
    write_lost: WriteLost | None = None


def check(run: CheckRun) -> Report:
    """Verify everything that can be verified, and return all findings. Raises only if nothing can be verified."""
    started = time.monotonic()
    report = Report(run.target.repository.id, run.target.place.namespace.uri)
    run.log_message("listing _lakefs/")
    files = lakefs_files.list_lakefs_files(run.target.place.store())
    report.unknown_files, report.unknown_count = sorted(files.unknown_files), files.unknown_count
    run.log_message("reading the commit graph")
    now = run.lakefs.server_time(run.target.repository.server)
    graph = read_graph(run.target, run.lakefs, report)
    run.log_message(
        f"verified {plural(report.verified['commits'], 'commit')}; waiting for the server's list of retained commits"
    )
    metaranges = live_objects.live_metaranges(run.target, run.lakefs, graph, report, now=now)
    report_commits(graph, report)
    with errors_from_executors():
        check_tables(run, graph, metaranges, files, report)
    report.seconds = time.monotonic() - started
    return report


def check_tables(
    run: CheckRun, graph: Graph, live_metaranges: set[str], files: lakefs_files.LakefsFiles, report: Report
) -> None:
    spark, place = run.spark(), run.target.place
    started = time.monotonic()
    by_metarange = commits_by_metarange(graph)
    metarange_ids = sorted({*by_metarange, *live_metaranges})
    heads = {graph.commits[head].metarange_id for head in graph.heads.values() if head in graph.commits}
    rows = [
        {"metarange_id": metarange_id, "live": metarange_id in live_metaranges, "head": metarange_id in heads}
        for metarange_id in metarange_ids
    ]
    run.log_message(f"verifying {plural(len(metarange_ids), 'metarange')}")
    ranges_found = ranges_of_metaranges(spark, place, pa.Table.from_pylist(rows, schema=METARANGES)).persist()
    damaged = metarange_findings(ranges_found, len(metarange_ids), report)
    ranges = distinct_ranges(ranges_found, report)
    unreferenced = sorted(files.tables - {*metarange_ids, *graph.dump_tables, *(row["range_id"] for row in ranges)})
    context = Context(run, graph, by_metarange, ranges_found, ranges, graph.is_complete and not damaged, report)
    for finding in damaged:
        report.findings.append(replace(finding, needed_by=graph.dependents(by_metarange.get(finding.id, []))))
    check_ranges(context, unreferenced)
    note_unchecked_objects(context, {finding.id for finding in damaged} & live_metaranges)
    ranges_found.unpersist()
    report.verifying_seconds = time.monotonic() - started


@dataclass(frozen=True, slots=True)
class Context:
    """The state after metaranges are read: `ranges_found` is RANGES_FOUND, `ranges` are rows of RANGES.

    `is_complete` means that all commits and metaranges could be read, so anything they don't refer to is unreferenced.
    """

    run: CheckRun
    graph: Graph
    by_metarange: dict[str, list[str]]
    ranges_found: DataFrame
    ranges: list[dict[str, Any]]
    is_complete: bool
    report: Report


def commits_by_metarange(graph: Graph) -> dict[str, list[str]]:
    commit_ids: dict[str, list[str]] = {}
    for commit in graph.commits.values():
        if commit.metarange_id:
            commit_ids.setdefault(commit.metarange_id, []).append(commit.id)
    return commit_ids


def note_unchecked_objects(context: Context, metaranges: set[str]) -> None:
    """Report that the objects of unreadable tables were not checked, so none of them is reported as lost."""
    live_ranges = {row["range_id"] for row in context.ranges if row["live"]}
    ranges = live_ranges & {finding.id for finding in context.report.findings}
    if metaranges or ranges:
        context.report.not_verified.append(
            f"Whether the store has the objects of {plural(len(metaranges), 'live metarange')} and "
            f"{plural(len(ranges), 'live range')}: these tables can't be read."
        )


# --- metaranges -----------------------------------------------------------------------------------------------------


def metarange_findings(ranges_found: DataFrame, metarange_count: int, report: Report) -> list[Finding]:
    """A finding for each damaged metarange, sorted by id. Adds the number of verified ones to the report;
    `metarange_count` is the number of all metaranges."""
    rows = ranges_found.where("range_id is null").select("note", "bytes").collect()
    notes = [json.loads(row["note"]) for row in rows if row["note"] is not None]
    report.count({"metaranges": metarange_count - len(notes), "bytes": sum(row["bytes"] or 0 for row in rows)})
    return sorted(map(finding_of, notes), key=lambda finding: finding.id)


def distinct_ranges(ranges_found: DataFrame, report: Report) -> list[dict[str, Any]]:
    """The distinct ranges of all metaranges (rows of RANGES). A range with contradictory descriptions is a finding."""
    from pyspark.sql import functions as F

    names = RANGE_REFS.names
    rows = ranges_found.where("range_id is not null").groupBy(*names).agg(F.max("live").alias("live")).collect()
    by_id: dict[str, dict[str, Any]] = {}
    for row in sorted((row.asDict() for row in rows), key=lambda row: str(row["range_id"])):
        merged = by_id.setdefault(str(row["range_id"]), row)
        if merged is not row:
            merged["live"] = merged["live"] or row["live"]
            why = "metaranges describe it differently (their counts or keys disagree)"
            report.findings.append(Finding("range", str(row["range_id"]), Problem.DAMAGED, why))
    return list(by_id.values())


# --- ranges and objects ---------------------------------------------------------------------------------------------


def check_ranges(context: Context, unreferenced: list[str]) -> None:
    """Verify the ranges of all commits and the `unreferenced` tables (ids), and compare the live addresses with the
    store's listing, in one job."""
    from pyspark.sql import Observation

    run, report = context.run, context.report
    spark, target = run.spark(), run.target
    entries = sum(row["entries"] for row in context.ranges)
    rows = [*context.ranges, *({"range_id": range_id, "live": False} for range_id in unreferenced)]
    observed = [
        live_objects.stored_addresses(spark, target.place),
        *live_objects.staged_addresses(spark, target, run.lakefs, context.graph, report),
        verified_table_addresses(spark, target.place, pa.Table.from_pylist(rows, schema=RANGES), total_entries=entries),
    ]
    run.log_message(
        f"verifying {plural(len(context.ranges), 'range')} with {plural(entries, 'entry')}, and listing "
        f"{target.place.store().where}"
    )
    observation = Observation("fsck")
    everything = live_objects.by_address(reduce(lambda left, right: left.unionByName(right), observed))
    totals = [column.alias(name) for name, column in live_objects.live_counts().items()]
    notes_and_lost = everything.observe(observation, *totals).where(live_objects.is_note_or_lost()).persist()
    notes = [json.loads(row["note"]) for row in notes_and_lost.where("note is not null").select("note").collect()]
    report.count({name: int(value or 0) for name, value in observation.get.items()})
    report.count(TaskReport.summed(note["report"] for note in notes if "report" in note).counters)
    record_findings(context, [finding_of(note) for note in notes if "report" not in note])
    find_lost(context, notes_and_lost.where("note is null"))
    notes_and_lost.unpersist()


def record_findings(context: Context, findings: list[Finding]) -> None:
    """Record the findings, and add to each finding of a range the commits and branches that need it.

    An unreferenced file that is only named like a table is not a finding unless the graph is incomplete.
    """
    damaged_ranges = [finding.id for finding in findings if finding.what == "range"]
    damaged_ranges += [finding.id for finding in context.report.findings if finding.what == "range"]
    needed_by = dependents_of_ranges(context, damaged_ranges)
    context.report.findings = [
        replace(finding, needed_by=needed_by.get(finding.id, finding.needed_by)) if finding.what == "range" else finding
        for finding in context.report.findings
    ]
    for finding in sorted(findings, key=lambda finding: (finding.what, finding.id)):
        if finding.what == NOT_A_TABLE and context.is_complete:
            context.report.misnamed_files.append(finding)
        elif finding.what in (NOT_A_TABLE, UNREFERENCED_TABLE):
            why = (
                "nothing refers to it"
                if context.is_complete
                else "a commit or metarange that can't be read may need it"
            )
            context.report.findings.append(replace(finding, what=UNREFERENCED_TABLE, why=f"{finding.why} ({why})"))
        else:
            context.report.findings.append(replace(finding, needed_by=needed_by.get(finding.id, finding.needed_by)))


def dependents_of_ranges(context: Context, ids: Iterable[str]) -> dict[str, Dependents]:
    """The commits and branches that need each of these ranges, by range id."""
    return {
        range_id: context.graph.dependents(
            commit for metarange_id in metaranges for commit in context.by_metarange.get(metarange_id, [])
        )
        for range_id, metaranges in metaranges_of_ranges(context, ids).items()
    }


def metaranges_of_ranges(context: Context, ids: Iterable[str]) -> dict[str, set[str]]:
    """The metaranges that contain these ranges, by range id: all those of heads, and others up to a limit."""
    from pyspark.sql import functions as F

    wanted = sorted(set(ids))
    if not wanted:
        return {}
    wanted_rows = context.run.spark().createDataFrame(pa.table({"range_id": wanted}, schema=RANGE_IDS))
    rows = (
        context.ranges_found.join(F.broadcast(wanted_rows), "range_id")
        .groupBy("range_id")
        .agg(
            F.collect_set(F.when(F.col("head"), F.col("metarange_id"))).alias("heads"),
            F.slice(F.array_sort(F.collect_set("metarange_id")), 1, MAX_METARANGES_PER_RANGE).alias("some"),
        )
        .collect()
    )
    return {row["range_id"]: {*row["heads"], *row["some"]} for row in rows}


# --- lost objects ---------------------------------------------------------------------------------------------------


def find_lost(context: Context, absent: DataFrame) -> None:
    """Report the live addresses that the listing lacks (`absent`), with their paths and branches.

    First, they are looked up again, and those that are listed now are excluded. This step is left out if so many are
    missing that the store or path is probably wrong.
    """
    run, report = context.run, context.report
    count, lost = report.verified.pop("not_listed"), absent
    named: list[Row] = []
    if count:
        if count <= ALWAYS_LOOKED_UP or count * 2 <= report.verified["live"]:
            run.log_message(f"looking up {plural(count, 'live object')} missing from the listing")
            still_missing = not_listed_now(absent.select("address"), run.target.place)
            lost = absent.join(still_missing, "address").persist()
        named = lost.orderBy("address").limit(MAX_NAMED).collect()
    report.lost_count = lost.count() if len(named) == MAX_NAMED else len(named)
    if run.write_lost:
        rows = lost.select("address").orderBy("address").toLocalIterator() if len(named) == MAX_NAMED else named
        run.write_lost(row["address"] for row in rows)
    if named:
        report.lost = with_references(context, named)
        report.lost_branches = tuple(
            sorted({branch for lost_object in report.lost for branch in lost_object.needed_by.branches})
        )
        hint_at_wrong_store(run, report)


def hint_at_wrong_store(run: CheckRun, report: Report) -> None:
    if report.lost_count > 1 and report.lost_count == report.verified["live"]:
        report.hints.append(
            f"The store has none of the live objects: {run.target.place.store().where} might not be the store or path "
            "that lakeFS writes to."
        )


def with_references(context: Context, named: list[Row]) -> list[LostObject]:
    """The lost objects of these rows, each with a path and with the commits and branches that refer to it."""
    run = context.run
    run.log_message(f"finding the paths and branches of {plural(len(named), 'lost object')}")
    ranges = pa.Table.from_pylist([row for row in context.ranges if row["live"]], schema=RANGES)
    committed = [row["address"] for row in named if row["committed"]]
    references: dict[str, list[tuple[str, str]]] = {}
    for row in references_to(run.spark(), run.target.place, ranges, committed).collect() if committed else ():
        references.setdefault(row["address"], []).append((row["range_id"], row["path"]))
    metaranges = metaranges_of_ranges(context, {range_id for pairs in references.values() for range_id, _ in pairs})
    staged = staged_places(context, {row["address"] for row in named if row["staged"]})
    lost_objects = []
    for row in named:
        places = references.get(row["address"], [])
        ids = {metarange_id for range_id, _ in places for metarange_id in metaranges.get(range_id, ())}
        needed_by = context.graph.dependents(
            commit for metarange_id in ids for commit in context.by_metarange.get(metarange_id, [])
        )
        paths = {path for _, path in places}
        for branch, path in staged.get(row["address"], []):
            needed_by = replace(needed_by, branches=tuple(sorted({*needed_by.branches, branch})))
            paths.add(path)
        lost_objects.append(
            LostObject(row["address"], min(paths, default=None), row["committed"], row["staged"], needed_by)
        )
    return lost_objects


def staged_places(context: Context, addresses: set[str]) -> dict[str, list[tuple[str, str]]]:
    """The branches and paths at which these addresses are staged, by address, as far as the server reports them.
    Failures are recorded in the report."""
    places_by_address: dict[str, list[tuple[str, str]]] = {}
    run = context.run
    for branch in sorted(context.graph.heads) if addresses else ():
        try:
            changed = live_objects.changed_paths(
                run.lakefs, run.target.repository.id, branch, run.target.place.namespace
            )
            for path, key in changed:
                if key in addresses:
                    places_by_address.setdefault(key, []).append((branch, path))
        except LakegcError as error:
            context.report.not_verified.append(f"Which staged paths on branch {branch} refer to lost objects: {error}")
    return places_by_address
