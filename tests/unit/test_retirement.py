"""Which marks may be retired, and which quarantines purged. There is a case for every reason to keep one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from lakegc_assets.mark.earlier_references import PARTS_WITH_ADDRESSES
from lakegc_assets.rules.retirement import (
    Action,
    MarkStatus,
    RepositoryIdentity,
    can_be_base,
    purges,
    retirements,
)
from spark_resources.mark_store.record import (
    FULL_MARK,
    PARTS_ABOUT_OTHERS,
    MarkRecord,
    Retirement,
    StepRecord,
    digest_of,
    parts_needed_later,
)
from spark_resources.model import MarkState, Scope
from tests.support.finished_marks import START, finished_record

DAY = timedelta(days=1)
RETIRE_AFTER, PURGE_AFTER = 90 * DAY, 14 * DAY
NOW = START + 400 * DAY
REPOSITORY = RepositoryIdentity("lake", START - 100 * DAY, "local://lake")
DATASET: Any = {"sha256": "0" * 64, "rows": 0, "bytes": 0}


def mark(day: int, mark_id: str = "", **changes: Any) -> MarkRecord:
    """A mark that was finished this many days after START, and that an incremental mark can use as its base."""
    start = START + day * DAY
    steps = {"expired_set": StepRecord(start, start, 1, {"": DATASET, "not_retained": DATASET}, {})}
    kept = {"repository_created": REPOSITORY.created, "steps": steps, **changes}
    return finished_record(mark_id or f"day{day:03}", start=start, **kept)


def incremental(day: int, *bases: MarkRecord, **changes: Any) -> MarkRecord:
    chain = [base.mark_id for base in bases]
    basis = {**FULL_MARK, "incremental": True, "chain": chain, "digests": [str(base.digest) for base in bases]}
    return mark(day, basis=basis, **changes)


def status(record: MarkRecord, **changes: Any) -> MarkStatus:
    if record.state in (MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES):
        changes = {"sweep_ended": record.finished, **changes}
    return MarkStatus(record.mark_id, record, **changes)


NEWEST = [status(mark(397)), status(mark(398)), status(mark(399))]
"""The newest marks, which are kept whatever the others are."""


def decided(*marks: MarkStatus, retire_after: timedelta = RETIRE_AFTER, now: datetime = NOW) -> Mapping[str, Any]:
    return {
        decision.mark_id: decision for decision in retirements([*marks, *NEWEST], REPOSITORY, retire_after, now=now)
    }


OLD = mark(10)


@pytest.mark.parametrize(
    "record",
    [
        OLD,
        mark(10, state=MarkState.SWEPT),
        mark(10, state=MarkState.SUPERSEDED),
        mark(10, state=MarkState.APPROVED),
        mark(10, state=MarkState.FAILED, finished=None, digest=None),
        mark(10, state=MarkState.MARKING, finished=None, digest=None),
        mark(10, scope=Scope.COMMITTED, state=MarkState.SWEPT),
    ],
    ids=lambda record: f"{record.state}, {record.scope}",
)
def test_an_old_mark_that_nothing_needs_is_retired(record: MarkRecord) -> None:
    """The approval of the mark, if any, has ended. A mark of another scope is retired as soon as there is a newer
    one."""
    until = START + 20 * DAY if record.state is MarkState.APPROVED else None
    newer = status(mark(300, scope=record.scope))
    old = decided(status(record, approved_until=until), newer)["day010"]

    assert (old.action, old.why) == (
        Action.RETIRE,
        f"it ended {380 if until else (390 if record.finished is None else 389)} days ago",
    )


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (MarkStatus("day010", None, unusable="its record can't be used: damaged"), "damaged"),
        (status(replace(OLD, format=1, basis={**FULL_MARK, "optimized": False})), "an earlier version of lakegc"),
        (status(mark(10, repository_created=START)), "another repository"),
        (status(mark(10, namespace="local://other")), "another repository"),
        (status(replace(OLD, counts={})), "altered"),
        (status(OLD, is_foreign=True), "reference collector"),
        (status(OLD, holder="ada"), "ada is working on it"),
        (status(mark(10, state=MarkState.MARKING, finished=None, digest=None), holder="ada"), "ada is working on it"),
        (status(mark(10, state=MarkState.SWEEPING)), "was interrupted and can be resumed"),
        (status(mark(10, state=MarkState.SWEPT_WITH_FAILURES)), "had failures and can be resumed"),
        (status(mark(10, state=MarkState.SWEPT), has_quarantine=True), "its quarantine has objects"),
        (status(OLD, has_quarantine=True), "its quarantine has objects"),
        (status(mark(10, state=MarkState.SWEPT), sweep_ended=None), "no readable report"),
        (status(mark(10, state=MarkState.APPROVED), approved_until=NOW + DAY), "it is approved until"),
        (status(mark(10, state=MarkState.APPROVED), approval_problem="its approval can't be read: x"), "can't be read"),
        (status(OLD, announced_due=NOW + DAY), "by a policy is due"),
        (status(mark(10, state=MarkState.APPROVED), approved_until=NOW - DAY), "it ended 1 day ago"),
        (status(OLD, announced_due=NOW - DAY), "it ended 1 day ago"),
        (status(mark(10, state=MarkState.SWEPT), sweep_ended=NOW - 89 * DAY), "it ended 89 days ago"),
        (status(OLD, restored_at=NOW - 89 * DAY), "it ended 89 days ago"),
        (status(mark(311)), "it ended 88 days ago"),
        (status(mark(401)), "in the future by the store's clock"),
        (status(mark(10, state=MarkState.SWEPT), sweep_ended=NOW + DAY), "in the future by the store's clock"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)  # fmt: skip
def test_each_reason_keeps_a_mark_and_is_stated(kept: MarkStatus, why: str) -> None:
    found = decided(kept)[kept.mark_id]

    assert found.action is Action.KEEP
    assert why in found.why


def test_the_newest_marks_are_kept_whatever_their_age() -> None:
    """The kept marks are the newest finished mark, the newest of each scope, the newest that can be a base, and the
    mark with which the newest one is compared."""
    before, base = mark(1), mark(5, previous={"mark_id": "day001", "counts": {}, "unreadable": []})
    committed = mark(3, scope=Scope.COMMITTED)
    newest = mark(7, inventory={"where": "s3://inventory"}, previous={"mark_id": "day005", "counts": {}})
    old = [status(record) for record in (mark(0), before, committed, base, newest)]
    found = {decision.mark_id: decision.action for decision in retirements(old, REPOSITORY, RETIRE_AFTER, now=NOW)}

    assert not can_be_base(newest)
    assert found == {
        "day000": Action.RETIRE, "day001": Action.RETIRE, "day003": Action.KEEP, "day005": Action.KEEP,
        "day007": Action.KEEP,
    }  # fmt: skip


@pytest.mark.parametrize(
    "newer",
    [
        replace(mark(5, "later"), counts={}),
        mark(5, "later", repository_created=START),
        mark(500, "later"),
        replace(mark(5, "later"), format=1, basis={**FULL_MARK, "optimized": False}),
    ],
    ids=["altered", "of another repository", "in the future", "earlier format"],
)
def test_a_later_mark_that_must_not_be_used_does_not_replace_the_newest_one(newer: MarkRecord) -> None:
    """Otherwise, anyone could get the newest marks retired by adding another mark."""
    old = [status(mark(1)), status(mark(3)), status(newer)]
    found = {decision.mark_id: decision.action for decision in retirements(old, REPOSITORY, RETIRE_AFTER, now=NOW)}

    assert found == {"day001": Action.RETIRE, "day003": Action.KEEP, "later": Action.KEEP}


def test_the_chain_of_a_kept_incremental_mark_is_kept() -> None:
    """The chain is kept even if its marks are much older, and whatever the reason is to keep the mark. Other
    marks of that age aren't kept, nor is the chain of a mark that is itself retired."""
    full, other = mark(1), mark(2)
    first = incremental(3, full)
    second = incremental(4, first, full, state=MarkState.SWEPT_WITH_FAILURES)
    third = incremental(5, other)
    found = decided(*map(status, (full, other, first, second, third)))

    assert {mark_id: found[mark_id].action for mark_id in ("day001", "day003", "day004")} == dict.fromkeys(
        ("day001", "day003", "day004"), Action.KEEP
    )
    assert found["day001"].why == "mark day004 is based on it"
    assert (found["day002"].action, found["day005"].action) == (Action.RETIRE, Action.RETIRE)


def test_the_chain_of_an_unfinished_mark_is_kept() -> None:
    """The chain of an unfinished full mark is also kept, because the mark compares itself with what incremental marks
    would have found."""
    full, other = mark(1), mark(2)
    chains = [{**FULL_MARK, "incremental": kind, "chain": [base.mark_id], "digests": ["0"]}
              for kind, base in ((True, full), (False, other))]  # fmt: skip
    unfinished = [
        status(mark(398, f"resumable{number}", basis=basis, state=MarkState.FAILED, finished=None, digest=None))
        for number, basis in enumerate(chains)
    ]
    found = decided(status(full), status(other), *unfinished)

    assert {found[name].action for name in ("day001", "day002", "resumable0", "resumable1")} == {Action.KEEP}


def test_all_possible_bases_are_kept_while_a_newer_version_uses_the_namespace() -> None:
    """The record of the newer version's mark can't be read, so the base of that mark is unknown."""
    newer = MarkStatus("newer", None, unusable="its record can't be used: format 9", is_newer_format=True)
    no_base = mark(11, inventory={"where": "s3://inventory"})
    found = decided(status(OLD), status(no_base), newer)

    assert (found["day010"].action, found["day011"].action) == (Action.KEEP, Action.RETIRE)
    assert "newer" in found["day010"].why


@pytest.mark.parametrize(("before_base", "action"), [(timedelta(minutes=59), Action.KEEP), (2 * DAY, Action.RETIRE)])
def test_an_old_mark_is_kept_while_its_objects_were_restored_after_the_newest_base_began(
    before_base: timedelta, action: Action
) -> None:
    """The next incremental mark looks up these objects. A margin allows for inexact times in a store's listing."""
    base = mark(200)
    restored = status(OLD, restored_at=base.start - before_base)
    found = {
        decision.mark_id: decision
        for decision in retirements([restored, status(base)], REPOSITORY, RETIRE_AFTER, now=NOW)
    }

    assert found["day010"].action is action


def test_a_mark_is_kept_if_objects_were_restored_since_the_base_of_an_unfinished_mark() -> None:
    base = mark(100)
    basis = {**FULL_MARK, "incremental": True, "chain": [base.mark_id], "digests": ["0"]}
    unfinished = status(mark(399, "resumable", basis=basis, state=MarkState.FAILED, finished=None, digest=None))
    found = decided(status(OLD, restored_at=base.start + DAY), status(base), unfinished)

    assert (found["day010"].action, found["day100"].action) == (Action.KEEP, Action.KEEP)


@pytest.mark.parametrize(("done", "action"), [(False, Action.RESUME), (True, None)])
def test_an_interrupted_retirement_is_finished_and_a_finished_one_is_left(done: bool, action: Action | None) -> None:
    """A retired mark is no longer a base, so the next newest one is kept instead."""
    retired = Retirement(when=NOW.isoformat(), who="ada", state="marked", files=3, bytes=9, done=done)
    record = mark(350, state=MarkState.RETIRED, retired=retired)
    found = {
        decision.mark_id: decision
        for decision in retirements([status(mark(1)), status(record)], REPOSITORY, DAY, now=NOW)
    }

    assert (found["day350"].action if "day350" in found else None) == action
    assert found["day001"].action is Action.KEEP


def test_a_retirement_is_not_finished_while_the_quarantine_has_objects() -> None:
    """Only a forged record could cause this. Without the receipts, the objects couldn't be restored."""
    found = decided(status(mark(350, state=MarkState.RETIRED), has_quarantine=True))

    assert found["day350"].action is Action.KEEP


def test_the_retirement_of_a_retired_mark_without_details_is_resumed() -> None:
    found = decided(status(mark(350, state=MarkState.RETIRED)))

    assert found["day350"].action is Action.RESUME


def test_a_retirement_considers_all_parts_from_which_later_marks_read_addresses() -> None:
    assert PARTS_ABOUT_OTHERS == PARTS_WITH_ADDRESSES


@pytest.mark.parametrize(
    ("asset", "part", "rows", "served", "is_needed"),
    [
        ("uncommitted_addresses", "first_elsewhere", 1, 0, True),
        ("uncommitted_addresses", "first_elsewhere", None, 0, True),
        ("uncommitted_addresses", "first_elsewhere", 0, 0, False),
        ("committed_addresses", "carried_elsewhere", 5, 0, True),
        ("expired_set", "served", 5, 1, True),
        ("expired_set", "served", 5, 0, False),
        ("expired_set", "not_retained", 5, 1, False),
        ("committed_addresses", "addresses", 5, 1, False),
    ],
)
def test_later_marks_need_exactly_the_parts_with_addresses_of_other_repositories(
    asset: str, part: str, rows: int | None, served: int, is_needed: bool
) -> None:
    """Most probe results are about the repository's own branches; `served_inside` counts those about others."""
    summary = {"sha256": "0" * 64} if rows is None else {"sha256": "0" * 64, "rows": rows}
    times = START, START
    steps = {"expired_set": StepRecord(*times, 2, {}, {})}
    steps[asset] = StepRecord(*times, 1, {part: summary}, {"served_inside": served})  # type: ignore[dict-item]

    assert parts_needed_later(finished_record(steps=steps)) == (
        frozenset({(asset, part)}) if is_needed else frozenset()
    )


# --- quarantines ----------------------------------------------------------------------------------------------------


def purged(swept: MarkStatus) -> tuple[Action, str]:
    (decision,) = purges([swept, *NEWEST], REPOSITORY, PURGE_AFTER, now=NOW)
    return decision.action, decision.why


SWEPT = status(mark(10, state=MarkState.SWEPT), has_quarantine=True, sweep_ended=NOW - PURGE_AFTER)


@pytest.mark.parametrize("swept", [SWEPT, replace(SWEPT, is_foreign=True),
                                 replace(SWEPT, record=mark(10, state=MarkState.SWEPT_WITH_FAILURES))])  # fmt: skip
def test_an_old_quarantine_is_purged(swept: MarkStatus) -> None:
    """The quarantine of a mark of the reference collector is also purged, and so is one in which some objects are
    missing because they couldn't be quarantined."""
    assert purged(swept) == (Action.PURGE, "its sweep ended 14 days ago")


@pytest.mark.parametrize(
    ("swept", "why"),
    [
        (replace(SWEPT, record=None, unusable="damaged"), "damaged"),
        (replace(SWEPT, holder="ada"), "ada is working on it"),
        (replace(SWEPT, record=mark(10, state=MarkState.SWEPT, namespace="local://x")), "another repository"),
        (replace(SWEPT, record=mark(10, state=MarkState.SWEEPING)), "sweep hasn't ended"),
        (replace(SWEPT, record=mark(10, state=MarkState.APPROVED)), "sweep hasn't ended"),
        (replace(SWEPT, record=mark(10, state=MarkState.RETIRED)), "sweep hasn't ended"),
        (replace(SWEPT, sweep_ended=None), "no readable report"),
        (replace(SWEPT, late=1), "1 object became live during its sweep"),
        (replace(SWEPT, restore_begun=True), "some of its objects may have been restored"),
        (replace(SWEPT, sweep_ended=NOW - PURGE_AFTER + timedelta(seconds=1)), "purged after 14 days"),
        (replace(SWEPT, sweep_ended=NOW + DAY), "in the future by the store's clock"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_each_reason_keeps_a_quarantine_and_is_stated(swept: MarkStatus, why: str) -> None:
    action, reason = purged(swept)

    assert action is Action.KEEP
    assert why in reason


def test_a_mark_without_objects_in_quarantine_has_nothing_to_purge() -> None:
    assert purges([replace(SWEPT, has_quarantine=False)], REPOSITORY, PURGE_AFTER, now=NOW) == []


def test_the_record_on_which_the_cases_are_built_is_intact() -> None:
    """Otherwise, the marks in the cases above would be kept for a different reason."""
    assert can_be_base(OLD)
    assert OLD.digest == digest_of(OLD)
