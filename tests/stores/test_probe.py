"""What the probe finds out is what this suite declares, and it leaves nothing behind."""

from __future__ import annotations

import pytest

from spark_resources.errors import WrongUsage
from spark_resources.stores import Quirks, Store
from spark_resources.stores.probe import SCRATCH, probe
from tests.stores.providers import Provider, all_keys


def test_a_declared_quirk_is_not_the_stores(provider: Provider) -> None:
    """A probe that is told nothing finds the declared quirks, no more and no fewer, and clears up."""
    store = provider.open(provider.uri(), quirks=Quirks())
    store.write("data/x", b"left alone")

    found = probe(store, SCRATCH + "suite/")

    assert found == provider.quirks
    assert all_keys(store) == ["data/x"]


@pytest.mark.parametrize("prefix", ["", "data/", "_lakefs/", SCRATCH, SCRATCH + "x", "_lakefs/retention/gc/unified/m/"])
def test_a_probe_writes_among_objects(store: Store, prefix: str) -> None:
    """A probe outside its own corner is refused before anything is written."""
    with pytest.raises(WrongUsage, match="probe"):
        probe(store, prefix)
    assert all_keys(store) == []
