"""`lakegc pins` on the terminal: how much only one branch, one tag on hold or one commit keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.table import Table

from lakegc_assets import queries
from lakegc_assets.cli.console import cell, print_command, print_sentence, print_table, printing, size
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.mark import command_to_repeat
from lakegc_assets.formatting import age, money, monthly_cost, plural
from lakegc_assets.queries.history import History
from lakegc_assets.queries.pinned import BRANCH, COMMIT, KINDS, TAG, pins_of

ROWS_SHOWN = 15
TITLES = {BRANCH: "Kept by a branch alone", TAG: "Kept by a tag on hold alone", COMMIT: "Kept by a commit alone"}
MAX_MESSAGE_LENGTH = 50
Row = Mapping[str, Any]


@printing()
def show(repository: str, mark: str, *, price: float | None, as_json: bool) -> None:
    """Print the pins of a repository. Raises the errors of `open_history` and `pins_of`."""
    with queries.opened(repository, mark) as history:
        rows = pins_of(history).to_pylist()
        branches = frozenset(history.run.lakefs.branches(history.repository))
    if as_json:
        print_text(json.dumps(document(history, rows, branches, price), indent=1, default=datetime.isoformat))
    else:
        show_pins(history, rows, branches, price)


def document(history: History, rows: Sequence[Row], branches: frozenset[str], price: float | None) -> dict[str, Any]:
    record = history.record
    return {
        "repository": history.repository,
        "mark_id": record.mark_id,
        "mark_start": record.start,
        "price_per_gb_month": price,
        "pins": [dict(row) | {"exists": row["kind"] != BRANCH or row["name"] in branches} for row in rows],
    }


def show_pins(history: History, rows: Sequence[Row], branches: frozenset[str], price: float | None) -> None:
    record = history.record
    print_sentence(
        f"As of mark {record.mark_id} of {history.repository} (listed from {record.start:%Y-%m-%d %H:%M:%S} UTC). For "
        "each branch, tag or commit below: what the next mark would find to be garbage, regardless of age, if it "
        "didn't exist. Staged objects are not counted."
    )
    if record.rules is None:
        print_sentence("The repository has no retention rules, so no commit expires, even without its branch.")
    for kind in KINDS:
        show_kind(history, kind, [row for row in rows if row["kind"] == kind], branches, price)
    print_command("After deleting a branch or changing the rules, mark again", command_to_repeat(record))


def show_kind(history: History, kind: str, rows: Sequence[Row], branches: frozenset[str], price: float | None) -> None:
    """Print the pins of one kind, and how many keep nothing."""
    pinning = [row for row in rows if row["objects"]]
    if not rows:
        return
    table = Table()
    table.add_column(kind, overflow="fold")
    for heading in ("objects", "bytes", *(["a month"] if price is not None else []), "commits", "last commit"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in pinning[:ROWS_SHOWN]:
        cost = [] if price is None else [money(monthly_cost(row["bytes"], price))]
        since = "" if row["created"] is None else age(history.record.server_now - row["created"])
        name = row["name"] if kind != COMMIT else row["name"][:12]
        table.add_row(
            cell(name), f"{row['objects']:,}", size(row["bytes"]), *cost, f"{row['commits']:,}", since,
            cell(note_on(row, branches)),
        )  # fmt: skip
    if pinning:
        print_table(TITLES[kind], table)
    if len(pinning) > ROWS_SHOWN:
        print_sentence(f"… and {len(pinning) - ROWS_SHOWN:,} more; --format json shows all of them.")
    if idle := len(rows) - len(pinning):
        keep_nothing = "keeps nothing on its own" if idle == 1 else "keep nothing on their own"
        print_sentence(f"{plural(idle, kind)} {keep_nothing}.")


def note_on(row: Row, branches: frozenset[str]) -> str:
    """What is special about a pin, or a commit's message."""
    if row["kind"] == COMMIT:
        message = (row["message"] or "").partition("\n")[0]
        return message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[: MAX_MESSAGE_LENGTH - 1]}…"
    if row["kind"] == BRANCH and row["name"] not in branches:
        return "deleted since the mark"
    return "stale: kept only as the branch's head" if row["stale"] else ""
