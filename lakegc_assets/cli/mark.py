"""Marks on the terminal: make one, and list them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lakegc_assets.approval import proposals
from lakegc_assets.approval.auto_approval import pending_announcement
from lakegc_assets.cli import brakes_table
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
from lakegc_assets.formatting import duration, plural
from lakegc_assets.mark import dot_segments
from lakegc_assets.mark.context import Target, find_target
from lakegc_assets.rules.incremental import late_uploads
from lakegc_assets.sweep.quarantine import read_quarantine, result_in_words
from lakegc_assets.sweep.report import read_report
from spark_resources.errors import DamagedData, LakegcError, NotFound, Untrusted, WrongUsage, full_stop
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.mark_store.approval import ApprovalStatus, withdraw_stale_summary
from spark_resources.mark_store.foreign_layouts import LAYOUTS_WITH_SUMMARY, ReferenceMark, reference_marks
from spark_resources.mark_store.lease import current_holder
from spark_resources.mark_store.mark import Mark, asset_folder, each_mark, marks
from spark_resources.mark_store.record import MarkRecord, newest_finished
from spark_resources.model import EXPIRED_OBJECTS, MarkState, Partition
from spark_resources.settings import Settings
from spark_resources.spark.datasets import file_batches
from spark_resources.stores.place import Place


@dataclass(frozen=True, slots=True)
class Server:
    """The configured lakeFS server, with the settings for each of its repositories."""

    lakefs: LakeFS

    @classmethod
    def configured(cls) -> Server:
        return cls(LakeFS(LakeFSSettings.of(Settings.load(os.environ, home_folder()))))

    def settings(self, repository: str) -> Settings:
        return Settings.load(os.environ, home_folder(), repository=repository)

    def target(self, repository: str) -> Target:
        return find_target(self.lakefs, repository, self.settings(repository))


# --- making a mark --------------------------------------------------------------------------------------------------


def refuse_mark_early(partition: Partition, options: Mapping[str, Any]) -> None:
    """Refuse a mark before its partition or run is created: if its id is already used by a lakegc or foreign mark, or
    its base mark is missing or unfinished. Reads only small records."""
    target = Server.configured().target(partition.repository)
    refuse_used_id(target, partition)
    since = options["since"]
    if since and (not Mark.exists(target.place, since) or Mark.open(target.place, since).record.finished is None):
        raise NotFound(
            f"there is no finished mark {since} of {partition.repository} to base an incremental mark on. To list "
            f"the marks: {command('status', partition.repository)}"
        )


def refuse_used_id(target: Target, partition: Partition) -> None:
    foreign = {mark.mark_id for mark in reference_marks(target.place, own_ids=frozenset())}
    if partition.mark_id in foreign or Mark.exists(target.place, partition.mark_id):
        raise WrongUsage(
            f"mark id {partition.mark_id} is in use in {partition.repository}. Choose another one, or leave it out to "
            "use the current time. An unfinished mark can be resumed in the Dagster UI."
        )


def make_mark(partition: Partition, options: Mapping[str, Any]) -> MarkRecord:
    """Run the job `mark` and return the finished mark's record."""
    from lakegc_assets.cli.dagster_runs import dagster_home, open_instance, run_mark

    with open_instance(dagster_home(os.environ)) as instance:
        run_mark(partition, options, instance=instance)
    return Mark.open(Server.configured().target(partition.repository).place, partition.mark_id).record


def basis_in_words(record: MarkRecord) -> str:
    """Whether a mark is full (and why) or incremental (and how many objects it compared)."""
    if record.is_incremental:
        compared = record.steps["expired_set"].facts["compared"]
        return f"incremental since mark {record.basis['chain'][0]}; {plural(compared, 'object')} compared"
    missed = record.steps["expired_set"].facts.get("missed")
    missed_text = "" if missed is None else f"; the incremental marks before it missed {plural(missed, 'object')}"
    return f"full ({record.basis['why']}){missed_text}" if record.basis["why"] else f"full{missed_text}"


@printing()
def show_mark(record: MarkRecord, *, as_json: bool) -> None:
    all_brakes = brakes_table.configured_brakes(record, now=record.finished or record.start)
    if as_json:
        print_text(json.dumps(summary(record) | {"brakes": brakes_table.document(all_brakes)}, indent=1))
        return
    commits, ranges, facts = (
        record.steps[name].facts for name in ("retained_commits", "committed_addresses", "expired_set")
    )
    retained = plural(commits["retained"], "retained commit")
    table = Table(show_header=False)
    rows = (
        ("mark", basis_in_words(record)),
        ("stored", f"{plural(facts['candidates'], 'object')}, {size(facts['candidate_bytes'])}"),
        ("younger than the cutoff", f"{facts['young']:,} (modified after {record.cutoff:%Y-%m-%d %H:%M:%S} UTC)"),
        (
            "live, committed",
            f"{facts['committed']:,} in {plural(ranges['ranges'], 'range')} of {retained}",
        ),
        ("live, uncommitted", f"{facts['uncommitted']:,}"),
        (
            "kept: live after all, or unclear",
            f"{facts['kept_by_probes']:,} ({plural(facts['probes'], 'path')} probed)",
        ),
        (
            "expired",
            f"{plural(facts['expired'], 'object')}, {size(facts['expired_bytes'])}" if facts["expired"] else "nothing",
        ),
        ("brakes", brakes_table.in_words(all_brakes)),
    )
    for name, value in rows:
        table.add_row(name, cell(value))
    print_table(f"Mark {record.mark_id} of {record.repository}", table)
    print_sentence(f"Digest: {record.digest}")
    print_sentence(f"Written to: {record.namespace}/{asset_folder(record.mark_id, 'expired_set')}")
    for sentence in (*facts.get("unclear", []), *dot_segments.sentences(facts)):
        print_sentence(f"{sentence}.")
    show_late_uploads(record)
    if facts["young"] and not facts["expired"]:
        print_sentence(f"Objects stored less than {duration(record.min_age)} ago are kept, referenced or not.")
        young_command = command("mark", record.repository, "--min-age", "0", "--allow-young")
        print_command("If nothing is being written, as in a sandbox", young_command)
    print_command("Nothing was deleted. Next", command("review", record.repository, record.mark_id))


def show_late_uploads(record: MarkRecord) -> None:
    """After an incremental mark, print which uploads only the next full mark finds, and the command for a full mark."""
    if sentence := late_uploads(record):
        print_sentence(sentence)
        print_command("To make a full mark now", command("mark", record.repository, "--full"))


def summary(record: MarkRecord) -> dict[str, Any]:
    """A mark as one JSON document: its record without the lists of files."""
    document: dict[str, Any] = json.loads(record.to_json())
    for step in document["steps"].values():
        step.pop("datasets")
    return document


# --- list of marks --------------------------------------------------------------------------------------------------


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
    """The result of the sweep: deleted, in quarantine, undone, purged; "" for a mark that wasn't swept."""
    announced: str = ""
    """The announced approval by a policy, as a sentence; "" if there is none. Only the newest mark has one."""


NEXT_COMMANDS = {
    MarkState.MARKED.value: ("To see what the newest mark would delete", "review"),
    MarkState.SUPERSEDED.value: ("To see what the newest mark would delete", "review"),
    MarkState.APPROVED.value: ("To sweep the approved set", "sweep"),
    MarkState.SWEEPING.value: ("To resume the sweep", "sweep"),
    MarkState.SWEPT.value: ("To see what the newest sweep did", "report"),
    MarkState.SWEPT_WITH_FAILURES.value: ("To see what the newest sweep did", "report"),
}
"""The purpose and name of the command that follows each state of one of lakegc's marks."""


@printing()
def show_status(repository: str | None, *, as_json: bool) -> None:
    server = Server.configured()
    names = [repository] if repository else sorted(listed.id for listed in server.lakefs.repositories())
    rows: list[Row] = []
    unreadable: list[tuple[str, str]] = []
    for name in names:
        try:
            rows.extend(mark_rows(server.target(name), name))
        except LakegcError as error:
            if repository:
                raise
            unreadable.append((name, str(error)))  # one broken repository doesn't hide the others
    if as_json:
        documents = [{name: getattr(row, name) for name in Row.__slots__} for row in rows]
        print_text(json.dumps({"marks": documents, "unreadable": dict(unreadable)}, indent=1))
        return
    for name, repository_rows in groupby(rows, lambda row: row.repository):
        listed = list(repository_rows)
        print_table(f"Marks of {name}", as_table(listed))
        for row in listed:
            if row.announced:
                print_sentence(row.announced)
                print_command("To withdraw it", command("revoke", row.repository, row.mark_id))
    print_command(*next_command(rows, repository))
    for name, message in unreadable:
        print_sentence(f"{name}: {message}")


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


def next_command(rows: Sequence[Row], repository: str | None) -> tuple[str, str]:
    """The next step for the newest finished mark, and the command for it; if no mark is finished, to make one."""
    finished = [row for row in rows if row.state in NEXT_COMMANDS]
    if not finished:
        return "There are no marks yet. To make one" if not rows else "To make one", command(
            "mark", repository or "REPO"
        )
    newest = max(finished, key=lambda row: row.made)
    what, name = NEXT_COMMANDS[newest.state]
    return what, command(name, newest.repository, newest.mark_id)


def mark_rows(target: Target, repository: str) -> Iterator[Row]:
    """The marks of a repository: those of lakegc in order of their ids, then the foreign ones. Also withdraws summaries
    for the reference collector that no valid approval permits."""
    holder, now = current_holder(target.place.store()), target.place.store().now()
    own_records = dict(each_mark(target.place))
    newest = newest_finished(own_records.values())
    for mark_id, record in own_records.items():
        if not isinstance(record, MarkRecord):
            state = "not signed with a known key" if isinstance(record, Untrusted) else "unknown format"
            yield Row(repository, mark_id, state, "", None, None, "")
            continue
        if record.finished is not None:
            withdraw_stale_summary(target.place, record, now=now)
        state = proposals.state_of(target.place, record, now=now)
        if record.state is MarkState.MARKING and (holder is None or holder.mark_id != record.mark_id):
            state = "failed (interrupted)"  # success must be recorded; an unfinished mark without a run has failed
        counts = record.counts
        started = f"{record.start:%Y-%m-%d %H:%M:%S}"
        yield Row(
            repository, record.mark_id, state, started, counts.get("expired"), counts.get("expired_bytes"), record.by,
            outcome_of(target.place, record),
            (announcement_in_words(target.place, record) or "") if record is newest else "",
        )  # fmt: skip
    for foreign in reference_marks(target.place, own_ids=frozenset(own_records)):
        approval_status = proposals.status_of_foreign_approval(target.place, foreign, now=now)
        yield foreign_mark_row(
            foreign, repository, "" if approval_status is ApprovalStatus.NONE else f", {approval_status}"
        )


def announcement_in_words(place: Place, record: MarkRecord) -> str | None:
    """The announced approval of a mark by a policy, as a sentence; None if there is none."""
    try:
        announcement = pending_announcement(place, record)
    except DamagedData as error:
        return str(error)
    if announcement is None:
        return None
    return (
        f"Announced {announcement.announced:%Y-%m-%d %H:%M} UTC: mark {record.mark_id} of {record.repository} will be "
        f"approved by a policy {announcement.due:%Y-%m-%d %H:%M} UTC at the earliest, if it still qualifies and is "
        f"still the newest mark. The policy: {announcement.policy}."
    )


def outcome_of(place: Place, record: MarkRecord) -> str:
    """The result of a mark's sweep; "" if it wasn't swept."""
    if record.state not in (MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES):
        return ""
    try:
        report = read_report(place, record.mark_id)
        return "" if report is None else result_in_words(report, read_quarantine(place, report))
    except DamagedData:
        return "its report is damaged"


def foreign_mark_row(foreign: ReferenceMark, repository: str, approval: str) -> Row:
    recorded = (foreign.summary or {}).get("num_deleted_objects")
    started = f"{foreign.written:%Y-%m-%d %H:%M:%S}"
    count = recorded if type(recorded) is int else None
    return Row(repository, foreign.mark_id, foreign_state(foreign) + approval, started, count, None, made_by(foreign))


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


def resolve_mark_id(place: Place, repository: str, mark_id: str) -> str:
    """A mark's id; 'latest' stands for lakegc's newest finished mark. Raises `NotFound` if there is none."""
    if mark_id != "latest":
        return mark_id
    newest = newest_finished(marks(place))
    if newest is None:
        raise NotFound(f"{repository} has no finished mark. To make one: {command('mark', repository)}")
    return newest.mark_id


def open_mark(repository: str, mark_id: str) -> Mark:
    """One of lakegc's finished marks; 'latest' is the newest one. Raises `NotFound` if there is no such mark,
    `WrongUsage` if it isn't finished."""
    place = Server.configured().target(repository).place
    mark = Mark.open(place, resolve_mark_id(place, repository, mark_id))
    if mark.record.finished is None:
        reason = f": {mark.record.failure}" if mark.record.failure else ""
        problem = full_stop(f"mark {mark_id} of {repository} is not finished ({mark.record.state}){reason}")
        raise WrongUsage(f"{problem} To list the marks: {command('status', repository)}")
    return mark


def expired_tables(mark: Mark) -> Iterator[pa.Table]:
    """The expired set, table by table. Each file is verified, and only part of one file is in memory at a time."""
    dataset = mark.dataset("expired_set")
    for file in dataset.files:
        yield from file_batches(mark.place, dataset.folder, file, EXPIRED_OBJECTS)
