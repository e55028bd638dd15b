"""Events of `sweep_approval`, which show an approval in Dagster's graph and trigger the sensor.

An event alone approves nothing: the approval is a file in the namespace.
"""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
from typing import Any

import dagster as dg

from lakegc_assets.approval.parse_request import MIN_DIGEST_CHARACTERS
from lakegc_assets.approval.proposals import Proposal
from lakegc_assets.assets.review import APPROVAL
from lakegc_assets.formatting import plural, size
from lakegc_assets.markdown import as_text, asset_link, inline
from lakegc_assets.partitions import PARTITIONS
from spark_resources.errors import LakegcError
from spark_resources.mark_store.approval import Approval

DIGEST = "digest"
"""The metadata entry that distinguishes the event of an approval from one that was reported manually."""
MANUAL_EVENT_ADVICE = (
    "This event was reported manually and approves nothing. To approve, launch the job *approve* for this partition "
    "with your name and the digest of the set, or run 'lakegc approve' in a terminal."
)


def materialization(partition_key: str, proposal: Proposal, approval: Approval) -> dg.AssetMaterialization:
    """The event that shows an approval in the graph, with what was approved, by whom and until when."""
    counts = proposal.record.counts
    metadata: dict[str, Any] = {
        "summary": inline(summary(proposal, approval)),
        "next": inline(
            f"Approved objects: {asset_link('expired_set', partition_key)}. Outcome: "
            f"{asset_link('sweep_report', partition_key)}"
        ),
        "by": approval.who,
        "how": approval.how,
        "objects": counts["expired"],
        "bytes": counts["expired_bytes"],
        **{f"released.{brake}": reason for brake, reason in sorted(approval.released.items())},
        "ends": dg.MetadataValue.timestamp(approval.until),
        DIGEST: shown_digest(approval),
    }
    known = {name: value for name, value in metadata.items() if value is not None}
    return dg.AssetMaterialization(APPROVAL, description=f"by {approval.who}", partition=partition_key, metadata=known)


def shown_digest(approval: Approval) -> str:
    """As many characters of the digest as an approval has to name: the whole digest would make the page too wide."""
    return approval.digest[:MIN_DIGEST_CHARACTERS]


def summary(proposal: Proposal, approval: Approval) -> str:
    """Who approved what until when, and what happens next, as Markdown."""
    counts = proposal.record.counts
    return (
        f"**{as_text(approval.who)} approved the deletion of {plural(counts['expired'], 'object')} "
        f"({size(counts['expired_bytes'])})**. The approval can be used once, until "
        f"{approval.until:%Y-%m-%d %H:%M} UTC. "
        "If the sensor *approved_sweeps* is on, the sweep begins within a minute. Otherwise materialize *sweep_report*."
    )


def report_approval(instance: dg.DagsterInstance, partition_key: str, proposal: Proposal, approval: Approval) -> None:
    """Report an approval that was given outside Dagster, so that the graph shows it and the sensor acts on it.

    Raises `LakegcError` if Dagster can't record it.
    """
    try:
        instance.add_dynamic_partitions(str(PARTITIONS.name), [partition_key])
        instance.report_runless_asset_event(materialization(partition_key, proposal, approval))
    except Exception as error:
        raise LakegcError(
            f"the approval was recorded, but reporting it to Dagster failed ({error}), so no sensor will start the "
            "sweep. Start it with 'lakegc sweep' or the job 'sweep'."
        ) from error


def is_an_approval(event: dg.EventLogRecord) -> bool:
    """Whether an event of `sweep_approval` belongs to an approval. Manually reported events don't."""
    materialized = event.asset_materialization
    return materialized is not None and DIGEST in materialized.metadata


def report_advice(instance: dg.DagsterInstance, partition_key: str) -> None:
    """Report MANUAL_EVENT_ADVICE as an observation of `sweep_approval`."""
    instance.report_runless_asset_event(
        dg.AssetObservation(APPROVAL, partition=partition_key or None, description=MANUAL_EVENT_ADVICE)
    )
