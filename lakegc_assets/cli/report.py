"""`lakegc report`: show the result of a sweep at any later time, from its files and without Spark."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from lakegc_assets.approval.foreign_marks import open_sweep_record
from lakegc_assets.cli.console import (
    cell,
    escaped_name,
    print_command,
    print_sentence,
    print_table,
    printing,
    size,
)
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers
from lakegc_assets.cli.object_list import print_rows
from lakegc_assets.cli.sweep_report import show_report
from lakegc_assets.formatting import plural
from lakegc_assets.mark import dot_segments
from lakegc_assets.mark.context import Target
from lakegc_assets.sweep.quarantine import Quarantine, read_quarantine
from lakegc_assets.sweep.report import Report, read_report
from spark_resources.errors import NotFound, WrongUsage
from spark_resources.mark_store.mark import Mark, marks
from spark_resources.mark_store.record import MarkRecord, finished_at, refuse_retired, retirement_in_words
from spark_resources.model import RECEIPTS, MarkState, Outcome, check_mark_id
from spark_resources.spark.datasets import all_batches, open_dataset
from spark_resources.stores.place import Place

OUTCOMES_WITH_REASONS = (Outcome.FAILED, Outcome.RESCUED, Outcome.CHANGED, Outcome.ALREADY_GONE)
"""Outcomes that need a reason: the approved object was not deleted by this sweep."""
ROWS_SHOWN, MAX_NAMED = 10, 1_000  # objects per outcome in the tables for people, and in the JSON
MAX_REASONS = 10_000  # maximum number of distinct reasons; a store may give a different one for each object
OTHER_REASONS = "for other reasons"
WITHOUT_REASON = {Outcome.ALREADY_GONE: "it was gone before this sweep: ask 'explain' what deleted it"}
"""What is shown for outcomes whose receipts have no reason."""
NOTHING_SWEPT = "This mark had no objects to delete."


@dataclass(slots=True)
class Reasons:
    """Why objects were not deleted: counts and bytes by outcome and reason, and the first objects of each outcome."""

    objects: Counter[tuple[str, str]] = field(default_factory=Counter)
    sizes: Counter[tuple[str, str]] = field(default_factory=Counter)
    named: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, table: pa.Table) -> None:
        for outcome in OUTCOMES_WITH_REASONS:
            rows = table.filter(pc.equal(table["outcome"], outcome.value))
            room = MAX_NAMED - len(self.named[outcome.value])
            self.named[outcome.value] += rows.slice(0, room).select(["address", "size", "code", "why"]).to_pylist()
            for row in rows.group_by(["code", "why"]).aggregate([("size", "count"), ("size", "sum")]).to_pylist():
                reason = reason_in_words(row) or WITHOUT_REASON.get(outcome, "no reason is recorded")
                key = (outcome.value, reason)
                if key not in self.objects and len(self.objects) >= MAX_REASONS:
                    key = (outcome.value, OTHER_REASONS)
                self.objects[key] += row["size_count"]
                self.sizes[key] += row["size_sum"]

    def rows(self) -> Iterator[tuple[str, str, int, int]]:
        """Rows of outcome, reason, objects and bytes, with the most frequent reason of each outcome first."""
        for outcome in OUTCOMES_WITH_REASONS:
            for (name, reason), count in self.objects.most_common():
                if name == outcome.value:
                    yield name, reason, count, self.sizes[name, reason]


@printing()
def show(repository: str, name: str, *, list_all: bool, output_format: str) -> None:
    """Print the report of a mark's sweep, or with `list_all` the outcome of every object. Raises the errors of
    `find_report`."""
    target = Servers.configured().target(repository)
    place, report = target.place, find_report(target, name)
    record = own_record(place, report.mark_id)
    is_retired = record is not None and record.state is MarkState.RETIRED
    if list_all:
        if record is not None:
            refuse_retired(record)
        print_rows(outcomes(place, report), RECEIPTS.names, output_format, line_of=as_line, if_empty=NOTHING_SWEPT)
        if output_format == "table" and report.objects.get(Outcome.QUARANTINED.value):
            print_sentence(later_outcomes_in_words(place, repository, report))
        return
    reasons, quarantine = Reasons() if is_retired else reasons_of(place, report), read_quarantine(place, report)
    location = "" if is_retired else f"{place.namespace.uri}/{report.dataset['folder']}"
    facts = {} if record is None else record.step("expired_set").facts
    if output_format == "json":
        retired = {"retired": None if record is None else record.retired}
        print_text(json.dumps(document(report, reasons, quarantine, location, facts) | retired, indent=1))
        return
    show_report(report, as_json=False, quarantine=quarantine)
    show_reasons(reasons)
    if record is not None and (gone := reasons.named.get(Outcome.ALREADY_GONE.value)):
        explain_command = command("explain", repository, gone[0]["address"], "--address")
        print_command("What deleted an object that was already gone", explain_command)
    for sentence in (
        f"Swept by {report.by}, {report.began:%Y-%m-%d %H:%M:%S} to {report.ended:%Y-%m-%d %H:%M:%S} UTC.",
        f"Quarantined objects now: {quarantine.counts_in_words()}." if quarantine.quarantined else "",
        *(f"{sentence}." for sentence in dot_segments.sentences(facts)),
        retired_sentence(record) if record is not None and is_retired else f"{OUTCOMES_AS_PARQUET}: {location}",
    ):
        if sentence:
            print_sentence(sentence)
    if not is_retired:
        print_command("List the outcome of every object", command("report", repository, report.mark_id, "--list"))


def outcomes(place: Place, report: Report) -> Iterator[pa.Table]:
    """The outcome of every object (RECEIPTS), table by table. Each file is verified."""
    return all_batches(place, open_dataset(place, report.dataset["folder"], sha256=report.dataset["sha256"]), RECEIPTS)


def later_outcomes_in_words(place: Place, repository: str, report: Report) -> str:
    """What happened since the sweep to the objects that it quarantined, and how to find out for one of them."""
    return (
        f"Quarantined objects now: {read_quarantine(place, report).counts_in_words()}. The list shows what the "
        f"sweep did. To see what happened to an object later: {command('explain', repository, 'ADDRESS')}"
    )


def as_line(row: Mapping[str, Any]) -> str:
    """One object's outcome for people: its size, address, and the reason if there is one."""
    reason = reason_in_words(row)
    reason_text = f"  ({escaped_name(reason)})" if reason else ""
    return f"{row['outcome']:<12}  {size(row['size']):>10}  {escaped_name(row['address'])}{reason_text}"


def reason_in_words(row: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (row["code"], row["why"])))


OUTCOMES_AS_PARQUET = "The outcome of every object, as Parquet"


def own_record(place: Place, mark_id: str) -> MarkRecord | None:
    """The record of one of lakegc's marks; None for a foreign mark."""
    return Mark.open(place, mark_id).record if Mark.exists(place, mark_id) else None


def retired_sentence(record: MarkRecord) -> str:
    """When and by whom a mark was retired, and what that freed."""
    freed = record.retired or {"files": 0, "bytes": 0}
    return (
        f"The mark was {retirement_in_words(record)}. This removed {plural(freed['files'], 'file')} "
        f"({size(freed['bytes'])}), including the outcome of every object."
    )


def find_report(target: Target, name: str) -> Report:
    """The report of a mark's sweep; `latest` stands for the last sweep of one of lakegc's own marks.

    Raises `WrongUsage` if this mark has no report, `NotFound` for `latest` if no mark has one.
    """
    place, repository = target.place, target.repository.id
    if name == "latest":
        ended = (MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES, MarkState.RETIRED)
        swept = [record for record in marks(place) if record.finished is not None and record.state in ended]
        reports = [read_report(place, record.mark_id) for record in sorted(swept, key=finished_at)]
        known = [report for report in reports if report is not None]
        if not known:
            raise NotFound(
                f"no mark of {repository} has been swept. To list the marks: {command('status', repository)}"
            )
        return max(known, key=lambda report: report.ended)
    mark_id = check_mark_id(name.rpartition("/")[2])
    report = read_report(place, mark_id)
    if report is None:
        raise WrongUsage(why_no_report(target, mark_id))
    return report


def why_no_report(target: Target, mark_id: str) -> str:
    """Why there is no report, and the next command."""
    repository = target.repository.id
    mark = (
        Mark.open(target.place, mark_id) if Mark.exists(target.place, mark_id) else open_sweep_record(target, mark_id)
    )
    name = f"mark {mark_id} of {repository}"
    if mark is None:
        return f"{name} was not swept. To list the marks: {command('status', repository)}"
    if mark.record.state is MarkState.RETIRED:
        return (
            f"{name} was {retirement_in_words(mark.record)}. It was never swept, so it has no report. To list the "
            f"marks: {command('status', repository)}"
        )
    if mark.record.state is MarkState.SWEEPING:
        quarantine = ["--quarantine"] if mark.record.quarantine else []
        return (
            f"the sweep of {name} is running or was interrupted. If it was interrupted, resume it with: "
            f"{command('sweep', repository, mark_id, *quarantine)}"
        )
    review = command("review", repository, mark_id)
    return f"{name} is {mark.record.state} and was not swept. To see what it would delete: {review}"


def reasons_of(place: Place, report: Report) -> Reasons:
    reasons = Reasons()
    if any(report.objects.get(outcome.value) for outcome in OUTCOMES_WITH_REASONS):
        for table in outcomes(place, report):
            reasons.add(table)
    return reasons


def show_reasons(reasons: Reasons) -> None:
    rows = list(reasons.rows())
    if not rows:
        return
    table = Table()
    table.add_column("outcome", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for heading in ("objects", "bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    for outcome, reason, count, amount in rows[:ROWS_SHOWN]:
        table.add_row(outcome, cell(reason), f"{count:,}", size(amount))
    if rest := rows[ROWS_SHOWN:]:
        more = cell(f"… and {plural(len(rest), 'more reason')}")
        table.add_row("", more, f"{sum(row[2] for row in rest):,}", size(sum(row[3] for row in rest)))
    print_table("What was not deleted, and why", table)
    for outcome, named in reasons.named.items():
        for row in named[:ROWS_SHOWN]:
            print_sentence(f"{outcome}: {row['address']}")
        if len(named) > ROWS_SHOWN:
            print_sentence(f"{outcome}: … and more; the Parquet files with the outcomes list them all")


def document(
    report: Report, reasons: Reasons, quarantine: Quarantine, location: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The report as one JSON document."""
    plain: dict[str, Any] = json.loads(report.to_json())
    return {
        **plain,
        "where": location,
        "reasons": [
            {"outcome": outcome, "reason": reason, "objects": count, "bytes": amount}
            for outcome, reason, count, amount in reasons.rows()
        ],
        "dot_segments": dot_segments.document(facts),
        "named": {outcome: rows for outcome, rows in reasons.named.items() if rows},
        "in_quarantine": {
            "quarantined": quarantine.quarantined,
            "restored": quarantine.restored,
            "purged": quarantine.purged,
            "left": quarantine.left,
        },
    }
