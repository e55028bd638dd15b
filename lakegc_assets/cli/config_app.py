"""`lakegc config check`: the settings that apply, and the origin of each."""

# no `from __future__ import annotations` here: Typer reads the annotations of commands
from typing import Annotated

import typer

from lakegc_assets.cli.options import Format, FormatOption

config_app = typer.Typer(
    help="Check the configuration. It consists of environment variables, the fleet file and lakectl's file.",
    no_args_is_help=True,
)


@config_app.command()
def check(
    repository: Annotated[
        str | None,
        typer.Argument(metavar="[REPO]", help="a repository's id; by default, settings common to all repositories"),
    ] = None,
    show_defaults: Annotated[
        bool, typer.Option("--defaults", help="also show settings that have their default value")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Validate the configuration. Shows the settings that apply to a repository and where each comes from."""
    from lakegc_assets.cli import config

    config.show(repository, show_defaults=show_defaults, as_json=output is Format.JSON)
