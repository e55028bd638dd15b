"""The sensor that restarts failed sweeps: once, with the same options, and only while they are approved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from lakegc_assets import dead_runs
from lakegc_assets.assets.sweep import SweepConfig
from lakegc_assets.definitions import backup_job, defs, sweep_job
from lakegc_assets.jobs import backup_and_sweep_job
from lakegc_assets.partitions import COMMAND_LINE_TAG, RESUMED_TAG
from lakegc_assets.sensors.failed_sweeps import FAILED_RUN_TAG, resumed_sweeps
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.model import MarkState, Partition
from tests.approval.conftest import Lake
from tests.support.leases import hold_lease
from tests.support.mark_runs import environment
from tests.support.recorded_runs import record_failed_run, record_run, record_run_in_step

QUARANTINE = {"ops": {"sweep_report": {"config": {"quarantine": True, "rate": 7.0}}}}


@dataclass
class Watched:
    """An approved mark, and the sensor that watches its sweeps."""

    lake: Lake
    instance: dg.DagsterInstance
    cursor: str | None = None
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.lake.name}:m1"

    def tick(self) -> list[dg.RunRequest]:
        """The runs that the sensor requests; it keeps its cursor."""
        resources = {"lakefs": LakeFSResource()}
        with (
            environment({**self.lake.sandbox.settings, "retry_total_s": "0", **self.settings}),
            dg.build_sensor_context(
                cursor=self.cursor,
                repository_def=defs.get_repository_def(),
                resources=resources,
                instance=self.instance,
                instance_ref=self.instance.get_ref(),
            ) as context,
        ):
            tick = resumed_sweeps.evaluate_tick(context)
        self.cursor = tick.cursor
        return list(tick.run_requests or [])

    def fail(self, job: str = sweep_job.name, key: str = "", **fields: Any) -> str:
        return record_failed_run(self.instance, job, key or self.key, **fields)

    def advice(self) -> list[str]:
        """What the page of `sweep_report` says about the mark."""
        of_mark = dg.AssetRecordsFilter(asset_key=dg.AssetKey("sweep_report"), asset_partitions=[self.key])
        events = [event.asset_observation for event in self.instance.fetch_observations(of_mark, limit=10).records]
        return [event.description or "" for event in events if event is not None]


@pytest.fixture
def watched(lake: Lake, instance: dg.DagsterInstance) -> Watched:
    """The sensor has been turned on, and the mark was approved by a person."""
    watched = Watched(lake, instance)
    lake.add_mark()
    lake.approve()
    instance.add_dynamic_partitions("repository_and_mark", [watched.key])
    assert watched.tick() == []
    return watched


@pytest.mark.parametrize("job", [sweep_job.name, backup_and_sweep_job.name])
def test_a_failed_sweep_is_restarted_with_the_same_options(watched: Watched, job: str) -> None:
    """Objects that were to be quarantined must not be deleted instead."""
    run_id = watched.fail(job, config=QUARANTINE)
    [request] = watched.tick()

    approval = watched.lake.approval()
    assert approval is not None
    assert (request.partition_key, request.job_name) == (watched.key, job)
    assert request.run_config["ops"] == QUARANTINE["ops"]
    assert (request.tags[FAILED_RUN_TAG], request.tags[RESUMED_TAG]) == (run_id, approval.sha256)
    assert watched.tick() == []


def test_a_failed_sweep_is_restarted_only_once_per_approval(watched: Watched) -> None:
    """Afterwards, the sweep's page says what to do. The tags of runs record the restart, even if the sensor's cursor is
    reset."""
    before = watched.cursor
    watched.fail()
    [request] = watched.tick()
    watched.fail(tags=request.tags)

    assert watched.tick() == []
    [advice] = watched.advice()
    assert "will not be restarted automatically: it was already restarted once under this approval." in advice
    assert f"To resume the sweep: lakegc sweep {watched.lake.name} m1." in advice
    watched.cursor = before
    assert watched.tick() == []
    watched.fail()
    assert watched.tick() == []


def test_a_failed_sweep_is_restarted_under_the_partition_key_of_an_earlier_version(watched: Watched) -> None:
    """Dagster doesn't have the partition's current key, and the tick would fail if a run were requested for it."""
    [present, earlier] = Partition.parse(watched.key).keys
    watched.instance.delete_dynamic_partition("repository_and_mark", present)
    watched.instance.add_dynamic_partitions("repository_and_mark", [earlier])
    watched.fail(key=earlier)
    [request] = watched.tick()

    assert request.partition_key == earlier
    watched.fail(key=earlier, tags=request.tags)
    assert watched.tick() == []


def test_several_failed_runs_of_a_sweep_cause_one_restart(watched: Watched) -> None:
    """Before the sensor's next tick, a person launched the sweep a second time, which failed as well."""
    watched.fail()
    watched.fail()

    assert len(watched.tick()) == 1


def test_a_run_that_was_created_but_not_launched_is_requested_again(watched: Watched) -> None:
    """The daemon was killed in between. The request has the same run key, so that Dagster launches the existing run."""
    before = watched.cursor
    watched.fail()
    [request] = watched.tick()
    record_run(watched.instance, sweep_job.name, watched.key, dg.DagsterRunStatus.NOT_STARTED, tags=request.tags)
    watched.cursor = before

    assert [again.run_key for again in watched.tick()] == [request.run_key]


def test_a_new_approval_permits_another_restart(watched: Watched) -> None:
    watched.fail()
    [first] = watched.tick()
    watched.fail(tags=first.tags)
    watched.lake.revoke()
    watched.lake.approve()
    watched.fail()

    [second] = watched.tick()
    assert first.run_key != second.run_key


def test_a_sweep_that_had_begun_is_resumed_once_its_lease_has_expired(watched: Watched) -> None:
    """The lease may be that of the killed sweep, or of a person who is resuming it."""
    store = watched.lake.place.store()
    set_state(watched.lake, MarkState.SWEEPING)
    hold_lease(store, "m1")
    watched.fail()

    assert watched.tick() == []
    hold_lease(store, "m1", for_=timedelta(seconds=-1))
    assert len(watched.tick()) == 1
    assert watched.advice() == []


def set_state(lake: Lake, state: MarkState, **changes: Any) -> None:
    mark = lake.proposal().mark
    assert mark is not None
    lake.place.store().write(mark.key, replace(lake.record(), state=state, **changes).to_json())


@pytest.mark.parametrize("state", [MarkState.SWEPT, MarkState.MARKED])
def test_a_sweep_that_has_since_finished_or_lost_its_approval_is_left_alone_without_a_message(
    watched: Watched, state: MarkState
) -> None:
    """A person has already taken care of it."""
    watched.fail()
    if state is MarkState.MARKED:
        watched.lake.revoke()
    else:
        set_state(watched.lake, state)

    assert watched.tick() == []
    assert watched.advice() == []


def test_a_sweep_that_has_begun_is_not_resumed_once_its_approval_has_expired(watched: Watched) -> None:
    """A person may still resume it; the sensor doesn't."""
    watched.lake.revoke()
    watched.lake.approve(until=watched.lake.now + timedelta(milliseconds=50))
    set_state(watched.lake, MarkState.SWEEPING)
    while watched.lake.now < watched.lake.approval().until:  # type: ignore[union-attr]
        pass  # at most as long as the approval
    watched.fail()

    assert watched.tick() == []
    assert "the approval expired at" in watched.advice()[0]


@pytest.mark.parametrize(
    ("alter", "expected"),
    [
        (lambda lake: set_state(lake, MarkState.SWEEPING, approval="0" * 64), "is missing, or was altered"),
        (lambda lake: set_state(lake, MarkState.SWEEPING, digest="0" * 64), "is missing, or was altered"),
        (lambda lake: set_state(lake, MarkState.SWEPT_WITH_FAILURES), "no object failed"),
        (
            lambda lake: set_state(
                lake, MarkState.SWEEPING, repository_created=lake.target.repository.created - timedelta(days=1)
            ),
            "was made for a different repository",
        ),
        (lambda lake: (lake.folder / lake.proposal().mark.key).unlink(), "lakegc has no such mark"),
    ],
)
def test_the_page_of_a_sweep_that_must_not_be_resumed_shows_the_reason(
    watched: Watched, alter: Callable[[Lake], object], expected: str
) -> None:
    watched.fail()
    alter(watched.lake)

    assert watched.tick() == []
    [advice] = watched.advice()
    assert expected in advice


def test_a_mark_that_has_become_too_old_is_not_swept_again(watched: Watched) -> None:
    """The current limit counts, even if it was lowered after the approval."""
    watched.fail()
    watched.settings["brake_age"] = "30m"  # the mark was finished an hour ago

    assert watched.tick() == []
    assert "too old (brake_age)" in watched.advice()[0]


def test_runs_of_other_jobs_and_sweeps_that_were_run_in_a_terminal_or_canceled_are_left_alone(watched: Watched) -> None:
    """A person who stopped a sweep, or swept in a terminal, decides what happens next."""
    watched.fail(tags={COMMAND_LINE_TAG: "true"})
    watched.fail(backup_job.name)
    record_run(watched.instance, sweep_job.name, watched.key, dg.DagsterRunStatus.CANCELED)

    assert watched.tick() == []
    assert watched.advice() == []


def test_failures_from_before_the_sensor_was_turned_on_are_left_alone(watched: Watched) -> None:
    watched.fail()
    watched.cursor = None

    assert watched.tick() == []
    assert watched.tick() == []


def test_a_failing_repository_does_not_hold_up_other_sweeps(watched: Watched) -> None:
    """Examples are a repository that doesn't exist, an invalid partition, and a damaged record."""
    damaged = watched.lake.add_mark(mark_id="m2")
    watched.lake.place.store().write(damaged.key, b"not JSON")
    for key in ("ghost:m1", "nonsense", f"{watched.lake.name}:m2", watched.key):
        watched.fail(key=key)

    assert [request.partition_key for request in watched.tick()] == [watched.key]


def test_a_repository_that_cannot_be_read_now_is_checked_again_by_a_later_tick(watched: Watched) -> None:
    """The failed sweep isn't forgotten."""
    watched.fail()
    watched.lake.sandbox.fail(watched.lake.name, 503)
    try:
        assert watched.tick() == []
    finally:
        watched.lake.sandbox.fail(watched.lake.name, None)

    assert len(watched.tick()) == 1


def test_a_sweep_whose_process_died_is_recorded_as_failed_and_resumed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it weren't recorded, the sweep would be shown as running forever. While the process holds the lease, it counts
    as alive."""
    store = watched.lake.place.store()
    monkeypatch.setattr(dead_runs, "GRACE", timedelta(0))
    hold_lease(store, "m1")
    dead = record_run_in_step(watched.instance, sweep_job.name, watched.key, "sweep_report")
    backing_up = record_run_in_step(watched.instance, backup_and_sweep_job.name, watched.key, "backup")
    assert watched.tick() == []
    assert status(watched, dead) is dg.DagsterRunStatus.STARTED

    hold_lease(store, "m1", for_=timedelta(seconds=-1))
    [request] = watched.tick()
    assert request.tags[FAILED_RUN_TAG] == dead
    assert status(watched, dead) is dg.DagsterRunStatus.FAILURE
    assert status(watched, backing_up) is dg.DagsterRunStatus.STARTED  # a backup needs no lease


def status(watched: Watched, run_id: str) -> dg.DagsterRunStatus:
    run = watched.instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def test_a_sweep_knows_whether_the_sensor_or_a_person_launched_it(watched: Watched) -> None:
    """A re-execution in the UI keeps the tags. A sweep that the sensor launched checks again whether it may start."""
    watched.fail()
    [request] = watched.tick()
    by_sensor, by_person = dg.DagsterRun("sweep", tags=request.tags), dg.DagsterRun("sweep")
    again = dg.DagsterRun("sweep", tags=request.tags, parent_run_id="0" * 8, root_run_id="0" * 8)

    assert [SweepConfig().options(run).unattended for run in (by_sensor, by_person, again)] == [True, False, False]
