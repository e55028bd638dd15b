"""The approval of one expired set: given in Dagster's UI by the job `approve`, or elsewhere and reported here.

An approval is what lies in the namespace. The events of `sweep_approval` show it in the graph and wake the sensor that
sweeps; none of them approves anything by itself.
"""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
from typing import Any

import dagster as dg
from pydantic import Field

from lakegc_assets.approving.approval import approve
from lakegc_assets.approving.proposals import Proposal, Word, propose
from lakegc_assets.approving.wording import DIGEST_CHARACTERS, whole_digest
from lakegc_assets.assets import PARTITIONS, expired_set, told
from lakegc_assets.brakes import BrakeLimits
from lakegc_assets.marking.resource import MarksResource
from lakegc_assets.sweeping.opening import located
from spark_resources.approvals import Approval
from spark_resources.errors import LakegcError

APPROVAL = dg.AssetKey("sweep_approval")
UI_ENTRANCE = "Dagster's UI"
DIGEST = "digest"
"""The metadata by which an event of `sweep_approval` is told from one that was reported by hand."""
BY_HAND = (
    "This event was reported by hand, and approves nothing. To approve, launch the job *approve* for this partition: "
    "it asks for your name and the digest of the set. Or on a terminal: lakegc approve."
)

sweep_approval = dg.AssetSpec(
    APPROVAL,
    group_name="review",
    partitions_def=PARTITIONS,
    deps=[expired_set],
    kinds={"person"},
    description=f"""The approval of one expired set by a person: not computed, but *given*.

**To approve:** look at *expired_set* and its checks. Then launch the job *approve*: on its *Launchpad*, choose the
mark's partition, and fill in who you are, the digest of the set as *expired_set* shows it (its first
{DIGEST_CHARACTERS} characters suffice), and the brakes you release, each with the reason, if any has tripped:

    ops:
      give_approval:
        config:
          by: Ada
          digest: 3f0c9d2b7a61
          release: {{share: the old experiments were deleted on purpose}}

Or on a terminal: `lakegc approve REPOSITORY MARK`. What speaks against it is said at once, and then nothing is
approved. If the sensor *approved_sweeps* is on, **the sweep begins within a minute**; otherwise materialize
*sweep_report*. An approval is for this set alone, byte for byte, ends after a while, and is used once. Until the sweep
begins, `lakegc revoke` takes it back. A materialization that is *reported* here by hand approves nothing.
""",
)


class ApproveConfig(dg.Config):
    """The approval of one mark."""

    by: str = Field(description="who approves: your name")
    digest: str = Field(
        description=f"of the set that you looked at, at least its first {DIGEST_CHARACTERS} characters; the "
        "expired_set asset shows it"
    )
    release: dict[str, str] = Field(
        default={}, description="the brakes to release, each with the reason, such as {share: old experiments}"
    )
    layout: str = Field(default="", description="of a mark of the reference collector: unified, for example")


@dg.op(description="Writes the approval into the namespace, or says what speaks against it.")
def give_approval(context: dg.OpExecutionContext, config: ApproveConfig, marks: MarksResource) -> None:
    with told():
        proposal, given = approved(context.partition_key, config, marks)
    context.log_event(materialization(context.partition_key, proposal, given))


def approved(partition_key: str, config: ApproveConfig, marks: MarksResource) -> tuple[Proposal, Approval]:
    """The approval, written. Raises what speaks against it; then nothing was written."""
    partition, target = located(marks, partition_key)
    now, settings = target.place.store().now(), marks.settings()
    name = f"{config.layout}/{partition.mark_id}" if config.layout else partition.mark_id
    proposal = propose(target, name, now=now)
    word = Word(
        who=config.by,
        how=UI_ENTRANCE,
        when=now,
        released=config.release,
        digest=whole_digest(config.digest, proposal.digest),
    )
    limits, lakefs = BrakeLimits.of(settings), marks.lakefs.client()
    given = approve(proposal, word, lakefs, limits, now=now, single_deployment=settings.single_deployment)
    return proposal, given


def materialization(partition_key: str, proposal: Proposal, given: Approval) -> dg.AssetMaterialization:
    """The event that shows an approval in the graph, with what was approved, by whom and until when."""
    counts = proposal.record.counts
    metadata: dict[str, Any] = {
        "by": given.who,
        "how": given.how,
        "objects": counts["expired"],
        "bytes": counts["expired_bytes"],
        **{f"released.{brake}": reason for brake, reason in sorted(given.released.items())},
        "ends": dg.MetadataValue.timestamp(given.until),
        DIGEST: given.digest,
    }
    known = {name: value for name, value in metadata.items() if value is not None}
    return dg.AssetMaterialization(APPROVAL, description=f"by {given.who}", partition=partition_key, metadata=known)


def report_approval(instance: dg.DagsterInstance, partition_key: str, proposal: Proposal, given: Approval) -> None:
    """Tell Dagster of an approval that was given elsewhere, so that it is seen in the graph, and the sensor acts."""
    try:
        instance.add_dynamic_partitions(str(PARTITIONS.name), [partition_key])
        instance.report_runless_asset_event(materialization(partition_key, proposal, given))
    except Exception as error:
        raise LakegcError(f"the approval is given, but Dagster could not be told of it: {error}") from error


def is_an_approval(event: dg.EventLogRecord) -> bool:
    """Whether an event of `sweep_approval` comes with an approval; one that was reported by hand doesn't."""
    materialized = event.asset_materialization
    return materialized is not None and DIGEST in materialized.metadata


def advise(instance: dg.DagsterInstance, partition_key: str) -> None:
    """Show beside an event that was reported by hand that it approves nothing, and what does."""
    instance.report_runless_asset_event(
        dg.AssetObservation(APPROVAL, partition=partition_key or None, description=BY_HAND)
    )
