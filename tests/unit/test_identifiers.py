"""Partition keys: how Dagster's UI reads them, and keys of earlier versions."""

from __future__ import annotations

import re

import pytest

from lakegc_assets.partitions import PARTITIONS
from spark_resources.errors import NotAPartition
from spark_resources.model import Partition

UNQUOTED = re.compile(r"[a-zA-Z0-9_:./@-]+")
"""A partition key in Dagster's selection grammar, PartitionSelection.g4, that needs no quotes."""
PARTITION = Partition.of("lab/events", "20261121T085000Z")


def test_dagsters_ui_reads_a_key_as_one_partition_of_one_dimension() -> None:
    """The UI's dialogs split keys at `|`, and parse selections by a grammar."""
    assert str(PARTITION) == "lab/events:20261121T085000Z"
    assert UNQUOTED.fullmatch(str(PARTITION))
    PARTITIONS.build_add_request([str(PARTITION)])  # Dagster refuses invalid keys


def test_keys_of_earlier_versions_are_read() -> None:
    """A Dagster instance keeps them, but lakegc adds no new ones."""
    assert PARTITION.keys == ("lab/events:20261121T085000Z", "lab/events|20261121T085000Z")
    assert [Partition.parse(key) for key in PARTITION.keys] == [PARTITION, PARTITION]


@pytest.mark.parametrize("key", ["lake", "lake;m1", "lake:a|b", "lake|a:b", ":m1", "|m1", "lake:", "lake|"])
def test_a_key_without_exactly_one_separator_between_two_ids_is_refused(key: str) -> None:
    with pytest.raises(NotAPartition):
        Partition.parse(key)
