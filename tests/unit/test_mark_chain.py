"""The chain of a full mark is empty: it knows nothing of earlier marks, and reads none of their files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakegc_assets.mark.mark_chain import MarkChain


def test_the_chain_of_a_full_mark_is_empty() -> None:
    """A full mark must read everything itself instead of relying on what earlier marks know."""
    chain = MarkChain(cast(Any, SimpleNamespace(place=None)), ())

    assert chain.refs == {}
    assert (
        chain.committed_at_base
        == chain.attributed_ranges
        == chain.known_metaranges
        == chain.ranges_of([])
        == frozenset()
    )
    assert chain.metarange_datasets == chain.size_datasets == chain.base_verdicts() == []
    with pytest.raises(AssertionError, match="no earlier mark read"):
        chain.ranges_of(["m"])
