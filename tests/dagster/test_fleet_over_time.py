"""Days or weeks of a fleet in fast motion: the sandbox's clock is set, and the test plays Dagster's daemon.

Every repository is marked each night. One has its marks approved by a policy, another one by a person now and then, and
one can't be read for some days. Sweeps quarantine; every morning, old quarantines are purged and old marks retired.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from lakegc_assets.approval.proposals import propose
from lakegc_assets.assets.approval_events import report_approval
from lakegc_assets.definitions import defs
from lakegc_assets.jobs import retire_job
from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.partitions import PARTITIONS
from lakegc_assets.schedules.marks import mark_repositories
from lakegc_assets.schedules.retirement import retire_old_marks
from lakegc_assets.sensors.approvals import approved_sweeps
from lakegc_assets.sensors.auto_approvals import auto_approvals
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.errors import LakegcError
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.approval import read_approval
from spark_resources.mark_store.mark import MARKS_ROOT, marks
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import MarkState, Partition, Rules
from tests.support.mark_runs import Marker, Sweeper, environment, resources, target_of

DAYS = int(os.environ.get("LAKEGC_LONG_FLEET_DAYS", "5"))
START = datetime(2026, 11, 1, tzinfo=UTC)
BY_POLICY, BY_PERSON, FAILING = "by-policy", "by-person", "failing"
FAILS = range(1, 3)  # the days on which one repository can't be read
FLEET = """
brake_share = 0.9
brake_jump = 100
full_every = 4
retire_after = "3d"
sweep_quarantine = true
purge_after = "2d"

[repositories.by-policy]
auto_approve = true
auto_approve_max_share = 1
auto_approve_min_age = "24h"
auto_approve_wait = "1h"
"""
LOCATION = defs.get_repository_def()
RESOURCES = {"lakefs": LakeFSResource()}


@dataclass
class Fleet:
    """The repositories with their live files, the Dagster instance, and what has happened."""

    sandbox: Sandbox
    instance: dg.DagsterInstance
    settings: dict[str, str]
    live: dict[str, dict[str, bytes]]
    cursor: str | None = None
    failed: list[Partition] = field(default_factory=list)
    swept: list[Partition] = field(default_factory=list)

    def set_clock(self, moment: datetime) -> datetime:
        self.sandbox.set_clock(moment)
        return moment

    def use(self, day: int) -> None:
        """A day of work: new, changed and deleted files, and a staged one that is reset."""
        for name, live in self.live.items():
            lake = self.sandbox.repository(name)
            changed = {f"day/{day}": f"{name} {day}".encode(), "table": f"{name}, version {day}".encode()}
            for path, content in changed.items():
                lake.put("main", path, content)
            live.update(changed)
            if live.pop(f"day/{day - 3}", None) is not None:
                lake.delete("main", [f"day/{day - 3}"])
            lake.put("main", "dropped", f"dropped on {day}".encode())
            lake.delete("main", ["dropped"])
            lake.commit("main", f"day {day}")

    def mark_at(self, moment: datetime) -> None:
        """Evaluate a tick of the schedule, and run the marks that it requests."""
        with environment(self.settings), self.schedule_context(moment) as context:
            requests = mark_repositories.evaluate_tick(context).run_requests or []
        for request in requests:
            partition = Partition.parse(str(request.partition_key))
            try:
                Marker().mark(self.settings, partition.repository, partition.mark_id, MarkOptions())
            except LakegcError:
                self.failed.append(partition)

    def approve_newest(self, repository: str) -> None:
        """A person's approval of the newest mark, as `lakegc approve` reports it to Dagster."""
        place = target_of(self.settings, repository).place
        mark_id = max(record.mark_id for record in marks(place) if record.state is MarkState.MARKED)
        Sweeper().approve(self.settings, repository, mark_id)
        target, approval = target_of(self.settings, repository), read_approval(place, mark_id)
        assert approval is not None
        proposal = propose(target, mark_id, now=place.store().now())
        report_approval(self.instance, f"{repository}:{mark_id}", proposal, approval)

    def approve_by_policy(self) -> None:
        with environment(self.settings), self.sensor_context(None) as context:
            auto_approvals.evaluate_tick(context)

    def sweep_approved(self) -> None:
        """Evaluate a tick of the sensor, and run the sweeps that it requests."""
        with environment(self.settings), self.sensor_context(self.cursor) as context:
            tick = approved_sweeps.evaluate_tick(context)
        self.cursor = tick.cursor or self.cursor
        for request in tick.run_requests or []:
            partition = Partition.parse(str(request.partition_key))
            Sweeper().sweep(self.settings, partition.repository, partition.mark_id, SweepOptions())
            self.swept.append(partition)

    def retire_at(self, moment: datetime) -> None:
        """Evaluate a tick of the schedule, and run what it requests. The run fails for a repository that can't be
        read."""
        with environment(self.settings):
            with self.schedule_context(moment) as context:
                assert retire_old_marks.evaluate_tick(context).run_requests
            job = dg.Definitions(assets=defs.assets, jobs=defs.jobs, resources=resources())
            job.resolve_job_def(retire_job.name).execute_in_process(instance=self.instance, raise_on_error=False)

    def schedule_context(self, moment: datetime) -> dg.ScheduleEvaluationContext:
        return dg.build_schedule_context(self.instance, moment, RESOURCES, LOCATION)

    def sensor_context(self, cursor: str | None) -> dg.SensorEvaluationContext:
        return dg.build_sensor_context(
            cursor=cursor, repository_def=LOCATION, resources=RESOURCES, instance=self.instance,
            instance_ref=self.instance.get_ref(),
        )  # fmt: skip

    def check_that_live_files_are_readable(self) -> None:
        for name, live in self.live.items():
            lake = self.sandbox.repository(name)
            assert {path: lake.read("main", path)[1] for path in live} == live

    def check_that_all_were_marked_on(self, day: datetime) -> None:
        """Check that the newest mark of every repository is of this day, and that marks failed only for the repository
        that could not be read for some days, and on at most as many days."""
        assert {partition.repository for partition in self.failed} == {FAILING}
        assert len(self.failed) <= len(FAILS)
        for name in self.live:
            assert max(record.mark_id for record in self.marks(name)).startswith(f"{day:%Y%m%d}T")

    def check_that_no_mark_is_stuck(self) -> None:
        unfinished = {MarkState.MARKING, MarkState.SWEEPING, MarkState.APPROVED, MarkState.SWEPT_WITH_FAILURES}
        for name in self.live:
            assert not [record.mark_id for record in self.marks(name) if record.state in unfinished]

    def marks(self, repository: str) -> list[MarkRecord]:
        return list(marks(target_of(self.settings, repository).place))

    def sizes(self) -> dict[str, int]:
        """The numbers of partitions and, in the repositories that can always be read, of stored objects (quarantined
        ones included) and of lakegc's files of marks that aren't retired."""
        numbers = {"partitions": len(self.instance.get_dynamic_partitions(str(PARTITIONS.name)))}
        for name in (BY_POLICY, BY_PERSON):
            store = target_of(self.settings, name).place.store()
            keys = [listed.key for page in store.pages("") for listed in page.objects]
            retired = {record.mark_id for record in self.marks(name) if record.retired is not None}
            own = [key for key in keys if key.startswith(MARKS_ROOT) and key.split("/")[4] not in retired]
            objects = [key for key in keys if not key.startswith("_lakefs/") or "/quarantine/" in key]
            numbers |= {f"files of {name}": len(own), f"objects of {name}": len(objects)}
        return numbers


@pytest.fixture
def fleet(tmp_path: Path, instance: dg.DagsterInstance) -> Iterator[Fleet]:
    instance.wipe()
    for key in instance.get_dynamic_partitions(str(PARTITIONS.name)):
        instance.delete_dynamic_partition(str(PARTITIONS.name), key)
    (tmp_path / "lakegc.toml").write_text(FLEET)
    with Sandbox(tmp_path / "sandbox") as sandbox:
        sandbox.set_clock(START)
        for name in (BY_POLICY, BY_PERSON, FAILING):
            set_rules(sandbox.create(name), Rules(default_days=2))
        settings = {**sandbox.settings, "config": str(tmp_path / "lakegc.toml"), "retry_total_s": "0"}
        yield Fleet(sandbox, instance, settings, {name: {} for name in (BY_POLICY, BY_PERSON, FAILING)})


@pytest.mark.timeout(60 + 30 * DAYS)
def test_a_fleet_runs_for_days_without_losses_stuck_marks_or_unbounded_growth(fleet: Fleet) -> None:
    """Set LAKEGC_LONG_FLEET_DAYS for more than five days. Growth is measured only over 20 days or more."""
    sizes: list[dict[str, int]] = []
    for day in range(DAYS):
        midnight = START + timedelta(days=day)
        fleet.set_clock(midnight + timedelta(hours=1))
        fleet.use(day)
        fleet.sandbox.fail(FAILING, 503 if day in FAILS else None)
        fleet.mark_at(fleet.set_clock(midnight + timedelta(hours=3)))
        fleet.approve_by_policy()
        fleet.retire_at(fleet.set_clock(midnight + timedelta(hours=4, minutes=30)))
        fleet.set_clock(midnight + timedelta(hours=9))
        if day % 3 == 2:
            fleet.approve_newest(BY_PERSON)
        fleet.approve_by_policy()
        fleet.sweep_approved()
        fleet.check_that_live_files_are_readable()
        sizes.append(fleet.sizes())

    fleet.check_that_all_were_marked_on(START + timedelta(days=DAYS - 1))
    fleet.check_that_no_mark_is_stuck()
    for name in (BY_POLICY, BY_PERSON):
        assert sum(partition.repository == name for partition in fleet.swept) >= DAYS // 3 - 1
    if DAYS >= 20:
        middle, last = sizes[DAYS // 2 : 3 * DAYS // 4], sizes[3 * DAYS // 4 :]
        for kind in last[0]:
            assert max(size[kind] for size in last) <= 1.25 * max(size[kind] for size in middle), kind
