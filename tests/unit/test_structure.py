"""The structure of the code: its bounds, as `python -m tests.bench.structure` prints them."""

from __future__ import annotations

import pytest

from tests.bench.structure import PACKAGES, TOP_LEVEL_BOUND, import_cycles, top_level


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside functions count, too."""
    assert import_cycles() == []


@pytest.mark.parametrize("package", PACKAGES)
def test_few_modules_are_at_the_top_of_a_package(package: str) -> None:
    assert len(top_level(package)) <= TOP_LEVEL_BOUND[package]
