"""Every test that asks for `provider` or `store` runs once for each store that lakegc can read."""

from __future__ import annotations

import os

import pytest

from spark_resources.stores import Store
from tests.stores import providers
from tests.stores.providers import Provider


@pytest.fixture(scope="session", params=["local", "seaweedfs", "moto", "gcs", "azure"])
def provider(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Provider:
    """One kind of store, with its declared quirks."""
    if request.param == "local":
        return providers.local(tmp_path_factory.mktemp("local"))
    if request.param == "seaweedfs":
        return providers.seaweedfs(request.getfixturevalue("seaweedfs"))
    if request.param == "gcs":
        account = os.environ.get(providers.REAL_GCS)
        return providers.real_gcs(account) if account else providers.gcs(request.getfixturevalue("fake_gcs"))
    if request.param == "azure":
        account = os.environ.get(providers.REAL_AZURE)
        return providers.real_azure(account) if account else providers.azure(request.getfixturevalue("azurite"))
    return providers.moto(request.getfixturevalue("moto_server"))


@pytest.fixture
def store(provider: Provider) -> Store:
    """An empty namespace of that kind."""
    return provider.open(provider.uri())
