"""The partitions of all assets: one per repository and mark."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources

import dagster as dg

from spark_resources.errors import LakegcError
from spark_resources.model import Partition

PARTITIONS = dg.DynamicPartitionsDefinition(name="repository_and_mark")
"""One partition per repository and mark; its key is `repository|mark_id`."""


REPOSITORY_TAG = "lakegc/repository"
"""The tag of every run with its repository. Dagster's run queue uses it to limit concurrent runs per repository."""


def repository_tag(partition_key: str) -> dict[str, str]:
    """The tag of a partition's runs; none for an invalid key, which the run itself reports."""
    try:
        return {REPOSITORY_TAG: Partition.parse(partition_key).repository}
    except LakegcError:
        return {}


TAGGED_CONFIG = dg.PartitionedConfig(
    PARTITIONS, run_config_for_partition_key_fn=lambda _: {}, tags_for_partition_key_fn=repository_tag
)
"""Also adds the tag to runs that are launched in the UI."""
