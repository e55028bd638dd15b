"""Retire the old marks of one repository.

The order of effects on one mark, and the state that a crash right after each leaves:

1. the mark becomes `retired`              from now on it can't be resumed, approved, swept, undone or used by others
2. the reference summary is removed        the reference collector can't sweep it
3. its files are removed, in batches       the next retirement removes the others
4. the record says that this is done       its record and the report of its sweep remain

Everything happens under the repository's lease, so no mark, sweep, undo or purge is running. An approval needs no
lease: like the first step, it replaces exactly the version of the record that was read, so only one of the two
succeeds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import (
    Target,
    find_target,
    read_clocks,
    user_and_machine,
    with_probed_capabilities,
)
from lakegc_assets.progress import LogMessage
from lakegc_assets.retirement.mark_status import KnownMark, identity_of, known_marks
from lakegc_assets.rules.retirement import Action, Decision, retirements
from spark_resources.errors import Unavailable, WrongUsage
from spark_resources.host.processes import interrupt_on_termination
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.approval import withdraw_reference_summary
from spark_resources.mark_store.files import files_to_retire
from spark_resources.mark_store.lease import Lease, current_holder, take_lease
from spark_resources.mark_store.mark import Mark, mark_folder, reference_folder, refuse_foreign_namespace
from spark_resources.mark_store.quarantine_format import refuse_unknown_quarantine_format
from spark_resources.mark_store.table_notes import read_table_notes
from spark_resources.model import MarkState
from spark_resources.settings import Settings
from spark_resources.stores.retry import delete_own_files

FILES_PER_BATCH = 1_000
CHANGING = (Action.RETIRE, Action.RESUME)


@dataclass(frozen=True, slots=True)
class Retirable:
    """The decision on one mark. If the mark is retired, also how many files and bytes that removes."""

    decision: Decision
    state: str
    files: int = 0
    bytes: int = 0

    @property
    def is_changing(self) -> bool:
        return self.decision.action in CHANGING


@dataclass(frozen=True, slots=True)
class Retirements:
    """The decisions on a repository's marks, sorted by id. `applied` are the ids of marks that were retired just
    now, and `earlier` the ids of marks that had already been completely retired."""

    repository: str
    marks: list[Retirable] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)

    @property
    def to_retire(self) -> list[Retirable]:
        return [mark for mark in self.marks if mark.is_changing]


def open_target(lakefs: LakeFS, repository: str, settings: Settings) -> Target:
    """The repository. Raises `Refused` if its namespace belongs to another one, or a newer version of lakegc used its
    quarantine."""
    target = find_target(lakefs, repository, settings)
    refuse_foreign_namespace(target.place, target.repository.id, target.repository.created)
    refuse_unknown_quarantine_format(target.place)
    return target


def plan(target: Target, older_than: timedelta, only: Collection[str] = ()) -> Retirements:
    """What `retire` would do now, without changing anything. Raises `WrongUsage` if an id in `only` is that of no
    mark."""
    store = target.place.store()
    known = known_marks(target, older_than, now=store.now(), holder=current_holder(store))
    planned = _plan(target, known, older_than, only)
    return replace(planned, marks=with_sizes_of(planned.marks, known))


def retire(
    target: Target,
    lakefs: LakeFS,
    settings: Settings,
    older_than: timedelta,
    *,
    only: Collection[str] = (),
    log_message: LogMessage = lambda _: None,
) -> Retirements:
    """Retire the marks that ended at least `older_than` ago and that nothing needs; with `only`, just those among them.

    Raises `LeaseHeld` if a mark or a sweep is running, and `Refused` if the clocks differ too much to tell ages. If
    there is nothing to do, neither is checked.
    """
    store = target.place.store()
    known = known_marks(target, older_than, now=store.now(), holder=current_holder(store))
    planned = _plan(target, known, older_than, only)
    if not planned.to_retire:
        return planned
    clocks = read_clocks(store, lakefs, target.repository.server, lambda: datetime.now(UTC))
    clocks.check(settings.max_clock_skew, target.repository.id)
    target = with_probed_capabilities(target)
    first = planned.to_retire[0].decision.mark_id
    with lease_for(target, first, settings, log_message) as lease:
        # decided again: while nobody held the lease, an undo or a sweep may have begun and ended
        known = known_marks(target, older_than, now=target.place.store().now(), holder=None)
        marks = {known_mark.status.mark_id: known_mark.mark for known_mark in known}
        planned = _plan(target, known, older_than, only)
        for retirable in planned.to_retire:
            mark = marks[retirable.decision.mark_id]
            assert mark is not None
            log_message(f"retiring mark {mark.record.mark_id} of {mark.record.repository}")
            retire_mark(mark, lease)
            planned.applied.append(mark.record.mark_id)
        return replace(planned, marks=with_sizes_of(planned.marks, known))


@contextmanager
def lease_for(target: Target, mark_id: str, settings: Settings, log_message: LogMessage) -> Iterator[Lease]:
    interrupt_on_termination()  # so that the lease is released
    lease = take_lease(
        target.place.store(),
        who=user_and_machine(),
        mark_id=mark_id,
        token=secrets.token_hex(16),
        single_deployment=settings.single_deployment,
        log_message=log_message,
    )
    try:
        yield lease
    finally:
        lease.release()


def _plan(target: Target, known: list[KnownMark], older_than: timedelta, only: Collection[str]) -> Retirements:
    states = {
        known_mark.status.mark_id: "" if known_mark.mark is None else known_mark.mark.record.state.value
        for known_mark in known
    }
    if missing := sorted(set(only) - states.keys()):
        raise WrongUsage(
            f"there is no mark {', '.join(missing)} of {target.repository.id}. 'lakegc status {target.repository.id}' "
            "lists the marks."
        )
    now = target.place.store().now()
    statuses = [known_mark.status for known_mark in known]
    decisions = retirements(statuses, identity_of(target), older_than, now=now)
    chosen = [decision for decision in decisions if not only or decision.mark_id in only]
    still_listed = {decision.mark_id for decision in decisions}
    retired = [mark_id for mark_id in only or states if states[mark_id] == MarkState.RETIRED]
    return Retirements(
        target.repository.id,
        [Retirable(decision, states[decision.mark_id]) for decision in chosen],
        earlier=[mark_id for mark_id in retired if mark_id not in still_listed],
    )


def with_sizes_of(retirables: Iterable[Retirable], known: Iterable[KnownMark]) -> list[Retirable]:
    """The decisions, each with the number and size of the files that it removes."""
    marks = {known_mark.status.mark_id: known_mark.mark for known_mark in known}
    return [with_sizes(retirable, marks[retirable.decision.mark_id]) for retirable in retirables]


def with_sizes(retirable: Retirable, mark: Mark | None) -> Retirable:
    """The decision, with the number and size of the files that it removes, as recorded if the retirement has begun."""
    if mark is None or not retirable.is_changing:
        return retirable
    if mark.record.retired is not None:
        return replace(retirable, files=mark.record.retired["files"], bytes=mark.record.retired["bytes"])
    files = removed_files(mark)
    return replace(retirable, files=len(files), bytes=sum(size for _, size in files))


def removed_files(mark: Mark) -> list[tuple[str, int]]:
    """The key and size of each file that the retirement of a mark removes. Notes on tables stay as long as they are in
    use."""
    keep = [dataset.folder for dataset in read_table_notes(mark.place)]
    own = (mark_folder(mark.record.mark_id), reference_folder(mark.record.mark_id))
    files = files_to_retire(mark.place, mark.record, keep=keep)
    return [(listed.key, listed.size) for listed in files if listed.key.startswith(own)]


def retire_mark(mark: Mark, lease: Lease, *, removed: Callable[[int], None] = lambda _: None) -> None:
    """Retire one mark, or finish its retirement, in the order described at the top of this module. After each batch,
    `removed` is called with the number of files in the batch.

    Raises `Refused` if the record has changed since it was read, or if the lease is lost, and `Unavailable` if a file
    can't be removed. Run it again to continue.
    """
    files = removed_files(mark)
    lease.check()
    if mark.record.state is not MarkState.RETIRED:
        size = sum(size for _, size in files)
        mark.retire(who=user_and_machine(), now=mark.store.now(), files=len(files), size=size)
    withdraw_reference_summary(mark.place, mark.record.mark_id)
    for first in range(0, len(files), FILES_PER_BATCH):
        batch = files[first : first + FILES_PER_BATCH]
        lease.check()
        failed = delete_own_files(mark.store, [key for key, _ in batch])
        if failed:
            reason = f"{failed[0].code} {failed[0].message}".strip(". ")
            raise Unavailable(
                f"{plural(len(failed), 'file')} of the retired mark {mark.record.mark_id} of {mark.record.repository} "
                f"can't be removed, for example {failed[0].key} ({reason}). Grant lakegc permission to delete under "
                "_lakefs/retention/gc/, and run 'lakegc retire' again."
            )
        removed(len(batch))
    mark.end_retirement()
