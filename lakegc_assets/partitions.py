"""The partitions of all assets: a repository and a mark each."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources

import dagster as dg

from spark_resources.errors import LakegcError
from spark_resources.model import Partition

PARTITIONS = dg.DynamicPartitionsDefinition(name="repository_and_mark")
"""One partition a repository and mark; its key is `repository|mark_id`."""


REPOSITORY_TAG = "lakegc/repository"
"""On every run, so that Dagster's queue can keep runs of one repository apart."""


def repository_tag(partition_key: str) -> dict[str, str]:
    """The tag of a partition's runs; none for a key that nobody can read, of which the run itself says so."""
    try:
        return {REPOSITORY_TAG: Partition.parse(partition_key).repository}
    except LakegcError:
        return {}


TAGGED = dg.PartitionedConfig(
    PARTITIONS, run_config_for_partition_key_fn=lambda _: {}, tags_for_partition_key_fn=repository_tag
)
"""So that runs which a person launches in the UI carry the tag, too."""
