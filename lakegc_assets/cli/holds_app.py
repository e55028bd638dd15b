"""`lakegc holds REPO list|add|check|drop|sign`: the options of each command."""

# no `from __future__ import annotations` here: Typer reads the annotations of commands
from typing import Annotated, Any

import typer

from spark_resources.errors import WrongUsage

holds_app = typer.Typer(
    help="Manage holds, which keep objects that would expire. Holds match tags, commits, branches, paths or keys.",
    no_args_is_help=True,
)
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON document, for scripts")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="the hold's id: lower-case letters, digits and ._-")]


@holds_app.callback()
def select_repository(
    context: typer.Context, repository: Annotated[str, typer.Argument(metavar="REPO", help="a repository's id")]
) -> None:
    context.obj = repository


@holds_app.command("list")
def list_holds(context: typer.Context, as_json: JsonOption = False) -> None:
    """List a repository's holds with owner, reason and end date."""
    from lakegc_assets.cli import holds

    holds.show(context.obj, as_json=as_json)


@holds_app.command()
def add(
    context: typer.Context,
    hold_id: IdArgument,
    owner: Annotated[str, typer.Option(help="who requested the hold")],
    reason: Annotated[str, typer.Option(help="reason for the hold")],
    tags: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="hold objects of commits with matching tags")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="with --tags: also hold the objects of the tagged commits' ancestors")
    ] = False,
    commits: Annotated[
        str | None,
        typer.Option(metavar="KEY=PATTERN", help="hold objects of commits with matching metadata, e.g. legal=hold"),
    ] = None,
    branches: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="retain commits of matching branches for at least --days")
    ] = None,
    days: Annotated[int | None, typer.Option(help="with --branches: minimum retention in days")] = None,
    paths: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="hold the objects that any commit has at matching paths")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="KEY", help="hold stored objects whose keys start with KEY")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="last day (UTC), or a time with a time zone; no end by default")
    ] = None,
) -> None:
    """Add a hold. '*' in a pattern matches any text including slashes; quote patterns in the shell."""
    from lakegc_assets.cli import holds

    fields: dict[str, Any] = {"id": hold_id, "owner": owner, "reason": reason, "until": until}
    fields |= {"tags": tags, "branches": branches, "paths": paths, "prefix": prefix}
    fields["history"] = "true" if history else None
    fields["days"] = None if days is None else str(days)
    if commits is not None:
        key, equals, pattern = commits.partition("=")
        if not equals:
            raise WrongUsage(f"--commits {commits}: expected KEY=PATTERN, for example legal=hold")
        fields["commits"] = {key: pattern}
    holds.add(context.obj, {name: value for name, value in fields.items() if value is not None})


@holds_app.command()
def drop(context: typer.Context, hold_id: IdArgument) -> None:
    """Drop a hold. The next mark no longer applies it."""
    from lakegc_assets.cli import holds

    holds.drop(context.obj, hold_id)


@holds_app.command()
def sign(context: typer.Context, yes: Annotated[bool, typer.Option("--yes", help="don't prompt")] = False) -> None:
    """Sign the holds file as it is. Needed if it was written by hand or restored, or predates the signing key."""
    from lakegc_assets.cli import holds

    holds.sign(context.obj, yes=yes)


@holds_app.command()
def check(context: typer.Context, as_json: JsonOption = False) -> None:
    """Validate the holds file, and count what each hold matches now. The next mark counts holds on paths."""
    from lakegc_assets.cli import holds

    holds.check(context.obj, as_json=as_json)
