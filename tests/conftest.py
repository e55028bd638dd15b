"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import servers


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[servers.SeaweedFS]:
    """One SeaweedFS server for the whole session; each test makes buckets of its own."""
    with servers.seaweedfs() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[servers.MotoServer]:
    """One moto S3 server for the whole session; each test makes buckets of its own."""
    with servers.moto_server() as server:
        yield server
