"""The end of the graph: what an approval leads to. Nothing else in Dagster deletes anything."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
import dagster as dg
from pydantic import Field

from lakegc_assets.assets.backup import backup
from lakegc_assets.assets.results import Materialized, told
from lakegc_assets.assets.review import expired_set, sweep_approval
from lakegc_assets.partitions import PARTITIONS
from lakegc_assets.resources import MarksResource
from lakegc_assets.sweep.metadata import described
from lakegc_assets.sweep.preconditions import SweepOptions, open_sweep
from lakegc_assets.sweep.sweep import sweep
from spark_resources.errors import SweptWithFailures


class SweepConfig(dg.Config):
    """The options of one sweep."""

    rate: float = Field(default=0, ge=0, description="at most so many keys a second; 0 is no ceiling")
    quarantine: bool = Field(
        default=False, description="put objects aside, to be brought back by lakegc undo, instead of deleting them"
    )
    backup_to: str = Field(
        default="", description="refuse unless the mark is backed up there; empty: as LAKEGC_BACKUP_TO says, if at all"
    )

    def options(self) -> SweepOptions:
        return SweepOptions(self.rate or None, self.quarantine, self.backup_to)


@dg.asset(
    group_name="sweep",
    partitions_def=PARTITIONS,
    deps=[expired_set, sweep_approval, backup],
    kinds={"pyspark", "parquet"},
    output_required=False,
)
def sweep_report(context: dg.AssetExecutionContext, config: SweepConfig, marks: MarksResource) -> Materialized:
    """What became of every approved object: deleted, already gone, rescued, changed or failed. **This deletes.**

    Nothing is deleted that wasn't approved, and nothing that is live again: what branches, commits, holds and staged
    changes refer to *now* is read once more before the first delete, and again when that reading grows old. What came
    back is *rescued* and stays. What isn't byte for byte what was marked is left alone, too. Each object ends in one
    outcome, written down by the task that did it, so a sweep that was killed goes on where it was: run it again. Where
    LAKEGC_BACKUP_TO says where backups go, only what lies in a whole backup of this very set is deleted.

    What is deleted is gone for good, but for what was swept with `quarantine: true`: `lakegc undo` brings that back.
    """
    with told(context):
        run = open_sweep(marks, context.partition_key, config.options(), context.log.info)
        report = sweep(run)
        result = described(run.place, report)
        with told(about=result.metadata):
            if not report.success:
                raise SweptWithFailures(report.sentence())
        yield result
