"""The results of asset bodies, and the failures that Dagster shows."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg

from lakegc_assets.partitions import PARTITIONS
from spark_resources.errors import LakegcError, NotAPartition, NothingToDo, Refused
from spark_resources.host.failure_kinds import JAVA_ENDED, is_lost_java, kind_of, message_of
from spark_resources.mark_store.lease import LeaseHeld

MaterializeResults = Iterator[dg.MaterializeResult[Any]]
"""The return type of an asset's body, which yields one result, or none if there is nothing to do."""


@contextmanager
def reporting_failures(
    context: dg.AssetExecutionContext | None = None, metadata: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Wrap an asset's body: a `LakegcError` becomes a Dagster failure with its exit code, without automatic retries.

    If there is nothing to do, or the partition is invalid, the asset is left unchanged instead of failing: the body
    yields nothing, and the later steps of the run are skipped. Without a `context`, these errors are failures, too.
    `metadata` is shown with a failure.
    """
    try:
        yield
    except (NothingToDo, NotAPartition) as error:
        if context is None:
            raise as_failure(error, metadata) from error
        report_refusal(context, error)
    except LakegcError as error:
        raise as_failure(error, metadata) from error
    except Exception as error:
        if is_lost_java(error):
            raise as_failure(LakegcError(JAVA_ENDED), metadata) from error
        raise


AUTOMATION_TAGS = ("dagster/schedule_name", "dagster/sensor_name")
"""Dagster's tags of runs that a schedule or a sensor requested."""


@contextmanager
def yielding_to_lease_holder(context: dg.AssetExecutionContext) -> Iterator[None]:
    """Wrap the beginning of a mark: if a schedule or a sensor requested the run and another run holds the repository's
    lease, there is nothing to do. For example, another deployment with the same schedule may be marking the repository.
    If a person started the run, the error is raised.
    """
    try:
        yield
    except LeaseHeld as error:
        if not any(tag in context.run.tags for tag in AUTOMATION_TAGS):
            raise
        raise NothingToDo(f"This automatic mark was not made: {error}", invariant=error.invariant) from error


def as_failure(error: LakegcError, metadata: Mapping[str, Any] | None = None) -> dg.Failure:
    shown = {**(metadata or {}), **error_metadata(error)}
    return dg.Failure(description=message_of(error), metadata=shown, allow_retries=False)


def error_metadata(error: LakegcError) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "exit_code": error.exit_code,
        "kind": type(error).__name__,
        "failure": kind_of(error).value,
    }
    if isinstance(error, Refused) and error.invariant is not None:
        metadata["invariant"] = error.invariant
    return metadata


def report_refusal(context: dg.AssetExecutionContext, error: LakegcError) -> None:
    """Report why nothing was done, in the run's log and as observations. An invalid partition is deleted."""
    context.log.error(str(error))
    for key in context.selected_asset_keys:
        context.log_event(
            dg.AssetObservation(
                key, partition=context.partition_key, description=str(error), metadata=error_metadata(error)
            )
        )
    if isinstance(error, NotAPartition):
        context.instance.delete_dynamic_partition(str(PARTITIONS.name), context.partition_key)
