"""How a run comes to a sweep: the approval is verified before anything, then the lease is taken."""

from __future__ import annotations

from dataclasses import dataclass

from lakegc_assets.approval import verify, verify_set
from lakegc_assets.marking.resource import MarksResource, probed, refuse_another_repository, who
from lakegc_assets.marking.run import Target, find_target
from lakegc_assets.progress import Say
from lakegc_assets.sweeping.run import SweepLimits, SweepRun
from spark_resources.approvals import read_approval
from spark_resources.errors import Refused
from spark_resources.marks import Mark, MarkRecord
from spark_resources.model import MarkState, Partition

BEGUN = (MarkState.SWEEPING, MarkState.SWEPT_WITH_FAILURES)


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What a person chooses for one sweep: a ceiling in keys a second, and whether to put aside instead of deleting."""

    rate: float | None = None
    quarantine: bool = False


def open_sweep(marks: MarksResource, partition_key: str, options: SweepOptions, say: Say) -> SweepRun:
    """The approved mark of a partition, for its sweep, or the sweep that was begun. Takes the lease.

    Raises `Refused` for a mark that isn't approved, was altered since, is another repository's, or is swept already.
    """
    partition, target = located(marks, partition_key)
    say("verifying what was approved")
    refuse_unapproved(target, Mark.open(target.place, partition.mark_id).record)
    return under_lease(marks, partition, target, options, say)


def open_swept(marks: MarksResource, partition_key: str, options: SweepOptions, say: Say) -> SweepRun:
    """A mark whose objects a sweep put aside, to bring them back or to delete them for good. Takes the lease."""
    partition, target = located(marks, partition_key)
    record = Mark.open(target.place, partition.mark_id).record
    refuse_another_repository(record, target)
    if record.state not in (MarkState.SWEPT, *BEGUN):
        raise Refused(
            f"mark {record.mark_id} of {record.repository} is {record.state}: nothing of it is in quarantine."
        )
    verify_set(target, record)
    return under_lease(marks, partition, target, options, say)


def located(marks: MarksResource, partition_key: str) -> tuple[Partition, Target]:
    partition = Partition.parse(partition_key)
    return partition, probed(find_target(marks.lakefs.client(), partition.repository, marks.settings().store()))


def refuse_unapproved(target: Target, record: MarkRecord) -> None:
    """Raise `Refused` unless the mark is approved as it is; a sweep that was begun goes on though that has expired."""
    if record.state in BEGUN:
        refuse_another_repository(record, target)
        verify_set(target, record)
        return
    place = target.place
    verify(target, record, read_approval(place, record.mark_id), now=place.store().now())


def under_lease(
    marks: MarksResource, partition: Partition, target: Target, options: SweepOptions, say: Say
) -> SweepRun:
    lease = marks.hold(partition, target, marks.settings())
    mark = Mark.open(target.place, partition.mark_id)  # as it is under the lease
    limits = SweepLimits(marks.limits(), marks.settings().proof_age, options.rate, options.quarantine)
    return SweepRun(partition, target, mark, marks.lakefs.client(), marks.session, limits, lease, who(), say)
