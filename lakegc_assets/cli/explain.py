"""`lakegc explain` on the terminal: why an object is kept, expired or gone, and where that is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from lakegc_assets import queries
from lakegc_assets.cli.console import cell, escaped_name, print_command, print_sentence, print_table, printing, size
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.formatting import plural
from lakegc_assets.queries.addresses import REASONS, YOUNG, Decision
from lakegc_assets.queries.explanation import Explanation, explain_name
from lakegc_assets.queries.sweeps import RESTORED_FROM_BACKUP
from lakegc_assets.rules.garbage import COMMITTED
from lakegc_assets.rules.retention import Reason
from spark_resources.errors import full_stop
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import MarkState, Outcome

COMMITS_SHOWN, ADDRESSES_SHOWN, NAMES_SHOWN = 5, 10, 5
MAX_MESSAGE_LENGTH = 40
Row = Mapping[str, Any]


@printing()
def show(repository: str, name: str, mark: str, *, is_path: bool, is_address: bool, as_json: bool) -> None:
    """Explain a path or an address. Raises the errors of `explain_name`."""
    with queries.opened(repository, mark) as history:
        explanation = explain_name(history, name, is_path=is_path, is_address=is_address)
    if as_json:
        print_text(json.dumps(document(explanation), indent=1, default=as_text))
    else:
        show_explanation(explanation)


def as_text(value: object) -> str:
    """A value of a type that JSON lacks, such as a time, as text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def document(explanation: Explanation) -> dict[str, Any]:
    record = explanation.history.record
    return {
        "repository": explanation.history.repository,
        "mark_id": record.mark_id,
        "mark_start": record.start,
        "mark_state": record.state.value,
        "path": explanation.path,
        "objects": explanation.rows.to_pylist(),
        "unreadable_sweeps": dict(explanation.unreadable),
    }


def show_explanation(explanation: Explanation) -> None:
    record, rows, name = explanation.history.record, explanation.rows.to_pylist(), explanation.history.repository
    print_sentence(
        f"As of mark {record.mark_id} of {name} ({record.state}), whose listing began "
        f"{moment(record.start)}, and of all sweeps since."
    )
    if explanation.path is not None:
        print_sentence(f"{escaped_name(explanation.path)} has, or had, {plural(len(rows), 'address')}.")
    for row in rows[:ADDRESSES_SHOWN]:
        print_text("")
        for sentence in sentences(row, record):
            print_sentence(sentence)
        show_commits(row, record)
        show_next(row, record, name)
    if len(rows) > ADDRESSES_SHOWN:
        more = plural(len(rows) - ADDRESSES_SHOWN, "more address")
        print_sentence(f"… and {more}; --format json shows all of them.")
    for mark_id, why in sorted(explanation.unreadable.items()):
        print_sentence(
            f"The outcomes of the sweep of mark {mark_id} can't be read: {full_stop(why)} That sweep may have deleted "
            "objects that are described here as not stored."
        )
    print_command("Everything that the mark would delete", command("review", name, record.mark_id))


# --- sentences ------------------------------------------------------------------------------------------------------


def moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def sentences(row: Row, record: MarkRecord) -> Iterator[str]:
    """What is known about an address, for people."""
    amount = "" if row["size"] is None else f" ({size(row['size'])}, stored {moment(row['modified'])})"
    yield f"{escaped_name(row['address'])}: {state_of(row, record)}{amount}"
    if row["why_never"]:
        yield f"Never collected: {row['why_never']}."
    for reason in row["kept_by"]:
        yield f"Kept: {sentence_about(reason, row)}."
    if row["decision"] == Decision.KEPT:
        yield until_sentence(row, record)
    if row["served_by"]:
        yield f"Served now by {plural(len(row['served_by']), 'branch')}: {first_names(row['served_by'])}."
    if row["reason"]:
        yield expired_sentence(row)
    for swept in row["sweeps"]:
        yield sweep_sentence(swept, record)
    if row["decision"] == Decision.NOT_STORED and not row["sweeps"]:
        yield not_stored_sentence(row)


REMOVED = (Outcome.DELETED.value, Outcome.QUARANTINED.value, Outcome.PURGED.value)
MOVED = (*REMOVED, Outcome.RESTORED.value, RESTORED_FROM_BACKUP)
"""Outcomes after which an object is no longer where the mark found it, or is back."""


def state_of(row: Row, record: MarkRecord) -> str:
    """The state of an object after the mark and all sweeps."""
    decisive = decisive_outcome(row, record)
    return str(row["decision"] if decisive is None else decisive["outcome"])


def decisive_outcome(row: Row, record: MarkRecord) -> Row | None:
    """The outcome that says what became of an object since the mark; None if that is the mark's decision. If the object
    was already gone, the sweep that removed it decides."""
    outcomes: list[Row] = [
        swept
        for swept in row["sweeps"]
        if swept["mark_id"] == record.mark_id
        or row["decision"] == Decision.NOT_STORED
        or (swept["outcome"] in MOVED and swept["at"] >= record.start)
    ]
    last = outcomes[-1] if outcomes else None
    if last is not None and last["outcome"] == Outcome.ALREADY_GONE.value:
        moved = next((swept for swept in reversed(outcomes) if swept["outcome"] in MOVED), last)
        return moved if moved["outcome"] in REMOVED else last
    return last


def sentence_about(reason: str, row: Row) -> str:
    detail = row["detail"]
    if reason == "hold" and detail:
        return f"{REASONS[reason]} ({detail})"
    if reason == "branch" and detail:
        return str(detail)
    return REASONS[reason]


def until_sentence(row: Row, record: MarkRecord) -> str:
    if row["kept_until"] is not None:
        return f"Until {moment(row['kept_until'])}, unless branches, rules or references change before then."
    heads = sorted({c["branch"] for c in row["commits"] if c["retained"] and c["until"] is None and c["branch"]})
    if COMMITTED in row["kept_by"] and heads:
        return f"For as long as it is in the newest commit of {first_names(heads)}."
    if YOUNG in row["kept_by"] and COMMITTED not in row["kept_by"]:
        return "How long isn't known in advance: its modification time isn't plausible."
    if set(row["kept_by"]) <= {COMMITTED, YOUNG} and record.rules is None:
        return "No rule expires it: the repository had no retention rules at the time of the mark."
    if set(row["kept_by"]) <= {COMMITTED, YOUNG} and any(c["reason"] == Reason.SERVER for c in row["commits"]):
        return "For as long as the server lists its commit as retained: no rule known to lakegc retains it."
    return "How long isn't known in advance: it depends on more than age and retention rules."


def first_names(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(map(escaped_name, names[:NAMES_SHOWN])) + more


def expired_sentence(row: Row) -> str:
    if row["commit_id"] is None:
        return f"Expired: {row['reason']}."
    rule = f"{escaped_name(row['branch'])}'s rule" if row["branch"] is not None else "dangling: the default rule"
    since = f" since {moment(row['expired_since'])}" if row["expired_since"] else ""
    return f"Expired{since}: {row['reason']} ({rule} of {plural(row['days'], 'day')})."


def sweep_sentence(swept: Row, record: MarkRecord) -> str:
    why = " ".join(filter(None, (swept["code"], swept["why"]))).rstrip(".")
    return (
        f"Mark {swept['mark_id']}: {swept['outcome']} {moment(swept['at'])}{f' ({why})' if why else ''}. "
        f"Receipt: {record.namespace}/{swept['receipt']}"
    )


def not_stored_sentence(row: Row) -> str:
    if row["kept_by"]:
        return "It is live, but the mark didn't find it in the store: it was lost, or deleted by something else."
    if row["commits"]:
        return "The mark didn't find it in the store, and no sweep has a receipt for it: something else deleted it."
    return "It was stored after the mark's listing. The next mark will decide whether to keep it."


# --- commits and next steps -----------------------------------------------------------------------------------------


def show_commits(row: Row, record: MarkRecord) -> None:
    """Print the commits that contain an address, with its path in each. Without retention rules, columns about them are
    left out."""
    commits = row["commits"]
    if not commits:
        return
    shown = [cells_of(commit) for commit in commits[:COMMITS_SHOWN]]
    headings = [name for name in shown[0] if record.rules is not None or name not in ("branch", "until")]
    table = Table()
    for heading in headings:
        is_long = heading in ("path", "message")
        table.add_column(heading, no_wrap=not is_long, overflow="fold" if is_long else "ellipsis")
    for cells in shown:
        table.add_row(*(cells[heading] for heading in headings))
    more = f", the newest {COMMITS_SHOWN} of {len(commits):,}" if len(commits) > COMMITS_SHOWN else ""
    print_table(f"Commits that contain the object{more}", table)


def cells_of(commit: Row) -> dict[str, Text]:
    """A commit's cells by heading. `branch` is the one whose rule decided until when it is retained."""
    message = (commit["message"] or "").partition("\n")[0]
    texts = {
        "commit": commit["commit_id"][:12],
        "date": f"{commit['created']:%Y-%m-%d}" if commit["created"] else "",
        "branch": commit["branch"] or "",
        "retained": f"hold {commit['hold']}" if commit["hold"] else "yes" if commit["retained"] else "no",
        "until": f"{commit['until']:%Y-%m-%d %H:%M}" if commit["until"] else "",
        "path": commit["path"],
        "message": message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[: MAX_MESSAGE_LENGTH - 1]}…",
    }
    return {heading: cell(text) for heading, text in texts.items()}


def show_next(row: Row, record: MarkRecord, repository: str) -> None:
    decisive = decisive_outcome(row, record)
    if decisive is not None and decisive["outcome"] == Outcome.QUARANTINED:
        print_command("To restore the object", command("undo", repository, decisive["mark_id"]))
    elif decisive is None and row["decision"] == Decision.EXPIRED and record.state is MarkState.APPROVED:
        print_command("A sweep may delete the object. To prevent that", command("revoke", repository, record.mark_id))
    elif swept := [each for each in row["sweeps"] if each["outcome"] != RESTORED_FROM_BACKUP]:
        last = decisive if decisive is not None and decisive in swept else swept[-1]
        print_command("Everything that the sweep did", command("report", repository, last["mark_id"]))
