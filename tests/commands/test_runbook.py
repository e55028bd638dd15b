"""The runbook: each quoted message exists in the code, and every brake and check has a row."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lakegc_assets.asset_checks.invariants import INVARIANTS
from lakegc_assets.rules.brakes import BRAKES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
PLACEHOLDER = "\0"


def first_cells(header: str) -> list[str]:
    """The spans of the first cells of all tables whose first column has this header."""
    tables = re.findall(rf"^\| {header} \|.*\n\|[- |]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    cells = [line.split(" | ")[0] for table in tables for line in table.splitlines()]
    return [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]


@cache
def texts_of_the_code() -> frozenset[str]:
    """All texts in the code, with a placeholder for each value that is filled in."""
    modules = [path for package in ("lakegc_assets", "spark_resources") for path in (ROOT / package).rglob("*.py")]
    return frozenset(text for path in modules for text in texts(ast.parse(path.read_text(encoding="utf-8"))))


def texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values)
            yield "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def pattern(message: str) -> re.Pattern[str]:
    """Matches a text with the words of a quoted message, and anything in place of each `…`."""
    return re.compile(".*".join(re.escape(words) for words in message.split("…")), re.DOTALL)


@pytest.mark.parametrize("message", first_cells("message"))
def test_each_quoted_message_exists_in_the_code(message: str) -> None:
    quoted = pattern(message)

    assert any(quoted.search(text) for text in texts_of_the_code())


def test_every_brake_and_every_check_has_a_row() -> None:
    assert first_cells("brake") == list(BRAKES)
    assert set(first_cells("check")) == {
        *(invariant.name for invariant in INVARIANTS),
        *(f"brake_{name}" for name in BRAKES),
        *("marks_are_recent", "sweeps_are_recent"),
    }
