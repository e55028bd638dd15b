"""Nothing live is lost, whatever happens in the small."""

from __future__ import annotations

import pytest

from tests.exhaustive.explore import Exploration, Scope
from tests.exhaustive.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_lost_by_one_operation_and_one_fault(name: str) -> None:
    found = Exploration(SCENARIOS[name], Scope(1, 1)).run()

    assert found.losses == []
    assert found.states > 1000
