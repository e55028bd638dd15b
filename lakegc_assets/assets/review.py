"""Group `review`: the expired set, and its approval by a person."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources

import dagster as dg

from lakegc_assets.approval.parse_request import MIN_DIGEST_CHARACTERS
from lakegc_assets.assets.owners import OWNERS
from lakegc_assets.assets.results import MaterializeResults, reporting_failures
from lakegc_assets.mark import expired_set as expired
from lakegc_assets.mark.metadata import expired_set_result
from lakegc_assets.notifications.metrics import publish_repository
from lakegc_assets.partitions import PARTITIONS
from lakegc_assets.progress import warning_logger
from lakegc_assets.resources import MarksResource
from lakegc_assets.sweep.history import record_mark
from spark_resources.mark_store.record import CHAIN


@dg.asset(
    group_name="review",
    owners=OWNERS,
    partitions_def=PARTITIONS,
    deps=[dg.AssetKey(name) for name in CHAIN[:-1]],
    kinds={"pyspark", "parquet"},
    output_required=False,
)
def expired_set(context: dg.AssetExecutionContext, marks: MarksResource) -> MaterializeResults:
    """The expired objects: listed, old enough, and referenced by nothing live. Only an approval allows deleting them.

    `expired_set = namespace_slices - uncommitted_addresses - committed_addresses - young - on hold`, each object with
    its size, its age and the reason why it is expired. Objects *on hold* are kept despite the rules, because someone
    requested it; those that nothing but a hold keeps are listed separately. *Young* objects were stored less than the
    minimum age ago (24 hours unless configured otherwise): they may be about to be committed. If a branch may serve an
    object that is on no list, the path of the object is probed on the server. Without a clear result, the object is
    kept.

    **What to do next:** read the summary, plots and examples below, and the checks. The whole list:
    `lakegc review REPOSITORY MARK --list`. This asset deletes nothing. To approve the set, see *sweep_approval*.
    """
    with reporting_failures(context):
        run = marks.resume(context.partition_key, context.log.info)
        expired.compute(run)
        settings, log_warning = marks.settings(run.partition.repository), warning_logger(context.log.warning)
        history = record_mark(run.place, run.mark.record, log_warning)
        publish_repository(run.place, run.partition.repository, settings, log_warning)
        yield expired_set_result(run, settings, history)


APPROVAL = dg.AssetKey("sweep_approval")

sweep_approval = dg.AssetSpec(
    APPROVAL,
    group_name="review",
    owners=OWNERS,
    partitions_def=PARTITIONS,
    deps=[expired_set],
    kinds={"person"},
    description=f"""The approval of one expired set by a person: not computed, but *given*.

**To approve:** review *expired_set* and its checks. Then launch the job *approve*: on its *Launchpad*, choose the
mark's partition, and fill in who you are, the digest of the set as *expired_set* shows it (its first
{MIN_DIGEST_CHARACTERS} characters suffice), and, if any brakes have tripped, those you release, each with a reason:

    ops:
      give_approval:
        config:
          by: Ada
          digest: 3f0c9d2b7a61
          release: {{share: the old experiments were deleted on purpose}}

Or in a terminal: `lakegc approve REPOSITORY MARK`. If a precondition isn't met, the job or command fails immediately
and nothing is approved. If the sensor *approved_sweeps* is on, **the sweep begins within a minute**; otherwise
materialize *sweep_report*. An approval covers exactly this set, expires after a while, and can be used once. Until the
sweep starts, `lakegc revoke` revokes it. For repositories that have *auto_approve* turned on, the sensor
*auto_approvals* approves routine marks by the policy in the settings. A materialization that is *reported* here
manually approves nothing.
""",
)
