"""The code location: everything that Dagster loads, and nothing that decides."""

from __future__ import annotations

import dagster as dg

from lakegc_assets.approve_job import sweep_approval
from lakegc_assets.assets import MARK_ASSETS
from lakegc_assets.automation import (
    approve_job,
    approved_sweeps,
    backup_job,
    careful_sweep_job,
    mark_job,
    mark_repositories,
    new_repositories,
    sweep_job,
)
from lakegc_assets.backup_assets import backup
from lakegc_assets.brake_checks import BRAKE_CHECKS
from lakegc_assets.checks import MARK_CHECKS
from lakegc_assets.marking.resource import MarksResource
from lakegc_assets.sweep_assets import sweep_report
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.session import SparkResource

__all__ = ["backup_job", "defs", "mark_job", "sweep_job"]

lakefs = LakeFSResource()
spark = SparkResource()

defs = dg.Definitions(
    assets=[*MARK_ASSETS, sweep_approval, backup, sweep_report],
    asset_checks=[*MARK_CHECKS, *BRAKE_CHECKS],
    jobs=[mark_job, approve_job, backup_job, careful_sweep_job, sweep_job],
    schedules=[mark_repositories],
    sensors=[new_repositories, approved_sweeps],
    resources={"lakefs": lakefs, "spark": spark, "marks": MarksResource(lakefs=lakefs, spark=spark)},
    executor=dg.in_process_executor,
)
