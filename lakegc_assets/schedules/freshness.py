"""The schedule that checks whether repositories are marked and swept often enough. It is off until it is turned on in
Dagster's UI."""

from __future__ import annotations

import os

import dagster as dg

from lakegc_assets.jobs import freshness_job
from lakegc_assets.partitions import console_config

check_freshness = dg.ScheduleDefinition(
    name="check_freshness",
    job=freshness_job,
    cron_schedule="0 6 * * *",
    execution_timezone="UTC",
    run_config_fn=lambda _: console_config(os.environ),
    description="""Runs the checks marks_are_recent and sweeps_are_recent every morning at six (UTC). They warn
about each repository whose newest mark or sweep is too old.""",
)
