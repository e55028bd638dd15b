"""The configuration on the terminal: what applies to a repository, and where each value comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pydantic import SecretStr
from rich.table import Table

from lakegc_assets.cli.console import cell, print_command, print_sentence, print_table, printing
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.formatting import duration
from spark_resources.host.user_folders import home_folder
from spark_resources.identifiers import Partition
from spark_resources.mark_store.hold_file import parse_configured_holds
from spark_resources.settings import Settings

DEFAULT = "default"
HIDDEN = "(set, not shown)"


@printing()
def show(repository: str | None, *, show_defaults: bool, as_json: bool) -> None:
    """Print the settings that apply to a repository, or to all repositories. Raises `WrongUsage` if a setting is
    invalid, even in a section of the fleet file that doesn't apply."""
    if repository is not None:
        Partition.of(repository, "any")
    fleet = Settings.fleet_file(os.environ)
    if fleet is not None:
        for pattern, section in fleet.sections.items():
            parse_configured_holds(section.get("holds", ()), f'[repositories."{pattern}"] of {fleet.path}')
    settings = Settings.load(os.environ, home_folder(), repository=repository)
    parse_configured_holds(settings.holds, settings.origins.get("holds", ""))
    rows = [row for row in rows_of(settings) if show_defaults or row[2] != DEFAULT]
    sections = [] if fleet is None or repository is None else fleet.matching(repository)
    if as_json:
        document = {
            "file": None if fleet is None else str(fleet.path),
            "sections": sections,
            "settings": {name: {"value": value, "origin": origin} for name, value, origin in rows},
        }
        print_text(json.dumps(document, indent=1))
        return
    for sentence in file_in_words(None if fleet is None else str(fleet.path), repository, sections):
        print_sentence(sentence)
    if rows:
        print_table(f"Settings for {repository or 'all repositories'}", as_table(rows))
    if not show_defaults:
        print_command("All settings", command("config", "check", *([repository] if repository else []), "--defaults"))


def rows_of(settings: Settings) -> list[tuple[str, str, str]]:
    """Name, value and origin of each setting. Secrets are hidden."""
    return [
        (name, HIDDEN if Settings.is_secret(name, as_text(value)) and value else as_text(value), origin)
        for name in Settings.model_fields
        for value, origin in [(getattr(settings, name), settings.origins.get(name, DEFAULT))]
    ]


def as_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return duration(value)
    if isinstance(value, dict):
        return json.dumps(value, default=str) if value else "none"  # TOML has dates
    if isinstance(value, tuple):
        return ", ".join(map(as_text, value)) or "none"
    return str(value)


def file_in_words(path: str | None, repository: str | None, sections: Sequence[str]) -> list[str]:
    if path is None:
        return ["There is no fleet file: LAKEGC_CONFIG isn't set, and the working directory has no lakegc.toml."]
    matching = f"; sections that match {repository}: {', '.join(sections) or 'none'}" if repository else ""
    return [f"The fleet file {path} is valid{matching}."]


def as_table(rows: Sequence[tuple[str, str, str]]) -> Table:
    table = Table()
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("origin", overflow="fold")
    for name, value, origin in rows:
        table.add_row(name, cell(value), cell(origin))
    return table
