"""The sensor `notifications`, evaluated as Dagster's daemon does, on runs of small assets with lakegc's names."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import pytest

from lakegc_assets.assets.results import as_failure
from lakegc_assets.definitions import defs
from lakegc_assets.notifications import outbox
from lakegc_assets.notifications.run_events import ASSETS, JOBS
from lakegc_assets.partitions import PARTITIONS
from lakegc_assets.sensors.notifications import cursor_after_ended_runs, notifications
from spark_resources.errors import FinishedWithFailures, LakegcError, Refused
from tests.support.mark_runs import environment
from tests.support.webhook_receiver import Receiver, receiver

SECRET = "a-secret-for-nobodys-eyes"
SWEPT = {"objects.deleted": 3, "bytes.deleted": 300}


@dataclass
class Daemon:
    """A Dagster instance with runs, and the sensor's ticks."""

    instance: dg.DagsterInstance
    hook: Receiver
    settings: dict[str, str]
    cursor: str | None = None
    message: str = ""
    runs: list[str] = field(default_factory=list)
    log: list[tuple[str, str]] = field(default_factory=list)
    """The warnings and errors in the log of the last tick."""

    def tick(self) -> list[dict[str, Any]]:
        """Evaluate the sensor once, and return the bodies that the receiver got."""
        before = len(self.hook.received)
        with environment(self.settings), dg.build_sensor_context(self.instance, cursor=self.cursor) as context:
            handler = logging.Handler(logging.WARNING)
            self.log, handler.emit = [], lambda record: self.log.append((record.levelname, record.getMessage()))
            context.log.addHandler(handler)
            tick = notifications.evaluate_tick(context)
        self.cursor, self.message = tick.cursor or self.cursor, tick.skip_message or ""
        return [json.loads(request.body) for request in self.hook.received[before:]]

    def run(
        self, job: str, asset: str, metadata: dict[str, Any] | None = None, *, key: str = "lake:m1",
        brakes: dict[str, bool] | None = None, error: LakegcError | None = None,
    ) -> None:  # fmt: skip
        """Run a job with one asset, which records this metadata and checks, or fails with an error."""
        checks = {f"brake_{name}": passed for name, passed in (brakes or {}).items()}

        @dg.asset(
            name=asset,
            partitions_def=PARTITIONS,
            check_specs=[dg.AssetCheckSpec(name, asset=asset) for name in checks],
        )
        def computed() -> Iterator[Any]:
            if error is not None:
                raise as_failure(error, metadata)
            yield dg.MaterializeResult(metadata=metadata or {})
            for name, passed in checks.items():
                yield dg.AssetCheckResult(check_name=name, passed=passed)

        self.instance.add_dynamic_partitions(str(PARTITIONS.name), [key])
        location = dg.Definitions([computed], jobs=[dg.define_asset_job(job, [asset])])
        result = location.resolve_job_def(job).execute_in_process(
            instance=self.instance,
            partition_key=key,
            raise_on_error=False,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
        self.runs.append(result.run_id)


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    """One instance for all tests; each begins after its runs. In memory, because runs on disk take longer."""
    with dg.DagsterInstance.ephemeral() as in_memory:
        yield in_memory


@pytest.fixture
def daemon(instance: dg.DagsterInstance) -> Iterator[Daemon]:
    """A daemon whose sensor has just been turned on."""
    with receiver() as hook:
        settings = {"webhook_url": hook.url, "webhook_secret": SECRET, "owners": "ada"}
        yield Daemon(instance, hook, settings, cursor_after_ended_runs(instance).model_dump_json())


@pytest.fixture
def on_disk(daemon: Daemon, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with an instance on disk, in which Dagster keeps each run's events in a separate file."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as daemon.instance:
        daemon.cursor = cursor_after_ended_runs(daemon.instance).model_dump_json()
        yield daemon


def events(bodies: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(body["event"], body["repository"]) for body in bodies]


def test_each_event_is_sent_once(on_disk: Daemon) -> None:
    daemon = on_disk
    daemon.run("mark", "expired_set", {"expired": 12, "expired_bytes": 34}, brakes={"share": False, "age": True})
    daemon.run("sweep", "sweep_report", SWEPT)
    bodies = daemon.tick()

    assert events(bodies) == [("approval_waiting", "lake"), ("brakes_tripped", "lake"), ("swept", "lake")]
    assert [body["numbers"] for body in bodies[:2]] == [
        {"objects": 12, "bytes": 34},
        {"objects": 12, "bytes": 34, "brakes": 1},
    ]
    assert "1 brake (share)" in bodies[1]["summary"]
    assert bodies[0]["owners"] == ["ada"]
    assert all("X-Lakegc-Signature" in request.headers for request in daemon.hook.received)
    assert daemon.tick() == []
    assert daemon.message == "0 notifications delivered, 0 waiting."


def test_no_notification_is_sent_for_a_mark_without_expired_objects(daemon: Daemon) -> None:
    daemon.run("mark", "expired_set", {"expired": 0, "expired_bytes": 0}, brakes={"share": True})

    assert daemon.tick() == []


def test_the_notification_of_a_failed_run_does_not_contain_the_text_of_its_error(daemon: Daemon) -> None:
    """Errors name objects, and may quote server responses."""
    error = Refused("data/a/b is live but missing, says https://user:secret@store", invariant=3)
    daemon.run("mark", "expired_set", error=error)
    [body] = daemon.tick()

    assert (body["event"], body["next"]) == ("run_failed", "lakegc status lake")
    assert "'mark' of mark m1 of lake failed (Refused)" in body["summary"]
    assert "data/a/b" not in json.dumps(body)
    assert "secret" not in json.dumps(body)


def test_a_sweep_with_failures_causes_only_one_event(daemon: Daemon) -> None:
    error = FinishedWithFailures("2 failed: data/a/b")
    daemon.run("sweep", "sweep_report", {**SWEPT, "objects.failed": 2, "bytes.failed": 20}, error=error)
    [body] = daemon.tick()

    assert (body["event"], body["numbers"]["failed"], body["numbers"]["objects"]) == ("swept", 2, 3)
    assert "with failures" in body["summary"]


def test_a_backup_that_ends_with_failures_is_reported_as_a_failed_run(daemon: Daemon) -> None:
    daemon.run("back_up", "backup", error=FinishedWithFailures("2 objects are archived"))

    assert events(daemon.tick()) == [("run_failed", "lake")]


@pytest.mark.parametrize(("job", "key"), [("somebody_elses", "lake:m1"), ("mark", "no-partition-of-lakegc")])
def test_no_notifications_are_sent_for_runs_of_other_projects(daemon: Daemon, job: str, key: str) -> None:
    daemon.run(job, "expired_set", {"expired": 1, "expired_bytes": 1}, key=key)
    daemon.run(job, "expired_set", error=Refused("no"), key=key)

    assert daemon.tick() == []


def test_every_asset_and_all_but_three_jobs_cause_notifications() -> None:
    """The exceptions are the job of approvals, whose failure the approver sees, and those of freshness checks and
    retirements, which aren't about a single repository."""
    jobs = {job.name for job in defs.get_repository_def().get_all_jobs() if not job.name.startswith("__")}
    assets = {key.to_user_string() for key in defs.resolve_asset_graph().materializable_asset_keys}

    assert jobs == JOBS | {"approve", "freshness", "retire"}
    assert assets == ASSETS


def test_an_event_survives_a_failing_receiver(daemon: Daemon) -> None:
    """The receiver responds with 500, then 200: nothing is lost, and the other event isn't sent twice."""
    daemon.hook.statuses = [500]
    daemon.run("mark", "expired_set", {"expired": 1, "expired_bytes": 1}, key="lake-a:m1")
    daemon.run("mark", "expired_set", {"expired": 1, "expired_bytes": 1}, key="lake-b:m1")
    first = daemon.tick()

    assert events(first) == [("approval_waiting", "lake-a"), ("approval_waiting", "lake-b")]
    assert daemon.message == "1 notification delivered, 1 waiting."
    assert [level for level, _ in daemon.log] == ["WARNING"]
    assert "nobodys-eyes" not in str(daemon.log) + str(daemon.cursor)
    again = daemon.tick()
    assert events(again) == [("approval_waiting", "lake-a")]
    assert again[0]["id"] == first[0]["id"]
    assert daemon.tick() == []


def test_new_runs_are_not_read_while_too_many_events_wait(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cursor stays small, and the runs stay in Dagster."""
    monkeypatch.setattr(outbox, "MAX_WAITING", 1)
    daemon.hook.statuses = [500, 500]
    for name in ("lake-a", "lake-b"):
        daemon.run("mark", "expired_set", {"expired": 1, "expired_bytes": 1}, key=f"{name}:m1")
        daemon.tick()
    daemon.tick()

    assert events(daemon.tick()) == [("approval_waiting", "lake-b")]
    assert daemon.tick() == []


def test_an_event_that_the_receiver_refuses_for_a_day_is_dropped(daemon: Daemon) -> None:
    daemon.hook.statuses = [500]
    daemon.run("mark", "expired_set", {"expired": 1, "expired_bytes": 1})
    daemon.tick()
    with mock.patch.object(outbox, "MAX_AGE", timedelta(0)):
        assert daemon.tick() == []

    assert daemon.message == "0 notifications delivered, 0 waiting."
    [(level, message)] = daemon.log
    assert (level, message.partition(":")[0]) == ("ERROR", "Not delivered within 24 hours, and dropped")


def test_an_event_whose_run_was_deleted_is_dropped(daemon: Daemon) -> None:
    daemon.hook.statuses = [500]
    daemon.run("mark", "expired_set", {"expired": 1, "expired_bytes": 1})
    daemon.tick()
    daemon.instance.delete_run(daemon.runs[-1])

    assert daemon.tick() == []
    assert daemon.message == "0 notifications delivered, 0 waiting."
    [(level, message)] = daemon.log
    assert level == "ERROR"
    assert "Dagster no longer has the run" in message


def test_the_setting_notify_selects_the_events_of_each_repository(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(
        '[repositories.lake-a]\nnotify = ["swept"]\n[repositories.lake-b]\nnotify = []'
    )
    daemon.settings["config"] = str(tmp_path / "fleet.toml")
    for name in ("lake-a", "lake-b", "lake-c"):
        daemon.run("mark", "expired_set", {"expired": 1, "expired_bytes": 1}, key=f"{name}:m1")

    assert events(daemon.tick()) == [("approval_waiting", "lake-c")]


def test_slack_gets_a_text_message(daemon: Daemon) -> None:
    daemon.settings |= {"webhook_format": "slack"}
    daemon.run("mark", "expired_set", {"expired": 1, "expired_bytes": 1})

    assert daemon.tick() == [
        {"text": "Mark m1 of lake is waiting for approval: 1 object, 1 B. Owners: ada. Next: `lakegc review lake m1`"}
    ]


def test_no_notifications_are_sent_for_runs_before_the_sensor_was_turned_on(daemon: Daemon) -> None:
    daemon.run("mark", "expired_set", {"expired": 1, "expired_bytes": 1})
    daemon.cursor = None

    assert daemon.tick() == []
    assert daemon.cursor is not None
    assert daemon.tick() == []


def test_without_a_webhook_the_sensor_says_which_setting_is_missing(daemon: Daemon) -> None:
    daemon.settings = {}
    before = daemon.cursor

    assert daemon.tick() == []
    assert (daemon.message, daemon.cursor) == ("There is no webhook: set LAKEGC_WEBHOOK_URL.", before)
