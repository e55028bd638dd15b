"""The overview of all repositories that `lakegc status` prints: one row for each, the newest mark first.

Each row comes from the namespace's history and its newest marks, because reading the records of every mark would take
too long: `lakegc status REPO` does that for one repository.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lakegc_assets.approval.mark_states import state_of
from lakegc_assets.cli.console import cell, print_command, print_sentence, print_table, size
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers
from lakegc_assets.formatting import age, percent, plural
from lakegc_assets.mark.context import target_of
from lakegc_assets.mark.repository_selection import list_repositories
from lakegc_assets.rules.brakes import BrakeLimits
from lakegc_assets.rules.fleet import INTERRUPTED, Next, SeenMark, newest_problem, next_step
from lakegc_assets.sweep.history import known_history, sweeps_since_in_words
from spark_resources import lakefs
from spark_resources.errors import LakegcError, NotFound, Untrusted, full_stop
from spark_resources.identifiers import all_repositories_on
from spark_resources.mark_store.approval import withdraw_stale_summary
from spark_resources.mark_store.history import FinishedSweep, History
from spark_resources.mark_store.lease import Holder, current_holder
from spark_resources.mark_store.mark import Mark, folder_ids
from spark_resources.mark_store.record import MarkRecord, finished_at
from spark_resources.model import MarkState
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel

NEWEST_FINISHED = 7
NEWEST_OTHERS = 20
"""How many marks of a repository are considered: the newest finished ones in its history, and the last ids that aren't
in its history, such as marks that failed."""
MAX_COMMANDS = 10


@dataclass(frozen=True, slots=True)
class RepositoryRow:
    """One repository in the overview. Times are by the clock of its store. `error` says why the repository can't be
    read; the other fields are then empty."""

    repository: str
    owners: tuple[str, ...] = ()
    newest: SeenMark | None = None
    now: datetime | None = None
    next: Next = field(default_factory=Next)
    last_sweep: FinishedSweep | None = None
    freed_objects: int = 0
    freed_bytes: int = 0
    swept_since: str | None = None
    """Why the newest mark's counts may be too high, as sentences; None if no other mark was swept since it began."""
    problem: str = ""
    error: str = ""

    @property
    def counts(self) -> Mapping[str, int]:
        return {} if self.newest is None else self.newest.record.counts

    @property
    def waits(self) -> str:
        """What the repository is waiting for, and who should do it if a person has to."""
        owners = f" by {', '.join(self.owners)}" if self.owners and self.next.needs_person else ""
        return f"{self.next.waits_for}{owners}"


# --- reading --------------------------------------------------------------------------------------------------------


def read_fleet(servers: Servers) -> list[RepositoryRow]:
    """A row for each repository on every server: those with marks first, the newest mark first; then those without, by
    name. A repository that can't be read doesn't hide the others, and a server that can't be read has one row."""
    repositories, failures = list_repositories(servers.lakefs)
    configurations = dict[str, lakefs.ServerConfig]()
    for name in sorted({repository.server for repository in repositories}):
        try:
            configurations[name] = servers.lakefs.config(name)
        except LakegcError as error:
            if not name:
                raise
            failures[name] = str(error)
    readable = [repository for repository in repositories if repository.server in configurations]

    def read(repository: lakefs.Repository) -> RepositoryRow:
        try:
            return read_row(servers, repository, configurations[repository.server])
        except LakegcError as error:
            return RepositoryRow(repository.id, error=str(error))

    unread = [RepositoryRow(all_repositories_on(name), error=why) for name, why in failures.items()]
    rows = sorted([*fetch_in_parallel(readable, read), *unread], key=lambda row: row.repository)
    marked = [row for row in rows if row.newest is not None]
    newest_first = sorted(marked, key=lambda row: finished_at(row.newest.record), reverse=True)  # type: ignore[union-attr]
    return [*newest_first, *(row for row in rows if row.newest is None)]


def read_row(servers: Servers, repository: lakefs.Repository, configuration: lakefs.ServerConfig) -> RepositoryRow:
    settings = servers.settings(repository.id)
    place = target_of(repository, configuration, settings).place
    now, history = place.store().now(), known_history(place)
    marks = newest_marks(place, history, now=now)
    last_sweep = history.sweeps[-1] if history.sweeps else None
    return RepositoryRow(
        repository=repository.id,
        owners=tuple(settings.owners),
        newest=marks[0] if marks else None,
        now=now,
        next=next_step(repository.id, marks, BrakeLimits.of(settings), now=now),
        last_sweep=last_sweep,
        freed_objects=history.freed_objects,
        freed_bytes=history.freed_bytes,
        swept_since=sweeps_since_in_words(history, marks[0].record) if marks else None,
        problem=newest_problem(marks, last_sweep),
    )


def newest_marks(place: Place, history: History, *, now: datetime) -> list[SeenMark]:
    """The newest marks of a namespace, the newest first: those of its history, and others with the last ids. Withdraws
    their summaries for the reference collector if no valid approval permits these. Unsigned records are left out, and
    so are earlier marks that were swept without failures: nothing is left to do for them."""
    finished = {mark.mark_id for mark in history.marks}
    ids = folder_ids(place.store())
    holder = current_holder(place.store())
    others = [mark_id for mark_id in ids[-NEWEST_OTHERS:] if mark_id not in finished]
    known = [mark.mark_id for mark in history.marks if mark.mark_id in ids][-NEWEST_FINISHED:]
    done = {sweep.mark_id for sweep in history.sweeps if not sweep.failed and not sweep.late}
    done -= {*known[-1:], "" if holder is None else holder.mark_id}

    def seen(mark_id: str) -> SeenMark | None:
        try:
            record = Mark.open(place, mark_id).record
        except (NotFound, Untrusted):
            return None
        if record.finished is not None:
            withdraw_stale_summary(place, record, now=now)
        is_running = holder is not None and holder.mark_id == mark_id
        return SeenMark(record, true_state(place, record, holder, now=now), is_running)

    marks = filter(None, map(seen, [*(mark_id for mark_id in known if mark_id not in done), *others]))
    return sorted(marks, key=lambda mark: finished_at(mark.record), reverse=True)


# --- output ---------------------------------------------------------------------------------------------------------


def show(rows: Sequence[RepositoryRow]) -> None:
    """Print the table, its totals, the next commands, and why repositories can't be read."""
    readable = [row for row in rows if not row.error]
    if not any(row.newest for row in readable):
        print_command("There are no marks yet. To make one", command("mark", "REPO"))
    else:
        print_table("Repositories", as_table(readable))
        print_sentence(totals_in_words(rows))
    waiting = [row for row in readable if row.next.command and row.newest is not None]
    for row in waiting[:MAX_COMMANDS]:
        print_command(f"{row.repository} is waiting for {row.waits}", command(*row.next.command))
    if len(waiting) > MAX_COMMANDS:
        more = plural(len(waiting) - MAX_COMMANDS, "more repository")
        print_sentence(f"… and {more}; --format json shows all commands.")
    for row in rows:
        if row.problem:
            print_sentence(full_stop(f"{row.repository}: {row.problem}"))
        elif row.error:
            print_sentence(f"{row.repository}: {row.error}")
        if row.swept_since:
            print_sentence(f"{row.repository}: {row.swept_since}")


def as_table(rows: Sequence[RepositoryRow]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("repository", overflow="fold")
    table.add_column("newest mark", overflow="fold")
    table.add_column("age", no_wrap=True)
    table.add_column("state")
    table.add_column("expired", justify="right")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("waits for", overflow="fold")
    table.add_column("last sweep")
    table.add_column("freed in all", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row))
    return table


def cells(row: RepositoryRow) -> list[Any]:
    """The cells of one repository. A cell without a value is empty."""
    mark_id, mark_age, state = "", "", "no marks"
    if row.newest is not None and row.now is not None:
        record = row.newest.record
        mark_id, mark_age, state = record.mark_id, age(row.now - finished_at(record)), row.newest.state
    objects, expired = row.counts.get("candidates"), row.counts.get("expired")
    known = expired is not None and objects is not None
    return [
        cell(row.repository),
        cell(mark_id),
        mark_age,
        cell(state),
        f"{'≤ ' if row.swept_since else ''}{expired:,}" if known else "",
        size(row.counts["expired_bytes"]) if known else "",
        percent(expired, objects) if known else "",  # type: ignore[arg-type]
        cell(row.waits),
        sweep_in_words(row),
        size(row.freed_bytes) if row.freed_objects else "",
    ]


def sweep_in_words(row: RepositoryRow) -> str:
    """When the last sweep ended, and what it freed."""
    if row.last_sweep is None or row.now is None:
        return ""
    quarantined = f", {row.last_sweep.quarantined:,} in quarantine" if row.last_sweep.quarantined else ""
    return f"{age(row.now - row.last_sweep.ended)} ago: {size(row.last_sweep.bytes)}{quarantined}"


def totals_in_words(rows: Sequence[RepositoryRow]) -> str:
    """The line below the table."""
    totals = sums(rows)
    unreadable = f", {totals['unreadable']:,} unreadable" if totals["unreadable"] else ""
    count = totals["repositories"]
    at_most = "Up to " if any(row.swept_since for row in rows) else ""
    return (
        f"{plural(count, 'repository')}: {totals['waiting']:,} waiting for a person"
        f"{unreadable}. {at_most}{plural(totals['expired'], 'object')} ({size(totals['expired_bytes'])}) in the newest "
        f"marks {'is' if totals['expired'] == 1 else 'are'} expired and not swept; "
        f"{plural(totals['freed_objects'], 'object')} ({size(totals['freed_bytes'])}) freed in all."
    )


def sums(rows: Sequence[RepositoryRow]) -> dict[str, int]:
    """The totals of all repositories. Objects of a swept mark no longer count as expired."""
    swept = (MarkState.SWEPT.value, MarkState.SWEPT_WITH_FAILURES.value)
    open_sets = [row.counts for row in rows if row.newest is not None and row.newest.state not in swept]
    return {
        "repositories": len(rows),
        "waiting": sum(row.next.needs_person for row in rows),
        "unreadable": sum(bool(row.error) for row in rows),
        "expired": sum(counts.get("expired", 0) for counts in open_sets),
        "expired_bytes": sum(counts.get("expired_bytes", 0) for counts in open_sets),
        "freed_objects": sum(row.freed_objects for row in rows),
        "freed_bytes": sum(row.freed_bytes for row in rows),
    }


def document(rows: Sequence[RepositoryRow]) -> dict[str, Any]:
    """The overview for scripts: a row for each repository, and the totals."""
    return {"repositories": [row_document(row) for row in rows], "totals": sums(rows)}


def row_document(row: RepositoryRow) -> dict[str, Any]:
    sweep, record = row.last_sweep, None if row.newest is None else row.newest.record
    return {
        "repository": row.repository,
        "owners": list(row.owners),
        "mark_id": None if record is None else record.mark_id,
        "state": None if row.newest is None else row.newest.state,
        "made": None if record is None else finished_at(record).isoformat(timespec="seconds"),
        "candidates": row.counts.get("candidates"),
        "expired": row.counts.get("expired"),
        "expired_bytes": row.counts.get("expired_bytes"),
        "waits_for": row.next.waits_for,
        "next": command(*row.next.command) if row.next.command else "",
        "last_sweep": None
        if sweep is None
        else {
            "mark_id": sweep.mark_id,
            "ended": sweep.ended.isoformat(timespec="seconds"),
            "freed_objects": sweep.objects,
            "freed_bytes": sweep.bytes,
            "in_quarantine": sweep.quarantined,
        },
        "freed_objects": row.freed_objects,
        "freed_bytes": row.freed_bytes,
        "swept_since": row.swept_since,
        "problem": row.error or row.problem,
    }


# --- states ---------------------------------------------------------------------------------------------------------


def true_state(place: Place, record: MarkRecord, holder: Holder | None, *, now: datetime) -> str:
    """The state of a mark for people: whether its approval is valid, and whether its run was interrupted. `holder` is
    the current holder of the lease."""
    if record.state is MarkState.MARKING and (holder is None or holder.mark_id != record.mark_id):
        return INTERRUPTED  # success must be recorded; an unfinished mark without a run has failed
    return state_of(place, record, now=now)
