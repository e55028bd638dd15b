"""The partitions of all assets: one per repository and mark."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources

import os
from collections.abc import Mapping
from typing import Any

import dagster as dg

from spark_resources.errors import LakegcError
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import Repository
from spark_resources.model import Partition
from spark_resources.settings import has_json_logs

PARTITIONS = dg.DynamicPartitionsDefinition(name="repository_and_mark")
"""One partition per repository and mark; its key is `repository:mark_id`."""


PARTITION_TAG = "dagster/partition"
"""Dagster's own tag of runs with the key of their partition."""
REPOSITORY_TAG = "lakegc/repository"
"""The tag that names the repository of a run. Dagster's run queue uses it to limit concurrent runs per repository."""

CREATED_TAG = "lakegc/repository_created"
"""The tag with the creation date of a run's repository, which distinguishes it from an earlier one of the same name."""

COMMAND_LINE_TAG = "lakegc/command_line"
"""The tag of runs that were started from the command line, with the value true."""

RESUMED_TAG = "lakegc/resumed_approval"
"""The tag of a sweep that was restarted, with the hash of its approval: there is one such run per approval."""


def repository_key(repository: Repository) -> str:
    """A key that distinguishes a repository from a later one of the same name."""
    return f"{repository.id}@{repository.created.isoformat()}"


def repository_tag(partition_key: str) -> dict[str, str]:
    """The tags of a partition's runs; empty if the key is invalid, which the run itself reports."""
    try:
        return {REPOSITORY_TAG: Partition.parse(partition_key).repository}
    except LakegcError:
        return {}


def console_config(environ: Mapping[str, str]) -> dict[str, Any]:
    """The part of a run's configuration that makes Dagster use lakegc's logger: its own doesn't escape messages.

    Lines of text have the level of Dagster's own logger.
    """
    is_json = has_json_logs(environ, home_folder())
    return {"loggers": {"console": {} if is_json else {"config": {"log_level": "DEBUG"}}}}


TAGGED_CONFIG = dg.PartitionedConfig(
    PARTITIONS,
    run_config_for_partition_key_fn=lambda _: console_config(os.environ),
    tags_for_partition_key_fn=repository_tag,
)
"""The configuration of every run, including those launched in the UI: it adds REPOSITORY_TAG, and the logger."""
