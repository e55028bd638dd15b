"""`lakegc rules`: show, check and set the retention rules, and show which changes lakegc made."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from lakegc_assets.approval.parse_request import single_line
from lakegc_assets.cli.approve import current_user
from lakegc_assets.cli.console import cell, print_command, print_sentence, print_table, printing, read_answer
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers, command_for_next_mark
from lakegc_assets.cli.rules_files import read_rules_file
from lakegc_assets.formatting import plural, rules_change_in_words, rules_in_words
from lakegc_assets.mark.context import Target
from lakegc_assets.rules.rules_file import rules_document
from lakegc_assets.rules.shortened_retention import Shortened, shortened
from spark_resources.errors import LakegcError, Refused, WrongUsage, did_you_mean, full_stop
from spark_resources.mark_store.rules_history import (
    RULES_HISTORY_KEY,
    RulesChange,
    add_rules_change,
    read_rules_history,
    refuse_unwritable_history,
)
from spark_resources.model import Rules
from spark_resources.records.json_records import to_json_value

CONFIRMATION = "set"
OWN, DEFAULT = "its own rule", "the default"
NO_RULES = "There are no retention rules, so nothing that was ever committed expires."


# --- showing the rules ----------------------------------------------------------------------------------------------


@printing()
def show(repository: str, *, as_json: bool) -> None:
    servers = Servers.configured()
    target = servers.target(repository)
    rules, branches = servers.lakefs.rules(repository), servers.lakefs.branches(repository)
    newest = newest_change(target)
    if as_json:
        print_text(json.dumps(document(repository, rules, branches, newest), indent=1))
        return
    if rules is None:
        print_sentence(f"{repository}: {NO_RULES}")
    else:
        print_table(f"Retention rules of {repository}", rules_table(rules, branches))
    print_sentence(origin_in_words(rules, newest))
    print_command("To set other rules", command("rules", repository, "--set", "FILE"))


def rules_table(rules: Rules, branches: Collection[str]) -> Table:
    """A row for the default and for each branch with a rule of its own."""
    table = Table()
    table.add_column("branch", overflow="fold")
    table.add_column("days", justify="right", no_wrap=True)
    table.add_column("from", overflow="fold")
    others = len(set(branches) - rules.branch_days.keys())
    table.add_row(
        "", f"{rules.default_days:,}", f"the default, for {plural(others, 'other branch')} and dangling commits"
    )
    for branch, days in sorted(rules.branch_days.items()):
        table.add_row(cell(branch), f"{days:,}", OWN if branch in branches else f"{OWN}; this branch doesn't exist")
    return table


def newest_change(target: Target) -> RulesChange | LakegcError | None:
    """The newest change that lakegc made; None if it made none, and the error if the history can't be read."""
    try:
        changes = read_rules_history(target.place).changes
    except LakegcError as error:
        return error
    return changes[-1] if changes else None


def origin_in_words(rules: Rules | None, newest: RulesChange | LakegcError | None) -> str:
    if isinstance(newest, LakegcError):
        return f"Whether lakegc set these rules is unknown: {newest}"
    if newest is None:
        return "lakegc has never set rules here."
    when = f"{newest.when:%Y-%m-%d %H:%M} UTC"
    if newest.after == rules:
        return f"Set with lakegc by {newest.who} on {when}."
    change = rules_change_in_words(newest.after, rules)
    return f"{newest.who} set rules with lakegc on {when}. They have been changed without lakegc since then: {change}."


def document(
    repository: str, rules: Rules | None, branches: Collection[str], newest: RulesChange | LakegcError | None
) -> dict[str, Any]:
    """The rules as one JSON document. `rules` is as the server's API has it, and as `--set` reads it."""
    named = sorted({*branches, *(rules.branch_days if rules else ())})
    return {
        "repository": repository,
        "rules": None if rules is None else rules_document(rules),
        "branches": [
            {
                "branch": branch,
                "days": None if rules is None else rules.days(branch),
                "from": None if rules is None else OWN if branch in rules.branch_days else DEFAULT,
                "exists": branch in branches,
            }
            for branch in named
        ],
        "set_with_lakegc": change_document(newest) if isinstance(newest, RulesChange) else None,
    }


# --- showing their history ------------------------------------------------------------------------------------------


@printing()
def show_history(repository: str, *, as_json: bool) -> None:
    """Print the changes that lakegc made, the newest first."""
    target = Servers.configured().target(repository)
    changes = read_rules_history(target.place).changes[::-1]
    if as_json:
        file = f"{target.place.store().where}/{RULES_HISTORY_KEY}"
        rows = [change_document(change) for change in changes]
        print_text(json.dumps({"repository": repository, "file": file, "changes": rows}, indent=1))
        return
    if not changes:
        print_sentence(f"lakegc has never set the retention rules of {repository}.")
        return
    table = Table()
    for heading in ("when (UTC)", "by", "change"):
        table.add_column(heading, overflow="fold")
    for change in changes:
        text = rules_change_in_words(change.before, change.after)
        table.add_row(f"{change.when:%Y-%m-%d %H:%M}", cell(change.who), cell(text))
    print_table(f"Changes to the retention rules of {repository}", table)
    print_sentence("Changes that were made without lakegc aren't listed.")
    print_command("The rules now", command("rules", repository))


def change_document(change: RulesChange) -> dict[str, Any]:
    before, after = change.before, change.after
    return {
        "who": change.who,
        "when": to_json_value(change.when),
        "before": None if before is None else rules_document(before),
        "after": rules_document(after),
    }


# --- setting the rules ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetOptions:
    """The options of `lakegc rules --set`, as typed."""

    file: Path
    yes: bool = False
    by: str | None = None


def set_rules(repository: str, options: SetOptions, *, as_json: bool) -> None:
    """Check the file, show what it changes, ask for confirmation if it shortens retention, and set the rules.

    Raises `WrongUsage` if the file isn't valid for this repository or confirmation isn't given, and `Refused` if the
    server's rules are no longer those that were shown.
    """
    who = single_line(options.by, "the name after --by") if options.by is not None else current_user()
    new = read_rules_file(options.file)
    servers = Servers.configured()
    target = servers.target(repository)
    before, branches = servers.lakefs.rules(repository), servers.lakefs.branches(repository)
    refuse_unknown_branches(new, branches, options.file)
    if new == before:
        print_result(target, None, new, as_json=as_json)
        return
    refuse_unwritable_history(target.place)
    if shorter := shortened(before, new, branches):
        confirm_shortening(repository, before, new, shorter, options, as_json=as_json)
    refuse_rules_changed_since(servers, repository, before)
    servers.lakefs.set_rules(repository, new)
    change = RulesChange(who, target.place.store().now(), before, new)
    record_change(target, change)
    print_result(target, change, new, as_json=as_json)


def refuse_unknown_branches(rules: Rules, branches: Collection[str], file: Path) -> None:
    """Raise `WrongUsage` for branches that don't exist."""
    for branch in sorted(rules.branch_days.keys() - set(branches)):
        hint = did_you_mean(branch, branches) or "Remove its rule, or create the branch first."
        raise WrongUsage(f"{file} has a rule for branch '{branch}', which doesn't exist. {hint}")


def refuse_rules_changed_since(servers: Servers, repository: str, shown: Rules | None) -> None:
    """Raise `Refused` if the server's rules are no longer those that were shown."""
    now = servers.lakefs.rules(repository)
    if now != shown:
        raise Refused(
            f"the retention rules of {repository} were changed by somebody else in the meantime: "
            f"{rules_change_in_words(shown, now)}. Nothing was set. Run the same command again."
        )


def record_change(target: Target, change: RulesChange) -> None:
    try:
        add_rules_change(target.place, change)
    except LakegcError as error:
        raise type(error)(
            f"the retention rules of {target.repository.id} were set ({rules_in_words(change.after)}), but the change "
            f"could not be recorded in {RULES_HISTORY_KEY}: {error}"
        ) from error


def confirm_shortening(
    repository: str,
    before: Rules | None,
    new: Rules,
    shorter: Sequence[Shortened],
    options: SetOptions,
    *,
    as_json: bool,
) -> None:
    """Show what expires earlier, and ask for confirmation unless `--yes` is set. Raises `WrongUsage` if it isn't
    given."""
    if not options.yes and (as_json or not sys.stdin.isatty()):
        raise WrongUsage(
            f"{options.file} shortens retention ({shortened_in_words(shorter)}), which must be confirmed: run the "
            "command in a terminal without --format json, or pass --yes."
        )
    if not as_json:
        show_shortening(repository, before, new, shorter)
        show_what_if(repository, new, options.file)
    if not options.yes:
        answer = read_answer(f"Type '{CONFIRMATION}' to set these rules, anything else to cancel: ").strip()
        if answer != CONFIRMATION:
            raise WrongUsage(f"'{answer}' is not '{CONFIRMATION}': nothing was set")


def show_shortening(repository: str, before: Rules | None, new: Rules, shorter: Sequence[Shortened]) -> None:
    print_sentence(f"{repository}: {rules_change_in_words(before, new)}")
    table = Table()
    table.add_column("shorter for", overflow="fold")
    for heading in ("days now", "then"):
        table.add_column(heading, justify="right", no_wrap=True)
    for change in shorter:
        table.add_row(cell(scope_of(change)), days_before(change), f"{change.after:,}")
    print_table("Commits expire earlier", table)


def show_what_if(repository: str, new: Rules, file: Path) -> None:
    """Show what the new rules would free as of the newest mark, or why that isn't known."""
    from lakegc_assets.cli import what_if as comparisons
    from lakegc_assets.queries.comparison import Variant

    try:
        [name] = comparisons.names_of([file])
        result = comparisons.compare(repository, "latest", [Variant(name, new)])
    except LakegcError as error:
        print_sentence(f"What these rules would free isn't known: {full_stop(error)}")
    else:
        comparisons.show_result(result)


def shortened_in_words(shorter: Sequence[Shortened]) -> str:
    return "; ".join(f"{scope_of(change)}: {days_before(change)} → {change.after:,}" for change in shorter)


def scope_of(change: Shortened) -> str:
    return "the default" if change.branch is None else f"branch {change.branch}"


def days_before(change: Shortened) -> str:
    return "without end" if change.before is None else f"{change.before:,}"


@printing()
def print_result(target: Target, change: RulesChange | None, rules: Rules, *, as_json: bool) -> None:
    repository = target.repository.id
    if as_json:
        result: Mapping[str, Any] = {"changed": change is not None, "rules": rules_document(rules)}
        recorded = {} if change is None else change_document(change)
        print_text(json.dumps({"repository": repository, **result, "change": recorded or None}, indent=1))
        return
    if change is None:
        print_sentence(
            f"{repository} already has these retention rules ({rules_in_words(rules)}). Nothing was changed."
        )
    else:
        print_sentence(f"Set: {rules_in_words(rules)}. Nothing was deleted. The next mark uses these rules.")
    print_command("Next", command_for_next_mark(target.place, repository))
