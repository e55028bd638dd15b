"""Approvals in Dagster's UI: the job `approve` approves a mark; an event that is reported by hand approves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from lakegc_assets.assets.approval_events import MANUAL_EVENT_ADVICE
from lakegc_assets.assets.review import APPROVAL
from lakegc_assets.cli.dagster_runs import run_sweep
from lakegc_assets.definitions import defs
from lakegc_assets.jobs import APPROVE_TEMPLATE, APPROVED_IN_UI, approve_job
from lakegc_assets.partitions import PARTITIONS
from lakegc_assets.sensors.approvals import approved_sweeps
from spark_resources.errors import Refused
from spark_resources.model import MarkState, Partition
from tests.approval.conftest import Lake
from tests.support.finished_marks import COUNTS
from tests.support.mark_runs import environment, resources

LOCATION = defs.get_repository_def()


def approve(instance: dg.DagsterInstance, lake: Lake, **config: Any) -> dg.ExecuteInProcessResult:
    """Launch the job for the mark m1, as the UI does."""
    key = f"{lake.name}:m1"
    instance.add_dynamic_partitions(str(PARTITIONS.name), [key])
    with environment(lake.sandbox.settings):
        return defs.resolve_job_def(approve_job.name).execute_in_process(
            instance=instance,
            partition_key=key,
            run_config={"ops": {"give_approval": {"config": config}}},
            raise_on_error=False,
        )


def refusal(result: dg.ExecuteInProcessResult) -> str:
    """The sentence that a failed run shows."""
    [failed] = [event for event in result.all_events if event.is_step_failure]
    failure = failed.step_failure_data.user_failure_data
    assert failure is not None, failed.step_failure_data.error
    return failure.description or ""


def events(instance: dg.DagsterInstance, lake: Lake) -> list[Mapping[str, Any]]:
    """The metadata of the events of `sweep_approval` for the mark."""
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=APPROVAL, asset_partitions=[f"{lake.name}:m1"]), limit=10
    ).records
    materializations = [record.asset_materialization for record in records]
    return [
        {name: value.value for name, value in event.metadata.items()} for event in materializations if event is not None
    ]


def test_the_job_approves_the_set_whose_digest_is_given(lake: Lake, instance: dg.DagsterInstance) -> None:
    """The approval is written to the namespace. Its event shows the digest, counts, bytes, released brakes and when the
    approval ends."""
    digest = lake.add_mark().record.digest
    assert digest is not None

    assert approve(instance, lake, by="Ada", digest=digest[:12]).success
    approval = lake.approval()
    assert approval is not None
    assert (approval.who, approval.how, approval.digest) == ("Ada", APPROVED_IN_UI, digest)
    assert lake.record().state is MarkState.APPROVED
    [event] = events(instance, lake)
    counts = lake.record().counts
    assert event["digest"] == digest[:12]
    assert (event["objects"], event["bytes"]) == (counts["expired"], counts["expired_bytes"])
    assert event["ends"] == approval.until.timestamp()


def test_the_event_of_an_approval_shows_each_release_with_its_reason(lake: Lake, instance: dg.DagsterInstance) -> None:
    """The history shows why a brake was released."""
    digest = str(lake.add_mark(counts={**COUNTS, "expired": 60_000}).record.digest)

    assert approve(instance, lake, by="Ada", digest=digest, release={"share": "old trials"}).success

    [event] = events(instance, lake)
    assert (event["by"], event["released.share"]) == ("Ada", "old trials")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"by": "", "digest": "{digest}"}, "the approver's name is missing"),
        ({"by": "Ada", "digest": ""}, "at least the first 12 characters"),
        ({"by": "Ada", "digest": "ffffffffffff"}, "which identifies a different set"),
        ({"by": "Ada", "digest": "{digest}", "release": {"jumps": "so"}}, "there is no brake 'jumps'"),
        ({"by": "Ada", "digest": "{digest}", "release": {"jump": "so"}}, "has not tripped"),
    ],
)
def test_a_run_with_an_invalid_config_fails_and_approves_nothing(
    lake: Lake, instance: dg.DagsterInstance, config: dict[str, Any], why: str
) -> None:
    """The run fails with the reason; nothing is approved, and no event is reported."""
    digest = lake.add_mark().record.digest
    wrong_config = {**config, "digest": config["digest"].replace("{digest}", str(digest))}

    result = approve(instance, lake, **wrong_config)

    assert not result.success
    assert why in refusal(result)
    assert lake.approval() is None
    assert lake.record().state is MarkState.MARKED
    assert events(instance, lake) == []


def test_a_swept_mark_is_not_approved_a_second_time(lake: Lake, instance: dg.DagsterInstance) -> None:
    """The run fails at once, and reports no event that would make the sensor start a second sweep."""
    mark = lake.add_mark()
    digest = str(mark.record.digest)
    assert approve(instance, lake, by="Ada", digest=digest).success
    lake.place.store().write(mark.key, replace(lake.record(), state=MarkState.SWEPT).to_json())

    result = approve(instance, lake, by="Bob", digest=digest)

    assert not result.success
    assert "the approval of mark m1" in refusal(result)
    assert "has been used" in refusal(result)
    assert [event["by"] for event in events(instance, lake)] == ["Ada"]


def test_the_launchpad_leaves_the_fields_of_an_approval_empty() -> None:
    """The approver has to type the name and digest: the template of a partition leaves them empty."""
    config = defs.resolve_job_def(approve_job.name).partitioned_config
    assert config is not None
    assert config.get_run_config_for_partition_key("lake:m1").items() >= APPROVE_TEMPLATE.items()


def test_an_event_reported_by_hand_approves_nothing(lake: Lake, instance: dg.DagsterInstance) -> None:
    """Anyone with access to the UI can report any event. No sweep is requested, and none would begin."""
    key = f"{lake.name}:m1"
    lake.add_mark()
    instance.add_dynamic_partitions(str(PARTITIONS.name), [key])
    records = instance.fetch_materializations(APPROVAL, limit=1).records
    cursor = str(records[0].storage_id) if records else None
    instance.report_runless_asset_event(dg.AssetMaterialization(APPROVAL, partition=key, description="by Ada"))

    with dg.build_sensor_context(
        cursor=cursor, repository_def=LOCATION, instance=instance, instance_ref=instance.get_ref()
    ) as context:
        tick = approved_sweeps.evaluate_tick(context)

    assert tick.run_requests == []
    assert MANUAL_EVENT_ADVICE in str(tick.skip_message)
    [advice] = instance.fetch_observations(APPROVAL, limit=1).records
    assert advice.asset_observation is not None
    assert advice.asset_observation.description == MANUAL_EVENT_ADVICE
    with environment(lake.sandbox.settings), pytest.raises(Refused, match="is not approved"):
        run_sweep(Partition(lake.name, "m1"), {}, instance=instance, resources=resources())
    assert lake.approval() is None


def test_the_sensor_requests_the_sweep_of_an_approved_mark(lake: Lake, instance: dg.DagsterInstance) -> None:
    """The sensor requests a single run, for the approval's partition."""
    digest = lake.add_mark().record.digest
    records = instance.fetch_materializations(APPROVAL, limit=1).records
    assert approve(instance, lake, by="Ada", digest=str(digest)).success

    with dg.build_sensor_context(
        cursor=str(records[0].storage_id) if records else None,
        repository_def=LOCATION,
        instance=instance,
        instance_ref=instance.get_ref(),
    ) as context:
        tick = approved_sweeps.evaluate_tick(context)

    assert [request.partition_key for request in tick.run_requests or []] == [f"{lake.name}:m1"]
