"""Runs whose process died without reporting it to Dagster, which shows them as started forever.

Such a run would make the run queue hold back all later runs of its repository. Whether a run is alive is known from
its lease: an asset that marks or sweeps keeps its repository's lease while it is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg

from lakegc_assets.partitions import REPOSITORY_TAG
from spark_resources.mark_store.record import CHAIN

STEPS_UNDER_LEASE = [*CHAIN, "sweep_report"]
GRACE = timedelta(minutes=30)
"""How long a step may take before it holds the lease: a sweep first verifies every file of its mark."""


def possibly_dead_runs(instance: dg.DagsterInstance, *, now: datetime) -> Iterator[tuple[dg.DagsterRun, str]]:
    """The runs that Dagster shows as started, that began longer than GRACE ago, and whose step needs the lease, each
    with its repository. If nobody holds the lease of that repository, the run is dead."""
    started = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
    for record in instance.get_run_records(started):
        run = record.dagster_run
        repository = run.tags.get(REPOSITORY_TAG)
        if repository is not None and record.create_timestamp < now - GRACE and _is_under_lease(instance, run, now):
            yield run, repository


def _is_under_lease(instance: dg.DagsterInstance, run: dg.DagsterRun, now: datetime) -> bool:
    return any(
        step.start_time is not None
        and step.end_time is None
        and datetime.fromtimestamp(step.start_time, UTC) < now - GRACE
        for step in instance.get_run_step_stats(run.run_id, STEPS_UNDER_LEASE)
    )


def report_dead_run(instance: dg.DagsterInstance, run: dg.DagsterRun, repository: str) -> str:
    """Record in Dagster that a run has failed. Returns the sentence that says so."""
    sentence = (
        f"Run {run.run_id} of {repository} died: it is shown as started, but its lease has expired. It was recorded as "
        "failed, so that it no longer holds back other runs."
    )
    instance.report_run_failed(run, sentence)
    return sentence
