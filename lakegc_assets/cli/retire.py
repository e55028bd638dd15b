"""`lakegc retire`: remove the files of old marks that nothing needs any more."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lakegc_assets.cli.console import cell, print_command, print_sentence, print_table, printing, size
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers
from lakegc_assets.formatting import duration_argument, plural
from lakegc_assets.mark.repository_selection import list_repositories, select_repositories
from lakegc_assets.retirement.fleet import Outcome, retire_all
from lakegc_assets.retirement.retire import Retirable, open_target, plan
from lakegc_assets.retirement.retire import retire as retire_marks
from lakegc_assets.rules.retirement import Action
from spark_resources.errors import FinishedWithFailures, WrongUsage, full_stop
from spark_resources.host.user_folders import home_folder
from spark_resources.settings import Settings, parse_duration


@dataclass(frozen=True, slots=True)
class RetireOptions:
    """What to retire: marks that ended `older_than` ago (None: as configured), in one or all repositories. Without
    `apply`, nothing is changed."""

    repository: str | None
    mark_ids: tuple[str, ...] = ()
    all_repositories: bool = False
    older_than: timedelta | None = None
    apply: bool = False


def parse_older_than(text: str) -> timedelta | None:
    """The age in the option --older-than; None if it wasn't given."""
    if not text:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise WrongUsage(f"--older-than: {error}; expected an age such as 90d or 12w") from None


def retire(options: RetireOptions) -> list[Outcome]:
    """Retire marks and remove them from Dagster; without `apply`, only plan it. If a single repository was named, its
    error is raised."""
    servers = Servers.configured()
    if options.all_repositories == (options.repository is not None):
        raise WrongUsage("pass either one repository, or --all for all repositories")
    if options.repository is not None:
        outcomes = [retire_one(servers, options.repository, options)]
    else:
        repositories, failures = list_repositories(servers.lakefs)
        selected = select_repositories(repositories, Settings.load(os.environ, home_folder()))
        names = [repository.id for repository in selected]
        outcomes = [
            *retire_all(servers.lakefs, names, servers.settings, options.older_than, apply=options.apply),
            *(Outcome(f"{name}/*", error=why) for name, why in failures.items()),
        ]
    if options.apply:
        remove_from_dagster(outcomes)
    return outcomes


def retire_one(servers: Servers, repository: str, options: RetireOptions) -> Outcome:
    settings = servers.settings(repository)
    after = settings.retire_after if options.older_than is None else options.older_than
    if after is None:
        raise WrongUsage(
            f"no age is set for retiring marks of {repository}: pass --older-than, for example --older-than 90d, or "
            "set LAKEGC_RETIRE_AFTER"
        )
    target = open_target(servers.lakefs, repository, settings)
    if not options.apply:
        return Outcome(repository, plan(target, after, options.mark_ids))
    return Outcome(repository, retire_marks(target, servers.lakefs, settings, after, only=options.mark_ids))


def remove_from_dagster(outcomes: Sequence[Outcome]) -> None:
    """Remove the partitions of retired marks from Dagster, including marks that another deployment retired."""
    from lakegc_assets.cli import dagster_runs
    from lakegc_assets.retirement.retired_partitions import remove_partitions

    with dagster_runs.open_instance(dagster_runs.dagster_home(os.environ)) as instance:
        for outcome in outcomes:
            if (done := outcome.retirements) is not None and (retired := [*done.applied, *done.earlier]):
                remove_partitions(instance, outcome.repository, retired)


# --- output ---------------------------------------------------------------------------------------------------------


@printing()
def show(outcomes: Sequence[Outcome], options: RetireOptions, *, as_json: bool) -> None:
    """Print what was or would be retired, and why the other marks are kept. With --all, the table lists only marks that
    were or would be retired. Raises `FinishedWithFailures` if a repository had an error."""
    if as_json:
        print_text(json.dumps(document(outcomes, options), indent=1))
    else:
        show_for_people(outcomes, options)
    if failed := [outcome for outcome in outcomes if outcome.error]:
        reasons = " ".join(full_stop(f"{outcome.repository}: {outcome.error}") for outcome in failed)
        raise FinishedWithFailures(f"{plural(len(failed), 'repository')} could not be processed. {reasons}")


def show_for_people(outcomes: Sequence[Outcome], options: RetireOptions) -> None:
    rows = [
        (outcome.repository, mark)
        for outcome in outcomes
        if outcome.retirements is not None
        for mark in outcome.retirements.marks
        if mark.is_changing or not options.all_repositories
    ]
    if rows:
        title = "Retired marks" if options.apply else "Marks to retire"
        title = title if options.repository is None else f"Marks of {options.repository}"
        print_table(title, as_table(rows, applied=options.apply))
    changing = [mark for _, mark in rows if mark.is_changing]
    amount = f"{plural(sum(mark.files for mark in changing), 'file')}, {size(sum(mark.bytes for mark in changing))}"
    if options.mark_ids and (
        earlier := [mark_id for outcome in outcomes if outcome.retirements for mark_id in outcome.retirements.earlier]
    ):
        print_sentence(f"Already retired: {', '.join(earlier)}.")
    if not changing:
        print_sentence("No mark is both old enough and no longer needed, so there is nothing to retire.")
        print_command("To list the marks", command("status", *filter(None, [options.repository])))
    elif options.apply:
        print_sentence(f"{plural(len(changing), 'mark')} retired: {amount} removed. Their records and reports remain.")
    else:
        print_sentence(f"{plural(len(changing), 'mark')} to retire: {amount}. Nothing was changed.")
        print_command("To retire them", command(*arguments(options), "--apply"))
    for outcome in outcomes:
        if outcome.busy:
            print_sentence(f"{outcome.repository} was skipped: {outcome.busy}")
    if off := [outcome.repository for outcome in outcomes if outcome.is_off]:
        print_sentence(f"Left alone, because retire_after isn't set: {', '.join(off)}.")


def arguments(options: RetireOptions) -> list[str]:
    """The arguments of the command with these options, except --apply."""
    repository = ["--all"] if options.repository is None else [options.repository]
    age = [] if options.older_than is None else ["--older-than", duration_argument(options.older_than)]
    return ["retire", *repository, *options.mark_ids, *age]


ACTIONS_IN_WORDS = {Action.KEEP: "keep", Action.RETIRE: "retire", Action.RESUME: "finish retiring"}


def as_table(rows: Sequence[tuple[str, Retirable]], *, applied: bool) -> Table:
    several = len({repository for repository, _ in rows}) > 1
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    if several:
        table.add_column("repository", overflow="fold")
    table.add_column("mark", no_wrap=True)
    table.add_column("state")
    table.add_column("decision")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for repository, mark in rows:
        decision = mark.decision
        word = "retired" if applied and mark.is_changing else ACTIONS_IN_WORDS[decision.action]
        amount = size(mark.bytes) if mark.is_changing else ""
        cells: list[Any] = [cell(decision.mark_id), cell(mark.state), word, amount, cell(decision.why)]
        table.add_row(*([cell(repository)] if several else []), *cells)
    return table


def document(outcomes: Sequence[Outcome], options: RetireOptions) -> dict[str, Any]:
    """The decisions as one JSON document."""
    return {"applied": options.apply, "repositories": [outcome_document(outcome) for outcome in outcomes]}


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    done = outcome.retirements
    return {
        "repository": outcome.repository,
        "configured": not outcome.is_off,
        "busy": outcome.busy,
        "error": outcome.error,
        "retired": [] if done is None else list(done.applied),
        "retired_earlier": 0 if done is None else len(done.earlier),
        "marks": []
        if done is None
        else [
            {
                "mark_id": mark.decision.mark_id,
                "state": mark.state,
                "action": mark.decision.action.value,
                "why": mark.decision.why,
                "files": mark.files,
                "bytes": mark.bytes,
            }
            for mark in done.marks
        ],
    }
