"""Holds on the terminal: list, add, drop, sign, and count what each matches now."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from rich.table import Table

from lakegc_assets.cli.console import cell, print_command, print_sentence, print_table, printing, read_answer
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers, command_for_next_mark
from lakegc_assets.formatting import plural
from lakegc_assets.fsck.commit_graph import Graph, read_graph
from lakegc_assets.fsck.findings import Report
from lakegc_assets.mark.context import Target
from lakegc_assets.rules.holds import References, commits_on_hold, in_force, unresolvable
from lakegc_assets.rules.retention import commit_verdicts
from spark_resources.errors import Refused, WrongUsage
from spark_resources.mark_store.hold_file import BranchHold, Hold, PathHold, PrefixHold, TagHold, parse_hold
from spark_resources.mark_store.holds import (
    Holds,
    add_hold,
    drop_hold,
    holds_location,
    read_holds,
    read_unsigned,
    sign_holds,
)
from spark_resources.model import Rules

CONFIRMATION = "sign"
MATCH_KINDS = (
    "branches",
    "tags",
    "commits",
    "beyond_the_rules",
    "objects",
)  # the kinds of matches that are counted; they depend on the kind of the hold
MAX_COUNTED = 1000  # objects under a prefix: one page of a listing


def add(repository: str, fields: Mapping[str, Any]) -> None:
    """Add a hold. Raises `WrongUsage` if it is invalid, or has expired by the server's clock."""
    servers, hold = Servers.configured(), parse_hold(fields)
    target = servers.target(repository)
    now = servers.lakefs.server_time(target.repository.server)
    refuse_configured(servers, repository, hold.id)
    if hold.has_expired(now):
        raise WrongUsage(
            f"--until {hold.until} is in the past: the lakeFS server's clock says {now:%Y-%m-%d %H:%M} UTC. "
            "Pass a later date."
        )
    add_hold(target.place, hold)
    print_sentence(
        f"{hold.id} holds {hold.what}, {end_in_words(hold)}, from the next mark on. It was written to "
        f"{holds_location(target.place)}."
    )
    print_command("Show what the holds match now", command("holds", repository, "check"))


def drop(repository: str, hold_id: str) -> None:
    servers = Servers.configured()
    refuse_configured(servers, repository, hold_id)
    drop_hold(servers.target(repository).place, hold_id)
    print_sentence(f"{hold_id} was dropped. The next mark won't use it.")
    print_command("List the remaining holds", command("holds", repository, "list"))


def refuse_configured(servers: Servers, repository: str, hold_id: str) -> None:
    """Raise `WrongUsage` if the settings have a hold with this id: commands change only the namespace's file."""
    if hold_id in {hold.id for hold in servers.target(repository).configured_holds}:
        origin = servers.settings(repository).origins["holds"]
        raise WrongUsage(f"the hold '{hold_id}' comes from {origin}: change it there")


def sign(repository: str, *, yes: bool) -> None:
    """Show what will be signed, ask for confirmation unless `yes` is set, and sign it."""
    target = Servers.configured().target(repository)
    unsigned = read_unsigned(target.place)
    print_sentence(f"{holds_location(target.place)} has {plural(len(unsigned.holds), 'hold')}:")
    for hold in unsigned.holds:
        print_sentence(f"  {hold.id}: {hold.what}, {end_in_words(hold)}, by {hold.owner}")
    for hold_id in unsigned.missing:
        print_sentence(f"  {hold_id} is in the newest signed file that a mark used, but not in this file")
    if not yes:
        if not sys.stdin.isatty():
            raise WrongUsage(
                "signing needs a terminal to prompt for confirmation. If these holds are right, pass --yes."
            )
        answer = read_answer(f"Type '{CONFIRMATION}' to sign them, anything else to cancel: ").strip()
        if answer != CONFIRMATION:
            raise WrongUsage(f"'{answer}' is not '{CONFIRMATION}': nothing was signed")
    sign_holds(target.place, unsigned)
    print_sentence("Signed. The next mark uses these holds.")
    print_command("Next", command_for_next_mark(target.place, repository))


@printing()
def show(repository: str, *, as_json: bool) -> None:
    servers = Servers.configured()
    target = servers.target(repository)
    known, now = read_holds(target.place, target.configured_holds), servers.lakefs.server_time(target.repository.server)
    holds = known.holds
    if as_json:
        rows = [{**hold.fields(), "state": state_of(hold, now), "from": source_of(hold, known)} for hold in holds]
        print_text(
            json.dumps({"repository": repository, "file": holds_location(target.place), "holds": rows}, indent=1)
        )
        return
    if not holds:
        print_sentence(
            f"{repository} has no holds. Objects are kept only by retention rules, branches and staged changes."
        )
        print_command("To add one", command("holds", repository, "add", "--help"))
        return
    table = Table()
    for heading in ("hold", "what", "owner", "reason", "until", "state", "from"):
        table.add_column(heading, overflow="fold")
    for hold in holds:
        table.add_row(
            hold.id, cell(hold.what), cell(hold.owner), cell(hold.reason), hold.until or "", state_of(hold, now),
            source_of(hold, known),
        )  # fmt: skip
    print_table(f"Holds of {repository}", table)
    print_command("Show what the holds match now", command("holds", repository, "check"))


@printing()
def check(repository: str, *, as_json: bool) -> None:
    """Print what each hold matches. Raises `BadHolds` for an invalid file, `Refused` if matches can't be determined."""
    servers = Servers.configured()
    target = servers.target(repository)
    holds, now = (
        read_holds(target.place, target.configured_holds).holds,
        servers.lakefs.server_time(target.repository.server),
    )
    rows = matches(target, servers, holds, now) if holds else []
    if as_json:
        print_text(
            json.dumps({"repository": repository, "file": holds_location(target.place), "holds": rows}, indent=1)
        )
        return
    if not holds:
        print_sentence(f"{repository} has no holds. {holds_location(target.place)} doesn't exist or lists none.")
        return
    table = Table()
    for heading in ("hold", "what", "state"):
        table.add_column(heading, overflow="fold")
    shown_kinds = [name for name in MATCH_KINDS if any(row[name] is not None for row in rows)]
    for name in shown_kinds:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        numbers = ("" if row[name] is None else str(row[name]) for name in shown_kinds)
        table.add_row(cell(row["hold"]), cell(row["what"]), row["state"], *numbers)
    print_table(f"What the holds of {repository} match now", table)
    if any(isinstance(hold, PathHold) for hold in holds):
        print_sentence("Objects that are on hold by path are counted by the next mark, when it reads the commits.")
    print_command("Next", command_for_next_mark(target.place, repository))


def matches(target: Target, servers: Servers, holds: Sequence[Hold], now: datetime) -> list[dict[str, Any]]:
    """One row per hold with the number of its matches of each kind (MATCH_KINDS); None for kinds that don't apply."""
    report = Report(target.repository.id, target.place.namespace.uri)
    graph = read_graph(target, servers.lakefs, report)
    if report.findings:
        first = report.findings[0]
        raise Refused(
            f"can't determine what is on hold, because of the {first.what} {first.id}: {first.why}. Run 'lakegc fsck "
            f"{target.repository.id}'.",
            invariant=3,
        )
    if unresolved := unresolvable(holds, graph_known=graph.is_complete):
        raise Refused(
            f"holds that require the whole commit graph ({', '.join(unresolved)}) can't be resolved with these "
            f"credentials: {' '.join(report.not_verified)}",
            invariant=3,
        )
    rules = servers.lakefs.rules(target.repository.id)
    return [matches_of(hold, target, graph, rules, now) for hold in holds]


def matches_of(hold: Hold, target: Target, graph: Graph, rules: Rules | None, now: datetime) -> dict[str, Any]:
    """One row of `matches`."""
    references = References([graph.heads], set(graph.tags.items()))
    row: dict[str, Any] = {"hold": hold.id, "what": hold.what, "state": state_of(hold, now)}
    row |= dict.fromkeys(MATCH_KINDS)
    if isinstance(hold, BranchHold):
        row["branches"] = sum(fnmatchcase(branch, hold.branches) for branch in graph.heads)
    if isinstance(hold, TagHold):
        row["tags"] = sum(fnmatchcase(tag, hold.tags) for tag in graph.tags)
    if isinstance(hold, PrefixHold):
        row["objects"] = object_count(target, hold.prefix)
    elif not isinstance(hold, PathHold):
        commit_ids = commits_on_hold([hold], graph.commits, references, rules, now=now)
        verdicts = commit_verdicts(graph.commits.values(), graph.heads, rules, now=now)
        row["commits"] = len(commit_ids)
        row["beyond_the_rules"] = sum(not verdict.retained and verdict.commit_id in commit_ids for verdict in verdicts)
    return row


def object_count(target: Target, prefix: str) -> str:
    """The number of objects under a prefix, as text. Counting stops at MAX_COUNTED."""
    pages = target.place.store().pages(prefix, page_size=MAX_COUNTED)
    count = 0
    for page in pages:
        count += len(page.objects)
        if count >= MAX_COUNTED:
            return f"{MAX_COUNTED:,} or more"
    return f"{count:,}"


def source_of(hold: Hold, known: Holds) -> str:
    return "settings" if hold in known.configured else "namespace"


def end_in_words(hold: Hold) -> str:
    return "with no end date" if hold.until is None else f"until {hold.until}"


def state_of(hold: Hold, now: datetime) -> str:
    """Whether a hold is in force or expired. `now` is by the lakeFS server's clock."""
    return "in force" if in_force([hold], now) else "expired"
