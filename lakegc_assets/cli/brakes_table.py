"""The brakes of a mark on the terminal: a table with one row per brake for people, JSON for scripts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.table import Table

from lakegc_assets.cli.console import cell, print_table
from lakegc_assets.rules.brakes import Brake, BrakeLimits, brakes
from spark_resources.host.user_folders import home_folder
from spark_resources.mark_store.record import MarkRecord
from spark_resources.settings import Settings


def configured_brakes(record: MarkRecord, *, now: datetime) -> tuple[Brake, ...]:
    """The brakes of a finished mark with the configured limits. `now` is by the store's clock."""
    settings = Settings.load(os.environ, home_folder(), repository=record.repository)
    return brakes(record, BrakeLimits.of(settings), now=now)


def in_words(all_brakes: Sequence[Brake]) -> str:
    tripped = [brake.name for brake in all_brakes if brake.tripped]
    if not tripped:
        return "none tripped"
    return f"{', '.join(tripped)}: tripped; an approval must release {'it' if len(tripped) == 1 else 'each'} by name"


def show(all_brakes: Sequence[Brake]) -> None:
    """Print a row for each brake: whether it tripped, the measured value, and the limit."""
    table = Table()
    for heading in ("brake", "", "measured"):
        table.add_column(heading)
    for brake in all_brakes:
        table.add_row(brake.name, "[bold red]tripped[/]" if brake.tripped else "ok", cell(brake.why))
    print_table("Brakes", table)


def document(all_brakes: Sequence[Brake]) -> list[dict[str, Any]]:
    return [asdict(brake) for brake in all_brakes]
