"""Open a sweep: verify the approval first, then take the lease."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from lakegc_assets.approval.approve import (
    check_approved,
    check_foreign_approved,
    verify_approved,
    verify_foreign,
    verify_recorded_files,
)
from lakegc_assets.approval.foreign_marks import open_sweep_record
from lakegc_assets.approval.preconditions import check_record
from lakegc_assets.backup.usable_backup import find_required_backup
from lakegc_assets.mark.context import Target, find_target, user_and_machine, with_probed_capabilities
from lakegc_assets.mark.preconditions import refuse_different_repository
from lakegc_assets.progress import LogMessage, publishing_logger
from lakegc_assets.resources import MarksResource
from lakegc_assets.rules.brakes import BrakeLimits
from lakegc_assets.rules.resumption import why_not_resumed
from lakegc_assets.sweep.context import ForeignMark, SweepLimits, SweepRun
from lakegc_assets.sweep.foreign_marks import begin_sweep_record, refuse_revoked
from lakegc_assets.sweep.report import read_report
from spark_resources.errors import Refused, WrongUsage
from spark_resources.mark_store.approval import Approval, read_approval
from spark_resources.mark_store.foreign_expired_set import reference_mark
from spark_resources.mark_store.lease import Lease
from spark_resources.mark_store.mark import Mark, own_mark_ids, refuse_foreign_namespace
from spark_resources.mark_store.quarantine_format import refuse_unknown_quarantine_format
from spark_resources.mark_store.record import MarkRecord, refuse_earlier_format, refuse_retired
from spark_resources.model import MarkState, Partition
from spark_resources.settings import Settings

BEGUN_STATES = (MarkState.SWEEPING, MarkState.SWEPT_WITH_FAILURES)


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of one sweep: maximum keys per second, whether to quarantine instead of deleting even if the settings
    don't, and the location of the required backup ("" for the configured one). `unattended` is whether a sensor started
    a failed sweep again."""

    rate: float | None = None
    quarantine: bool = False
    backup_to: str = ""
    unattended: bool = False


def open_sweep(marks: MarksResource, partition_key: str, options: SweepOptions, log_message: LogMessage) -> SweepRun:
    """Open the sweep of a partition's approved mark, or resume an interrupted one. Takes the lease.

    Raises `Refused` if the mark isn't approved, was altered after its approval, belongs to another repository, or is
    already swept.
    """
    partition, target = partition_and_target(marks, partition_key)
    publishing_logger(log_message)("verifying the approved set")
    if Mark.exists(target.place, partition.mark_id):
        verified = Mark.open(target.place, partition.mark_id).record
        refuse_unapproved(target, verified)
        if options.unattended:
            refuse_resumption(target, verified, max_age=marks.settings(partition.repository).brake_age)
        lease = marks.ensure_lease(partition, target, marks.settings(partition.repository))
        mark, foreign = Mark.open(target.place, partition.mark_id), None  # read again under the lease
        refuse_changed_before_lease(mark.record, verified)
    else:
        foreign = approved_foreign_mark(target, partition)
        lease = marks.ensure_lease(partition, target, marks.settings(partition.repository))
        mark = begin_sweep_record(target, foreign.mark, foreign.approval)
    approval = read_approval(target.place, partition.mark_id) if foreign is None else foreign.approval
    if foreign is None:
        refuse_different_approval(mark.record, approval)
    settings = marks.settings(partition.repository)
    options = options_in_force(options, settings, approval, has_quarantined=mark.record.quarantine)
    run = sweep_run(marks, partition, target, mark, lease, options, log_message, foreign)
    return without_trust(run) if approval is not None and approval.policy is not None else run


def without_trust(run: SweepRun) -> SweepRun:
    """A sweep that reads every other repository, even those that the settings trust now: the policy that approved the
    mark relied on all of them being read."""
    return replace(run, limits=replace(run.limits, marking=replace(run.limits.marking, trusted=())))


def options_in_force(
    options: SweepOptions, settings: Settings, approval: Approval | None, *, has_quarantined: bool = False
) -> SweepOptions:
    """The options of a sweep together with the settings, and with what the policy that approved the mark, if any,
    required: a quarantine or backup that it relied on remains required even if the settings have changed since then.
    A sweep that `has_quarantined` before it was interrupted continues so, whatever the options of the command or run
    that resumes it.

    Raises `Refused` if a different backup is required from the one that the policy relied on.
    """
    terms = approval.policy if approval is not None else None
    return replace(
        options,
        quarantine=(
            options.quarantine or settings.sweep_quarantine or has_quarantined or bool(terms and terms["quarantine"])
        ),
        backup_to=backup_in_force(options.backup_to or settings.backup_to or "", approval),
    )


def backup_in_force(required: str, approval: Approval | None) -> str:
    """The location of the backup that a sweep requires ("" for none): `required`, by the options or settings, or the
    one that the policy relied on. Raises `Refused` if these are two different locations."""
    if approval is None or approval.policy is None:
        return required
    relied_on = approval.policy["backup_to"]
    if required and relied_on and required != relied_on:
        raise Refused(
            f"the policy that approved mark {approval.mark_id} relied on a backup in {relied_on}, "
            f"but this sweep would require one in {required} instead. Set LAKEGC_BACKUP_TO to {relied_on} for this "
            "sweep. Or, unless the sweep has begun, approve the mark yourself: lakegc revoke, then lakegc approve.",
            invariant=7,
        )
    return required or relied_on or ""


def open_swept(marks: MarksResource, partition_key: str, options: SweepOptions, log_message: LogMessage) -> SweepRun:
    """Open a mark whose objects a sweep quarantined, to restore or purge them. Takes the lease.

    Raises `WrongUsage` if its sweep was never started, `Retired` if it was retired.
    """
    partition, target = partition_and_target(marks, partition_key)
    foreign = None
    if not Mark.exists(target.place, partition.mark_id) and open_sweep_record(target, partition.mark_id) is not None:
        foreign = foreign_mark_with_approval(target, partition)
    lease = marks.ensure_lease(partition, target, marks.settings(partition.repository))
    mark = (
        open_sweep_record(target, partition.mark_id)
        if foreign is not None
        else Mark.open(target.place, partition.mark_id)
    )
    assert mark is not None
    refuse_different_repository(mark.record, target)
    refuse_retired(mark.record)
    if mark.record.state not in (MarkState.SWEPT, *BEGUN_STATES):
        raise WrongUsage(
            f"mark {mark.record.mark_id} of {mark.record.repository} is {mark.record.state}: it has no objects in "
            f"quarantine. 'lakegc status {mark.record.repository}' lists the marks."
        )
    if foreign is None:
        verify_recorded_files(target, mark.record)
    return sweep_run(marks, partition, target, mark, lease, options, log_message, foreign)


def partition_and_target(marks: MarksResource, partition_key: str) -> tuple[Partition, Target]:
    partition = Partition.parse(partition_key)
    settings = marks.settings(partition.repository)
    target = with_probed_capabilities(find_target(marks.lakefs.client(), partition.repository, settings))
    refuse_foreign_namespace(target.place, target.repository.id, target.repository.created)
    refuse_unknown_quarantine_format(target.place)
    return partition, target


def refuse_sweep_early(
    target: Target, mark_id: str, *, backup_to: str | None, limits: BrakeLimits | None = None
) -> None:
    """Raise the error, if any, that a sweep would raise because of the mark's state, approval or backup. Reads only
    small records. With `limits`, the error for an unapproved mark names the brakes that an approval has to release.

    The sweep verifies all of this again, as well as every file of the mark.
    """
    place, now = target.place, target.place.store().now()
    if Mark.exists(place, mark_id):
        record = Mark.open(place, mark_id).record
        refuse_earlier_format(record, "swept")
        approval = read_approval(place, mark_id)
        if record.state not in BEGUN_STATES:
            check_approved(target, record, approval, now=now, limits=limits)
        backup_to = backup_in_force(backup_to or "", approval)
        digest = record.digest or ""
    else:
        foreign = foreign_mark_with_approval(target, Partition(target.repository.id, mark_id))
        mark = open_sweep_record(target, mark_id)
        if mark is None or mark.record.state not in BEGUN_STATES:
            check_foreign_approved(target, foreign.mark, foreign.approval, now=now)
        digest = foreign.approval.digest
    if backup_to:
        find_required_backup(
            backup_to, place.settings, target.repository.id, target.repository.created.isoformat(),
            place.namespace.uri, mark_id, digest,
        )  # fmt: skip


def refuse_unapproved(target: Target, record: MarkRecord) -> None:
    """Raise `Refused` unless the mark is approved in its current form. A sweep that was begun resumes even if its
    approval has expired since."""
    refuse_earlier_format(record, "swept")
    place, approval = target.place, read_approval(target.place, record.mark_id)
    if record.state in BEGUN_STATES:
        refuse_different_repository(record, target)
        refuse_different_approval(record, approval)
        verify_recorded_files(target, record)
        return
    verify_approved(target, record, approval, now=place.store().now())


def refuse_resumption(target: Target, record: MarkRecord, *, max_age: timedelta) -> None:
    """Raise `Refused` if a sweep must not be resumed automatically. The run of the sweep may have been queued for a
    long time."""
    approval, report = read_approval(target.place, record.mark_id), read_report(target.place, record.mark_id)
    outcomes, now = None if report is None else report.objects, target.place.store().now()
    if why := why_not_resumed(record, approval, outcomes, max_age=max_age, now=now):
        name = f"{record.repository} {record.mark_id}"
        raise Refused(
            f"the sweep of {name} isn't resumed automatically: {why}. To resume it: lakegc sweep {name}.",
            invariant=7,
        )


def refuse_different_approval(record: MarkRecord, approval: Approval | None) -> None:
    """Raise `Refused` unless this is the approval that the record names, of this very set."""
    if approval is None or approval.sha256 != record.approval or approval.digest != record.digest:
        raise Refused(
            f"the record of mark {record.mark_id} of {record.repository} says that it is {record.state}, but the "
            "approval of its sweep is missing, or is for a different set of objects: the mark was altered. Make a "
            "new mark.",
            invariant=7,
        )


def refuse_changed_before_lease(record: MarkRecord, verified: MarkRecord) -> None:
    """Raise `Refused` if the approval was revoked, or the mark altered or retired, before the lease was taken."""
    refuse_retired(record)
    if record.state not in (MarkState.APPROVED, *BEGUN_STATES):
        raise Refused(
            f"mark {record.mark_id} of {record.repository} is no longer approved: it is {record.state} now. "
            f"'lakegc status {record.repository}' lists the marks.",
            invariant=7,
        )
    refuse_earlier_format(record, "swept")
    check_record(record)
    if record.digest != verified.digest:
        raise Refused(
            f"mark {record.mark_id} of {record.repository} was altered while its sweep was starting. Make a new mark.",
            invariant=7,
        )


def foreign_mark_with_approval(target: Target, partition: Partition) -> ForeignMark:
    """The foreign mark of a partition, and its approval, valid or not. Raises `WrongUsage` if it was never approved,
    and `Refused` if its files no longer exist."""
    approval = read_approval(target.place, partition.mark_id)
    if approval is None or approval.layout is None:
        raise WrongUsage(
            f"there is no approved mark {partition.mark_id} of {partition.repository}. 'lakegc status "
            f"{partition.repository}' lists the marks. If it lists this one, approve it first: lakegc approve "
            f"{partition.repository} {partition.mark_id}"
        )
    place = target.place
    foreign = reference_mark(place, f"{approval.layout}/{partition.mark_id}", own_ids=own_mark_ids(place))
    if foreign is None:
        raise Refused(
            f"the files of mark {partition.mark_id} of {partition.repository} no longer exist. Make a new mark.",
            invariant=7,
        )
    return ForeignMark(foreign, approval)


def approved_foreign_mark(target: Target, partition: Partition) -> ForeignMark:
    """The foreign mark of a partition. Raises `Refused` unless it is approved in its current form.

    A sweep that was begun resumes even if its approval has expired since.
    """
    foreign = foreign_mark_with_approval(target, partition)
    mark = open_sweep_record(target, partition.mark_id)
    if mark is not None:
        refuse_earlier_format(mark.record, "swept")
    if mark is None or mark.record.state not in BEGUN_STATES:
        verify_foreign(target, foreign.mark, foreign.approval, now=target.place.store().now())
    else:
        refuse_different_repository(mark.record, target)
        refuse_revoked(target.place, foreign.approval)
        if mark.record.digest != foreign.approval.digest:
            raise Refused(
                f"the unfinished sweep of mark {partition.mark_id} of {partition.repository} is for a different set "
                "from the approved one: its record was altered. Make a new mark.",
                invariant=7,
            )
    return foreign


def sweep_run(
    marks: MarksResource, partition: Partition, target: Target, mark: Mark, lease: Lease, options: SweepOptions,
    log_message: LogMessage, foreign: ForeignMark | None,
) -> SweepRun:  # fmt: skip
    settings = marks.settings(partition.repository)
    to = options.backup_to or settings.backup_to
    limits = SweepLimits(
        marks.limits(partition.repository), settings.verification_age, options.rate, options.quarantine,
        timedelta(seconds=settings.head_check_interval_s), to,
    )  # fmt: skip
    lakefs = marks.lakefs.client()
    return SweepRun(
        partition,
        target,
        mark,
        lakefs,
        marks.session,
        limits,
        lease,
        user_and_machine(),
        publishing_logger(log_message),
        foreign,
        marks.store_settings,
    )
