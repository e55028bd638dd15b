"""The faults that `tests/property/planted.py` plants are written for the code as it is."""

from __future__ import annotations

import pytest

from tests.property.planted import FAULTS, ROOT


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_changes_existing_code(name: str) -> None:
    """Otherwise nobody would notice that the model doesn't look for it any more."""
    for edit in FAULTS[name]:
        assert (ROOT / edit.file).read_text(encoding="utf-8").count(edit.before) == 1, edit
