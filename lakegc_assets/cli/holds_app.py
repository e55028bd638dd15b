"""`lakegc holds REPO list|add|check|drop`."""

# no `from __future__ import annotations` here: Typer reads the annotations of commands
from typing import Annotated, Any

import typer

from spark_resources.errors import WrongUsage

holds_app = typer.Typer(
    help="What must never go, or not yet, though no rule keeps it: holds on tags, commits, branches, paths, objects.",
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
    """All holds of a repository, by whom, why and until when."""
    from lakegc_assets.cli import holds

    holds.show(context.obj, as_json=as_json)


@holds_app.command()
def add(
    context: typer.Context,
    hold_id: IdArgument,
    owner: Annotated[str, typer.Option(help="who asked for it")],
    reason: Annotated[str, typer.Option(help="why")],
    tags: Annotated[str | None, typer.Option(metavar="PATTERN", help="what commits with such tags hold")] = None,
    history: Annotated[bool, typer.Option("--history", help="with --tags: and what their ancestors hold")] = False,
    commits: Annotated[
        str | None, typer.Option(metavar="KEY=PATTERN", help="what commits with such metadata hold: legal=hold")
    ] = None,
    branches: Annotated[str | None, typer.Option(metavar="PATTERN", help="the lines of branches, for --days")] = None,
    days: Annotated[int | None, typer.Option(help="with --branches: how long at least, whatever the rules say")] = None,
    paths: Annotated[str | None, typer.Option(metavar="PATTERN", help="what any commit has at such a path")] = None,
    prefix: Annotated[str | None, typer.Option(metavar="KEY", help="stored objects whose keys begin so")] = None,
    until: Annotated[
        str | None, typer.Option(help="the last day (UTC), or a time with its zone; no end if not given")
    ] = None,
) -> None:
    """Hold something. A '*' in a pattern is any text, slashes too; quote it."""
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
    """Let go of something: the next mark may take it."""
    from lakegc_assets.cli import holds

    holds.drop(context.obj, hold_id)


@holds_app.command()
def sign(context: typer.Context, yes: Annotated[bool, typer.Option("--yes", help="don't ask")] = False) -> None:
    """Sign the file as it is: one written by hand, or before there was a key, or that somebody put back."""
    from lakegc_assets.cli import holds

    holds.sign(context.obj, yes=yes)


@holds_app.command()
def check(context: typer.Context, as_json: JsonOption = False) -> None:
    """Is the file right, and what does each hold match today?"""
    from lakegc_assets.cli import holds

    holds.check(context.obj, as_json=as_json)
