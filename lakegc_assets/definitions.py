"""The code location: all definitions that Dagster loads. It contains no logic."""

from __future__ import annotations

import dagster as dg

from lakegc_assets.asset_checks.brakes import BRAKE_CHECKS
from lakegc_assets.asset_checks.freshness import FRESHNESS_CHECKS
from lakegc_assets.asset_checks.invariants import MARK_CHECKS
from lakegc_assets.assets.backup import backup
from lakegc_assets.assets.review import sweep_approval
from lakegc_assets.assets.sweep import sweep_report
from lakegc_assets.jobs import (
    MARK_ASSETS,
    approve_job,
    backup_and_sweep_job,
    backup_job,
    freshness_job,
    mark_job,
    retire_job,
    sweep_job,
)
from lakegc_assets.notifications.console_logger import console
from lakegc_assets.resources import MarksResource
from lakegc_assets.schedules import SCHEDULES
from lakegc_assets.sensors import SENSORS
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.spark.resource import SparkResource

__all__ = ["backup_job", "defs", "mark_job", "retire_job", "sweep_job"]

lakefs = LakeFSResource()
spark = SparkResource()

defs = dg.Definitions(
    assets=[*MARK_ASSETS, sweep_approval, backup, sweep_report],
    asset_checks=[*MARK_CHECKS, *BRAKE_CHECKS, *FRESHNESS_CHECKS],
    jobs=[mark_job, approve_job, backup_job, backup_and_sweep_job, sweep_job, freshness_job, retire_job],
    schedules=SCHEDULES,
    sensors=SENSORS,
    resources={"lakefs": lakefs, "spark": spark, "marks": MarksResource(lakefs=lakefs, spark=spark)},
    executor=dg.in_process_executor,
    loggers={"console": console},
)
