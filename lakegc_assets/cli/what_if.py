"""`lakegc what-if`: what other rules, dropped branches, a different minimum age or more holds would free."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.table import Table

from lakegc_assets import queries
from lakegc_assets.cli.console import cell, escaped_name, print_command, print_sentence, print_table, printing, size
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers
from lakegc_assets.cli.rules_files import RESULT_FIELD, read_rules_file
from lakegc_assets.formatting import duration, money, monthly_cost, plural, rules_change_in_words, rules_in_words
from lakegc_assets.mark.options import parse_min_age
from lakegc_assets.queries.comparison import Variant, WhatIf, refuse_unknown_branch, what_if
from lakegc_assets.queries.history import History
from lakegc_assets.rules.rules_file import rules_document
from spark_resources.errors import WrongUsage
from spark_resources.mark_store.hold_file import Hold, TagHold, parse_hold
from spark_resources.model import Rules

RESULT_FORMAT = 1
TODAY = "today"
BRANCHES_SHOWN = 10
HOLD_FORMS = "tags=PATTERN, history=PATTERN, branches=PATTERN:DAYS, commits=KEY=PATTERN, paths=PATTERN, prefix=KEY"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `lakegc what-if`, as typed."""

    files: Sequence[Path]
    dropped: Sequence[str] = ()
    min_age: str = ""
    holds: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The variants and what they would free, at the time of a mark."""

    repository: str
    mark_id: str
    recorded_rules: Rules | None
    now: str
    variants: Sequence[Variant]
    what_if: WhatIf
    price: float | None


@printing()
def show(result: Result, files: Sequence[Path], *, as_json: bool) -> None:
    """Print how the variants compare with today's rules. `files` are the values of `--rules`: if there is only one, the
    suggested command names it."""
    if as_json:
        print_text(json.dumps(document(result), indent=1))
    else:
        show_result(result)
        file = str(files[0]) if len(files) == 1 else "FILE"
        print_command("To set rules", command("rules", result.repository, "--set", file))


def compare(repository: str, mark_id: str, changes: Sequence[Variant]) -> Result:
    """Compare these variants with today's rules. Variants without rules of their own use today's rules, too."""
    servers = Servers.configured()
    today = Variant(TODAY, servers.lakefs.rules(repository))
    variants = [today, *(with_rules_of(today, change) for change in changes)]
    needs_tags = any(isinstance(hold, TagHold) for variant in variants for hold in variant.holds)
    tags = servers.lakefs.tags(repository).items() if needs_tags else ()
    with queries.opened(repository, mark_id) as history:
        refuse_unknown_branches(history, changes)
        found = what_if(history, variants, tags=set(tags))
        record, price = history.record, servers.settings(repository).price_per_gb_month
        now = f"{record.server_now:%Y-%m-%d %H:%M}"
        return Result(repository, record.mark_id, record.rules, now, variants, found, price)


def with_rules_of(today: Variant, change: Variant) -> Variant:
    return replace(change, rules=today.rules) if change.rules is None else change


def refuse_unknown_branches(history: History, changes: Sequence[Variant]) -> None:
    """Raise `WrongUsage` if a proposed rule names a branch that the mark didn't find. Today's rules aren't checked."""
    branches = {branch for branch, _ in history.heads}
    for change in changes:
        for branch in sorted(change.rules.branch_days if change.rules else ()):
            refuse_unknown_branch(history, branch, branches)


# --- input ----------------------------------------------------------------------------------------------------------


def changes_of(options: Options) -> list[Variant]:
    """The variants that the options describe; rules None stands for today's rules. Raises `WrongUsage` if the options
    change nothing, or if one of them is invalid."""
    min_age = parse_min_age(options.min_age)
    if min_age is not None and min_age < timedelta(0):
        raise WrongUsage("a minimum age can't be negative")
    holds = tuple(hold_of(text, number) for number, text in enumerate(options.holds, 1))
    dropped = frozenset(options.dropped)
    if not options.files and not (dropped or holds or min_age is not None):
        raise WrongUsage(
            "nothing to compare: pass --rules FILE (several times for several variants), --drop-branch, --min-age or "
            "--hold"
        )
    names = names_of(options.files)
    change = Variant("", None, dropped, min_age, holds)
    others = [
        replace(change, name=name, rules=read_rules_file(file)) for name, file in zip(names, options.files, strict=True)
    ]
    return others or [replace(change, name=changes_in_words(change))]


def names_of(files: Sequence[Path]) -> list[str]:
    """A short name for each file: its own, or its path if two files have the same name. Raises `WrongUsage` if a file
    is given twice."""
    if repeated := [file for file in files if files.count(file) > 1]:
        raise WrongUsage(f"--rules names {repeated[0]} twice")
    short = [file.name for file in files]
    return [
        name if short.count(name) == 1 and name != TODAY else f"{file.parent}/{name}"
        for file, name in zip(files, short, strict=True)
    ]


def hold_of(text: str, number: int) -> Hold:
    """The hold that `--hold` describes. Raises `WrongUsage` if it isn't valid."""
    kind, equals, pattern = text.partition("=")
    fields: dict[str, Any] = {"id": f"what-if-{number}", "owner": "what-if", "reason": "what-if"}
    match kind if equals else "":
        case "":
            fields["prefix"] = text  # the address of one object
        case "history":
            fields |= {"tags": pattern, "history": "true"}
        case "branches":
            fields["branches"], _, fields["days"] = pattern.rpartition(":")
        case "commits":
            key, _, value = pattern.partition("=")
            fields["commits"] = {key: value}
        case "tags" | "paths" | "prefix":
            fields[kind] = pattern
        case _:
            raise WrongUsage(f"--hold {text}: expected an object's key, or one of {HOLD_FORMS}")
    try:
        return parse_hold(fields)
    except WrongUsage as error:
        problem = str(error).removeprefix("invalid hold: ")
        raise WrongUsage(f"--hold {text}: {problem}. Expected an object's key, or one of {HOLD_FORMS}") from None


def changes_in_words(variant: Variant) -> str:
    """What a variant changes besides rules: "without dev; minimum age 1 hour; holding tags v*"."""
    parts = [f"without {', '.join(sorted(variant.dropped))}" if variant.dropped else ""]
    parts.append(f"minimum age {duration(variant.min_age)}" if variant.min_age is not None else "")
    parts.append(f"holding {', '.join(hold.what for hold in variant.holds)}" if variant.holds else "")
    return "; ".join(filter(None, parts))


# --- output ---------------------------------------------------------------------------------------------------------


def show_result(result: Result) -> None:
    found, rows = result.what_if, result.what_if.totals.to_pylist()
    print_sentence(
        f"{result.repository} as of mark {result.mark_id} ({result.now} UTC by the server's clock): "
        f"{plural(found.stored_objects, 'object')}, {size(found.stored_bytes)}. Nothing is changed by this comparison."
    )
    today = result.variants[0].rules
    if change := rules_change_in_words(result.recorded_rules, today):
        print_sentence(f"The rules have changed since that mark: {change}.")
    for variant in result.variants:
        changes = changes_in_words(variant)
        also = f"; {changes}" if changes not in ("", variant.name) else ""
        print_sentence(f"{variant.name}: {rules_in_words(variant.rules)}{also}")
    print_table("Expired, and the difference from today", totals_table(result, rows))
    if result.what_if.by_branch.num_rows:
        print_table("Expired, by branch", branches_table(result))
    if any(row["unprobed_objects"] for row in rows):
        print_sentence(
            "'may be kept' counts the objects that have the same size as an object at a branch's head: a mark probes "
            "whether a branch serves them, and keeps those that are served."
        )
    if any(variant.dropped for variant in result.variants):
        print_sentence(
            "Objects staged on a dropped branch count as kept, because the mark doesn't record on which branch objects "
            "are staged."
        )


def totals_table(result: Result, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table()
    table.add_column("variant", overflow="fold")
    for heading in ("commits", "objects", "bytes", "more", "fewer"):
        table.add_column(heading, justify="right", no_wrap=True)
    if result.price is not None:
        table.add_column("monthly savings", justify="right", no_wrap=True)
    table.add_column("may be kept", justify="right", no_wrap=True)
    for row in rows:
        counts = (f"{row[name]:,}" for name in ("commits", "objects"))
        differences = (amount(row[f"{name}_objects"], row[f"{name}_bytes"]) for name in ("more", "fewer"))
        saved = () if result.price is None else (money(monthly_cost(row["bytes"], result.price)),)
        unprobed = amount(row["unprobed_objects"], row["unprobed_bytes"])
        table.add_row(cell(row["variant"]), *counts, size(row["bytes"]), *differences, *saved, unprobed)
    return table


def branches_table(result: Result) -> Table:
    """A row for each branch, with the objects and bytes that each variant expires by its rule, the largest first."""
    names = [variant.name for variant in result.variants]
    cells: dict[tuple[str | None, bool], dict[str, tuple[int, int]]] = {}
    for row in result.what_if.by_branch.to_pylist():
        label = (row["branch"], row["committed"])
        cells.setdefault(label, {})[row["variant"]] = (row["objects"], row["bytes"])
    ordered = sorted(
        cells, key=lambda label: max((size_, count) for count, size_ in cells[label].values()), reverse=True
    )
    table = Table()
    table.add_column("branch", overflow="fold")
    for name in names:
        table.add_column(escaped_name(name), justify="right", overflow="fold")
    for label in ordered[:BRANCHES_SHOWN]:
        amounts = (amount(*cells[label].get(name, (0, 0))) for name in names)
        table.add_row(cell(label_in_words(*label)), *amounts)
    if rest := ordered[BRANCHES_SHOWN:]:
        columns = ([cells[label].get(name, (0, 0)) for label in rest] for name in names)
        sums = (amount(sum(count for count, _ in column), sum(count for _, count in column)) for column in columns)
        table.add_row(f"… and {len(rest):,} more", *sums)
    return table


def amount(objects: int, size_in_bytes: int) -> str:
    return f"{objects:,} ({size(size_in_bytes)})" if objects else "0"


def label_in_words(branch: str | None, committed: bool) -> str:
    if branch is not None:
        return branch
    return "(dangling commits)" if committed else "(in no commit)"


def document(result: Result) -> dict[str, Any]:
    """The result as one JSON document. It has no digest and no mark of its own, so it can't be approved."""
    by_variant: dict[str, list[dict[str, Any]]] = {variant.name: [] for variant in result.variants}
    for row in result.what_if.by_branch.to_pylist():
        by_variant[row.pop("variant")].append(row)
    return {
        RESULT_FIELD: RESULT_FORMAT,
        "repository": result.repository,
        "based_on": result.mark_id,
        "stored": {"objects": result.what_if.stored_objects, "bytes": result.what_if.stored_bytes},
        "variants": [
            variant_document(variant, row, result.price) | {"by_branch": by_variant[variant.name]}
            for variant, row in zip(result.variants, result.what_if.totals.to_pylist(), strict=True)
        ],
    }


def variant_document(variant: Variant, row: Mapping[str, Any], price: float | None) -> dict[str, Any]:
    return {
        **row,
        "rules": None if variant.rules is None else rules_document(variant.rules),
        "dropped_branches": sorted(variant.dropped),
        "min_age_s": None if variant.min_age is None else variant.min_age.total_seconds(),
        "holds": [hold.what for hold in variant.holds],
        "monthly_savings": None if price is None else monthly_cost(row["bytes"], price),
    }
