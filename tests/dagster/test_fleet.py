"""What the UI shows about the whole fleet: which repositories are overdue, and which deployment made a mark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import dagster as dg
import pytest

from lakegc_assets.definitions import defs
from lakegc_assets.jobs import freshness_job, mark_job
from lakegc_assets.mark.changed_rules import changed_rules
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.mark import Mark
from spark_resources.model import Rules
from tests.approval.conftest import Lake
from tests.support.leases import hold_lease
from tests.support.mark_runs import environment, resources


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def report(instance: dg.DagsterInstance, asset: str, key: str, **metadata: int) -> None:
    instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=key, metadata=metadata))


def freshness(
    sandbox: Sandbox, instance: dg.DagsterInstance, fleet: list[str], **settings: str
) -> dict[str, dg.AssetCheckEvaluation]:
    """The checks of the fleet, which consists of these repositories."""
    with environment({**sandbox.settings, "repositories_include": ",".join(fleet), **settings}):
        result = defs.resolve_job_def(freshness_job.name).execute_in_process(instance=instance)
    return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}


def test_a_repository_without_a_recent_mark_is_reported(lake: Lake, instance: dg.DagsterInstance) -> None:
    """Marks of other repositories, and materializations that somebody reported for arbitrary texts, don't count."""
    report(instance, "expired_set", f"{lake.name}:m1")
    report(instance, "expired_set", "nonsense")
    new = lake.sandbox.create(f"{lake.name}-new").id
    assert freshness(lake.sandbox, instance, [lake.name])["marks_are_recent"].passed

    late = freshness(lake.sandbox, instance, [lake.name, new])["marks_are_recent"]
    assert (late.passed, late.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (late.description or "").startswith(f"{new}: no mark yet\nCheck that the schedule")
    old = freshness(lake.sandbox, instance, [lake.name], mark_max_age="0")["marks_are_recent"]
    assert (old.description or "").startswith(f"{lake.name}: the newest mark is")


@pytest.mark.parametrize(
    ("expired", "swept", "expected"),
    [
        (0, False, ""),
        (2, False, "2 objects are expired, and the repository has never been swept"),
        (2, True, "the last sweep was"),
    ],
)
def test_a_repository_with_expired_objects_is_reported_if_it_has_no_recent_sweep(
    lake: Lake, instance: dg.DagsterInstance, expired: int, swept: bool, expected: str
) -> None:
    report(instance, "expired_set", f"{lake.name}:m1", expired=9)
    report(instance, "expired_set", f"{lake.name}:m2", expired=expired)
    if swept:
        report(instance, "sweep_report", f"{lake.name}:m1")

    assert freshness(lake.sandbox, instance, [lake.name])["sweeps_are_recent"].passed
    late = freshness(lake.sandbox, instance, [lake.name], sweep_max_age="0")["sweeps_are_recent"]
    assert late.passed == (not expected)
    assert expected in (late.description or "")


# --- two deployments ------------------------------------------------------------------------------------------------


def mark_while_another_deployment_does(
    lake: Lake, instance: dg.DagsterInstance, tags: Mapping[str, str]
) -> dg.ExecuteInProcessResult:
    key = f"{lake.name}:20261121T030000Z"
    hold_lease(lake.place.store(), "20261121T030000Z")
    instance.add_dynamic_partitions("repository_and_mark", [key])
    job = dg.Definitions(assets=defs.assets, asset_checks=defs.asset_checks, jobs=defs.jobs, resources=resources())
    with environment(lake.sandbox.settings):
        return job.resolve_job_def(mark_job.name).execute_in_process(
            instance=instance, partition_key=key, tags=dict(tags), raise_on_error=False
        )


@pytest.mark.parametrize("tag", ["dagster/schedule_name", "dagster/sensor_name"])
def test_an_automatic_run_of_a_mark_that_another_deployment_is_making_says_so_and_does_not_fail(
    lake: Lake, instance: dg.DagsterInstance, tag: str
) -> None:
    """Both deployments have the same fleet file, and therefore the same times. The mark of the other one counts."""
    result = mark_while_another_deployment_does(lake, instance, {tag: "mark_repositories"})

    assert result.success
    assert not [event for event in result.all_events if event.is_step_materialization]
    [said] = [event for event in result.all_events if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION][:1]
    description = said.asset_observation_data.asset_observation.description or ""
    assert description.startswith("This automatic mark was not made: someone is working on")
    assert Mark.exists(lake.place, "20261121T030000Z") is False


def test_a_mark_that_a_person_started_fails_while_another_run_holds_the_lease(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    assert not mark_while_another_deployment_does(lake, instance, {}).success


# --- changed rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Rules(30, {"dev": 7}), Rules(30, {"dev": 7}), None),
        (Rules(30, {"dev": 7}), Rules(7, {"main": 1}), "default: 30 days → 7 days; dev: 7 days → the default; main: "),
        (None, Rules(7), "none → default 7 days"),
    ],
)
def test_the_retention_rules_are_described_only_if_they_have_changed(
    lake: Lake, before: Rules | None, after: Rules, expected: str | None
) -> None:
    lake.add_mark(mark_id="m0", rules=before)
    mark = lake.add_mark(rules=after, previous={"mark_id": "m0", "unreadable": []})

    sentence = changed_rules(mark)
    if expected is None:
        assert sentence is None
    else:
        assert (sentence or "").startswith("The retention rules have changed on the server since mark m0: " + expected)


def test_no_rule_changes_are_described_for_the_first_mark(lake: Lake) -> None:
    assert changed_rules(lake.add_mark()) is None


def test_rule_changes_are_described_as_unknown_if_the_previous_mark_is_missing(lake: Lake) -> None:
    mark = lake.add_mark(previous={"mark_id": "m0", "unreadable": []})
    assert "since mark m0 is unknown: there is no mark m0" in (changed_rules(mark) or "")
