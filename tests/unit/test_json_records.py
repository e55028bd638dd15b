"""JSON records: numbers that aren't finite are damage."""

from __future__ import annotations

import pytest

from spark_resources.records.json_records import read_json


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_is_not_finite_is_refused(number: str) -> None:
    """Python's own JSON reader accepts all of these."""
    with pytest.raises(ValueError, match=f"{number} is not a finite number"):
        read_json(f'{{"counts": [{number}]}}')


def test_finite_numbers_are_read_exactly() -> None:
    """Integers of any size stay exact."""
    assert read_json(b"[1e300, -0.5, 123456789012345678901234567890]") == [1e300, -0.5, 123456789012345678901234567890]
