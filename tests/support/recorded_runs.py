"""Runs that tests record in a Dagster instance without launching them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import dagster as dg
from dagster._core.events import DagsterEvent

from lakegc_assets.cli.dagster_runs import job_origin
from lakegc_assets.partitions import REPOSITORY_TAG


def record_run(
    instance: dg.DagsterInstance,
    job: str,
    key: str,
    status: dg.DagsterRunStatus,
    *,
    tags: Mapping[str, str] | None = None,
    config: Mapping[str, object] | None = None,
) -> str:
    """Record a run of a partition with this status, and return its id."""
    own_tags = {"dagster/partition": key, REPOSITORY_TAG: re.split("[:|]", key)[0]}
    run = dg.DagsterRun(
        job_name=job,
        tags={**own_tags, **(tags or {})},
        status=status,
        run_config=config,
        remote_job_origin=job_origin(job),  # Dagster requires it of queued runs
    )
    return instance.add_run(run).run_id


def record_run_in_step(instance: dg.DagsterInstance, job: str, key: str, step: str, **fields: Mapping[str, str]) -> str:
    """Record a run that began a step and never ended it, and return its id."""
    run_id = record_run(instance, job, key, dg.DagsterRunStatus.STARTED, **fields)
    event = DagsterEvent(dg.DagsterEventType.STEP_START.value, job, step_key=step)
    instance.report_dagster_event(event, run_id)
    return run_id


def record_failed_run(instance: dg.DagsterInstance, job: str, key: str, **fields: Mapping[str, object]) -> str:
    """Record a run that failed, and return its id."""
    run_id = record_run(instance, job, key, dg.DagsterRunStatus.STARTED, **fields)  # type: ignore[arg-type]
    run = instance.get_run_by_id(run_id)
    assert run is not None
    instance.report_run_failed(run)
    return run_id
