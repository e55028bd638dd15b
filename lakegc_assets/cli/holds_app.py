"""`lakegc holds REPO list|add|check|drop|sign`: the options of each command."""

# no `from __future__ import annotations` here: Typer reads the annotations of commands
from typing import Annotated, Any

import typer

from spark_resources.errors import WrongUsage

holds_app = typer.Typer(
    help="Manage holds: what must be kept, whatever the rules say. By tags, commits, branches, paths or keys.",
    no_args_is_help=True,
)
JsonOption = Annotated[bool, typer.Option("--json", help="one JSON document, for scripts")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="the hold's id: lower-case letters, digits and ._-")]


@holds_app.callback()
def of_repository(
    context: typer.Context, repository: Annotated[str, typer.Argument(metavar="REPO", help="a repository's id")]
) -> None:
    context.obj = repository


@holds_app.command("list")
def list_holds(context: typer.Context, as_json: JsonOption = False) -> None:
    """List all holds of a repository: by whom, why and until when."""
    from lakegc_assets.cli import holds

    holds.show(context.obj, as_json=as_json)


@holds_app.command()
def add(
    context: typer.Context,
    hold_id: IdArgument,
    owner: Annotated[str, typer.Option(help="who asked for the hold")],
    reason: Annotated[str, typer.Option(help="why")],
    tags: Annotated[str | None, typer.Option(metavar="PATTERN", help="hold what commits with such tags reach")] = None,
    history: Annotated[bool, typer.Option("--history", help="with --tags: and what their ancestors reach")] = False,
    commits: Annotated[
        str | None, typer.Option(metavar="KEY=PATTERN", help="hold commits with such metadata: legal=hold")
    ] = None,
    branches: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="hold commits of such branches, for --days")
    ] = None,
    days: Annotated[int | None, typer.Option(help="with --branches: for at least so many days")] = None,
    paths: Annotated[str | None, typer.Option(metavar="PATTERN", help="hold what any commit has at such paths")] = None,
    prefix: Annotated[str | None, typer.Option(metavar="KEY", help="hold stored objects whose keys begin so")] = None,
    until: Annotated[
        str | None, typer.Option(help="the last day (UTC), or a time with its zone; no end if not given")
    ] = None,
) -> None:
    """Add a hold. A '*' in a pattern is any text, slashes too; quote it."""
    from lakegc_assets.cli import holds

    given: dict[str, Any] = {"id": hold_id, "owner": owner, "reason": reason, "until": until}
    given |= {"tags": tags, "branches": branches, "paths": paths, "prefix": prefix}
    given["history"] = "true" if history else None
    given["days"] = None if days is None else str(days)
    if commits is not None:
        key, equals, pattern = commits.partition("=")
        if not equals:
            raise WrongUsage(f"--commits {commits}: expected KEY=PATTERN, for example legal=hold")
        given["commits"] = {key: pattern}
    holds.add(context.obj, {name: value for name, value in given.items() if value is not None})


@holds_app.command()
def drop(context: typer.Context, hold_id: IdArgument) -> None:
    """Drop a hold: from the next mark on it keeps nothing."""
    from lakegc_assets.cli import holds

    holds.drop(context.obj, hold_id)


@holds_app.command()
def sign(context: typer.Context, yes: Annotated[bool, typer.Option("--yes", help="don't ask")] = False) -> None:
    """Sign the file of holds as it is. It was written by hand, before there was a key, or restored."""
    from lakegc_assets.cli import holds

    holds.sign(context.obj, yes=yes)


@holds_app.command()
def check(context: typer.Context, as_json: JsonOption = False) -> None:
    """Check the file of holds, and show what each hold matches today."""
    from lakegc_assets.cli import holds

    holds.check(context.obj, as_json=as_json)
