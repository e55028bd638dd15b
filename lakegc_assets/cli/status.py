"""`lakegc status`: the marks of one repository, or an overview of all repositories."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lakegc_assets.approval.mark_states import status_of_foreign_approval
from lakegc_assets.cli import fleet
from lakegc_assets.cli.console import cell, escaped_name, print_command, print_sentence, print_table, printing, size
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers, announcement_in_words
from lakegc_assets.mark.context import Target
from lakegc_assets.sweep.history import known_history, sweeps_since_in_words
from lakegc_assets.sweep.quarantine import read_quarantine, result_in_words
from lakegc_assets.sweep.report import read_report
from spark_resources.errors import DamagedData, LakegcError, Untrusted
from spark_resources.mark_store.approval import ApprovalStatus, withdraw_stale_summary
from spark_resources.mark_store.foreign_layouts import LAYOUTS_WITH_SUMMARY, ReferenceMark, reference_marks
from spark_resources.mark_store.lease import current_holder
from spark_resources.mark_store.mark import each_mark
from spark_resources.mark_store.record import MarkRecord, newest_finished, retirement_in_words
from spark_resources.model import MarkState
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel


@dataclass(frozen=True, slots=True)
class Row:
    """One mark in the list of marks."""

    repository: str
    mark_id: str
    state: str
    made: str
    expired: int | None
    expired_bytes: int | None
    by: str
    outcome: str = ""
    """The result of the sweep: deleted, in quarantine, undone, purged; "" for a mark that wasn't swept. For a retired
    mark, also when and by whom it was retired."""
    announced: str = ""
    """The announced approval by a policy, as a sentence; "" if there is none. Only the newest mark has one."""
    swept_since: str | None = None
    """Why the counts may be too high, as sentences; None if no other mark was swept since this one began."""
    quarantine: bool = False
    """Whether the mark's sweep quarantines."""
    sweep_ended: str | None = None
    """When the mark's sweep ended; None if it didn't, or if it isn't one of the newest sweeps."""


NEXT_COMMANDS = {
    MarkState.MARKED.value: ("To see what the newest mark would delete", "review"),
    MarkState.SUPERSEDED.value: ("To see what the newest mark would delete", "review"),
    ApprovalStatus.EXPIRED.value: ("To see what the newest mark would delete", "review"),
    ApprovalStatus.INCOMPLETE.value: ("To see what the newest mark would delete", "review"),
    MarkState.APPROVED.value: ("To sweep the approved set", "sweep"),
    MarkState.SWEEPING.value: ("To resume the sweep if it was interrupted", "sweep"),
    MarkState.SWEPT.value: ("To see what the last sweep did", "report"),
    MarkState.SWEPT_WITH_FAILURES.value: ("To see what the last sweep did", "report"),
}
"""The purpose and name of the command that follows each state of one of lakegc's marks."""
AWAITING_SWEEP = (MarkState.SWEEPING.value, MarkState.APPROVED.value)


@printing()
def show_status(repository: str | None, *, as_json: bool) -> None:
    """Print the marks of a repository, or of all repositories: for people, an overview with a row for each of them.

    The JSON document of all repositories has both. If a single repository was requested and can't be read, its error is
    raised.
    """
    servers = Servers.configured()
    if repository is not None:
        rows = list(mark_rows(servers.target(repository), repository))
        if as_json:
            print_document(rows, {})
        else:
            show_marks(rows, repository)
        return
    overview = fleet.read_fleet(servers)
    if not as_json:
        fleet.show(overview)
        return
    every_mark: list[Row] = []
    unreadable: dict[str, str] = {}
    for name in sorted(row.repository for row in overview):
        try:
            every_mark.extend(mark_rows(servers.target(name), name))
        except LakegcError as error:
            unreadable[name] = str(error)  # one broken repository doesn't hide the others
    print_document(every_mark, unreadable, fleet.document(overview))


def print_document(rows: Sequence[Row], unreadable: dict[str, str], more: dict[str, Any] | None = None) -> None:
    documents = [{name: getattr(row, name) for name in Row.__slots__} for row in rows]
    print_text(json.dumps({"marks": documents, "unreadable": unreadable, **(more or {})}, indent=1))


def show_marks(rows: Sequence[Row], repository: str) -> None:
    """Print the marks of one repository, the newest first, and the next steps."""
    newest_first = sorted(rows, key=lambda row: row.made, reverse=True)
    if newest_first:
        print_table(f"Marks of {repository}", as_table(newest_first))
    for row in open_marks(newest_first):
        if row.swept_since is not None:
            print_sentence(row.swept_since)
    for row in newest_first:
        if row.announced:
            print_sentence(row.announced)
            print_command("To withdraw the announcement", command("revoke", row.repository, row.mark_id))
    for purpose, line in next_commands(newest_first, repository):
        print_command(purpose, line)


def as_table(rows: Sequence[Row]) -> Table:
    """A table of one repository's marks. Ids are never truncated, even on a narrow terminal, so they can be copied."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    longest = max(len(escaped_name(row.mark_id)) for row in rows)
    table.add_column("mark", no_wrap=True, min_width=longest)
    table.add_column("state", min_width=len("in quarantine"))
    table.add_column("objects", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("started (UTC)", min_width=len("2026-11-21"))
    table.add_column("by", overflow="fold")
    for row in rows:
        count = "" if row.expired is None else f"{row.expired:,}"
        amount = "" if row.expired_bytes is None else size(row.expired_bytes)
        state = row.state if not row.outcome else f"{row.state}: {row.outcome}"
        started_by, started = row.by.partition(" (process")[0], row.made[: len("2026-11-21 06:00")]
        table.add_row(cell(row.mark_id), cell(state), count, amount, started, cell(started_by))
    return table


def next_commands(newest_first: Sequence[Row], repository: str) -> Iterator[tuple[str, str]]:
    """The purposes and commands of the next steps, or the one to make a mark if none is finished."""
    marks = open_marks(newest_first)
    if not marks:
        purpose = "To make a mark" if newest_first else "There are no marks yet. To make one"
        yield purpose, command("mark", repository)
    for row in marks:
        purpose, name = NEXT_COMMANDS[row.state]
        mark = last_swept(newest_first, row) if name == "report" else row
        quarantine = ["--quarantine"] if name == "sweep" and row.quarantine else []
        yield purpose, command(name, mark.repository, mark.mark_id, *quarantine)


def last_swept(rows: Sequence[Row], swept: Row) -> Row:
    """The mark whose sweep ended last: not always the newest one. `swept` if that isn't known."""
    ended = [row for row in rows if row.sweep_ended is not None]
    return max(ended, key=lambda row: row.sweep_ended or "", default=swept)


def open_marks(newest_first: Sequence[Row]) -> list[Row]:
    """The marks that have a next step: earlier ones whose sweep is approved or was begun, then the newest finished
    one."""
    finished = [row for row in newest_first if row.state in NEXT_COMMANDS]
    return [*(row for row in finished[1:] if row.state in AWAITING_SWEEP), *finished[:1]]


def mark_rows(target: Target, repository: str) -> Iterator[Row]:
    """The marks of a repository: those of lakegc in order of their ids, then the foreign ones. Also withdraws summaries
    for the reference collector that no valid approval permits."""
    holder, now = current_holder(target.place.store()), target.place.store().now()
    own_records = dict(each_mark(target.place))
    newest, history = newest_finished(own_records.values()), known_history(target.place)
    sweep_ended = {sweep.mark_id: sweep.ended.isoformat() for sweep in history.sweeps}

    def own_row(mark_id: str) -> Row:
        record = own_records[mark_id]
        if not isinstance(record, MarkRecord):
            state = "not signed with a known key" if isinstance(record, Untrusted) else "unknown format"
            return Row(repository, mark_id, state, "", None, None, "")
        if record.finished is not None:
            withdraw_stale_summary(target.place, record, now=now)
        counts, started = record.counts, f"{record.start:%Y-%m-%d %H:%M:%S}"
        return Row(
            repository, record.mark_id, fleet.true_state(target.place, record, holder, now=now), started,
            counts.get("expired"), counts.get("expired_bytes"), record.by, outcome_of(target.place, record),
            (announcement_in_words(target.place, record) or "") if record is newest else "",
            sweeps_since_in_words(history, record), record.quarantine, sweep_ended.get(mark_id),
        )  # fmt: skip

    yield from fetch_in_parallel(own_records, own_row)
    for foreign in reference_marks(target.place, own_ids=frozenset(own_records)):
        approval_status = status_of_foreign_approval(target.place, foreign, now=now)
        yield foreign_mark_row(
            foreign,
            repository,
            "" if approval_status is ApprovalStatus.NONE else f", {approval_status}",
            sweep_ended.get(foreign.mark_id),
        )


def outcome_of(place: Place, record: MarkRecord) -> str:
    """The result of a mark's sweep ("" if it wasn't swept), and when and by whom the mark was retired."""
    if record.state is MarkState.RETIRED:
        when = retirement_in_words(record).removeprefix(record.state.value).strip()
        return "; ".join(filter(None, (when, _sweep_in_words(place, record))))
    return _sweep_in_words(place, record) if record.state in SWEPT_STATES else ""


SWEPT_STATES = (MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES)


def _sweep_in_words(place: Place, record: MarkRecord) -> str:
    try:
        report = read_report(place, record.mark_id)
        return "" if report is None else result_in_words(report, read_quarantine(place, report))
    except DamagedData:
        return "its report is damaged"


def foreign_mark_row(foreign: ReferenceMark, repository: str, approval: str, sweep_ended: str | None) -> Row:
    recorded = (foreign.summary or {}).get("num_deleted_objects")
    started = f"{foreign.written:%Y-%m-%d %H:%M:%S}"
    count = recorded if type(recorded) is int else None
    return Row(
        repository, foreign.mark_id, foreign_state(foreign) + approval, started, count, None, made_by(foreign),
        sweep_ended=sweep_ended,
    )  # fmt: skip


def foreign_state(foreign: ReferenceMark) -> str:
    """The state of a foreign mark. A summary means that it is finished; the oldest layouts have no summaries."""
    if foreign.summary is None:
        return (
            "unfinished (no summary)"
            if foreign.layout in LAYOUTS_WITH_SUMMARY
            else "unknown (no summary in this layout)"
        )
    success = foreign.summary.get("success")
    return "marked" if success is True else "failed" if success is False else "unknown (summary unreadable)"


def made_by(foreign: ReferenceMark) -> str:
    return f"the reference collector ({foreign.layout})"
