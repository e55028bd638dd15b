"""The commands of `lakegc` with their options. Each is implemented in a separate module."""

# no `from __future__ import annotations` here: Typer reads the annotations of commands
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from lakegc_assets.cli.config_app import config_app
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.holds_app import holds_app
from lakegc_assets.cli.invocation import command, command_names
from lakegc_assets.cli.options import (
    Format,
    FormatOption,
    ListFormat,
    ListFormatOption,
    RepositoryArgument,
    StoreOption,
    check_mark_options,
    configured_scope,
    read_lines,
    refuse_rows_without_list,
    resolve_partition,
)
from lakegc_assets.cli.sandbox_app import sandbox_app
from lakegc_assets.progress import RunFields, listening, set_run_fields
from spark_resources.errors import WrongUsage
from spark_resources.host.user_folders import home_folder
from spark_resources.identifiers import Partition, Scope, default_mark_id

app = typer.Typer(
    name="lakegc",
    help="Garbage collection for lakeFS. Shows what would be deleted and why; deletes only what was approved.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    if wanted:
        print_text(f"lakegc {metadata.version('lakegc')}")
        raise typer.Exit


@app.callback()
def settings_options(
    context: typer.Context,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="NAME=VALUE", help="override a setting, e.g. endpoint_url=http://localhost:8000"
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="show lakegc's version and exit", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Settings come from options, then LAKEGC_* environment variables, then lakegc.toml, then lakectl's environment
    variables and ~/.lakectl.yaml."""
    context.obj.command = context.invoked_subcommand or ""
    if setting:
        apply_settings(setting)
    if debug:
        os.environ["LAKEGC_DEBUG"] = "1"


def apply_settings(assignments: list[str]) -> None:
    """Set these settings as environment variables, which the job's resources read. Raises `WrongUsage` for an
    unknown, renamed or secret setting, a missing value, or a list that is already set."""
    from spark_resources.errors import did_you_mean
    from spark_resources.settings import ADDITIVE_SETTINGS, RENAMED, Settings

    names = [name for name in Settings.model_fields if name != "servers"]  # sections of the fleet file, not one value
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if name in RENAMED:
            raise WrongUsage(f"--set {name}: the setting is now called {RENAMED[name]}")
        if name not in names:
            hint = did_you_mean(name, names) or f"The settings are {', '.join(names)}."
            raise WrongUsage(f"--set {name}: there is no such setting. {hint}")
        if not equals:
            raise WrongUsage(f"--set {name}: expected {name}=VALUE")
        if Settings.is_secret(name, value):
            raise WrongUsage(
                f"--set {name}: other users of this machine can read command lines, and shells save them. Set the "
                f"environment variable LAKEGC_{name.upper()} instead"
                + (", or put the secret access key in ~/.lakectl.yaml" if name == "secret_access_key" else "")
            )
        variable = f"LAKEGC_{name.upper()}"
        if name in ADDITIVE_SETTINGS and os.environ.get(variable, "").strip():
            raise WrongUsage(
                f"--set {name} would override {variable} or an earlier --set {name}. Pass all values in one list."
            )
        os.environ[variable] = value


# --- commands -------------------------------------------------------------------------------------------------------


@app.command()
def demo(
    folder: Annotated[Path | None, typer.Option(help="folder for the sandbox; a new temporary one by default")] = None,
    store: Annotated[str | None, StoreOption] = None,
) -> None:
    """Run lakeFS's documented worked example end to end in a sandbox."""
    from lakegc_assets.cli import demo as demos

    check_java()
    with progress() as status:
        result = demos.run(folder, store, now=datetime.now(UTC), status=status)
    demos.show(result)


@app.command()
def mark(
    context: typer.Context,
    repository: RepositoryArgument,
    mark_id: Annotated[str | None, typer.Option(help="id of the mark; the UTC start time by default")] = None,
    scope: Annotated[
        Scope | None,
        typer.Option(help="which stored objects are candidates; by default the setting mark_scope"),
    ] = None,
    min_age: Annotated[str, typer.Option(help="keep objects younger than this by the store's clock, e.g. 24h")] = "",
    allow_young: Annotated[bool, typer.Option("--allow-young", help="allow a --min-age below 24h")] = False,
    accept_missing: Annotated[
        Path | None, typer.Option(help="a file of live addresses known to be lost, one per line")
    ] = None,
    inventory: Annotated[
        str,
        typer.Option(
            help="read this list instead of listing the store: an S3 Inventory manifest.json, or a Parquet or CSV file"
        ),
    ] = "",
    inventory_taken: Annotated[
        str, typer.Option(help="start time of an inventory without a manifest, e.g. 2026-11-21T00:00:00Z")
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="MARK", help="base an incremental mark on this mark instead of the newest one")
    ] = "",
    full: Annotated[
        bool, typer.Option("--full", help="make a full mark even if an incremental one is possible")
    ] = False,
    clean: Annotated[bool, typer.Option("--clean", hidden=True)] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Find the expired objects of a repository. Deletes nothing."""
    if clean:
        raise WrongUsage(f"--clean is now called --full: {command('mark', repository, '--full')}")
    partition = Partition.of(repository, mark_id or default_mark_id(datetime.now(UTC)))
    options = {
        "scope": (scope or configured_scope(repository)).name,
        "min_age": min_age,
        "allow_young": allow_young,
        "accept_missing": read_lines(accept_missing),
        "inventory": inventory,
        "inventory_taken": inventory_taken,
        "since": since,
        "full": full,
    }
    check_mark_options(repository, options)
    check_java()
    start_spark_ahead(context)
    from lakegc_assets.cli import mark as marks

    marks.refuse_mark_early(partition, options)
    with progress(repository, partition.mark_id) as status:
        status("starting")
        record = marks.make_mark(partition, options)
    marks.show_mark(record, as_json=output is Format.JSON)


@app.command()
def review(
    repository: RepositoryArgument,
    mark_id: Annotated[str, typer.Argument(metavar="MARK", help="a mark's id, or 'latest'")] = "latest",
    list_all: Annotated[bool, typer.Option("--list", help="list every expired object, not just totals")] = False,
    depth: Annotated[int, typer.Option(help="number of path components to group totals by", min=1, max=20)] = 1,
    output: ListFormatOption = ListFormat.TABLE,
) -> None:
    """Show what a mark would delete and why, and anything unusual."""
    from lakegc_assets.cli import review as reviews

    refuse_rows_without_list(output, list_all=list_all)
    reviews.show(repository, mark_id, list_all=list_all, output_format=output.value, depth=depth)


@app.command()
def diff(
    repository: RepositoryArgument,
    before: Annotated[str, typer.Argument(metavar="MARK", help="the earlier mark's id")],
    after: Annotated[str, typer.Argument(metavar="MARK", help="the later mark's id, or 'latest'")],
    list_all: Annotated[bool, typer.Option("--list", help="list every changed object, not just totals")] = False,
    output: ListFormatOption = ListFormat.TABLE,
) -> None:
    """Show what changed between two marks. Lists objects that are newly expired or no longer expired."""
    from lakegc_assets.cli import diff as diffs

    refuse_rows_without_list(output, list_all=list_all)
    diffs.show(repository, before, after, list_all=list_all, output_format=output.value)


@app.command()
def approve(
    repository: RepositoryArgument,
    mark_id: Annotated[
        str,
        typer.Argument(
            metavar="MARK", help="a mark's id, 'latest', or LAYOUT/ID for a mark of the reference collector"
        ),
    ],
    digest: Annotated[str | None, typer.Option(help="digest of the reviewed set; any other set is refused")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="don't prompt; requires --digest")] = False,
    release: Annotated[
        list[str] | None, typer.Option(metavar="BRAKE", help="release a tripped brake; each needs a --because")
    ] = None,
    because: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="the reason for a --release")] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="end of the approval: a duration (36h) or a date; by default, when the mark is too old"
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="name of the approver; the current user by default")
    ] = None,
    for_reference: Annotated[
        bool,
        typer.Option("--for-reference", help="let the reference collector sweep the mark, without re-verification"),
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Approve the expired set of one mark. Shows it, prompts, and records the approval; deletes nothing."""
    from lakegc_assets.cli import approve as approvals

    options = approvals.ApproveOptions(
        digest, yes, tuple(release or ()), tuple(because or ()), until, by, for_reference
    )
    approvals.report_to_dagster(*approvals.approve(repository, mark_id, options, as_json=output is Format.JSON))


@app.command()
def revoke(
    repository: RepositoryArgument,
    mark_id: Annotated[
        str, typer.Argument(metavar="MARK", help="a mark's id, or LAYOUT/ID for a mark of the reference collector")
    ],
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="who revokes the approval; the current user by default")
    ] = None,
) -> None:
    """Revoke a given or announced approval before its sweep starts."""
    from lakegc_assets.cli import approve as approvals

    approvals.revoke(repository, mark_id, by=by)


@app.command()
def sweep(
    context: typer.Context,
    repository: RepositoryArgument,
    mark_id: Annotated[str, typer.Argument(metavar="MARK", help="an approved mark's id, or 'latest'")],
    rate: Annotated[float | None, typer.Option(help="maximum number of keys per second", min=0.1)] = None,
    quarantine: Annotated[
        bool,
        typer.Option("--quarantine", help="quarantine objects instead of deleting them; restore or purge them later"),
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Delete approved objects that are still garbage. If interrupted, run the command again to resume."""
    from lakegc_assets.cli import sweep as sweeps
    from lakegc_assets.cli.sweep_report import show_report
    from lakegc_assets.sweep.preconditions import SweepOptions

    check_java()
    with progress(repository, mark_id) as status:
        status("starting the sweep")
        partition = resolve_partition(repository, mark_id)
        sweeps.refuse_early(partition)
        start_spark_ahead(context, keep_running=False)
        swept, failure = sweeps.sweep(partition, SweepOptions(rate, quarantine))
    show_report(swept, as_json=output is Format.JSON, rate=rate)
    if failure is not None:
        raise failure


@app.command()
def backup(
    repository: RepositoryArgument,
    mark_id: Annotated[
        str,
        typer.Argument(
            metavar="MARK", help="a mark's id, 'latest', or LAYOUT/ID for a mark of the reference collector"
        ),
    ],
    to: Annotated[
        str,
        typer.Argument(
            metavar="[DEST]", help="a URI such as s3://bucket/backups, or a folder; LAKEGC_BACKUP_TO by default"
        ),
    ] = "",
    at_once: Annotated[int, typer.Option(help="maximum number of concurrent copies", min=1, max=1000)] = 32,
    bandwidth: Annotated[str, typer.Option(help="maximum total bytes per second, e.g. 50M")] = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """Copy a mark's expired objects to another bucket or folder. If interrupted, run the command again to resume."""
    from lakegc_assets.backup.context import CopyLimits
    from lakegc_assets.cli import backup as backups

    check_java()
    limits = CopyLimits(at_once, backups.parse_bandwidth(bandwidth))
    name = resolve_partition(repository, mark_id).mark_id if mark_id == "latest" else mark_id
    with progress(repository, name):
        result = backups.backup(repository, name, to, limits)
    backups.show_backup(repository, result, as_json=output is Format.JSON)


@app.command()
def restore(
    repository: RepositoryArgument,
    mark_id: Annotated[str, typer.Argument(metavar="MARK", help="the id of a mark that was backed up, or 'latest'")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="destination that the backup was written to")],
    prefix: Annotated[
        str, typer.Option(help="restore only objects whose addresses start with this prefix, e.g. data/")
    ] = "",
    keys: Annotated[Path | None, typer.Option(help="restore only the addresses in this file, one per line")] = None,
    drill: Annotated[
        int,
        typer.Option(metavar="N", help="test: restore N objects to a scratch location, compare and delete them", min=0),
    ] = 0,
    seed: Annotated[int, typer.Option(help="seed for the random sample of --drill")] = 0,
    scratch: Annotated[
        str, typer.Option(metavar="PLACE", help="scratch location for --drill; a temporary folder by default")
    ] = "",
    at_once: Annotated[int, typer.Option(help="maximum number of concurrent copies", min=1, max=1000)] = 32,
    bandwidth: Annotated[str, typer.Option(help="maximum total bytes per second, e.g. 50M")] = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """Restore missing objects from a backup. Nothing is overwritten."""
    from lakegc_assets.backup.context import CopyLimits
    from lakegc_assets.backup.restore import Selection
    from lakegc_assets.cli import backup as backups

    check_java()
    selection = Selection(prefix, None if keys is None else tuple(read_lines(keys)))
    drill_options = backups.DrillOptions(drill, seed, scratch) if drill else None
    limits = CopyLimits(at_once, backups.parse_bandwidth(bandwidth))
    partition = resolve_partition(repository, mark_id)
    with progress(repository, partition.mark_id):
        result = backups.restore(partition, source, selection, limits, drill_options)
    backups.show_restored(partition, result, source, as_json=output is Format.JSON)


@app.command()
def undo(
    repository: RepositoryArgument,
    mark_id: Annotated[str, typer.Argument(metavar="MARK", help="the id of a mark that was swept with --quarantine")],
    output: FormatOption = Format.TABLE,
) -> None:
    """Restore quarantined objects to their original keys. Nothing is overwritten."""
    from lakegc_assets.cli import sweep as sweeps

    check_java()
    with progress(repository, mark_id):
        result = sweeps.undo(resolve_partition(repository, mark_id))
    result.show(as_json=output is Format.JSON)


@app.command()
def purge(
    repository: RepositoryArgument,
    mark_id: Annotated[str, typer.Argument(metavar="MARK", help="the id of a mark that was swept with --quarantine")],
    yes: Annotated[bool, typer.Option("--yes", help="don't prompt")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Permanently delete quarantined objects. Objects that are live again are restored instead."""
    from lakegc_assets.cli import sweep as sweeps

    check_java()
    partition = resolve_partition(repository, mark_id)
    result = sweeps.QuarantineResult(partition, {})
    if sweeps.confirm_purge(partition, yes=yes):
        with progress(repository, mark_id):
            result = sweeps.purge(partition)
    result.show(as_json=output is Format.JSON)


@app.command()
def retire(
    repository: Annotated[str | None, typer.Argument(metavar="[REPO]", help="a repository's id")] = None,
    mark_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[MARK]...", help="only these marks; by default all old ones")
    ] = None,
    all_repositories: Annotated[
        bool, typer.Option("--all", help="all repositories that are selected for marks")
    ] = False,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="time since a mark, its approval or its sweep ended, e.g. 90d; retire_after by default"
        ),
    ] = "",
    apply: Annotated[
        bool, typer.Option("--apply", help="retire the marks instead of only showing which would be retired")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Remove the files of old marks that nothing needs. Only shows them unless --apply is set; records and reports
    remain."""
    from lakegc_assets.cli import retire as retirement

    age = retirement.parse_older_than(older_than)
    options = retirement.RetireOptions(repository, tuple(mark_ids or ()), all_repositories, age, apply)
    with progress(repository):
        outcomes = retirement.retire(options)
    retirement.show(outcomes, options, as_json=output is Format.JSON)


@app.command()
def status(
    repository: Annotated[str | None, typer.Argument(metavar="[REPO]", help="one repository; all by default")] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show what each repository is waiting for, or the marks of one. Shows states and what was freed."""
    from lakegc_assets.cli import status as statuses

    statuses.show_status(repository, as_json=output is Format.JSON)


@app.command()
def report(
    repository: RepositoryArgument,
    mark_id: Annotated[
        str, typer.Argument(metavar="MARK", help="the id of a mark that was swept, or 'latest'")
    ] = "latest",
    list_all: Annotated[bool, typer.Option("--list", help="list the outcome of every object, not just totals")] = False,
    output: ListFormatOption = ListFormat.TABLE,
) -> None:
    """Show the outcome of a sweep. Prints totals, and why objects were rescued or failed."""
    from lakegc_assets.cli import report as reports

    refuse_rows_without_list(output, list_all=list_all)
    reports.show(repository, mark_id, list_all=list_all, output_format=output.value)


@app.command("what-if")
def what_if(
    repository: RepositoryArgument,
    files: Annotated[
        list[Path] | None,
        typer.Option("--rules", metavar="FILE", help="rules to compare with today's; repeat it for several variants"),
    ] = None,
    dropped: Annotated[
        list[str] | None, typer.Option("--drop-branch", metavar="BRANCH", help="as if this branch were deleted")
    ] = None,
    min_age: Annotated[str, typer.Option(help="a different minimum age of objects, e.g. 7d")] = "",
    hold: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT", help="one more hold: an object's key, tags=PATTERN, branches=PATTERN:DAYS, …"),
    ] = None,
    mark_id: Annotated[str, typer.Option("--mark", metavar="MARK", help="as of this mark; the newest by default")] = (
        "latest"
    ),
    output: FormatOption = Format.TABLE,
) -> None:
    """Show what other rules would free, compared with today's. Changes nothing."""
    from lakegc_assets.cli import what_if as comparisons

    changes = comparisons.changes_of(comparisons.Options(files or (), dropped or (), min_age, hold or ()))
    with progress(repository):
        result = comparisons.compare(repository, mark_id, changes)
    comparisons.show(result, files or (), as_json=output is Format.JSON)


@app.command()
def explain(
    repository: RepositoryArgument,
    name: Annotated[
        str, typer.Argument(metavar="PATH|ADDRESS", help="a path in lakeFS, or an object's address: a key or a URI")
    ],
    is_path: Annotated[bool, typer.Option("--path", help="treat the argument as a path in lakeFS")] = False,
    is_address: Annotated[
        bool, typer.Option("--address", help="treat the argument as an address in the store")
    ] = False,
    mark_id: Annotated[str, typer.Option("--mark", metavar="MARK", help="as of this mark; the newest by default")] = (
        "latest"
    ),
    output: FormatOption = Format.TABLE,
) -> None:
    """Explain why an object is kept, expired or gone. Shows commits and receipts."""
    from lakegc_assets.cli import explain as explanations

    explanations.show(repository, name, mark_id, is_path=is_path, is_address=is_address, as_json=output is Format.JSON)


@app.command()
def pins(
    repository: RepositoryArgument,
    mark_id: Annotated[str, typer.Option("--mark", metavar="MARK", help="as of this mark; the newest by default")] = (
        "latest"
    ),
    output: FormatOption = Format.TABLE,
) -> None:
    """Show what only one branch, one tag on hold or one commit keeps. Stale branches come first."""
    from lakegc_assets.cli import pins as pin_tables
    from lakegc_assets.cli.mark import Servers

    price = Servers.configured().settings(repository).price_per_gb_month
    with progress(repository):
        pin_tables.show(repository, mark_id, price=price, as_json=output is Format.JSON)


@app.command()
def rules(
    repository: RepositoryArgument,
    file: Annotated[
        Path | None,
        typer.Option("--set", metavar="FILE", help="set the rules from this file: JSON as in lakeFS, or YAML"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="with --set: don't prompt if retention becomes shorter")] = False,
    by: Annotated[
        str | None, typer.Option(help="with --set: who changes the rules; the current user by default")
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="list the changes that lakegc made")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show, check and set the retention rules. Asks before retention becomes shorter, and keeps a history."""
    from lakegc_assets.cli import rules as retention_rules

    as_json = output is Format.JSON
    if file is None and (yes or by is not None):
        raise WrongUsage(f"{'--yes' if yes else '--by'} is only for setting rules: add --set FILE")
    if file is not None and history:
        raise WrongUsage("pass either --set or --history")
    if file is not None:
        retention_rules.set_rules(repository, retention_rules.SetOptions(file, yes, by), as_json=as_json)
    elif history:
        retention_rules.show_history(repository, as_json=as_json)
    else:
        retention_rules.show(repository, as_json=as_json)


@app.command()
def fsck(
    repository: RepositoryArgument,
    write_missing: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write the missing live addresses to this file, for 'mark --accept-missing'"),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """Verify metadata and check for missing live objects. Metadata is verified by content hash."""
    from lakegc_assets.cli import fsck as checks

    check_java()
    with progress(repository):
        result = checks.run(repository, write_missing=write_missing)
    return checks.show(result, write_missing=write_missing, as_json=output is Format.JSON)


@app.command()
def doctor(
    repository: Annotated[
        str | None, typer.Argument(metavar="[REPO]", help="also check this repository and its store")
    ] = None,
    spark: Annotated[bool, typer.Option("--spark", help="also start Spark, which takes a few seconds")] = False,
    output: FormatOption = Format.TABLE,
) -> int:
    """Check whether lakegc can work here, and if not, say what to do. Deletes nothing but its own test files."""
    from lakegc_assets.cli import doctor as doctors

    with progress(repository) as status:
        findings = doctors.examine(repository, with_spark=spark, status=status)
    return doctors.show(findings, repository, commands=command_names(app), as_json=output is Format.JSON)


@app.command()
def ui(
    port: Annotated[int, typer.Option(help="port of the web server", min=1, max=65535)] = 3000,
    host: Annotated[str, typer.Option(help="address to listen on; anyone who can reach it can start marks")] = (
        "127.0.0.1"
    ),
) -> None:
    """Serve the Dagster UI for marks and sweeps. Also runs schedules and sensors. Stop it with Ctrl-C."""
    from lakegc_assets.cli.dagster_runs import dagster_home, refuse_port_in_use, serve_ui

    check_java()
    refuse_port_in_use(host, port)
    home = dagster_home(os.environ)
    print_text(f"Dagster's UI is at http://{host}:{port}, and its history in {home}. Press Ctrl-C to stop the UI.")
    sys.stdout.flush()
    serve_ui(home, host=host, port=port)


app.add_typer(config_app, name="config")
app.add_typer(holds_app, name="holds")
app.add_typer(sandbox_app, name="sandbox")


# --- helpers --------------------------------------------------------------------------------------------------------


def check_java() -> None:
    from spark_resources.spark.java import check_java as check

    check(os.environ)


def start_spark_ahead(context: typer.Context, *, keep_running: bool = True) -> None:
    """Start Spark while this process is still importing modules: with two cores, both run in parallel.

    With `keep_running`, Spark runs until the process ends; commands that delete objects must pass False. Does nothing
    unless this process runs only this command.
    """
    if context.obj.has_own_process:
        from spark_resources.settings import Settings
        from spark_resources.spark.session import start_ahead

        start_ahead(Settings.load(os.environ, home_folder()).spark_settings(), keep_running=keep_running)


@contextmanager
def progress(repository: str | None = None, mark_id: str | None = None) -> Iterator[Any]:
    """Show progress on stderr while the context lasts: one updated line on a terminal, new lines elsewhere."""
    from lakegc_assets.cli.progress import show_progress

    set_run_fields(RunFields(None, repository, mark_id))
    with show_progress() as log_message, listening(log_message):
        yield log_message
