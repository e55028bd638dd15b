"""The page on the reference collector's losses: its commands show each loss, and lakegc keeps the objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Lakegc

PAGE = (Path(__file__).parents[2] / "docs" / "why-not-the-reference.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names that the page's Python defines, and in `values` what each line with a comment evaluates to."""
    names: dict[str, Any] = {"values": {}}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tempfile.mkdtemp", lambda: str(tmp_path_factory.mktemp("losses")))
            for block in BLOCKS:
                exec(block, names)
                names["values"] |= {line: eval(line, names) for line in shown_expressions(block)}
        yield names
    finally:
        names["sandbox"].stop()


def shown_expressions(block: str) -> list[str]:
    """The expressions of a block whose values its comments state."""
    lines = (line.partition("  # ") for line in block.splitlines())
    return [code.strip() for code, comment, _ in lines if comment and not re.search(r"\w = ", code)]


def test_the_reference_formula_loses_what_the_page_says(shown: dict[str, Any]) -> None:
    """Each parent is lost or not by the ids of commits, so that all 20 are kept once in a million runs."""
    values = dict(shown["values"])
    parents = values.pop("len(parents & reference_would_delete())")

    assert 0 < parents <= 20
    assert len(values) == 3
    assert all(value is True for value in values.values())


def test_a_mark_of_the_same_repository_finds_nothing_to_delete(shown: dict[str, Any], lakegc: Lakegc) -> None:
    block = PAGE.partition("```sh\n")[2].partition("```")[0]
    mark, review = ([*line.split()[1:], "--format", "json"] for line in block.splitlines())
    settings = shown["sandbox"].settings

    assert '"expired": 0' in lakegc.output(settings, *mark)
    assert lakegc.output(settings, *review).strip() == "[]"
