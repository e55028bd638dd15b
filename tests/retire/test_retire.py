"""What a retirement removes and what it leaves, and how it behaves in races with other processes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakegc_assets.approval.approve import approve
from lakegc_assets.approval.proposals import ApprovalRequest, propose
from lakegc_assets.retirement import retire as retirement
from lakegc_assets.retirement.mark_status import known_marks
from lakegc_assets.retirement.retire import lease_for, plan, retire_mark
from lakegc_assets.rules.brakes import BrakeLimits, brakes
from lakegc_assets.rules.retirement import Action
from lakegc_assets.sweep.report import Report, report_key
from lakegc_assets.sweep.undo import BEGUN_NAME
from spark_resources.deleting.quarantine import key_in_quarantine
from spark_resources.errors import Refused, Retired, WrongUsage
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.mark_store.announcement import Announcement, write_announcement
from spark_resources.mark_store.approval import approval_key
from spark_resources.mark_store.files import files_to_retire
from spark_resources.mark_store.lease import LEASE_KEY, LeaseHeld
from spark_resources.mark_store.mark import GC_ROOT, Mark, mark_folder, verifications_folder
from spark_resources.mark_store.record import StepRecord
from spark_resources.model import MarkState
from spark_resources.settings import Settings
from tests.support.clocks import later
from tests.support.finished_marks import START
from tests.support.leases import hold_lease
from tests.support.mark_runs import environment, quick_environment, target_of
from tests.support.retirements import DAY, OldMarks

LIMIT_S = 60


def actions(lake: OldMarks) -> dict[str, Action]:
    return {mark.decision.mark_id: mark.decision.action for mark in plan(lake.target, 10 * DAY).marks}


def test_a_retirement_removes_only_files_of_old_marks(lake: OldMarks) -> None:
    """The records of the marks stay. Files with similar names beside them stay, and so do the holds, the quarantine,
    the history, and files in a mark's folder that lakegc doesn't know. If the record of a re-verification is
    unreadable, it stays, and so do all parts that may contain addresses to which other repositories refer. Of the files
    about undos and about restores from a backup, the newest of each kind stays."""
    store = lake.target.place.store()
    others = {
        "lakegc/m1-other/expired_set/x.parquet", "lakegc/m10/receipts/x", "unified/m1x/y", "quarantine/m9/data/x",
        "lakegc/holds.yaml", "lakegc/history.json", "commits/run_id=m1/commits.csv", "addresses/mark_id=m1/x.parquet",
    }  # fmt: skip
    inside = {
        "lakegc/m1/notes.txt", "lakegc/m1/theirs/mark.json", "unified/m1/readme", "lakegc/m1/verifications/2/mark.json",
        "lakegc/m1/verifications/2/expired_set/served/x", "lakegc/m1/sweep.json", "lakegc/m1/approval.json",
    }  # fmt: skip
    of_sweep = ("receipts/1/x", "verifications/1/expired_set/x", "verifications/2/expired_set/x", "sweep_report/x",
                "undone/3/old", "undone/4/new", "freed/4/x", "restored/old", "restored/new")  # fmt: skip
    for key in others | inside:
        store.write(GC_ROOT + key, b"a neighbor")
    for key in of_sweep:
        store.write(f"{GC_ROOT}lakegc/m1/{key}", b"of the sweep")
        if key.startswith(("undone", "restored")):  # otherwise incremental marks look for what was restored
            time = 10 if key.endswith("new") else 0
            os.utime(lake.sandbox.local_path / lake.repository / GC_ROOT / "lakegc/m1" / key, (time, time))
    about_restores = {"lakegc/m1/undone/4/new", "lakegc/m1/restored/new"}
    before = lake.files()
    done = lake.retire(10 * DAY)
    after = lake.files()
    removed, records = before.keys() - after.keys(), {"lakegc/m1/mark.json", "lakegc/m2/mark.json"}

    assert done.applied == ["m1", "m2"]
    assert {key.split("/")[1] for key in removed} == {"m1", "m2"}
    assert {key for key in after if key.split("/")[1] in ("m1", "m2")} == records | inside | about_restores
    assert {after[key] for key in others | inside} == {b"a neighbor"}
    assert {key for key in after if after[key] != before[key]} == records
    for mark in done.to_retire:
        mark_files = [key for key in removed if key.split("/")[1] == mark.decision.mark_id]
        assert (mark.files, mark.bytes) == (len(mark_files), sum(len(before[key]) for key in mark_files))


def test_a_retirement_leaves_what_later_marks_read(lake: OldMarks) -> None:
    """Later marks read the notes on tables that are in use, and any re-verification that found references in other
    repositories. A re-verification that found none is removed, beginning with its record, because its parts are read as
    long as its record exists."""
    place = lake.target.place
    notes = {f"{mark_folder('m1')}committed_addresses/table_notes/{name}" for name in ("_files.json", "x.parquet")}
    for key in notes:
        place.store().write(key, b"notes")
    for number, rows in enumerate((0, 3), 1):
        add_verification(lake, number, rows)
    files = [file.key for file in files_to_retire(place, lake.record("m1"), keep=[min(notes).rpartition("/")[0] + "/"])]

    assert not notes & set(files)
    assert files[0] == f"{mark_folder('m1')}verifications/1/mark.json"
    assert [key for key in files if "verifications/2/" in key] == [
        f"{mark_folder('m1')}verifications/2/namespace_slices/x"
    ]
    assert f"{mark_folder('m1')}verifications/1/uncommitted_addresses/first_elsewhere/x" in files


def add_verification(lake: OldMarks, number: int, rows: int) -> None:
    """Add a re-verification that found `rows` addresses that are staged in other repositories."""
    place, root = lake.target.place, f"{verifications_folder('m1')}{number}/"
    step = StepRecord(START, START, 1, {"first_elsewhere": {"sha256": "0" * 64, "rows": rows}}, {})
    record = replace(lake.record("m1"), steps={"uncommitted_addresses": step})
    Mark.begin(place, replace(record, state=MarkState.MARKING), root=root).move_to(MarkState.MARKED)
    for key in ("uncommitted_addresses/first_elsewhere/x", "namespace_slices/x"):
        place.store().write(root + key, b"x")


def test_planning_a_retirement_changes_nothing(lake: OldMarks) -> None:
    before = lake.files()

    assert actions(lake) == {"m1": Action.RETIRE, "m2": Action.RETIRE, "m3": Action.KEEP, "m4": Action.KEEP}
    assert lake.files() == before


def test_a_retired_mark_records_its_previous_state_and_the_time_and_stays_retired(lake: OldMarks) -> None:
    """The second time, there is nothing to do, and not even the lease is taken."""
    lake.retire(10 * DAY)
    retired = lake.record("m1").retired
    store = lake.target.place.store()
    hold_lease(store, "m4")
    again = lake.retire(10 * DAY)

    assert (retired["state"], retired["done"]) == ("marked", True)
    assert datetime.fromisoformat(retired["when"]) - lake.sandbox.now() < timedelta(minutes=1)
    assert (again.applied, again.earlier, again.to_retire) == ([], ["m1", "m2"], [])


def test_if_marks_are_named_no_others_are_retired(lake: OldMarks) -> None:
    """A named mark that is needed isn't retired. Naming one that doesn't exist is an error."""
    assert lake.retire(10 * DAY, ("m2", "m4")).applied == ["m2"]
    assert lake.record("m1").state is MarkState.MARKED
    with pytest.raises(WrongUsage, match="no mark m7"):
        lake.retire(10 * DAY, ("m7",))


@pytest.mark.parametrize("obstacle", ["quarantine", "announcement", "approval", "damaged record", "lease"])
def test_a_mark_in_use_or_with_a_damaged_record_is_not_retired(lake: OldMarks, obstacle: str) -> None:
    """What is known of a mark comes from files that other steps wrote, and that may be damaged."""
    place, now = lake.target.place, lake.sandbox.now()
    if obstacle == "quarantine":
        place.store().write(key_in_quarantine("m1", "data/x"), b"x")
    elif obstacle == "announcement":
        sha256, digest = hashlib.sha256(b"a policy").hexdigest(), lake.record("m1").digest
        announcement = Announcement("m1", digest, "a policy", sha256, now, now + DAY)
        write_announcement(place, announcement, replacing=None)
    elif obstacle == "approval":  # the record names one, but its file isn't written yet
        Mark.open(place, "m1").move_to(MarkState.APPROVED, approval="0" * 64)
    elif obstacle == "damaged record":
        place.store().write(mark_folder("m1") + "mark.json", b"{}")
    else:
        hold_lease(place.store(), "m1")

    assert actions(lake)["m1"] is Action.KEEP


def test_a_sweep_and_its_undo_are_dated_by_when_their_files_were_written(lake: OldMarks) -> None:
    """The time in the report alone doesn't count: without a signing key, anyone who can write to the bucket could write
    an earlier one. An undo leaves a file that says that it began."""
    place, now, long_ago = lake.target.place, lake.sandbox.now(), lake.sandbox.now() - 300 * DAY
    report = Report(
        mark_id="m1", repository=lake.repository, digest="", by="ada", began=long_ago, ended=long_ago, approved=1,
        objects={"quarantined": 1}, sizes={"quarantined": 1}, seconds=1, requests=1, attempts=1, verifications=(),
        late=("data/x",), late_objects=1, quarantine=True,
    )  # fmt: skip
    place.records().write(report_key("m1"), report.to_json())
    place.store().write(key_in_quarantine("m1", "data/x"), b"x")
    place.store().write(f"{mark_folder('m1')}undone/{BEGUN_NAME}", b"{}")
    (known, *_) = known_marks(lake.target, DAY, now=now, holder=None)

    assert known.status.sweep_ended is not None
    assert known.status.sweep_ended >= now - timedelta(seconds=2)
    assert (known.status.late, known.status.restore_begun) == (1, True)
    assert known.status.restored_at is not None
    assert known.status.restored_at >= now - timedelta(seconds=2)


# --- kills ----------------------------------------------------------------------------------------------------------


def retire_until_killed(repository: str) -> None:
    """Retire the marks in this process, which kills itself after the first batch of files."""
    given = {name: value for name, value in os.environ.items() if name.startswith("LAKEGC_")}
    settings = {name.removeprefix("LAKEGC_").lower(): value for name, value in given.items()}
    retirement.FILES_PER_BATCH = 5
    target = target_of(settings, repository)
    store = target.place.store()
    (first, *_) = known_marks(target, DAY, now=store.now(), holder=None)
    assert first.mark is not None
    with lease_for(target, "m1", Settings(), lambda _: None) as lease:
        retire_mark(first.mark, lease, removed=lambda _: os.kill(os.getpid(), signal.SIGKILL))


def test_a_killed_retirement_is_finished_by_the_next_one(lake: OldMarks) -> None:
    """Until then, every process treats the mark as retired, though most of its files still exist. The record has the
    number of files at the beginning of the retirement."""
    before = [key for key in lake.files() if "/m1/" in key]
    code = f"from tests.retire.test_retire import retire_until_killed; retire_until_killed({lake.repository!r})"
    with environment(lake.sandbox.settings):
        killed = subprocess.run([sys.executable, "-c", code], timeout=LIMIT_S, cwd=Path.cwd(), check=False)
    assert killed.returncode == -signal.SIGKILL
    remaining = [key for key in lake.files() if "/m1/" in key]
    record = lake.record("m1")
    place = lake.target.place

    assert len(remaining) == len(before) - 5
    assert (record.state, record.retired["done"], record.retired["files"]) == (
        MarkState.RETIRED,
        False,
        len(before) - 1,
    )
    with pytest.raises(Retired, match=r"m1 of .* was retired on"):
        propose(lake.target, "m1", now=place.store().now())
    with pytest.raises(Retired):
        Mark.open(place, "m1").dataset("expired_set")

    assert actions(lake)["m1"] is Action.RESUME
    assert lake.retire(10 * DAY).applied == ["m1", "m2"]
    assert [key for key in lake.files() if "/m1/" in key] == ["lakegc/m1/mark.json"]
    assert lake.record("m1").retired == {**record.retired, "done": True}


# --- races ----------------------------------------------------------------------------------------------------------


def test_a_mark_that_is_approved_after_the_decision_to_retire_it_is_not_retired(lake: OldMarks) -> None:
    """An approval doesn't need the lease. No file is removed."""
    target, now = lake.target, later(lake.target.place.store(), lake.record("m1").finished)
    decided = {known.status.mark_id: known.mark for known in known_marks(target, DAY, now=now, holder=None)}
    give_approval(lake, "m1", now)
    before = lake.files()
    with lease_for(target, "m1", Settings(), lambda _: None) as lease, pytest.raises(Refused, match="was changed by"):
        retire_mark(decided["m1"], lease)  # type: ignore[arg-type]

    assert lake.files() == before
    assert lake.record("m1").state is MarkState.APPROVED
    assert actions(lake)["m1"] is Action.KEEP


def test_a_mark_that_is_retired_after_the_checks_of_its_approval_is_not_approved(lake: OldMarks) -> None:
    """No approval is written."""
    target = lake.target
    stale = Mark.open(target.place, "m1")
    lake.retire(10 * DAY)

    with pytest.raises(Refused, match="was changed by another process"):
        stale.move_to(MarkState.APPROVED, approval="0" * 64)
    with pytest.raises(Refused, match="it can't become sweeping"):
        Mark.open(target.place, "m1").move_to(MarkState.SWEEPING)
    assert approval_key("m1").removeprefix(GC_ROOT) not in lake.files()


def test_nothing_is_retired_while_another_run_holds_the_lease(lake: OldMarks) -> None:
    """A mark could be reading the files of its base, or an undo those of its sweep."""
    before = lake.files()
    hold_lease(lake.target.place.store(), "m4")
    with pytest.raises(LeaseHeld, match="someone is working on"):
        lake.retire(10 * DAY)

    assert lake.files() == before


def test_the_decision_to_retire_a_mark_is_made_again_once_the_lease_is_held(
    lake: OldMarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of m1 quarantines objects after the first decision to retire the mark."""
    take = retirement.take_lease

    def take_after_a_sweep(*arguments: object, **named: object) -> object:
        lake.target.place.store().write(key_in_quarantine("m1", "data/x"), b"x")
        return take(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(retirement, "take_lease", take_after_a_sweep)

    assert lake.retire(10 * DAY).applied == ["m2"]
    assert lake.record("m1").state is MarkState.MARKED


def test_a_mark_that_two_deployments_retire_is_retired_once(lake: OldMarks) -> None:
    """A deployment that decided before the other one was done changes nothing."""
    target = lake.target
    decided = {
        known.status.mark_id: known.mark for known in known_marks(target, DAY, now=lake.sandbox.now(), holder=None)
    }
    lake.retire(10 * DAY)
    before = lake.files()
    with lease_for(target, "m1", Settings(), lambda _: None) as lease, pytest.raises(Refused, match="was changed by"):
        retire_mark(decided["m1"], lease)  # type: ignore[arg-type]

    assert lake.files() == before
    assert lake.retire(10 * DAY).applied == []


def test_a_retirement_stops_when_its_lease_is_lost(lake: OldMarks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run may already rely on the remaining files."""
    monkeypatch.setattr(retirement, "FILES_PER_BATCH", 1)
    target = lake.target
    (first, *_) = known_marks(target, DAY, now=lake.sandbox.now(), holder=None)
    removed: list[int] = []
    assert first.mark is not None
    with lease_for(target, "m1", Settings(), lambda _: None) as lease:

        def lose_lease(count: int) -> None:
            removed.append(count)
            hold_lease(target.place.store(), "m4")
            with pytest.raises(Refused):
                lease.renew()

        with pytest.raises(Refused, match=r"the lease on .* was lost"):
            retire_mark(first.mark, lease, removed=lose_lease)

    assert removed == [1]
    target.place.store().delete_many([LEASE_KEY])


def test_nothing_is_retired_if_the_clocks_differ_too_much(lake: OldMarks) -> None:
    """Ages would be wrong if the store's clock had been set forward."""
    before = lake.files()
    settings = Settings.load(quick_environment(lake.sandbox.settings), Path("/nonexistent"))
    lakefs = LakeFS(*LakeFSSettings.of(settings))
    target = lake.target
    with environment(lake.sandbox.settings), pytest.raises(Refused, match="clocks"):
        retirement.retire(target, lakefs, settings.model_copy(update={"max_clock_skew": -DAY}), 10 * DAY)

    assert lake.files() == before


def give_approval(lake: OldMarks, mark_id: str, now: datetime) -> None:
    settings = Settings.load(quick_environment(lake.sandbox.settings), Path("/nonexistent"))
    lakefs, limits = LakeFS(*LakeFSSettings.of(settings)), BrakeLimits.of(settings)
    proposal = propose(lake.target, mark_id, now=now)
    tripped = [brake.name for brake in brakes(proposal.record, limits, now=now + timedelta(days=7)) if brake.tripped]
    request = ApprovalRequest("ada", "tests", now.astimezone(UTC), dict.fromkeys(tripped, "a test"))
    with environment(lake.sandbox.settings):
        approve(proposal, request, lakefs, limits, now=now, single_deployment=False)
