"""The sensor that approves by policy, evaluated as Dagster's daemon does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pytest

from lakegc_assets.approval.auto_approval import Decision
from lakegc_assets.assets.approval_events import report_approval
from lakegc_assets.assets.review import APPROVAL
from lakegc_assets.definitions import defs
from lakegc_assets.sensors import auto_approvals as sensor
from lakegc_assets.sensors.approvals import approved_sweeps
from spark_resources.errors import Unavailable
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.model import Partition
from tests.approval.conftest import Lake
from tests.support.finished_marks import START
from tests.support.mark_runs import environment
from tests.support.policies import DAY, HOUR, Fleet

LOCATION = defs.get_repository_def()


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("sandbox")) as server:
        server.set_clock(START + 2 * DAY)
        yield server


@dataclass
class Daemon:
    """A daemon that evaluates the sensor for one repository with a policy, and for others without one."""

    fleet: Fleet
    instance: dg.DagsterInstance
    others: tuple[str, ...] = ()

    def tick(self, **options: str) -> str:
        """Evaluate the sensor once, with these settings from now on. Returns the message of the tick."""
        self.fleet.options |= options
        included = ",".join((self.fleet.lake.name, *self.others))
        with environment({**self.fleet.known, "repositories_include": included}), self.context(None) as context:
            tick = sensor.auto_approvals.evaluate_tick(context)
        assert not tick.run_requests
        return tick.skip_message or ""

    def context(self, cursor: str | None) -> dg.SensorEvaluationContext:
        return dg.build_sensor_context(
            cursor=cursor,
            repository_def=LOCATION,
            resources={"lakefs": LakeFSResource()},
            instance=self.instance,
            instance_ref=self.instance.get_ref(),
        )

    def events(self) -> list[Any]:
        """The metadata of the reported approvals of the repository."""
        records = self.instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=APPROVAL, asset_partitions=[f"{self.fleet.lake.name}:m1"]), limit=10
        ).records
        return [record.asset_materialization.metadata for record in records if record.asset_materialization]


@pytest.fixture
def daemon(lake: Lake, instance: dg.DagsterInstance) -> Daemon:
    return Daemon(Fleet(lake), instance)


def test_the_sensor_announces_and_approves_a_mark_whose_sweep_is_then_requested_once(daemon: Daemon) -> None:
    fleet, instance = daemon.fleet, daemon.instance
    digest = fleet.add_marks().record.digest
    before = instance.fetch_materializations(APPROVAL, limit=1).records
    assert f"{fleet.lake.name}: the approval of mark m1 was announced" in daemon.tick()
    fleet.wait(DAY + HOUR)
    assert f"{fleet.lake.name}: mark m1 was approved" in daemon.tick()
    assert "is approved until" in daemon.tick()

    [event] = daemon.events()
    assert (event["by"].value, event["digest"].value) == ("policy", str(digest)[:12])
    assert str(event["how"].value).startswith("policy: at most 0.01 of all objects")
    with environment(fleet.known), daemon.context(str(before[0].storage_id) if before else "0") as context:
        requests = approved_sweeps.evaluate_tick(context).run_requests or []
    assert [request.partition_key for request in requests] == [f"{fleet.lake.name}:m1"]


def test_an_approval_that_a_killed_daemon_did_not_report_is_reported_by_the_next_tick(daemon: Daemon) -> None:
    """If it weren't reported, the approved mark would never be swept."""
    daemon.fleet.approve()
    assert daemon.events() == []

    daemon.tick()
    daemon.tick()
    assert len(daemon.events()) == 1


def test_an_approval_that_an_earlier_version_reported_under_another_partition_key_is_not_reported_again(
    daemon: Daemon,
) -> None:
    """If it were, the sensor of approved sweeps would start a second sweep."""
    daemon.fleet.approve()
    given = daemon.fleet.tick()
    assert given.proposal is not None
    assert given.approval is not None
    _, earlier = Partition.of(daemon.fleet.lake.name, "m1").keys
    report_approval(daemon.instance, earlier, given.proposal, given.approval)

    daemon.tick()
    assert daemon.events() == []


def test_a_failing_repository_does_not_hold_up_the_others(
    daemon: Daemon, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repository's error is reported. A bug fails the tick, but only after all other repositories."""
    damaged = lake.sandbox.create(f"{lake.name}-damaged").id
    (lake.sandbox.local_path / damaged / "_lakefs/retention/gc/lakegc/m1").mkdir(parents=True)
    (lake.sandbox.local_path / damaged / "_lakefs/retention/gc/lakegc/m1/mark.json").write_bytes(b"{")
    daemon.others = (damaged,)
    daemon.fleet.add_marks()
    said = daemon.tick()
    assert f"{lake.name}: the approval of mark m1 was announced" in said
    assert f"{damaged}: " in said
    assert "mark.json is not a valid mark record" in said

    decide = sensor.decide
    monkeypatch.setattr(sensor, "decide", lambda client, name: 1 / 0 if name == damaged else decide(client, name))
    daemon.fleet.wait(DAY + HOUR)
    with pytest.raises(ZeroDivisionError):
        daemon.tick()
    assert len(daemon.events()) == 1


def test_a_repository_without_auto_approve_is_left_alone(daemon: Daemon) -> None:
    daemon.fleet.add_marks()

    assert daemon.tick(auto_approve="false") == "No selected repository has auto_approve turned on."
    assert not daemon.fleet.file.exists()


def test_a_slow_repository_is_evaluated_once_and_reported_by_a_later_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tick doesn't wait for it, and the next tick doesn't start it again."""
    may_continue, begun = threading.Event(), []

    def decide(name: str) -> Decision:
        begun.append(name)
        if name == "slow":
            assert may_continue.wait(60)
        return Decision(f"{name} is decided")

    monkeypatch.setattr(sensor, "TICK_TIMEOUT_S", 0.2)
    ticks = [sensor.decide_all(["slow", "quick"], decide) for _ in range(2)]
    may_continue.set()
    monkeypatch.setattr(sensor, "TICK_TIMEOUT_S", 60)
    ticks.append(sensor.decide_all(["slow", "quick"], decide))

    assert [sorted(tick) for tick in ticks] == [["quick"], ["quick"], ["quick", "slow"]]
    assert begun.count("slow") == 1


def test_the_sensor_reports_an_unreachable_server(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Unavailable("the server is away")

    monkeypatch.setattr(LakeFSResource, "client", fail)
    assert daemon.tick() == "the server is away"
