"""The end of the graph: a person's word, and what it leads to. Nothing else in Dagster deletes anything."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from pydantic import Field

from lakegc_assets.approving.approval import approve, on_the_stores_clock
from lakegc_assets.approving.dialog import parse
from lakegc_assets.approving.proposals import Word, propose
from lakegc_assets.approving.their_marks import begun
from lakegc_assets.assets import PARTITIONS, expired_set, told
from lakegc_assets.backup_assets import backup
from lakegc_assets.brakes import BrakeLimits
from lakegc_assets.marking.resource import MarksResource
from lakegc_assets.sweeping.metadata import described
from lakegc_assets.sweeping.opening import SweepOptions, located, open_sweep
from lakegc_assets.sweeping.sweep_report import sweep
from spark_resources.approvals import Standing
from spark_resources.errors import LakegcError, SweptWithFailures
from spark_resources.model import MarkState

APPROVAL = dg.AssetKey("sweep_approval")
APPROVAL_TAG = "lakegc/approval"
"""On runs that an approval asked for: the number of Dagster's record of it."""
UI_ENTRANCE = "Dagster's UI"
CLI_ENTRANCE = "lakegc approve"

sweep_approval = dg.AssetSpec(
    APPROVAL,
    group_name="review",
    partitions_def=PARTITIONS,
    deps=[expired_set],
    kinds={"person"},
    description="""A person's word that one expired set may be deleted: not computed, but *given*.

**To approve:** look at *expired_set* and its checks. Then open the menu beside *Materialize* above, choose *Report
materialization events*, select the mark's partition, and no other, and write into the description who you are, and
which brakes you release, if any has tripped:

    by NAME; release share: because the old experiments were deleted on purpose

Or on a terminal: `lakegc approve REPOSITORY MARK`. If the sensor *approved_sweeps* is on, **the sweep begins within a
minute**; otherwise materialize *sweep_report*. Whether your word counts is found out then, and a failed run says why it
doesn't. It is for this set alone, byte for byte, ends after a while, and is used once. Until a sweep has begun, `lakegc
revoke` takes back what `lakegc approve` gave; what is reported here becomes an approval only when its sweep begins.
""",
)


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
)
def sweep_report(
    context: dg.AssetExecutionContext, config: SweepConfig, marks: MarksResource
) -> dg.MaterializeResult[Any]:
    """What became of every approved object: deleted, already gone, rescued, changed or failed. **This deletes.**

    Nothing is deleted that wasn't approved, and nothing that is live again: what branches, commits, holds and staged
    changes refer to *now* is read once more before the first delete, and again when that proof grows old. What came
    back is *rescued* and stays. What isn't byte for byte what was marked is left alone, too. Each object ends in one
    outcome, written down by the task that did it, so a sweep that was killed goes on where it was: run it again. Where
    LAKEGC_BACKUP_TO says where backups go, only what lies in a whole backup of this very set is deleted.

    What is deleted is gone for good, but for what was swept with `quarantine: true`: `lakegc undo` brings that back.
    """
    with told():
        take_word(context, marks)
        run = open_sweep(marks, context.partition_key, config.options(), context.log.info)
        report = sweep(run)
        result = described(run.place, report)
    with told(result.metadata):
        if not report.success:
            raise SweptWithFailures(report.sentence())
    return result


def take_word(context: dg.AssetExecutionContext, marks: MarksResource) -> None:
    """Write down an approval that was reported in the UI, if this mark has none yet (invariant 7)."""
    partition, target = located(marks, context.partition_key)
    store = target.place.store()
    if begun(target, partition.mark_id) is not None:
        return
    proposal = propose(target, partition.mark_id, now=store.now())
    if proposal.record.state is not MarkState.MARKED:
        return
    if proposal.standing(proposal.approval(), now=store.now()) is Standing.APPROVED:
        return
    event = reported(context.instance, context.partition_key, context.run.tags.get(APPROVAL_TAG))
    if event is None:
        return
    materialization = event.asset_materialization
    said = parse((materialization.description if materialization else None) or "")
    given = datetime.fromtimestamp(event.timestamp, UTC)
    now = store.now()
    word = Word(
        who=said.who,
        how=UI_ENTRANCE,
        when=on_the_stores_clock(given, machine=datetime.now(UTC) + store.clock_offset, store=now),
        released=said.released,
    )
    settings = marks.settings()
    limits, lakefs = BrakeLimits.of(settings), marks.lakefs.client()
    approve(proposal, word, lakefs, limits, now=now, single_deployment=settings.single_deployment)


def reported(instance: dg.DagsterInstance, partition: str, record_id: str | None) -> dg.EventLogEntry | None:
    """The event of an approval of this partition: the one with this record id, or else the newest; None if none is."""
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=APPROVAL, asset_partitions=[partition]), limit=100
    ).records
    wanted = [one for one in records if record_id is None or str(one.storage_id) == record_id]
    return wanted[0].event_log_entry if wanted else None


def report_approval(instance: dg.DagsterInstance, partition: str, who: str) -> None:
    """Tell Dagster of an approval that was given elsewhere, so that it is seen in the graph, and the sensor acts."""
    try:
        instance.add_dynamic_partitions(str(PARTITIONS.name), [partition])
        instance.report_runless_asset_event(
            dg.AssetMaterialization(
                APPROVAL, description=f"by {who}", partition=partition, metadata={"how": CLI_ENTRANCE}
            )
        )
    except Exception as error:
        raise LakegcError(f"the approval is given, but Dagster could not be told of it: {error}") from error
