"""Options and arguments that several commands share, and checks before a command starts."""

# no `from __future__ import annotations` here: Typer reads the annotations of commands
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_resources.errors import WrongUsage
from spark_resources.host.user_folders import home_folder
from spark_resources.identifiers import Partition, Scope


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


class ListFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


FormatOption = Annotated[Format, typer.Option("--format", help="table for people, json for scripts")]
ListFormatOption = Annotated[
    ListFormat,
    typer.Option("--format", help="table for people, json for scripts; with --list also csv or jsonl"),
]
RepositoryArgument = Annotated[str, typer.Argument(metavar="REPO", help="a repository's id")]
StoreOption = typer.Option(
    metavar="URI",
    help="keep objects in an object store instead of a local folder: s3://bucket/prefix, gs://bucket/prefix or "
    "https://account.blob.core.windows.net/container/prefix; endpoint and credentials come from the settings",
)


def check_mark_options(repository: str, options: Mapping[str, Any]) -> None:
    """Raise the error that a mark of the repository with these options would raise, before anything is started."""
    from lakegc_assets.mark.options import (
        MarkOptions,
        check_min_age,
        checked_losses,
        parse_inventory_taken,
        parse_min_age,
        refuse_contradictions,
    )
    from spark_resources.settings import Settings

    chosen = MarkOptions(
        min_age=parse_min_age(options["min_age"]),
        allow_young=options["allow_young"],
        accept_missing=checked_losses(options["accept_missing"]),
        inventory=options["inventory"],
        inventory_taken=parse_inventory_taken(options["inventory_taken"], options["inventory"]),
        since=options["since"],
        full=options["full"],
    )
    refuse_contradictions(chosen)
    configured = Settings.load(os.environ, home_folder(), repository=repository).min_age
    check_min_age(configured if chosen.min_age is None else chosen.min_age, chosen)


def configured_scope(repository: str) -> Scope:
    """The scope of a repository's marks, unless an option overrides it."""
    from spark_resources.settings import Settings

    return Settings.load(os.environ, home_folder(), repository=repository).mark_scope


def resolve_partition(repository: str, mark_id: str) -> Partition:
    """The partition of a mark; 'latest' is the newest finished one. Raises `NotFound` if there is none, `WrongUsage`
    if an id is invalid."""
    if mark_id != "latest":
        return Partition.of(repository, mark_id)
    from lakegc_assets.cli.mark import Servers, resolve_mark_id

    return Partition.of(repository, resolve_mark_id(Servers.configured().target(repository).place, repository, mark_id))


def refuse_rows_without_list(output: ListFormat, *, list_all: bool) -> None:
    if output in (ListFormat.CSV, ListFormat.JSONL) and not list_all:
        raise WrongUsage(f"--format {output} prints one object per line: add --list, or use json for totals")


def read_lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return [line for line in path.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{path} is not a readable list of addresses: {error}") from None
