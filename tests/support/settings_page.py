"""The tables of `docs/settings.md`, generated from the fields of `Settings` and the texts below them."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from itertools import pairwise
from typing import Any

from spark_resources.settings import Settings

HEADER = "| setting | meaning | default |\n| --- | --- | --- |\n"
HEADING = re.compile(r" +# (\w[\w ]+)$")
NOT_IN_A_TABLE = "servers"
"""It has sections of its own in the fleet file, which the page describes."""


def updated(page: str) -> str:
    """The page with the table of each section replaced by the generated one."""
    for section, rows in tables().items():
        table = re.compile(rf"(^## {re.escape(section)}\n(?:(?!## ).*\n)*?)\| setting \|.*\n(?:\|.*\n)*", re.MULTILINE)
        page, count = table.subn(lambda match, rows=rows: f"{match.group(1)}{HEADER}{rows}", page)
        assert count == 1, f"no section '{section}' with a table that begins with '| setting |'"
    return page


def tables() -> Mapping[str, str]:
    """The rows of the settings' table in each section, by the section's heading."""
    source = textwrap.dedent(inspect.getsource(Settings))
    headings = [(number, match[1]) for number, match in enumerate(map(HEADING.match, source.splitlines()), 1) if match]
    found: dict[str, str] = {}
    for name, (line, text) in documented_fields(source).items():
        section = next(heading for number, heading in reversed(headings) if number < line)
        if name != NOT_IN_A_TABLE:
            found[section] = found.get(section, "") + row(name, text)
    return found


def documented_fields(source: str) -> Mapping[str, tuple[int, str]]:
    """The line and the text of each field of the class. Raises `KeyError` for a field without a text below it."""
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    texts = {
        field.target.id: (field.lineno, " ".join(below.value.value.split()))
        for field, below in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }
    return {name: texts[name] for name in Settings.model_fields}


def row(name: str, text: str) -> str:
    meaning, _, in_words = text.rstrip(".").partition(" Default: ")
    return f"| `{name}` | {meaning.rstrip('.')} | {in_words or in_code(Settings.model_fields[name].default)} |\n"


def in_code(default: Any) -> str:
    """A default as it is written in a setting."""
    match default:
        case bool():
            return str(default).lower()
        case int() | float():
            return f"{default:,.10g}"
        case timedelta():
            return duration(default)
        case Enum():
            return f"`{default.value}`"
        case str():
            return f"`{default}`"
        case tuple() if default:
            return f"`{','.join(default)}`"
        case _:
            return "none"


def duration(span: timedelta) -> str:
    """A duration in its largest unit without a fraction, but 24h rather than 1d."""
    seconds = int(span.total_seconds())
    units = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
    return next(
        f"{seconds // length}{unit}" for unit, length in units.items() if not seconds % length and seconds > length
    )
