"""Finding a repository's store: the type of its block store and its namespace must agree."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lakegc_assets.mark.context import check_scheme
from spark_resources.errors import WrongUsage
from spark_resources.lakefs import Repository


def at(namespace: str, storage_id: str = "") -> Repository:
    return Repository("lake", namespace, "main", False, storage_id, datetime(2026, 11, 21, tzinfo=UTC))


@pytest.mark.parametrize(
    ("blockstore", "namespace"),
    [
        ("s3", "s3://bucket/lake"),
        ("gs", "gs://bucket/lake"),
        ("azure", "https://account.blob.core.windows.net/container/lake"),
        ("azure", "http://account.blob.core.windows.net/container/lake"),
        ("local", "local://lake"),
        ("mem", "mem://lake"),
    ],
)
def test_a_namespace_with_the_scheme_of_its_block_store_is_accepted(blockstore: str, namespace: str) -> None:
    """lakegc looks in the place where lakeFS looks."""
    check_scheme(at(namespace), blockstore)


@pytest.mark.parametrize(
    ("blockstore", "namespace"),
    [("gs", "s3://bucket/lake"), ("s3", "gs://bucket/lake"), ("azure", "gs://bucket/lake"), ("local", "s3://lake")],
)
def test_a_namespace_in_another_kind_of_store_is_refused(blockstore: str, namespace: str) -> None:
    """The server and the namespace disagree on the kind of store. The error names both, and nothing is read."""
    with pytest.raises(WrongUsage, match=f"second is of type {blockstore}"):
        check_scheme(at(namespace, "second"), blockstore)
