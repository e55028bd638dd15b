"""The last asset of the graph: the sweep of an approved set. No other asset deletes objects."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
import dagster as dg
from pydantic import Field

from lakegc_assets.assets.backup import backup
from lakegc_assets.assets.owners import OWNERS
from lakegc_assets.assets.results import MaterializeResults, reporting_failures
from lakegc_assets.assets.review import expired_set, sweep_approval
from lakegc_assets.notifications.metrics import publish_repository
from lakegc_assets.partitions import PARTITIONS, RESUMED_TAG
from lakegc_assets.progress import warning_logger
from lakegc_assets.resources import MarksResource
from lakegc_assets.sweep.history import record_sweep
from lakegc_assets.sweep.metadata import sweep_result
from lakegc_assets.sweep.preconditions import SweepOptions, open_sweep
from lakegc_assets.sweep.sweep import sweep
from spark_resources.errors import FinishedWithFailures


class SweepConfig(dg.Config):
    """The options of one sweep."""

    rate: float = Field(default=0, ge=0, description="maximum number of keys per second; 0: no limit")
    quarantine: bool = Field(
        default=False,
        description="quarantine objects instead of deleting them, as with LAKEGC_SWEEP_QUARANTINE; 'lakegc undo' "
        "restores them",
    )
    backup_to: str = Field(
        default="", description="require a backup of the mark in this location; empty: LAKEGC_BACKUP_TO, if set"
    )

    def options(self, run: dg.DagsterRun) -> SweepOptions:
        # a re-execution in the UI keeps the tags, but a person launches it
        unattended = RESUMED_TAG in run.tags and run.parent_run_id is None
        return SweepOptions(self.rate or None, self.quarantine, self.backup_to, unattended)


@dg.asset(
    group_name="sweep",
    owners=OWNERS,
    partitions_def=PARTITIONS,
    deps=[expired_set, sweep_approval, backup],
    kinds={"pyspark", "parquet"},
    output_required=False,
)
def sweep_report(context: dg.AssetExecutionContext, config: SweepConfig, marks: MarksResource) -> MaterializeResults:
    """The outcome of every approved object: deleted, already gone, rescued, changed or failed. **It deletes objects.**

    Only approved objects are deleted, and none that is live again: everything that branches, commits, holds and staged
    changes refer to *now* is read again before the first delete, and whenever that re-verification has become too old.
    Objects that became live are *rescued*. Objects that are no longer byte for byte the marked ones are *changed*, and
    are kept, too. The task that deletes an object records its outcome, so a killed sweep resumes when it is run again.
    If LAKEGC_BACKUP_TO is set, only objects in a complete backup of this very set are deleted. Otherwise no backup is
    needed: launch the sweep even though Dagster warns that *backup* hasn't been materialized.

    Deleted objects can't be recovered. With `quarantine: true` or LAKEGC_SWEEP_QUARANTINE, objects are quarantined
    instead, and `lakegc undo` restores them.
    """
    with reporting_failures(context):
        run = open_sweep(marks, context.partition_key, config.options(context.run), context.log.info)
        # read before the sweep, so that settings that become invalid in the meantime can't hide the report
        settings = marks.settings(run.partition.repository)
        report = sweep(run)
        log_warning = warning_logger(context.log.warning)
        history = record_sweep(run.place, report.mark_id, log_warning)
        publish_repository(run.place, report.repository, settings, log_warning)
        result = sweep_result(run.place, report, history)
        with reporting_failures(metadata=result.metadata):
            if not report.success:
                raise FinishedWithFailures(report.sentence())
        yield result
