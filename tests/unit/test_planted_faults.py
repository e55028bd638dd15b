"""The faults in `tests/property/planted.py` match the current code."""

from __future__ import annotations

import pytest

from tests.property.planted import FAULTS, ROOT, main


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_changes_existing_code(name: str) -> None:
    """If the code no longer matched, the model would silently not be tested with this fault."""
    for edit in FAULTS[name]:
        assert (ROOT / edit.file).read_text(encoding="utf-8").count(edit.before) == 1, edit


def test_an_unknown_fault_is_refused_with_the_known_names() -> None:
    """Nothing is run, even if other given names are known."""
    with pytest.raises(SystemExit, match=r"no fault 'same byte'; the known ones are 'order of reads', .*'same bytes'"):
        main(["same bytes", "same byte"])
