"""Fixtures that several of these tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.mark_runs import SharedSpark, environment


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all tests of this process share."""
    with environment({}):
        yield SharedSpark().spark_session
