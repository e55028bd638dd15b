"""The page on the reference collector's losses: its commands show each loss, and lakegc keeps the objects."""

from __future__ import annotations

import code
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Lakegc

PAGE = (Path(__file__).parents[2] / "docs" / "why-not-the-reference.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


class Console(code.InteractiveConsole):
    """An interactive interpreter into which the blocks of the page are pasted. `errors` is what it complains about."""

    errors = ""

    def write(self, data: str) -> None:
        self.errors += data


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names that the page's Python defines. `values` has the expressions whose values its comments state."""
    names: dict[str, Any] = {"values": {}}
    console = Console(names)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tempfile.mkdtemp", lambda: str(tmp_path_factory.mktemp("losses")))
            for line in "".join(BLOCKS).splitlines():
                incomplete = console.push(line)
                expression, comment, _ = line.partition("  # ")
                if comment and not incomplete and not re.search(r"\w = ", expression):
                    names["values"][expression] = eval(expression, names)
        assert console.errors == ""
        yield names
    finally:
        names["sandbox"].stop()


def test_the_reference_formula_loses_the_objects_that_the_page_describes(shown: dict[str, Any]) -> None:
    """Whether a parent is lost depends on the ids of commits. All 20 are kept only once in a million runs."""
    values = dict(shown["values"])
    parents = values.pop("len(parents & reference_would_delete())")

    assert values.pop("len(reference_would_delete())") == 0
    assert 0 < parents <= 20
    assert len(values) == 3
    assert all(value is True for value in values.values())


def test_a_mark_of_the_same_repository_finds_nothing_to_delete(shown: dict[str, Any], lakegc: Lakegc) -> None:
    block = PAGE.partition("```sh\n")[2].partition("```")[0]
    mark, review = ([*line.split()[1:], "--format", "json"] for line in block.splitlines())
    settings = shown["sandbox"].settings

    assert '"expired": 0' in lakegc.output(settings, *mark)
    assert lakegc.output(settings, *review).strip() == "[]"
