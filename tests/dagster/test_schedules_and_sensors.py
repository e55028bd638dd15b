"""The schedules and sensors, evaluated as Dagster's daemon does, on a sandbox with several repositories."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.errors import ScheduleExecutionError  # the daemon gets this error, which has no public name

from lakegc_assets import dead_runs
from lakegc_assets.assets.approval_events import DIGEST
from lakegc_assets.assets.review import APPROVAL
from lakegc_assets.definitions import defs, mark_job, sweep_job
from lakegc_assets.partitions import REPOSITORY_TAG
from lakegc_assets.schedules import marks as schedules
from lakegc_assets.schedules.freshness import check_freshness
from lakegc_assets.schedules.marks import PREFLIGHT_TAG, Preflight, mark_repositories
from lakegc_assets.schedules.retirement import retire_old_marks
from lakegc_assets.sensors.approvals import APPROVAL_TAG, approved_sweeps, last_requested, requires_backup
from lakegc_assets.sensors.auto_approvals import auto_approvals
from lakegc_assets.sensors.failed_sweeps import resumed_sweeps
from lakegc_assets.sensors.notifications import notifications
from lakegc_assets.sensors.repositories import MAX_NEW_PER_TICK, new_repositories
from lakegc_assets.sensors.waiting_marks import waiting_marks
from spark_resources.errors import Unavailable, WrongUsage
from spark_resources.lakefs import LakeFS, Repository
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.settings import Settings
from tests.support.fleet_files import fleet_of
from tests.support.leases import hold_lease
from tests.support.mark_runs import environment, target_of
from tests.support.recorded_runs import record_run, record_run_in_step

OCCASION = datetime(2026, 11, 21, 3, tzinfo=UTC)
LOCATION = defs.get_repository_def()
RESOURCES = {"lakefs": LakeFSResource()}


@dataclass
class Night:
    """A sandbox, and a Dagster instance whose daemon is played by the test."""

    sandbox: Sandbox
    instance: dg.DagsterInstance

    def evaluate_schedule(self, at: datetime = OCCASION) -> tuple[list[dg.RunRequest], str]:
        """The runs that the schedule requests at a tick, or why it skips the tick."""
        with dg.build_schedule_context(self.instance, at, RESOURCES, LOCATION) as context:
            tick = mark_repositories.evaluate_tick(context)
        return list(tick.run_requests or []), tick.skip_message or ""

    def evaluate_sensor(self, cursor: str | None = None) -> tuple[list[dg.RunRequest], str, str]:
        """The runs that the sensor requests, why it skips, and its cursor. Adds the partitions, as the daemon does."""
        with daemon_context(self.instance, cursor) as context:
            tick = new_repositories.evaluate_tick(context)
        for request in tick.dynamic_partitions_requests or []:
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        return list(tick.run_requests or []), tick.skip_message or "", tick.cursor or ""

    def partitions(self) -> set[str]:
        return set(self.instance.get_dynamic_partitions("repository_and_mark"))

    def record_run(self, request: dg.RunRequest, status: dg.DagsterRunStatus) -> None:
        """Record a run of that request with this status."""
        key = request.partition_key
        assert key is not None
        record_run(self.instance, mark_job.name, key, status, tags=request.tags)


def daemon_context(instance: dg.DagsterInstance, cursor: str | None) -> dg.SensorEvaluationContext:
    """A context with a reference to the instance, as the daemon creates it. Without a reference, no partition key is
    known."""
    return dg.build_sensor_context(
        cursor=cursor,
        repository_def=LOCATION,
        resources=RESOURCES,
        instance=instance,
        instance_ref=instance.get_ref(),
    )


@pytest.fixture
def night(tmp_path: Path, instance: dg.DagsterInstance) -> Iterator[Night]:
    instance.wipe()
    for key in instance.get_dynamic_partitions("repository_and_mark"):
        instance.delete_dynamic_partition("repository_and_mark", key)
    with Sandbox(tmp_path) as sandbox, environment(sandbox.settings):
        for name in ("lake-a", "lake-b", "lake-c"):
            sandbox.create(name)
        yield Night(sandbox, instance)


def repositories(requests: list[dg.RunRequest]) -> set[str]:
    return {request.tags[REPOSITORY_TAG] for request in requests}


def fail_preflight(night: Night, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str) -> None:
    """Let the preflight of one repository fail with a sentence."""
    check = schedules.preflight
    monkeypatch.setattr(
        schedules,
        "preflight",
        lambda lakefs, repository: Preflight(sentence) if repository.id == name else check(lakefs, repository),
    )


# --- the schedule ---------------------------------------------------------------------------------------------------


def test_each_repository_is_marked_once_per_tick(night: Night) -> None:
    """A mark's id is the tick's time; evaluating the same tick again requests the same runs."""
    requests, _ = night.evaluate_schedule()
    again, _ = night.evaluate_schedule()
    tomorrow, _ = night.evaluate_schedule(OCCASION + timedelta(days=1))

    assert repositories(requests) == {"lake-a", "lake-b", "lake-c"}
    assert {request.partition_key for request in requests} == {f"lake-{letter}:20261121T030000Z" for letter in "abc"}
    assert [(request.run_key, request.partition_key) for request in again] == [
        (request.run_key, request.partition_key) for request in requests
    ]
    assert not {request.run_key for request in tomorrow} & {request.run_key for request in requests}


def test_partitions_are_added_before_their_runs_are_requested(night: Night) -> None:
    """Each run carries its partition as a tag."""
    requests, _ = night.evaluate_schedule()

    assert night.partitions() == {request.partition_key for request in requests}
    assert all(request.tags["dagster/partition"] == request.partition_key for request in requests)


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ("*", "lake-b", {"lake-a", "lake-c"}),
        ("lake-[ab]", "", {"lake-a", "lake-b"}),
        ("lake-a, lake-c", "*-c", {"lake-a"}),
        ("other-*", "", set()),
    ],
)
def test_repositories_are_selected_by_include_and_exclude_patterns(
    night: Night, monkeypatch: pytest.MonkeyPatch, include: str, exclude: str, expected: set[str]
) -> None:
    """If nothing matches, the message names the patterns."""
    monkeypatch.setenv("LAKEGC_REPOSITORIES_INCLUDE", include)
    monkeypatch.setenv("LAKEGC_REPOSITORIES_EXCLUDE", exclude)
    requests, skipped = night.evaluate_schedule()

    assert repositories(requests) == expected
    assert bool(skipped) == (not expected)
    assert expected or "other-*" in skipped


def test_a_repository_that_fails_its_preflight_gets_one_failing_run_and_delays_no_other(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repository gets no further run until its failure changes or is resolved."""
    fail_preflight(night, monkeypatch, "lake-b", "no permission in lake-b")
    first, _ = night.evaluate_schedule()
    [failing] = [request for request in first if PREFLIGHT_TAG in request.tags]
    for request in first:
        night.record_run(request, dg.DagsterRunStatus.FAILURE if request is failing else dg.DagsterRunStatus.SUCCESS)
    second, _ = night.evaluate_schedule(OCCASION + timedelta(days=1))

    assert repositories(first) == {"lake-a", "lake-b", "lake-c"}
    assert (failing.tags[REPOSITORY_TAG], failing.tags[PREFLIGHT_TAG]) == ("lake-b", "no permission in lake-b")
    assert repositories(second) == {"lake-a", "lake-c"}

    fail_preflight(night, monkeypatch, "lake-b", "lake-b is read-only")
    assert repositories(night.evaluate_schedule(OCCASION + timedelta(days=2))[0]) == {"lake-a", "lake-b", "lake-c"}
    monkeypatch.undo()
    with environment(night.sandbox.settings):
        recovered, _ = night.evaluate_schedule(OCCASION + timedelta(days=3))
    assert repositories(recovered) == {"lake-a", "lake-b", "lake-c"}
    assert not any(PREFLIGHT_TAG in request.tags for request in recovered)


def test_a_preflight_failure_that_the_first_run_did_not_report_gets_another_run(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run reported nothing, so the same failure isn't known yet."""
    fail_preflight(night, monkeypatch, "lake-b", "the store is slow")
    for request in night.evaluate_schedule()[0]:
        night.record_run(request, dg.DagsterRunStatus.SUCCESS)

    assert "lake-b" in repositories(night.evaluate_schedule(OCCASION + timedelta(days=1))[0])


def test_a_repository_whose_preflight_times_out_is_marked_like_the_others(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other repositories don't wait for it."""
    import threading

    answered = threading.Event()
    check = schedules.preflight

    def slow(lakefs: LakeFS, repository: Repository) -> Preflight:
        if repository.id == "lake-b":
            answered.wait(60)
        return check(lakefs, repository)

    monkeypatch.setattr(schedules, "preflight", slow)
    monkeypatch.setattr(schedules, "PREFLIGHT_TIMEOUT_S", 0.5)
    try:
        requests, _ = night.evaluate_schedule()
    finally:
        answered.set()

    assert repositories(requests) == {"lake-a", "lake-b", "lake-c"}
    assert not any(PREFLIGHT_TAG in request.tags for request in requests)


@pytest.mark.parametrize("mark_id", ["m1", "20261121T030000Z"])
def test_a_repository_whose_mark_or_sweep_is_running_is_skipped_and_reported(night: Night, mark_id: str) -> None:
    """The repository's lease shows this, even if another deployment holds it for a mark with the same id. No other
    repository is affected, and an expired lease is ignored."""
    hold_lease(target_of(night.sandbox.settings, "lake-a").place.store(), mark_id)
    hold_lease(target_of(night.sandbox.settings, "lake-b").place.store(), mark_id, for_=timedelta(seconds=-1))

    assert repositories(night.evaluate_schedule()[0]) == {"lake-b", "lake-c"}

    hold_lease(target_of(night.sandbox.settings, "lake-c").place.store(), mark_id)
    night.sandbox.create("lake-d")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEGC_REPOSITORIES_INCLUDE", "lake-[ac]")
        requests, skipped = night.evaluate_schedule(OCCASION + timedelta(days=1))
    assert requests == []
    assert f"lake-a is skipped: someone is still working on mark {mark_id}, and holds the lease until" in skipped
    assert "lake-c is skipped" in skipped


def test_a_repository_whose_earlier_run_is_queued_is_skipped(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it weren't skipped, marks that wait for each other would pile up. A run that only seems to have started is no
    reason to skip."""
    monkeypatch.setenv("LAKEGC_REPOSITORIES_INCLUDE", "lake-[ab]")
    first, _ = night.evaluate_schedule()
    for request, status in zip(first, (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED), strict=True):
        night.record_run(request, status)

    assert repositories(night.evaluate_schedule(OCCASION + timedelta(days=1))[0]) == {"lake-b"}
    monkeypatch.setenv("LAKEGC_REPOSITORIES_INCLUDE", "lake-a")
    requests, skipped = night.evaluate_schedule(OCCASION + timedelta(days=2))
    assert requests == []
    assert "lake-a is skipped: run" in skipped
    assert "(mark) is still queued" in skipped


def test_a_repeated_tick_requests_the_same_runs_although_some_have_begun(night: Night) -> None:
    """A daemon that was killed evaluates the tick again. Runs that it launched before are queued or hold the lease, and
    a repository that was skipped may be free now."""
    busy = target_of(night.sandbox.settings, "lake-c").place.store()
    hold_lease(busy, "m1")
    first, _ = night.evaluate_schedule()
    hold_lease(target_of(night.sandbox.settings, "lake-a").place.store(), "20261121T030000Z")
    [queued] = [request for request in first if request.tags[REPOSITORY_TAG] == "lake-b"]
    night.record_run(queued, dg.DagsterRunStatus.QUEUED)
    hold_lease(busy, "m1", for_=timedelta(seconds=-1))
    again, _ = night.evaluate_schedule()

    assert repositories(first) == {"lake-a", "lake-b"}
    assert [request.run_key for request in again] == [request.run_key for request in first]


def test_a_dead_run_is_recorded_as_failed_so_that_it_does_not_block_the_queue(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's process died during its mark, so the run would never end. A run that still holds its lease is left
    alone."""
    monkeypatch.setattr(dead_runs, "GRACE", timedelta(0))
    runs = {
        name: record_run_in_step(night.instance, mark_job.name, f"{name}:m1", "committed_addresses")
        for name in ("lake-a", "lake-b")
    }
    hold_lease(target_of(night.sandbox.settings, "lake-b").place.store(), "m1")

    assert repositories(night.evaluate_schedule()[0]) == {"lake-a", "lake-c"}
    statuses = {name: night.instance.get_run_by_id(run_id).status for name, run_id in runs.items()}  # type: ignore[union-attr]
    assert statuses == {"lake-a": dg.DagsterRunStatus.FAILURE, "lake-b": dg.DagsterRunStatus.STARTED}


def test_a_recreated_repository_gets_its_own_runs_and_reports(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a run of the deleted repository at the same time nor a problem that was reported for it counts."""
    monkeypatch.setenv("LAKEGC_REPOSITORIES_INCLUDE", "lake-a")
    fail_preflight(night, monkeypatch, "lake-a", "no permission")
    [old], _ = night.evaluate_schedule()
    night.record_run(old, dg.DagsterRunStatus.FAILURE)
    assert night.evaluate_schedule(OCCASION + timedelta(days=1))[0] == []

    listed = LakeFS.repositories_on

    def recreated(lakefs: LakeFS, server: str) -> list[Repository]:
        return [replace(each, created=each.created + timedelta(days=1)) for each in listed(lakefs, server)]

    monkeypatch.setattr(LakeFS, "repositories_on", recreated)
    [same_time], _ = night.evaluate_schedule()
    [next_day], _ = night.evaluate_schedule(OCCASION + timedelta(days=1))
    assert len({old.run_key, same_time.run_key, next_day.run_key}) == 3


def test_only_the_repository_with_contradictory_settings_is_skipped(
    night: Night, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two patterns of the fleet file give it different times."""
    sections = ("[repositories.'*-a']", "mark_cron = '0 4 * * *'", "[repositories.'lak*-a']", "mark_cron = '0 5 * * *'")
    fleet_file(monkeypatch, tmp_path, "\n".join(sections))

    assert repositories(night.evaluate_schedule()[0]) == {"lake-b", "lake-c"}
    monkeypatch.setenv("LAKEGC_REPOSITORIES_INCLUDE", "lake-a")
    assert "lake-a is skipped: mark_cron in" in night.evaluate_schedule()[1]


def test_a_tick_fails_if_the_server_is_unreachable(night: Night) -> None:
    """The tick must not look like a night with nothing to do."""
    settings = {**night.sandbox.settings, "retry_total_s": "0"}
    night.sandbox.stop()
    with environment(settings), pytest.raises(ScheduleExecutionError) as caught:
        night.evaluate_schedule()

    failure = caught.value.__cause__
    assert isinstance(failure, dg.Failure)
    assert isinstance(failure.__cause__, Unavailable)
    assert str(failure.description).startswith(str(failure.__cause__))
    assert night.partitions() == set()


def test_an_invalid_cron_schedule_is_refused() -> None:
    """The message names the variable. No default schedule replaces it."""
    with pytest.raises(WrongUsage, match="LAKEGC_MARK_CRON is 'at night': expected a cron schedule"):
        schedules.make_schedule(["at night"])
    assert schedules.make_schedule(["*/5 * * * *"]).cron_schedule == ["*/5 * * * *"]


def fleet_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str) -> None:
    """Configure a fleet file with this content."""
    path = tmp_path / "fleet.toml"
    path.write_text(content)
    monkeypatch.setenv("LAKEGC_CONFIG", str(path))


def test_each_repository_is_marked_at_the_times_of_its_own_schedule(
    night: Night, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A section of the fleet file changes the times of the repositories that match it."""
    fleet_file(monkeypatch, tmp_path, '[repositories."lake-[ab]"]\nmark_cron = "30 5 * * SAT"')

    assert schedules.configured_crons(os.environ) == ["0 3 * * *", "30 5 * * SAT"]
    assert repositories(night.evaluate_schedule()[0]) == {"lake-c"}
    saturday = OCCASION.replace(hour=5, minute=30)
    assert repositories(night.evaluate_schedule(saturday)[0]) == {"lake-a", "lake-b"}
    assert "05:30" in night.evaluate_schedule(saturday + timedelta(days=1))[1]


def test_the_fleet_file_decides_the_scope_of_scheduled_marks(
    night: Night, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet_file(monkeypatch, tmp_path, 'mark_scope = "committed"\n[repositories.lake-b]\nmark_scope = "uncommitted"')

    requests, _ = night.evaluate_schedule()
    assert {
        request.tags[REPOSITORY_TAG]: request.run_config["ops"]["namespace_slices"]["config"]["scope"]
        for request in requests
    } == {"lake-a": "COMMITTED", "lake-b": "UNCOMMITTED", "lake-c": "COMMITTED"}


def test_the_fleet_file_decides_whether_a_backup_precedes_the_sweep(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet_file(monkeypatch, tmp_path, '[repositories."lake-a"]\nbackup_to = "/backups"')

    assert requires_backup("lake-a")
    assert not requires_backup("lake-b")


def test_schedules_and_sensors_are_off_by_default() -> None:
    """A person has to turn them on."""
    for schedule in (mark_repositories, check_freshness, retire_old_marks):
        assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED
    for sensor in (new_repositories, auto_approvals, approved_sweeps, resumed_sweeps, waiting_marks, notifications):
        assert sensor.default_status == dg.DefaultSensorStatus.STOPPED


@pytest.mark.parametrize("job", [mark_job.name, sweep_job.name])
def test_the_runs_of_every_valid_partition_are_tagged_with_their_repository(job: str) -> None:
    """Dagster's queue separates the runs of repositories by this tag, no matter who launches them."""
    job_definition = defs.resolve_job_def(job)

    assert job_definition.get_tags_for_partition_key("lake:m1", None)[REPOSITORY_TAG] == "lake"
    assert REPOSITORY_TAG not in job_definition.get_tags_for_partition_key("nonsense", None)


@pytest.mark.parametrize("keys", [("lake:m1", "lake:m2"), ("lake|m1", "lake|m2"), ("lake|m1", "lake:m2")])
def test_a_sensor_without_a_cursor_does_not_request_earlier_sweeps_again(keys: tuple[str, str]) -> None:
    """The cursor is lost after an upgrade that renames the code location. Approvals up to the last requested one count
    as done, including those under the partition keys of earlier versions. A later one is swept under its own key."""
    with dg.DagsterInstance.ephemeral() as instance:
        assert last_requested(instance) is None
        first, second = (reported_approval(instance, key) for key in keys)
        for storage_id in (str(first), "nonsense"):
            instance.add_run(dg.DagsterRun("sweep", tags={APPROVAL_TAG: storage_id}))

        result = approved_sweeps(dg.build_sensor_context(instance))

        assert isinstance(result, dg.SensorResult)
        assert [request.partition_key for request in result.run_requests or ()] == [keys[1]]
        assert result.cursor == str(second)


def reported_approval(instance: dg.DagsterInstance, partition_key: str) -> int:
    """Report the event of an approval, and return its storage id."""
    instance.report_runless_asset_event(
        dg.AssetMaterialization(APPROVAL, partition=partition_key, metadata={DIGEST: "f" * 12})
    )
    return instance.fetch_materializations(APPROVAL, limit=1).records[0].storage_id


# --- the sensor -----------------------------------------------------------------------------------------------------


def test_the_sensor_marks_a_new_repository_once(night: Night) -> None:
    """A repository that the sensor has already seen gets no run."""
    requests, _, cursor = night.evaluate_sensor()
    later, skipped, _ = night.evaluate_sensor(cursor)
    night.sandbox.create("lake-d")
    newer, _, cursor = night.evaluate_sensor(cursor)

    assert repositories(requests) == {"lake-a", "lake-b", "lake-c"}
    assert (later, skipped) == ([], "No new repositories among the 3 selected.")
    assert repositories(newer) == {"lake-d"}
    assert night.partitions() == {request.partition_key for request in [*requests, *newer]}
    assert len(json.loads(cursor)) == 4


def test_a_recreated_repository_is_marked_as_a_new_one(night: Night) -> None:
    """The creation date distinguishes the repository from the earlier repository of the same name."""
    requests, _, cursor = night.evaluate_sensor()
    [old] = [key for key in json.loads(cursor) if key.startswith("lake-a@")]
    before = json.dumps([key for key in json.loads(cursor) if key != old] + ["lake-a@2020-01-01T00:00:00+00:00"])
    newer, _, cursor = night.evaluate_sensor(before)

    assert repositories(newer) == {"lake-a"}
    assert (
        {request.run_key for request in newer}
        == {old}
        == {request.run_key for request in requests if "lake-a" in request.run_key}
    )
    assert "2020-01-01" not in cursor


def test_the_sensor_requests_a_limited_number_of_runs_per_tick(night: Night) -> None:
    """The next ticks request the remaining runs, each once."""
    for number in range(MAX_NEW_PER_TICK):
        night.sandbox.create(f"more-{number:03}")
    first, _, cursor = night.evaluate_sensor()
    second, _, cursor = night.evaluate_sensor(cursor)

    assert (len(first), len(second)) == (MAX_NEW_PER_TICK, 3)
    assert not repositories(first) & repositories(second)
    assert night.evaluate_sensor(cursor)[0] == []


def test_the_sensor_skips_while_the_server_is_unreachable(night: Night) -> None:
    """The sensor keeps its cursor, and doesn't fail every minute."""
    settings = {**night.sandbox.settings, "retry_total_s": "0"}
    _, _, cursor = night.evaluate_sensor()
    night.sandbox.stop()
    with environment(settings):
        requests, skipped, new_cursor = night.evaluate_sensor(cursor)

    assert requests == []
    assert "could not get the repositories" in skipped
    assert new_cursor == cursor


# --- settings -------------------------------------------------------------------------------------------------------


# --- several servers --------------------------------------------------------------------------------------------------


@pytest.fixture
def two_servers(night: Night, tmp_path: Path) -> Iterator[Sandbox]:
    """The sandbox as the server `prod`, beside a second one, `lab`, which is returned."""
    with Sandbox(tmp_path / "lab") as lab:
        lab.create("lake-a", storage_namespace="local://lab-lake-a")
        with environment(fleet_of(tmp_path / "lakegc.toml", prod=night.sandbox, lab=lab)):
            yield lab


def test_the_repositories_of_all_servers_are_marked_under_the_names_of_their_servers(
    night: Night, two_servers: Sandbox
) -> None:
    requests, _ = night.evaluate_schedule()

    names = {f"prod/lake-{letter}" for letter in "abc"} | {"lab/lake-a"}
    assert {request.partition_key for request in requests} == {f"{name}:20261121T030000Z" for name in names}
    assert repositories(requests) == names


def test_a_server_that_does_not_respond_does_not_hold_up_others(night: Night, two_servers: Sandbox) -> None:
    """The sensor doesn't forget the server's repositories either; otherwise, it would later mark them as new ones."""
    _, _, cursor = night.evaluate_sensor()
    two_servers.stop()

    requests, _ = night.evaluate_schedule()
    new, skipped, cursor_afterwards = night.evaluate_sensor(cursor)

    assert repositories(requests) == {f"prod/lake-{letter}" for letter in "abc"}
    assert not new
    assert "The repositories of server lab are skipped" in skipped
    assert "lab/lake-a@" in (cursor_afterwards or cursor)


def test_patterns_can_be_separated_by_commas_or_spaces(tmp_path: Path) -> None:
    """One variable contains all patterns."""
    settings = Settings.load({"LAKEGC_REPOSITORIES_INCLUDE": " lake-*,archive  x-? "}, tmp_path)

    assert settings.repositories_include == ("lake-*", "archive", "x-?")
    assert Settings.load({}, tmp_path).repositories_include == ("*",)
