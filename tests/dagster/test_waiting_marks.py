"""The sensor that reports marks that wait for approval: each mark once, and only while it waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from lakegc_assets.definitions import defs
from lakegc_assets.sensors.waiting_marks import REMINDER, waiting_marks
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.model import MarkState
from tests.approval.conftest import ADDRESSES, Lake
from tests.support.mark_runs import environment

EXPIRED_SET = dg.AssetKey("expired_set")


@dataclass
class Watched:
    """A repository, and the sensor that watches its marks."""

    lake: Lake
    instance: dg.DagsterInstance
    cursor: str | None
    settings: dict[str, str] = field(default_factory=lambda: {"approval_reminder": "0"})

    def finish(self, key: str = "") -> str:
        """Record in Dagster that the mark m1, or another one, has finished."""
        key = key or f"{self.lake.name}:m1"
        self.instance.report_runless_asset_event(dg.AssetMaterialization(EXPIRED_SET, partition=key))
        return key

    def tick(self) -> str:
        """The message of a tick; the sensor keeps its cursor."""
        with (
            environment({**self.lake.sandbox.settings, "retry_total_s": "0", **self.settings}),
            dg.build_sensor_context(
                cursor=self.cursor,
                repository_def=defs.get_repository_def(),
                resources={"lakefs": LakeFSResource()},
                instance=self.instance,
                instance_ref=self.instance.get_ref(),
            ) as context,
        ):
            tick = waiting_marks.evaluate_tick(context)
        self.cursor = tick.cursor
        assert not tick.run_requests
        return tick.skip_message or ""

    def reports(self) -> list[Mapping[str, Any]]:
        """The reminders on the page of `expired_set`."""
        of_mark = dg.AssetRecordsFilter(asset_key=EXPIRED_SET, asset_partitions=[f"{self.lake.name}:m1"])
        events = [event.asset_observation for event in self.instance.fetch_observations(of_mark, limit=10).records]
        return [{name: value.value for name, value in event.metadata.items()} for event in events if event is not None]


@pytest.fixture
def watched(lake: Lake, instance: dg.DagsterInstance) -> Watched:
    newest = instance.fetch_materializations(EXPIRED_SET, limit=1).records
    return Watched(lake, instance, json.dumps({"after": newest[0].storage_id if newest else 0, "finished": {}}))


def test_a_mark_that_has_waited_too_long_is_reported_once(watched: Watched) -> None:
    """The report says how long the mark has waited, how much expires, who is responsible, and what to do. The report
    itself is what the sensor remembers: if its cursor is lost, it doesn't report the mark again."""
    before, name = watched.cursor, watched.lake.name
    watched.settings["owners"] = "data-platform, ada@example.com"
    watched.lake.add_mark()
    key = watched.finish()

    assert watched.tick() == f"Reported: {key}."
    [report] = watched.reports()
    assert report[REMINDER] == "1 hour"
    assert (report["objects"], report["bytes"]) == (len(ADDRESSES), len(ADDRESSES))
    assert report["owners"] == "data-platform, ada@example.com"
    assert (report["review"], report["approve"]) == (f"lakegc review {name} m1", f"lakegc approve {name} m1")
    assert watched.tick() == "No mark was reported."
    watched.cursor = before
    watched.tick()
    assert len(watched.reports()) == 1


def test_a_mark_is_not_reported_before_it_has_waited_long_enough(watched: Watched) -> None:
    """By default, a mark is reported after two days. The sensor remembers it until then; it may be approved in the
    meantime."""
    watched.settings = {}
    watched.lake.add_mark()
    watched.finish()
    watched.tick()
    assert watched.reports() == []

    watched.settings = {"approval_reminder": "0"}
    watched.tick()
    assert len(watched.reports()) == 1


@pytest.mark.parametrize("separator", [":", "|"])
def test_a_sensor_that_is_turned_on_begins_with_the_newest_mark_of_each_repository(
    watched: Watched, separator: str
) -> None:
    """Otherwise, a year of marks that nobody approved would fill the page. The oldest marks may have the partition keys
    of an earlier version."""
    watched.lake.add_mark(mark_id="m0")
    watched.lake.add_mark()
    earlier = watched.finish(f"{watched.lake.name}{separator}m0")
    key = watched.finish()
    watched.cursor = None

    said = watched.tick()
    assert key in said
    assert earlier not in said


def approve_until_now(lake: Lake) -> None:
    lake.add_mark()
    lake.approve(until=lake.now + timedelta(milliseconds=50))
    while lake.state() == "approved":
        pass  # at most as long as the approval


def swept(lake: Lake) -> None:
    mark = lake.add_mark()
    lake.place.store().write(mark.key, replace(lake.record(), state=MarkState.SWEPT).to_json())


@pytest.mark.parametrize(
    ("prepare", "reported"),
    [
        (lambda lake: [lake.add_mark(), lake.approve()], False),
        (lambda lake: [lake.add_mark(), lake.approve(), lake.revoke()], True),
        (approve_until_now, True),
        (swept, False),
        (lambda lake: lake.add_mark([]), False),
        (lambda lake: lake.add_mark(repository_created=lake.finished), False),
        (lambda _: None, False),
    ],
    ids=["approved", "revoked", "approval expired", "swept", "empty", "of a deleted repository", "missing"],
)
def test_only_marks_that_still_wait_for_an_approval_are_reported(
    watched: Watched, prepare: Callable[[Lake], object], reported: bool
) -> None:
    """The namespace decides, whatever Dagster shows. No mark is checked twice."""
    prepare(watched.lake)
    watched.finish()
    watched.tick()

    assert bool(watched.reports()) == reported
    assert json.loads(watched.cursor or "")["finished"] == {}


def test_an_unusable_partition_key_does_not_hold_up_other_marks(watched: Watched) -> None:
    """Anyone can report a materialization for an arbitrary text."""
    watched.finish("nonsense")
    watched.finish("ghost:m1")
    watched.lake.add_mark()
    key = watched.finish()

    assert watched.tick() == f"Reported: {key}."
    assert json.loads(watched.cursor or "")["finished"] == {}


def test_a_mark_that_cannot_be_read_now_is_reported_later(watched: Watched) -> None:
    watched.lake.add_mark()
    watched.finish()
    watched.lake.sandbox.fail(watched.lake.name, 503)
    try:
        watched.tick()
    finally:
        watched.lake.sandbox.fail(watched.lake.name, None)
    assert watched.reports() == []

    watched.tick()
    assert len(watched.reports()) == 1
