"""Every test that uses `provider` or `store` runs once for each kind of store that lakegc can read."""

from __future__ import annotations

import pytest

from spark_resources.stores import Store
from tests.support.store_providers import Provider


@pytest.fixture
def store(provider: Provider) -> Store:
    """An empty namespace in a store of this kind."""
    return provider.open(provider.uri())
